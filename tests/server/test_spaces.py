"""What a served user is offered: the tools that an agent's row names, and no others."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import ModelNotFound, StorageUnavailable
from vibe_llms.conversations.hosts import ENSEMBLES
from vibe_llms.documents.core import produce_documents
from vibe_llms.messages.contents import FileContent
from vibe_llms.opening import open_session
from vibe_llms.server.failures import Rejected
from vibe_llms.server.settings import read_server_settings
from vibe_llms.server.spaces import UserSpace, UserSpaces

#: Rows of the operator, which may be anything that runs code or reads files.
ROWS = f"""
[{ENSEMBLES}.shell]
module = "vibe_llms.documents.ensemble"

[{ENSEMBLES}.documents-of-mine]
module = "vibe_llms.documents.ensemble"

[agents.named]
model = "scripted/demo"
optional-ensembles = ["shell"]

[agents.starred]
model = "scripted/demo"
optional-ensembles = ["*"]

[agents.bare]
model = "scripted/demo"

[agents.brief]
prompt = "Briefly, in $tone words: $input"
defaults.tone = "plain"

[agents.translator]
prompt = "Translate to $language: $input"
"""


@pytest.fixture
def configured(home: Path) -> None:
    """A server's configuration with rows of its operator."""
    home.mkdir()
    (home / "config.toml").write_text(ROWS)


async def survey_offered(session: Any, **chosen: str) -> Sequence[str]:
    """The ensembles that a conversation has."""
    conversation = await session.begin(**chosen)
    return [one.name for one in conversation.settings.toolbox.ensembles]


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("user", ["local", "ada"])
async def test_served_users_get_the_tools_that_the_agent_names(user: str) -> None:
    configuration = load_configuration()
    spaces = UserSpaces(configuration, read_server_settings(configuration))
    with spaces.enter(user) as space:
        offered = [
            await survey_offered(space.session, **chosen)
            for chosen in ({"agent": "named"}, {"agent": "starred"}, {"agent": "bare"}, {})
        ]
        general = await survey_offered(space.session, agent="general", model="scripted/demo")
    await spaces.close()
    assert offered == [["shell"], [], [], []]
    assert not {"shell", "documents-of-mine"} & {*general}


@pytest.mark.parametrize("user", ["local", "ada"])
async def test_an_agent_of_any_user_searches_the_collections_of_the_server(
    user: str, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "harbour.txt").write_text("The keeper of the lighthouse is Ada Moen.")
    home.mkdir()
    (home / "config.toml").write_text(
        '[agents.librarian]\nmodel = "scripted/demo"\ncollections = ["papers"]\n'
    )
    configuration = load_configuration()
    documents = produce_documents(configuration, lambda _: None)
    await documents.store.add_to_collection("papers", [tmp_path / "papers"])
    await documents.store.refresh("papers", documents.reader)
    await documents.close()
    spaces = UserSpaces(configuration, read_server_settings(configuration))
    with spaces.enter(user) as space:
        conversation = await space.session.begin(agent="librarian")
        own = FileContent(b"The lighthouse is white.", "text/plain", "own.txt")
        turn = await conversation.converse("Search document 'the lighthouse'")
        found = await space.session.access_documents().find("lighthouse", [own], ["papers"])
    await spaces.close()
    assert "Ada Moen" in turn.text
    assert {one.name for one in found} == {"harbour.txt", "own.txt"}


@pytest.mark.usefixtures("configured")
async def test_an_agent_that_needs_variables_is_not_offered() -> None:
    configuration = load_configuration()
    spaces = UserSpaces(configuration, read_server_settings(configuration))
    with spaces.enter("ada") as space:
        models = await space.survey_models()
        with pytest.raises(ModelNotFound):
            await space.resolve_model("translator")
    await spaces.close()
    assert "brief" in models
    assert "translator" not in models


@pytest.mark.usefixtures("configured")
async def test_a_space_that_cannot_be_closed_leaves_the_others_time_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configuration = load_configuration()
    spaces = UserSpaces(configuration, read_server_settings(configuration))
    closed: list[str] = []

    async def fail() -> None:
        closed.append("ada")
        raise StorageUnavailable("it cannot be closed")

    async def wait() -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        closed.append("bob")

    async def close_limiters() -> None:
        closed.append("limiters")

    with spaces.enter("ada") as ada, spaces.enter("bob") as bob:
        monkeypatch.setattr(ada, "close", fail)
        monkeypatch.setattr(bob, "close", wait)
        monkeypatch.setattr(spaces.limiters, "close", close_limiters)
    with pytest.raises(StorageUnavailable, match="it cannot be closed"):
        await spaces.close()
    assert closed == ["ada", "bob", "limiters"]


@pytest.mark.usefixtures("configured")
async def test_a_star_stands_for_all_rows_of_a_user_at_the_command_line() -> None:
    async with open_session() as session:
        offered = await survey_offered(session, agent="starred")
    assert {*offered} == {"shell", "documents-of-mine"}


def produce_spaces(home: Path, **server: Any) -> UserSpaces:
    """The spaces of a server with a home of its own."""
    configuration = load_configuration(
        Places.under(home),
        overrides={"server": server},
    )
    return UserSpaces(configuration, read_server_settings(configuration))


async def test_a_name_that_several_providers_have_means_none_of_them(home: Path) -> None:
    spaces = produce_spaces(home)
    with spaces.enter("ada") as space:
        space._listed = dict.fromkeys(("scripted/same", "other/same", "scripted/own"))
        space._listed_until = math.inf
        assert await space.resolve_model("own") == (None, "scripted/own")
        assert await space.resolve_model("other/same") == (None, "other/same")
        for name in ("same", "none", "scripted/none", ""):
            with pytest.raises(ModelNotFound):
                await space.resolve_model(name)
    await spaces.close()


async def test_an_alias_is_known_before_any_provider_is_asked(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('[aliases]\nfast = "scripted/demo"\n')
    spaces = produce_spaces(home)

    async def survey_models(name: str) -> object:
        raise AssertionError(f"{name} was asked")

    with spaces.enter("ada") as space:
        with monkeypatch.context() as patch:
            patch.setattr(space.session, "survey_models", survey_models)
            assert await space.resolve_model("fast") == (None, "fast")
        assert "scripted/demo" in await space.survey_models()
    await spaces.close()


async def test_nothing_is_remembered_with_the_key_of_a_caller(home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        '[memory]\nenabled = true\n[providers.theirs]\ncredential = "caller"\n'
        'module = "vibe_llms.providers.openai.chat_completions"\n'
    )
    spaces = produce_spaces(home)
    with spaces.enter("ada") as space:
        assert space.uses_memory(None, "theirs/gpt") is False
        assert space.uses_memory(None, "scripted/demo") is True
    await spaces.close()


async def test_a_space_is_closed_once_nobody_has_been_in_it_for_a_while(home: Path) -> None:
    spaces = produce_spaces(home, **{"idle-seconds": 0.001})
    loop, closed = asyncio.get_running_loop(), list[UserSpace]()

    async def close(space: UserSpace) -> None:
        closed.append(space)
        await ends(space)

    ends = UserSpace.close
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UserSpace, "close", close)
        with spaces.enter("ada") as first:
            pass
        # Entered again before it is left for good: its end is put off.
        with spaces.enter("ada") as again:
            assert again is first
            with spaces.enter("ada") as inner:
                assert inner is first
            await pass_timers(loop)
            assert closed == []
        async with asyncio.timeout(30):
            while not closed or spaces._closing:
                await asyncio.sleep(0)
        assert closed == [first]
        with spaces.enter("ada") as new:
            assert new is not first
            assert not new.session.configuration.offline
        await spaces.close()
        assert closed == [first, new]


async def test_a_space_stays_open_while_a_run_of_its_user_goes_on(home: Path) -> None:
    spaces = produce_spaces(home, **{"idle-seconds": 0.001})
    busy = {"ada"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(spaces.worker), "users", property(lambda _: busy))
        with spaces.enter("ada"):
            pass
        await pass_timers(asyncio.get_running_loop())
        assert "ada" in spaces._spaces
        busy.clear()
        async with asyncio.timeout(30):
            while "ada" in spaces._spaces:
                await asyncio.sleep(0)
    await spaces.close()


async def pass_timers(loop: asyncio.AbstractEventLoop) -> None:
    """Wait until what is due within a few milliseconds has run."""
    passed = asyncio.Event()
    loop.call_later(0.01, passed.set)
    await passed.wait()


@pytest.mark.parametrize(
    ("counted", "limit", "code"),
    [("turn", "user-turns", "too_many_turns"), ("following", "user-streams", "too_many_streams")],
)
async def test_so_many_at_once_are_counted_and_no_more(
    home: Path, counted: str, limit: str, code: str
) -> None:
    spaces = produce_spaces(home, **{limit: 2})
    with spaces.enter("ada") as space, spaces.enter("bob") as other:
        one = getattr(space, counted)
        with one(), getattr(other, counted)():
            with one():
                assert spaces.running == (3 if counted == "turn" else 0)
                with pytest.raises(Rejected) as caught, one():
                    pytest.fail("a third was let in")
            with one():
                pass
        assert (caught.value.failure.code, caught.value.failure.status) == (code, 429)
        assert spaces.running == 0
    await spaces.close()


async def test_what_is_removed_while_contents_are_collected_is_collected_too(home: Path) -> None:
    spaces = produce_spaces(home)
    with spaces.enter("ada") as space, pytest.MonkeyPatch.context() as patch:
        collected, going = list[int](), asyncio.Event()

        async def collect() -> None:
            collected.append(len(collected))
            await going.wait()
            if len(collected) == 2:
                raise StorageUnavailable("it cannot be read")

        patch.setattr(space.archive, "collect", collect)
        for _ in range(3):
            space.collect_later()
            await asyncio.sleep(0)
        assert collected == [0]
        going.set()
        assert space._collecting is not None
        await space._collecting
        assert collected == [0, 1]
        space.collect_later()
        await space._collecting
        assert collected == [0, 1, 2]
    await spaces.close()
