"""Where a served turn continues, and what is left of one that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.archives import FAST, produce_details
from tests.server.conftest import Served, serving
from vibe_llms.base.exceptions import ConversationNotFound, RequestError
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
    role_of,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.runs.run import Run
from vibe_llms.server.failures import Rejected
from vibe_llms.server.turns import check_calls, withdraw
from vibe_llms.storage.archive import DirectoryArchive

TALK = '[[replies]]\nwhen = ".*"\n[[replies.parts]]\ntext = "Hello."\n'
FAIL = '[[replies]]\nwhen = ".*"\n[[replies.parts]]\nerror = "overloaded"\n'
CUT = '[[replies]]\nwhen = ".*"\nparts = [{ text = "Hel" }, { cut = true }]\n'


def text(*words: str) -> tuple[TextualContent, ...]:
    return tuple(map(TextualContent, words))


BEFORE = UserCanister(text("Before."), identity="before")
SAID = UserCanister(text("Hello!"), identity="said")
MORE = UserCanister(text("More."), identity="more")
OTHER = UserCanister(text("Hello!"), identity="other")
REPLY = AssistantCanister(text("Hi."), identity="reply")
CALL = InvocationCanister(name="look", identity="call")


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[DirectoryArchive]:
    archive = DirectoryArchive(tmp_path / "archive", FAST)
    archive.prepare()
    yield archive
    await archive.close()


@pytest.mark.parametrize(
    ("stored", "kept", "before", "left"),
    [
        # What was said in a turn that failed goes.
        ([BEFORE, SAID], "before", "before", [BEFORE]),
        ([BEFORE, SAID, MORE], "before", "before", [BEFORE]),
        # A reply, or a call, stays with what was said before and after it.
        ([BEFORE, SAID, REPLY], "before", "before", [BEFORE, SAID, REPLY]),
        ([BEFORE, SAID, CALL], "before", "before", [BEFORE, SAID, CALL]),
        ([BEFORE, REPLY, SAID], "reply", "reply", [BEFORE, REPLY]),
        ([BEFORE], "before", "before", [BEFORE]),
        # Another request has continued the conversation first, and waits for its reply.
        ([BEFORE, OTHER], "before", "before", [BEFORE, OTHER]),
        ([BEFORE, SAID, OTHER], "before", "before", [BEFORE, SAID, OTHER]),
        # A fork, and a conversation that began with the turn, go whole.
        ([BEFORE, REPLY, SAID], "", "reply", None),
        ([BEFORE, REPLY, SAID, CALL], "", "reply", [BEFORE, REPLY, SAID, CALL]),
        ([SAID], "", "", None),
        ([SAID, REPLY], "", "", [SAID, REPLY]),
        # Without the message that it followed, it is not known what else is there.
        ([SAID, REPLY], "gone", "gone", [SAID, REPLY]),
        ([SAID], "gone", "gone", None),
    ],
)
async def test_what_was_said_is_withdrawn_unless_the_model_has_answered(
    archive: DirectoryArchive,
    stored: Sequence[Canister],
    kept: str,
    before: str,
    left: Sequence[Canister] | None,
) -> None:
    await archive.create("one", produce_details(), stored)
    await withdraw(archive, "one", kept, before, {"said", "more"})
    if left is None:
        with pytest.raises(ConversationNotFound):
            await archive.restore("one")
    else:
        found = (await archive.restore("one")).canisters
        assert [one.identity for one in found] == [one.identity for one in left]


async def test_what_is_gone_already_is_not_withdrawn(archive: DirectoryArchive) -> None:
    await withdraw(archive, "none", "", "", ())


RESULT = ResultCanister(text("seen"), invocation="call")


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        ([SAID, CALL, RESULT, SAID], True),
        ([SAID, CALL, RESULT], True),
        ([SupervisorCanister(text("Hi.")), SAID, REPLY], True),
        ([CALL, SupervisorCanister(text("Hi.")), RESULT], True),
        ([CALL], False),
        ([CALL, SAID, RESULT], False),
        ([CALL, REPLY, RESULT], False),
        ([RESULT], False),
        ([CALL, RESULT, RESULT], False),
    ],
)
def test_each_call_has_its_result_before_the_next_message(
    said: Sequence[Canister], fits: bool
) -> None:
    if fits:
        check_calls(said)
    else:
        with pytest.raises(Rejected):
            check_calls(said)


@pytest.fixture
async def scripted(home: Path) -> AsyncIterator[Served]:
    home.mkdir()
    scripts = {"talk": TALK, "fail": FAIL, "cut": CUT}
    for name, script in scripts.items():
        (home / f"{name}.toml").write_text(script)
    rows = {"scripted": {"scripts": {name: str(home / f"{name}.toml") for name in scripts}}}
    async with serving(
        home, storage={"durability": "fast"}, stream={"retries": 0}, providers=rows
    ) as server:
        yield server


async def read_stored(served: Served) -> list[list[str]]:
    """The roles in each conversation of the user `local`."""
    async with served.session() as session:
        found = [
            await session.archive.restore(one.identity) for one in await session.archive.survey()
        ]
    return sorted([role_of(one) for one in each.canisters] for each in found)


def chat(*texts: str, system: str = "") -> dict[str, Any]:
    roles = ("user", "assistant")
    said = [{"role": roles[n % 2], "content": one} for n, one in enumerate(texts)]
    supervisor = [{"role": "system", "content": system}] if system else []
    return {"model": "scripted/talk", "messages": [*supervisor, *said]}


async def test_instructions_that_have_changed_are_given_to_the_model(scripted: Served) -> None:
    async with scripted.http() as http:

        async def ask(*texts: str, system: str) -> None:
            answer = await http.post("/v1/chat/completions", json=chat(*texts, system=system))
            assert answer.status_code == 200

        await ask("One?", system="Be brief.")
        await ask("One?", "Hello.", "Two?", system="Be brief.")
        await ask("One?", "Hello.", "Two?", "Hello.", "Three?", system="Be long.")
    (roles,) = await read_stored(scripted)
    turn = ["user", "assistant"]
    assert roles == ["supervisor", *turn, *turn, "supervisor", *turn]


async def test_a_turn_that_failed_leaves_what_the_model_had_said(scripted: Served) -> None:
    async with scripted.http() as http:
        body = {**chat("One?"), "model": "scripted/fail"}
        assert (await http.post("/v1/chat/completions", json=body)).status_code >= 500
        assert await read_stored(scripted) == []
        body = {**chat("One?"), "model": "scripted/cut"}
        assert (await http.post("/v1/chat/completions", json=body)).status_code >= 500
        assert await read_stored(scripted) == [["user", "assistant"]]
        # Withdrawn from the conversation that it continues, which stays.
        await http.post("/v1/chat/completions", json=chat("Two?"))
        body = {**chat("Two?", "Hello.", "Three?"), "model": "scripted/fail"}
        assert (await http.post("/v1/chat/completions", json=body)).status_code >= 500
        assert await read_stored(scripted) == [["user", "assistant"]] * 2
        # And with the fork that was made for it, where it continues an earlier place.
        await http.post("/v1/chat/completions", json=chat("Two?", "Hello.", "Three?"))
        assert (await http.post("/v1/chat/completions", json=body)).status_code >= 500
        assert await read_stored(scripted) == [["user", "assistant"], ["user", "assistant"] * 2]


@pytest.mark.parametrize("begins", [True, False])
async def test_a_response_that_does_not_begin_leaves_no_conversation_of_its_own(
    scripted: Served, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    async with scripted.http() as http:
        body: dict[str, Any] = {"model": "scripted/talk", "input": "One?"}
        first = (await http.post("/v1/responses", json=body)).json()
        going = {**body, "input": "Two?", "previous_response_id": first["id"]}
        await http.post("/v1/responses", json=going)
        before = await read_stored(scripted)
        (space,) = scripted.running._core.spaces._spaces.values()
        runs = space.session.access_runs()
        if begins:
            # As if another server had begun the run of the same key a moment before.
            (run, *_) = await space.session.survey_runs()
            found = await space.session.access_run(run.identity)

            async def start(*_: Any, **__: Any) -> Run:
                return found
        else:

            async def start(*_: Any, **__: Any) -> Run:
                raise RequestError("it does not begin")

        monkeypatch.setattr(type(runs), "start", start)
        for request in (going, body):
            answer = await http.post("/v1/responses", json=request)
            assert (answer.status_code == 200) is begins
        assert await read_stored(scripted) == before
