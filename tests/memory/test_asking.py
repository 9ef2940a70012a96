"""An answer, or why there is none; anything that is no failure of a model passes through."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.askers import ScriptedAsker, sums_up
from vibe_llms.base.exceptions import OutputInvalid, ProviderUnreachable
from vibe_llms.memory.asking import Unanswered, attempt
from vibe_llms.memory.summaries import WrittenSummary


async def test_an_answer_is_given_without_words() -> None:
    asker = ScriptedAsker(summary=[sums_up("All is well.")])
    assert await attempt(asker, "a", "b", WrittenSummary, seconds=9) == WrittenSummary(
        "All is well."
    )
    assert asker.asked == [("summary", "a", "b")]


async def test_a_failure_is_reported_in_words() -> None:
    asker = ScriptedAsker(summary=[ProviderUnreachable("no network", provider="x")])
    assert await attempt(asker, "", "", WrittenSummary, seconds=9) == Unanswered("x: no network")


async def test_an_answer_that_is_no_good_is_final() -> None:
    error = OutputInvalid("three times", provider="x", attempts=3)
    asker = ScriptedAsker(summary=[error])
    why = "the model gave no valid answer (3 tries)"
    assert await attempt(asker, "", "", WrittenSummary, seconds=9) == Unanswered(why, True)


async def test_other_errors_than_those_of_a_model_are_raised() -> None:
    asker = ScriptedAsker(summary=[ZeroDivisionError()])
    with pytest.raises(ZeroDivisionError):
        await attempt(asker, "", "", WrittenSummary, seconds=9)


async def test_a_cancel_is_a_cancel() -> None:
    begun = asyncio.Event()

    async def stall(_: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(
        attempt(ScriptedAsker(summary=[stall]), "", "", WrittenSummary, seconds=99)
    )
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
