"""Typed output in runs: checked, asked for again and continued by any process, with one end."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any, assert_type

import pytest
from pydantic import BaseModel

from tests.runs.rig import SCRIPTS, Rig, follow, wait_for
from tests.runs.test_crashes import Follower, check_followed
from tests.runs.worker import produce_tools, settings_of
from vibe_llms import Decision, MessageProgressEvent, Session, open_session
from vibe_llms.base.exceptions import OutputInvalid, RunFailed
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    Turn,
    UserCanister,
)
from vibe_llms.messages.controls import ControlRange
from vibe_llms.messages.events import Event
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.scripted.client import ScriptedModel
from vibe_llms.runs import ApprovalRequested, Run, RunNotice, RunStatus

ADA = '{"name": "Ada", "born": 1815}'
VALUE = {"name": "Ada", "born": 1815}


class Person(BaseModel):
    name: str
    born: int


def say(*texts: str) -> str:
    """A script of some replies."""
    return "".join(f"[[replies]]\n[[replies.parts]]\ntext = '{text}'\n" for text in texts)


CALL = '[[replies]]\n[[replies.parts]]\ninvocation = "transfer"\narguments = {sum = 1}\n'
#: Its turn appends the prompt, a call, its result, an invalid reply, its correction, a reply.
CORRECTED = CALL + say("Who knows?", ADA)
KINDS = [
    *(SupervisorCanister, UserCanister, InvocationCanister, ResultCanister),
    *(AssistantCanister, UserCanister, AssistantCanister),
]


async def begin(session: Session, home: Path, script: str) -> Conversation:
    """A conversation with the tools of the session, which a script answers."""
    (home / "talk.toml").write_text(script)
    return await session.begin("scripted/talk", invokers=session.registered_invokers.values())


def kinds_of(canisters: Sequence[Canister]) -> list[type[Canister]]:
    return [type(one) for one in canisters]


async def read_notices(run: Run[Any]) -> list[RunNotice]:
    return [one for _, one in await follow(run) if isinstance(one, RunNotice)]


async def test_the_output_is_of_its_type_here_and_a_plain_value_elsewhere(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    conversation = await begin(one, rig.home, CORRECTED)
    run = await one.start(conversation, "Who?", output=Person)
    turn = await run.result()
    assert_type(turn, Turn[Person])
    assert turn.output == Person(name="Ada", born=1815)
    assert (turn.text, kinds_of(turn.canisters), rig.bank.transfers) == (ADA, KINDS, 1)
    found = await other.access_run(run.identity)
    elsewhere = await found.result()
    assert (elsewhere.output, elsewhere.canisters) == (VALUE, turn.canisters)
    correction = turn.canisters[5]
    assert isinstance(correction, UserCanister)
    (notice,) = await read_notices(found)
    assert (notice.subject, notice.message) == ("output", correction.identity)
    assert "not valid JSON" in notice.text
    assert notice.text.removeprefix("requesting the output again: ") in correction.text


async def test_a_value_that_is_no_object_is_the_same_everywhere(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    script = say("[1815]", '{"value": ["1815-12-10"]}', "Anything else?")
    conversation = await begin(one, rig.home, script)
    run = await one.start(conversation, "When?", output=list[date])
    assert (await run.result()).output == [date(1815, 12, 10)]
    found = await other.access_run(run.identity)
    assert (await found.result()).output == ["1815-12-10"]
    # What is said later is none of it.
    assert (await conversation.converse("Thank you.")).text == "Anything else?"
    assert (await found.result()).output == ["1815-12-10"]


async def test_a_type_may_refuse_what_its_schema_allows(rig: Rig) -> None:
    session = await rig.open()
    conversation = await begin(session, rig.home, say('{"value": "long ago"}'))
    run = await session.start(conversation, "When?", output=date)
    with pytest.raises(OutputInvalid, match="fits the schema of date, but not the type"):
        await run.result()
    assert (await run.access()).status is RunStatus.COMPLETED
    assert (await (await session.access_run(run.identity)).result()).output == "long ago"


async def test_a_model_that_takes_a_schema_is_given_it_by_every_worker(rig: Rig) -> None:
    one, other = await rig.open(approval="ask"), await rig.open(approval="ask")
    conversation = await begin(one, rig.home, CORRECTED)
    model = conversation.model
    assert isinstance(model, ScriptedModel)
    model.attributes = ModelAttributes(controls={"response-schema": ControlRange()})
    schema = {"type": "object", "required": ["born"]}
    run = await one.start(conversation, "Who?", output=schema)
    assert run.record.recipe.produce_controls().response_schema == schema
    _, asked = await wait_for(run, ApprovalRequested)
    one.access_runs().worker.pause()
    other.access_runs().worker.poke()
    await run.decide(asked.invocation, Decision.ALLOW)
    turn = await run.result()
    assert (turn.output, kinds_of(turn.canisters)) == (VALUE, KINDS[1:])


async def test_output_that_never_fits_fails_the_run(rig: Rig) -> None:
    session = await rig.open()
    conversation = await begin(session, rig.home, say("One.", "Two.", "Three."))
    run = await session.start(conversation, "Who?", output=Person)
    with pytest.raises(RunFailed, match="not valid in 3 attempts") as caught:
        await run.result()
    assert caught.value.error == "OutputInvalid"
    assert (await run.read()).output is None
    assert len(await read_notices(run)) == 2


async def test_a_corrected_reply_may_wait_for_a_decision(rig: Rig) -> None:
    one, other = await rig.open(approval="ask"), await rig.open(approval="ask")
    conversation = await begin(one, rig.home, say("Who knows?") + CALL + say("Still not.", ADA))
    run = await one.start(conversation, "Who?", output=Person)
    _, asked = await wait_for(run, ApprovalRequested)
    one.access_runs().worker.pause()
    other.access_runs().worker.poke()
    await run.decide(asked.invocation, Decision.ALLOW)
    turn = await run.result()
    assert (turn.output, rig.bank.transfers) == (Person(name="Ada", born=1815), 1)
    corrections = [one for one in turn.canisters[2:] if isinstance(one, UserCanister)]
    assert [one.message for one in await read_notices(run)] == [one.identity for one in corrections]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_typed_turn_that_is_running_goes_on_elsewhere(rig: Rig, begun: bool) -> None:
    one, other = await rig.open(), await rig.open()
    one.access_runs().worker.pause()
    conversation = await begin(one, rig.home, SCRIPTS["slow"])
    arrives = asyncio.Event()

    def hear(event: Event) -> None:
        if isinstance(event, MessageProgressEvent):
            arrives.set()

    talking = conversation.converse("Who?", output=Person, event_handler=hear)
    turn = asyncio.create_task(talking)
    await (arrives.wait() if begun else asyncio.sleep(0))
    (rig.home / "talk.toml").write_text(say("Who knows?", ADA))
    run = await one.detach(conversation)
    assert (await turn).stop_reason == StopReason.SUSPENDED
    other.access_runs().resume()
    assert (await run.result()).output == Person(name="Ada", born=1815)
    found = await other.access_run(run.identity)
    assert (await found.result()).output == VALUE
    assert kinds_of((await found.result()).canisters) == [
        *(SupervisorCanister, UserCanister, AssistantCanister, UserCanister, AssistantCanister)
    ]


@asynccontextmanager
async def killed(
    home: Path, script: str, appends: int
) -> AsyncIterator[tuple[Run[Person], Follower]]:
    """A run whose worker is killed once it has appended so often, and that this process ends."""
    (home / "bank.toml").write_text(script)
    tools = produce_tools(home)
    async with open_session(home=home, configuration=settings_of(home), invokers=tools) as session:
        session.access_runs().worker.pause()
        conversation = await session.begin("scripted/bank", invokers=tools)
        run = await session.start(conversation, "Who?", output=Person)
        follower = Follower(run, random.Random(appends))
        following = asyncio.create_task(follower.follow())
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.runs.worker", str(home), str(appends)),
            cwd=Path(__file__).parents[2],
        )
        assert await worker.wait() == -signal.SIGKILL
        # The prompt is two messages.
        assert len((await run.read()).canisters) == appends + 1
        session.access_runs().worker.resume()
        async with asyncio.timeout(60):
            await following
        yield run, follower


#: After the result of the call, the invalid reply, its correction, and the valid reply.
@pytest.mark.parametrize("appends", [3, 4, 5, 6])
async def test_a_killed_worker_changes_nothing_about_the_end(tmp_path: Path, appends: int) -> None:
    async with killed(tmp_path, CORRECTED, appends) as (run, follower):
        turn = await run.result()
        assert turn.output == Person(name="Ada", born=1815)
        assert kinds_of(turn.canisters) == KINDS
        check_followed(follower, {one.identity: one for one in turn.canisters})
        notices = [one for _, one in follower.seen if isinstance(one, RunNotice)]
        assert [one.message for one in notices] == [turn.canisters[5].identity]
    assert len((tmp_path / "effects").read_text().split()) == 1


async def test_attempts_are_counted_over_all_workers(tmp_path: Path) -> None:
    # After the second correction.
    async with killed(tmp_path, say("One.", "Two.", "Three.", "Four."), 5) as (run, follower):
        with pytest.raises(RunFailed, match="not valid in 3 attempts"):
            await run.result()
        turn = await run.read()
        assert [one.text for one in turn.canisters if isinstance(one, AssistantCanister)] == [
            *("One.", "Two.", "Three.")
        ]
        notices = [one.message for _, one in follower.seen if isinstance(one, RunNotice)]
        assert notices == [one.identity for one in turn.canisters[3:6:2]]
