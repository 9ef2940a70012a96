"""Workers are killed at random moments: nothing is lost, nothing is done or seen twice."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs.worker import SCRIPT, produce_tools, settings_of
from vibe_llms import Session, open_session
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import AssistantCanister, InvocationCanister, ResultCanister
from vibe_llms.runs import (
    CallEnded,
    CallStarted,
    MessageCompleted,
    MessageDelta,
    MessageStarted,
    Run,
    RunContinued,
    RunEnded,
    RunEvent,
    RunStatus,
)

#: Runs that are worked on at the same time.
TOGETHER = 6


class Follower:
    """Follows a run, and comes back after random numbers of events."""

    def __init__(self, run: Run, chance: random.Random) -> None:
        self.run = run
        self.seen: list[tuple[int, RunEvent]] = []
        self._chance = chance

    async def follow(self) -> None:
        while not (self.seen and isinstance(self.seen[-1][1], RunEnded)):
            after = self.seen[-1][0] if self.seen else 0
            left = self._chance.randrange(1, 12)
            async for one in self.run.events(after=after):
                self.seen.append(one)
                left -= 1
                if not left:
                    break


async def start_runs(session: Session, home: Path, chance: random.Random) -> list[Follower]:
    followers = []
    for _ in range(TOGETHER):
        conversation = await session.begin("scripted/bank", invokers=produce_tools(home))
        run = await session.start(conversation, "Transfer the sums.")
        followers.append(Follower(run, chance))
    return followers


async def kill_workers(home: Path, chance: random.Random, ended: asyncio.Event) -> int:
    """Start workers and kill them, until all runs have ended; returns how many were killed."""
    kills = 0
    while not ended.is_set():
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.runs.worker", str(home)),
            cwd=Path(__file__).parents[2],
        )
        waiting = asyncio.create_task(ended.wait())
        # About as long as it takes to start, so that it is killed anywhere in its work.
        await asyncio.wait([waiting], timeout=chance.uniform(0.4, 1.6))
        waiting.cancel()
        kills += not ended.is_set()
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
    return kills


def check_followed(follower: Follower, history: dict[str, object]) -> None:
    """What a follower saw is whole, in order, once, and in the history."""
    events = [event for _, event in follower.seen]
    cursors = [cursor for cursor, _ in follower.seen]
    assert cursors == sorted(set(cursors))
    once = Counter(
        (type(one), getattr(one, "message", None) or getattr(one, "invocation", None))
        for one in events
        if isinstance(one, MessageStarted | MessageCompleted | CallEnded)
    )
    assert set(once.values()) == {1}
    texts: dict[str, str] = {}
    for event in events:
        match event:
            case MessageDelta(message=message, text=text):
                texts[message] = texts.get(message, "") + text
            case CallEnded(result=result):
                assert result in history
    completed = {one.message for one in events if isinstance(one, MessageCompleted)}
    replies = {
        identity: one
        for identity, one in history.items()
        if isinstance(one, AssistantCanister | InvocationCanister)
    }
    assert completed == replies.keys()
    for identity, canister in replies.items():
        text = canister.text if isinstance(canister, AssistantCanister) else canister.arguments
        assert texts.get(identity, "") == text
    # What was begun and is in no history was announced to start again.
    begun = {one.message for one in events if isinstance(one, MessageStarted)}
    again = {one.message for one in events if isinstance(one, RunContinued)} - {""}
    assert begun - completed == again


async def crash(home: Path, seed: int) -> tuple[int, int]:
    """Hold some runs while workers are killed; returns the kills and the unknown outcomes."""
    chance = random.Random(seed)
    (home / "bank.toml").write_text(SCRIPT)
    ended = asyncio.Event()
    tools = produce_tools(home)
    async with open_session(home=home, configuration=settings_of(home), invokers=tools) as session:
        # This process only starts and follows.
        session.access_runs().worker.pause()
        followers = await start_runs(session, home, chance)
        killing = asyncio.create_task(kill_workers(home, chance, ended))
        async with asyncio.timeout(120):
            await asyncio.gather(*(one.follow() for one in followers))
        ended.set()
        kills = await killing
        unknown = 0
        for follower in followers:
            turn = await follower.run.result()
            assert (await follower.run.access()).status is RunStatus.COMPLETED
            history: dict[str, object] = {one.identity: one for one in turn.canisters}
            check_followed(follower, history)
            calls = [one for one in turn.canisters if isinstance(one, InvocationCanister)]
            results = [one for one in turn.canisters if isinstance(one, ResultCanister)]
            assert {one.invocation for one in results} == {one.identity for one in calls}
            assert len(results) == len(calls) == 3
            unknown += sum(one.text == INTERRUPTED for one in results)
            known = {one.invocation for one in results if one.text != INTERRUPTED}
            effects = (home / "effects").read_text().split()
            assert known <= set(effects)
    effects = (home / "effects").read_text().split()
    assert len(effects) == len(set(effects))
    return kills, unknown


@pytest.mark.storm
async def test_killed_workers_lose_nothing_and_do_nothing_twice(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    kills, seed = 0, 0
    while kills < rounds(3, 300):
        home = tmp_path / str(seed)
        home.mkdir()
        kills += (await crash(home, seed))[0]
        seed += 1


async def test_a_killed_worker_is_replaced_within_its_lease_and_a_second(tmp_path: Path) -> None:
    (tmp_path / "bank.toml").write_text(SCRIPT.replace("[[replies.parts]]", SLOW, 1))
    settings = settings_of(tmp_path)
    tools = produce_tools(tmp_path)
    async with open_session(home=tmp_path, configuration=settings, invokers=tools) as session:
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.runs.worker", str(tmp_path)),
            cwd=Path(__file__).parents[2],
        )
        session.access_runs().worker.pause()
        conversation = await session.begin("scripted/bank", invokers=tools)
        run = await session.start(conversation, "Transfer the sums.")
        while (await run.access()).status is not RunStatus.RUNNING:
            await asyncio.sleep(0.01)
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
        killed = time.monotonic()
        session.access_runs().worker.resume()
        async for _, event in run.events():
            if isinstance(event, RunContinued | CallStarted):
                break
        assert time.monotonic() - killed < settings["runs"]["lease-seconds"] + 1


#: The first reply waits, so that its worker is killed while it works.
SLOW = "[[replies.parts]]\ndelay-seconds = 3600\n[[replies.parts]]"
