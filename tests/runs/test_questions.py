"""Questions to the user of a run: of the model, and of calls that are running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.runs.rig import wait_for
from vibe_llms import ElicitationAnswer, Session, open_session
from vibe_llms.base.exceptions import AnswerInvalid, DecisionRefused
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.invocation.questions import ElicitationField, ElicitationRequest
from vibe_llms.messages.canisters import ResultCanister, Turn
from vibe_llms.runs import AnswerRequested, Run, RunStatus

BLUE = ElicitationAnswer("accept", {"answer": "blue"})
SEATS = ElicitationAnswer("accept", {"seats": 3})
SCRIPTS = {
    "ask": (
        '[[replies]]\nparts = [ { invocation = "user/ask", arguments = '
        '{ question = "Which color?", choices = ["red", "blue"] } } ]\n'
        '[[replies]]\nparts = [ { text = "Fine." } ]\n'
    ),
    "ask twice": (
        '[[replies]]\nparts = [ { invocation = "user/ask", arguments = '
        '{ question = "Which color?" } }, '
        '{ invocation = "user/ask", arguments = { question = "Which size?" } } ]\n'
        '[[replies]]\nparts = [ { text = "Fine." } ]\n'
    ),
    "book": (
        '[[replies]]\nparts = [ { invocation = "book" } ]\n'
        '[[replies]]\nparts = [ { text = "Fine." } ]\n'
    ),
}


class Rig:
    """A home that several processes use, each of them a session here."""

    def __init__(self, home: Path, stack: AsyncExitStack) -> None:
        self._home = home
        self._stack = stack
        for name, script in SCRIPTS.items():
            (home / f"{name}.toml").write_text(script)

    async def open(self, answer_seconds: float = 60) -> Session:
        async def book(context: InvocationContext) -> str:
            """Book seats, as many as the user wants."""
            field = ElicitationField(name="seats", kind="integer", required=True)
            request = ElicitationRequest(ensemble="hall", message="How many?", fields=(field,))
            assert context.ask is not None
            answer = await context.ask(request)
            return f"{answer.action}: {answer.values.get('seats', 'no')} seats"

        scripts = {name: str(self._home / f"{name}.toml") for name in SCRIPTS}
        settings = {
            "storage": {"durability": "fast"},
            "runs": {"lease-seconds": 1, "answer-seconds": answer_seconds},
            "providers": {"scripted": {"scripts": scripts}},
        }
        return await self._stack.enter_async_context(
            open_session(home=self._home, configuration=settings, invokers=[book])
        )

    async def start(self, session: Session, script: str) -> tuple[Run, AnswerRequested]:
        """A run of a script, and its question."""
        conversation = await session.begin(
            f"scripted/{script}",
            ensembles=["user"],
            invokers=session.registered_invokers.values(),
        )
        run = await session.start(conversation, "Go on.")
        return run, (await wait_for(run, AnswerRequested))[1]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        yield Rig(tmp_path, stack)


def result_of(turn: Turn) -> ResultCanister:
    (result,) = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    return result


async def test_a_question_of_the_model_holds_nothing_and_any_process_answers(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    run, asked = await rig.start(one, "ask")
    while one.access_runs().worker.busy:
        await asyncio.sleep(0)
    elsewhere = await other.access_run(run.identity)
    assert (elsewhere.record.status, asked.held) == (RunStatus.WAITING, False)
    (question,) = await elsewhere.survey_questions()
    assert (question.identity, question.request.message) == (asked.question, "Which color?")
    with pytest.raises(AnswerInvalid, match="must be one of red, blue"):
        await elsewhere.answer(asked.question, ElicitationAnswer("accept", {"answer": "green"}))
    with pytest.raises(DecisionRefused, match="is not asking"):
        await elsewhere.answer("another", BLUE)
    assert (await elsewhere.answer(asked.question, BLUE)).answer == BLUE
    assert (await run.answer(asked.question, BLUE)).answer == BLUE
    with pytest.raises(DecisionRefused, match="was already answered"):
        await run.answer(asked.question, ElicitationAnswer("decline"))
    turn = await elsewhere.result()
    assert (turn.text, result_of(turn).text, result_of(turn).failed) == ("Fine.", "blue", False)


async def test_a_question_stays_open_while_another_one_is_answered(rig: Rig) -> None:
    session = await rig.open()
    run, _ = await rig.start(session, "ask twice")
    while session.access_runs().worker.busy:
        await asyncio.sleep(0)
    color, size = await run.survey_questions()
    await run.answer(color.identity, BLUE)
    while (await run.access()).status is not RunStatus.WAITING:
        await asyncio.sleep(0.01)
    await run.answer(size.identity, ElicitationAnswer("accept", {"answer": "large"}))
    turn = await run.result()
    results = [one.text for one in turn.canisters if isinstance(one, ResultCanister)]
    assert sorted(results) == ["blue", "large"]


async def test_the_model_learns_that_the_user_declined(rig: Rig) -> None:
    run, asked = await rig.start(await rig.open(), "ask")
    await run.answer(asked.question, ElicitationAnswer("decline"))
    result = result_of(await run.result())
    assert (result.text, result.failed) == ("The user declined to answer.", True)


async def test_a_question_is_not_answered_after_the_end(rig: Rig) -> None:
    run, asked = await rig.start(await rig.open(), "ask")
    assert await run.cancel() is RunStatus.CANCELLED
    with pytest.raises(DecisionRefused, match="has already ended"):
        await run.answer(asked.question, BLUE)


async def test_a_call_that_is_running_waits_for_the_answer(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    run, asked = await rig.start(one, "book")
    elsewhere = await other.access_run(run.identity)
    assert (elsewhere.record.status, asked.held) == (RunStatus.RUNNING, True)
    await elsewhere.answer(asked.question, SEATS)
    assert result_of(await run.result()).text == "accept: 3 seats"


async def test_it_does_not_wait_for_long(rig: Rig) -> None:
    run, asked = await rig.start(await rig.open(answer_seconds=0), "book")
    assert result_of(await run.result()).text == "decline: no seats"
    with pytest.raises(DecisionRefused):
        await run.answer(asked.question, SEATS)


async def test_a_run_whose_call_waits_is_cancelled(rig: Rig) -> None:
    run, _ = await rig.start(await rig.open(), "book")
    await run.cancel()
    await run.result()
    assert (await run.access()).status is RunStatus.CANCELLED


async def test_the_question_of_a_call_that_is_gone_is_not_answered(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    run, asked = await rig.start(one, "book")
    await one.close()
    found = await other.access_run(run.identity)
    other.access_runs().resume()
    assert "its outcome is unknown" in result_of(await found.result()).text
    with pytest.raises(DecisionRefused, match="was already answered"):
        await found.answer(asked.question, SEATS)


async def test_another_process_offers_the_tools_that_were_singled_out(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    conversation = await one.begin("scripted/ask", ensembles=["user"])
    conversation.withhold("user")
    await conversation.offer("user/ask")
    run = await one.start(conversation, "Go on.")
    _, asked = await wait_for(run, AnswerRequested)
    one.access_runs().worker.pause()
    elsewhere = await other.access_run(run.identity)
    assert elsewhere.record.recipe.singled == ("user/ask",)
    await elsewhere.answer(asked.question, ElicitationAnswer("accept", {"answer": "blue"}))
    other.access_runs().worker.poke()
    result = result_of(await elsewhere.result())
    assert (result.failed, "blue" in result.text) == (False, True)
