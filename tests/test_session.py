"""The composition root: configuration, providers and archive, opened and closed as one."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.fakes.anthropic import KEY, FakeAnthropic
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ControlInvalid,
    ConversationAmbiguous,
    ConversationNotFound,
    CredentialMissing,
    ModelNotFound,
    RegistrationError,
    SessionClosed,
)
from vibe_llms.messages.canisters import SupervisorCanister, UserCanister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.opening import open_session
from vibe_llms.session.core import Session
from vibe_llms.session.parts import SessionParts
from vibe_llms.testing import ScriptedReply, scripted_model
from vibe_llms.testing.wires.anthropic_replies import text_reply

DEMO = "scripted/demo"


async def test_the_default_home_is_the_users_own_and_another_can_be_given(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_session() as session:
        conversation = await session.begin(DEMO)
        await conversation.converse("Hello!")
    assert (home / "conversations" / conversation.identity / "messages.jsonl").exists()
    monkeypatch.chdir(tmp_path)
    for other in ("here", tmp_path / "there", "~/elsewhere"):
        async with open_session(home=other) as session:
            assert await session.survey_conversations() == []
            await (await session.begin(DEMO)).converse("Hello!")
    for folder in ("here", "there", "elsewhere"):
        assert len(list((tmp_path / folder / "conversations").iterdir())) == 1


async def test_a_configuration_is_laid_over_the_users_own_or_replaces_it(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[stream]\nretries = 5\n[aliases]\nme = 'scripted/demo'\n")
    async with open_session(configuration={"stream": {"idle-seconds": 9}}) as session:
        assert session.configuration.stream.retries == 5
        assert session.configuration.stream.idle_seconds == 9
        assert (await session.access_model("me")).name == "demo"
    other = load_configuration(Places(home / "x", home / "x", home / "x"), environment={})
    async with open_session(configuration=other) as session:
        assert session.configuration is other
        assert session.configuration.stream.retries == 2


async def test_without_saving_nothing_is_on_the_disk(home: Path) -> None:
    async with open_session() as session:
        conversation = await session.begin(DEMO, supervisor="Be brief.", save=False)
        await conversation.converse("Hello!")
        await conversation.add("And?")
        fork = await conversation.fork()
        await fork.converse()
        await fork.undo()
        await conversation.rename("name")
        await conversation.switch(DEMO)
    assert not (home / "conversations").exists() or not list((home / "conversations").iterdir())
    assert not (home / "content").exists() or not list((home / "content").iterdir())


async def test_without_saving_stored_messages_are_sent_whole() -> None:
    long = "Which boat? " * 500
    model = scripted_model(["The blue one."])
    async with open_session() as session:
        stored = await session.begin("scripted/demo", name="boats")
        await stored.converse(long)
        history = (await session.resume("boats")).canisters
        assert isinstance(history[0], UserCanister)
        assert isinstance(getattr(history[0].contents[0], "data", None), Reference)
        trial = await session.begin(model, history=history[:1], save=False)
        await (await trial.fork()).converse()
        assert len(await session.survey_conversations()) == 1
    assert long in json.dumps(model.requests[0], default=str)


async def test_a_conversation_is_stored_with_its_first_turn(home: Path) -> None:
    async with open_session() as session:
        conversation = await session.begin(
            DEMO, supervisor="Be brief.", name="talk", tags=("a", "b"), history=["Earlier.", "x"]
        )
        assert await session.survey_conversations() == []
        await conversation.converse("Hello!")
        (summary,) = await session.survey_conversations(tag="a")
        assert (summary.identity, summary.name) == (conversation.identity, "talk")
        assert (summary.tags, summary.model, summary.messages) == (("a", "b"), DEMO, 4)
        assert await session.survey_conversations(tag="none") == []
        (finding,) = await session.search("earlier")
        assert finding.conversation == conversation.identity
        first = (await session.archive.restore(conversation.identity)).canisters[0]
        assert isinstance(first, SupervisorCanister)
        reference = first.contents[0].data  # type: ignore[union-attr]
        assert isinstance(reference, Reference)
        assert await session.load(reference) == b"Be brief."
        await session.remove("talk")
        assert await session.survey_conversations() == []


async def test_lone_surrogates_in_the_instructions_are_replaced() -> None:
    async with open_session() as session:
        model = scripted_model(["Hi"])
        conversation = await session.begin(model, supervisor="a\ud800")
        await conversation.converse("Hello")
        assert model.requests[0]["messages"][0]["contents"][0]["text"] == "a\ufffd"


async def test_a_stored_conversation_is_resumed_by_identity_prefix_or_name() -> None:
    async with open_session() as session:
        conversation = await session.begin(DEMO, name="talk")
        await conversation.converse("Hello!")
        other = await session.begin(DEMO)
        await other.converse("Hello!")
    async with open_session() as session:
        for text in (conversation.identity, conversation.identity[:5], "talk"):
            again = await session.resume(text)
            assert again.identity == conversation.identity
            assert again.canisters == conversation.canisters
            assert again.model.name == "demo"
        assert (await again.converse("What can you do?")).text
        with pytest.raises(ConversationNotFound, match="vibe-llms list"):
            await session.resume("nothing")
        with pytest.raises(ConversationNotFound):
            await session.resume(conversation.identity[:3])
        twin = await session.resume(other.identity)
        await twin.rename("talk")
        with pytest.raises(ConversationAmbiguous) as caught:
            await session.resume("talk")
        assert set(caught.value.candidates) == {conversation.identity, other.identity}


async def test_another_model_given_to_a_resumed_conversation_is_kept(home: Path) -> None:
    home.mkdir()
    (home / "s.toml").write_text('[[replies]]\nparts = [{ text = "x" }]\nwhen = "."\n')
    scripts = {"providers": {"scripted": {"scripts": {"mine": "s.toml"}}}}
    async with open_session(configuration=scripts) as session:
        conversation = await session.begin(DEMO)
        await conversation.converse("Hello!")
        again = await session.resume(conversation.identity, model="scripted/mine")
        assert (await again.converse("a")).text == "x"
        details = (await session.archive.restore(conversation.identity)).details
        assert details.model == "scripted/mine"
        same = await session.resume(conversation.identity, model="scripted:mine")
        assert same.model.name == "mine"


async def test_repairs_are_reported_when_a_conversation_is_resumed(home: Path) -> None:
    async with open_session() as session:
        conversation = await session.begin(DEMO)
        await conversation.converse("Hello!")
        lines = home / "conversations" / conversation.identity / "messages.jsonl"
        lines.write_bytes(lines.read_bytes() + b'{"role":"assis')
        for keep in ("session", "call"):
            events: list[Event] = []
            if keep == "session":
                session.event_handler = events.append
                await session.resume(conversation.identity)
            else:
                await session.resume(conversation.identity, event_handler=events.append)
            assert [e.notice.subject for e in events if isinstance(e, NoticeEvent)] == ["repair"]
            assert events[0].conversation == conversation.identity


# Models.

ROWS = """
default-model = "fast"
[aliases]
fast = "scripted/demo"
lost = "nowhere/model"
bare = "scripted"
[providers.scripted-too]
module = "vibe_llms.providers.scripted"
credential = "none"
[providers.off]
module = "vibe_llms.providers.scripted"
enabled = false
[providers.broken]
module = "no_such_module"
credential = "none"
"""


async def with_rows(home: Path, text: str = ROWS) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)


@pytest.mark.parametrize(
    ("name", "row", "model"),
    [
        ("scripted/demo", "scripted", "demo"),
        ("scripted:demo", "scripted", "demo"),
        ("fast", "scripted", "demo"),
        ("bare", "scripted", "demo"),
        ("scripted", "scripted", "demo"),
        ("scripted-too/demo", "scripted-too", "demo"),
        ("anthropic", "anthropic", "claude-sonnet-5-5"),
        ("anthropic/a/b:c", "anthropic", "a/b:c"),
        ("anthropic:a/b", "anthropic", "a/b"),
    ],
)
async def test_a_model_is_found_by_its_address_or_an_alias(
    home: Path, name: str, row: str, model: str
) -> None:
    await with_rows(home)
    async with open_session() as session:
        found, rest = session.locate_model(name)
        assert (found.name, rest) == (row, model)
        accessed = await session.access_model(name)
        assert (accessed.provider, accessed.name) == (row, model)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nowhere/model",
            "'nowhere/model': provider 'nowhere' not found; see: vibe-llms providers",
        ),
        ("lost", r"\(from the alias 'lost'\)"),
        ("off/demo", "model 'off/demo' not found; did you mean scripted/demo"),
        ("scripted-too", "model 'scripted-too' not found; write provider/model"),
        ("scriptd/x", "provider 'scriptd' not found; did you mean 'scripted'"),
        ("", "no model is given"),
        ("scripted/", "no script ''"),
        ("anthropic/", "which model"),
    ],
)
async def test_a_model_that_is_unknown_is_reported(home: Path, name: str, message: str) -> None:
    await with_rows(home)
    async with open_session() as session:
        with pytest.raises(ModelNotFound, match=message):
            await session.access_model(name)


async def test_a_row_without_its_module_breaks_only_itself(home: Path) -> None:
    await with_rows(home)
    async with open_session() as session:
        with pytest.raises(RegistrationError, match="no_such_module"):
            await session.access_model("broken/x")
        statuses = {status.name: status for status in session.survey_providers()}
        rows = {"anthropic", "openai", "ollama", "scripted", "scripted-too", "broken"}
        assert rows <= set(statuses)
        assert "no_such_module" in statuses["broken"].problem
        assert statuses["scripted"].problem == ""
        models = await session.survey_models()
        assert [(model.provider, model.name) for model in models] == [
            ("scripted", "demo"), ("scripted-too", "demo")
        ]  # fmt: skip
        assert [model.name for model in await session.survey_models("scripted")] == ["demo"]
        with pytest.raises(ModelNotFound, match="provider 'none' not found"):
            await session.survey_models("none")


async def test_without_a_model_the_configured_one_is_used(home: Path) -> None:
    await with_rows(home)
    async with open_session(keys={"anthropic": KEY}) as session:
        assert session.choose_model() == ("fast", "")
        assert (await session.begin()).model.name == "demo"


async def test_else_that_of_the_first_row_whose_key_is_set(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_rows(home, "[providers.keyless]\nmodule = 'm'\ndefault-model = 'd'\n")
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    async with open_session() as session:
        assert session.choose_model() == ("anthropic/claude-sonnet-5-5", "")


async def test_else_the_scripted_one_and_that_is_said() -> None:
    events: list[Event] = []
    async with open_session(event_handler=events.append) as session:
        model, note = session.choose_model()
        assert model == DEMO
        assert "choose a model with -m" in note
        conversation = await session.begin()
        assert conversation.model.name == "demo"
        once: list[Event] = []
        await session.begin(event_handler=once.append)
        await session.begin(DEMO)
    assert [e.notice.subject for e in events if isinstance(e, NoticeEvent)] == ["model"]
    assert len(once) == 1


async def test_a_key_that_is_missing_is_reported_when_it_is_needed() -> None:
    async with open_session() as session:
        conversation = await session.begin("anthropic/claude-sonnet-4-5")
        with pytest.raises(CredentialMissing, match="set ANTHROPIC_API_KEY or run: vibe-llms keys"):
            await conversation.converse("Hello")


async def test_a_key_of_the_callers_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the key from the caller"):
        async with open_session(keys={"anthropic": "two words"}):
            pass


# Controls.


async def test_controls_of_the_configuration_are_those_of_the_row_that_answers(
    home: Path,
) -> None:
    await with_rows(
        home,
        "[controls]\nseed = 1\ntop-k = 1\n[providers.scripted.controls]\ntop-k = 2\n"
        "[providers.other]\nmodule = 'vibe_llms.providers.scripted'\ncredential = 'none'\n"
        "[providers.other.controls]\ntop-k = 3\n",
    )
    async with open_session() as session:
        model: Any = await session.access_model(DEMO)
        other: Any = await session.access_model("other/demo")
        model._recording = other._recording = True
        conversation = await session.begin(model)
        await conversation.converse("a")
        await conversation.converse("a", controls=Controls(top_k=9))
        await conversation.switch(other)
        await conversation.converse("a")
        mine = await session.begin(model, controls=Controls(seed=5))
        await mine.converse("a")
    assert [request["controls"] for request in model.requests] == [
        {"seed": 1, "top-k": 2}, {"seed": 1, "top-k": 9}, {"seed": 5, "top-k": 2}
    ]  # fmt: skip
    assert other.requests[0]["controls"] == {"seed": 1, "top-k": 3}


async def test_a_control_that_the_model_does_not_take_is_an_error_before_any_request(
    fake_anthropic: FakeAnthropic,
) -> None:
    configuration = {"providers": {"anthropic": {"base-url": fake_anthropic.url}}}
    async with open_session(configuration=configuration, keys={"anthropic": KEY}) as session:
        conversation = await session.begin("anthropic/claude-sonnet-4-5")
        with pytest.raises(ControlInvalid, match="temperature"):
            await conversation.converse("a", controls=Controls(temperature=7))
        assert conversation.canisters == ()
        assert fake_anthropic.requests == []
        assert (await conversation.converse("a")).text == "Hello."


# Closing.


class Client:
    """A client that records whether it was closed, and may fail to."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.closed = 0
        self.failure = failure

    async def access_model(self, name: str) -> Any:
        return scripted_model(lambda canisters, invokers: ScriptedReply.from_chunks("Hi"))

    async def survey_models(self) -> Sequence[Any]:
        return []

    async def close(self) -> None:
        self.closed += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure


async def test_a_closed_session_refuses_everything() -> None:
    async with open_session() as session:
        conversation = await session.begin(DEMO)
    await session.close()
    attempts: list[Any] = [
        lambda: session.begin(DEMO),
        lambda: session.begin(scripted_model(["a"])),
        lambda: session.resume(conversation.identity),
        lambda: session.access_model(DEMO),
        session.survey_models,
        lambda: conversation.converse("a"),
        lambda: conversation.add("a"),
    ]
    for attempt in attempts:
        with pytest.raises(SessionClosed):
            await attempt()


async def test_a_session_that_closes_while_a_conversation_begins_refuses_it() -> None:
    class SlowClient(Client):
        async def access_model(self, name: str) -> Any:
            await answered.wait()
            return scripted_model(["a"])

    answered = asyncio.Event()
    async with open_session() as session:
        session._providers._clients["scripted"] = SlowClient()
        waiting = asyncio.ensure_future(session.begin(DEMO))
        await asyncio.sleep(0)
    answered.set()
    with pytest.raises(SessionClosed):
        await waiting


async def test_what_fails_to_close_does_not_keep_the_rest_open(home: Path) -> None:
    good, bad = Client(), Client(ZeroDivisionError())
    async with open_session() as session:
        session._providers._clients.update({"good": good, "bad": bad, "other": Client()})
        with pytest.raises(ZeroDivisionError):
            await session.close()
    assert good.closed == bad.closed == 1


async def test_closing_ends_all_turns_that_run() -> None:
    started = asyncio.Semaphore(0)

    async def hang() -> None:
        started.release()
        await asyncio.Event().wait()

    reply = {"parts": [{"invocation": "hang"}]}
    from vibe_llms.providers.scripted.scripts import produce_script

    async with open_session() as session:
        script = produce_script({"replies": [reply]}, "here")
        talks = [
            await session.begin(scripted_model(script), invokers=[hang], save=False)
            for _ in range(5)
        ]
        running = [asyncio.ensure_future(talk.converse("a")) for talk in talks]
        for _ in talks:
            await started.acquire()
    turns = await asyncio.gather(*running)
    assert {turn.stop_reason for turn in turns} == {"interrupted"}
    assert all(len(talk.canisters) == 3 for talk in talks)


# The example of the design.

EXAMPLE = """
import asyncio
from vibe_llms import MessageProgressEvent, TextChunk, open_session

def show(event: object) -> None:
    match event:
        case MessageProgressEvent(chunk=TextChunk(text)):
            print(text, end="", flush=True)

async def main() -> None:
    async with open_session(event_handler=show) as session:
        conversation = await session.begin("anthropic/claude-sonnet-4-5", supervisor="Be brief.")
        await conversation.converse("Why is the sky blue?")
        other = await conversation.fork()
        await other.converse("Explain it to a child.")

asyncio.run(main())
"""


def test_the_example_of_the_design_runs_with_the_scripted_model(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(EXAMPLE.replace("anthropic/claude-sonnet-4-5", DEMO), {"__name__": "example"})
    assert capsys.readouterr().out.count("I follow a script") == 2
    assert len(list((home / "conversations").iterdir())) == 2


def test_the_example_of_the_design_runs_as_it_is_written(
    home: Path,
    fake_anthropic: FakeAnthropic,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("VIBE_LLMS_PROVIDERS__ANTHROPIC__BASE_URL", fake_anthropic.url)
    fake_anthropic.replies = [
        text_reply("Blue light ", "is scattered more."),
        text_reply(" The air ", "throws blue about."),
    ]
    exec(EXAMPLE, {"__name__": "example"})
    said = "Blue light is scattered more. The air throws blue about."
    assert capsys.readouterr().out == said
    assert fake_anthropic.refusals == []
    first, second = [request.json for request in fake_anthropic.requests]
    assert first["system"][0]["text"] == "Be brief."
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert first["stream"] is True
    conversations = list((home / "conversations").iterdir())
    assert len(conversations) == 2
    lines = [len((one / "messages.jsonl").read_bytes().splitlines()) for one in conversations]
    assert sorted(lines) == [3, 5]


async def test_a_text_can_be_loaded_where_a_content_refers_to_it() -> None:
    async with open_session() as session:
        conversation = await session.begin(DEMO)
        await conversation.converse("long " * 1000)
        again = await session.resume(conversation.identity)
        (said,) = [one for one in again.canisters if isinstance(one, UserCanister)]
        (content,) = said.contents
        assert isinstance(content, TextualContent)
        assert isinstance(content.data, Reference)
        assert await session.load(content.data) == b"long " * 1000


def test_a_session_can_be_made_by_hand(home: Path) -> None:
    from vibe_llms.storage.archive import DirectoryArchive

    session = Session(
        SessionParts(configuration=load_configuration(), archive=DirectoryArchive(home))
    )
    names = {status.name for status in session.survey_providers()}
    assert {"anthropic", "openai", "ollama", "scripted"} <= names
    statuses = {status.name: status for status in session.survey_providers()}
    assert (statuses["anthropic"].present, statuses["scripted"].present) == (False, True)
    assert statuses["anthropic"].default_model == "claude-sonnet-5-5"


def run_python(code: str, home: Path) -> str:
    """What a program prints."""
    environment = {**os.environ, "VIBE_LLMS_HOME": str(home), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout


ENDING = """
import asyncio
from vibe_llms import Invoker, open_session
from vibe_llms.session.core import Session
close = Session.close
async def report(session):
    if not session._closed:
        print("closed")
    await close(session)
Session.close = report
"""


@pytest.mark.parametrize(
    "code",
    [
        # A script, whose loop is closed.
        "asyncio.run(main())",
        # A notebook, whose loop is stopped.
        "loop = asyncio.new_event_loop(); loop.run_until_complete(main())",
    ],
)
def test_a_session_without_a_block_is_closed_at_the_end(home: Path, code: str) -> None:
    program = f"""{ENDING}
async def main():
    global session
    session = open_session()
    assert await session is session
    assert await session is session
    conversation = await session.begin("scripted/demo")
    print((await conversation.converse("Hello!")).text[:6])
{code}
print("end")
"""
    printed = run_python(program, home).split()
    assert sorted(printed) == ["Hello!", "closed", "end"]


async def test_a_session_that_was_closed_is_not_closed_again_at_the_end(home: Path) -> None:
    session = await open_session(home=home)
    await session.close()
    await session.close()
    with pytest.raises(SessionClosed):
        await session.begin("scripted/demo")


async def test_a_turn_and_a_conversation_are_shown_in_one_short_line(home: Path) -> None:
    async with open_session(home=home) as session:
        conversation = await session.begin("scripted/demo")
        turn = await conversation.converse("What can you do?")
        shown = repr(conversation)
    assert shown == f"<Conversation {conversation.identity}: scripted/demo, 2 messages>"
    assert repr(turn).startswith("<Turn 'I am **scripted/demo**: ")
    assert repr(turn).endswith(f": {turn.usage.total_tokens} tokens, finished>")
    assert len(repr(turn)) < 120


async def test_a_notebook_shows_markdown_in_which_html_is_text(home: Path) -> None:
    model = scripted_model(["**Bold** <script>alert(1)</script>"])
    async with open_session(home=home) as session:
        conversation = await session.begin(model)
        turn = await conversation.converse("<b>Hello</b>")
        shown = conversation._repr_markdown_()
    assert turn._repr_markdown_() == "**Bold** &lt;script>alert(1)&lt;/script>"
    assert shown.split("\n\n") == ["**You**", "&lt;b>Hello&lt;/b>", turn._repr_markdown_()]


async def test_a_turn_has_its_cost(home: Path) -> None:
    async with open_session(home=home) as session:
        turn = await (await session.begin("scripted/demo")).converse("Hello!")
        assert turn.cost is not None
        assert turn.cost == session.estimate_cost(turn.canisters)
    assert replace(turn).cost is None
    assert json.loads(msgspec.json.encode(turn))["text"] == turn.text


async def test_a_session_knows_the_list_of_each_row(fake_anthropic: FakeAnthropic) -> None:
    fake_anthropic.replies = [text_reply("Hello.")]
    async with open_session(
        keys={"anthropic": fake_anthropic.key},
        configuration={"providers": {"anthropic": {"base-url": fake_anthropic.url}}},
    ) as session:
        conversation = await session.begin("anthropic/claude-sonnet-4-5")
        turn = await conversation.converse("Hello!")
        assert session.estimate_cost(turn.canisters).dollars > 0
        other = await session.begin("scripted/demo")
        free = session.estimate_cost((await other.converse("Hello!")).canisters)
    assert (free.dollars, free.unpriced) == (Decimal(0), 1)


async def test_a_misspelled_option_is_refused_as_python_refuses_it(session: Session) -> None:
    misspelled: Any = {"supervisr": "Be brief."}
    of_begin_only: Any = {"name": "other"}
    with pytest.raises(
        TypeError, match=r"begin\(\) got an unexpected keyword argument 'supervisr'"
    ):
        await session.begin("scripted/demo", **misspelled)
    conversation = await session.begin("scripted/demo")
    await conversation.converse("Hello!")
    with pytest.raises(TypeError, match=r"resume\(\) got an unexpected keyword argument 'name'"):
        await session.resume(conversation.identity, **of_begin_only)
