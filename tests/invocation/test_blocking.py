"""A blocking tool freezes nothing (U2): no other tool, no loop, and no end of a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from vibe_llms.invocation import invokers as invoking
from vibe_llms.invocation.execution import Execution, execute
from vibe_llms.invocation.invokers import gather_invokers
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.events import ignore_events

TOOLS = 16


async def check_blocking(*, sleep_seconds: float, most_seconds: float, longest_gap: float) -> None:
    """16 tools that sleep: all of them in about the time of one, while the loop goes on."""
    kept: list[ResultCanister] = []
    gaps: list[float] = []

    async def keep(results: Sequence[ResultCanister]) -> None:
        kept.extend(results)

    async def beat() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            gaps.append(time.monotonic() - before)

    def block(number: int) -> int:
        time.sleep(sleep_seconds)
        return number

    calls = [
        InvocationCanister(name="block", arguments=f'{{"number": {number}}}')
        for number in range(TOOLS)
    ]
    tools = gather_invokers([block])
    heart = asyncio.ensure_future(beat())
    try:
        # A clock that is stopped from outside: a blocked loop could not end its own limit.
        late = threading.Event()
        timer = threading.Timer(most_seconds, late.set)
        timer.start()
        await execute(calls, Execution(invokers=tools, event_handler=ignore_events, keep=keep))
        timer.cancel()
        assert not late.is_set(), f"it took more than {most_seconds:g} s"
    finally:
        heart.cancel()
    assert sorted(result.text for result in kept) == sorted(map(str, range(TOOLS)))
    assert max(gaps) < longest_gap


@pytest.mark.storm
async def test_sixteen_blocking_tools_take_the_time_of_one_and_the_loop_goes_on(
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--nightly"):
        await check_blocking(sleep_seconds=2, most_seconds=3, longest_gap=0.1)
    else:
        # The same on a machine that has much else to do.
        await check_blocking(sleep_seconds=1, most_seconds=8, longest_gap=0.8)


async def run_here(work: Callable[[], Any]) -> Any:
    return work()


@pytest.mark.parametrize("bound", ["most_seconds", "longest_gap"])
async def test_tools_that_run_in_the_loop_would_be_detected(
    monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    runner: Callable[[Callable[[], Any]], Awaitable[Any]] = run_here
    monkeypatch.setattr(invoking, "run_in_thread", runner)
    bounds = {"most_seconds": 60.0, "longest_gap": 60.0, bound: 0.08}
    with pytest.raises(AssertionError):
        await check_blocking(sleep_seconds=0.1, **bounds)


STUCK = """\
import asyncio, threading
from vibe_llms import open_session
from vibe_llms.testing import Part, Script, ScriptedReply, scripted_model

def never() -> str:
    threading.Event().wait()
    return "never"

async def main() -> None:
    tools = {{"tools": {{"timeout-seconds": 0.2}}}}
    async with open_session(configuration=tools) as session:
        replies = (ScriptedReply(parts=(Part(invocation="never", arguments={{}}),)),
                   ScriptedReply.from_chunks("Done."))
        conversation = await session.begin(
            scripted_model(Script(replies)), invokers=[never], save=False)
        turn = await conversation.converse("Go.")
        print(turn.canisters[-2].text, flush=True)

{prelude}
asyncio.run(main())
print("over", flush=True)
"""


def check_leaving(prelude: str, seconds: float) -> None:
    """A tool that never returns fails at its limit, and the process ends all the same."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK.format(prelude=prelude)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "The tool did not return within 0.2 seconds.\n"
        assert process.stdout.readline() == "over\n"
        try:
            assert process.wait(seconds) == 0
        except subprocess.TimeoutExpired as error:
            raise AssertionError("the process does not end") from error
    finally:
        process.kill()
        process.communicate()


def test_a_tool_that_never_returns_keeps_no_process_alive() -> None:
    check_leaving("", 5)


@pytest.mark.slow
def test_threads_that_keep_the_process_alive_would_be_detected() -> None:
    patch = "threading.Thread.daemon = property(lambda self: False, lambda self, value: None)"
    with pytest.raises(AssertionError, match="does not end"):
        check_leaving(patch, 1)
