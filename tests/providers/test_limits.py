"""Limits per minute: never more than that in any 60 seconds, in order of arrival, with notices."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.virtual import run_virtually
from vibe_llms import Conversation, Turn, open_session
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ProviderOverloaded,
    RateLimited,
    ReplyTimeout,
)
from vibe_llms.messages.canisters import Provenance, Usage
from vibe_llms.messages.events import Event, Notice, NoticeEvent
from vibe_llms.providers import limits
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.deltas import Delta, ReplyClosed, ReplyOpened, TextDelta, UsageDelta
from vibe_llms.providers.limits import Limiter, limited
from vibe_llms.providers.round_trip import attempt_reply
from vibe_llms.providers.watch import Watch
from vibe_llms.testing import Part, Script, ScriptedReply, check_events, scripted_model

PATIENCE = 60.0


def now() -> float:
    return asyncio.get_running_loop().time()


def ignore(_: Notice) -> None:
    return None


async def send_all(
    limiter: Limiter, arrivals: Sequence[tuple[float, int, int, float]]
) -> list[tuple[float, int]]:
    """Requests that arrive after pauses, with estimates, real numbers and durations.

    When each started, and its number, in the order of their starts.
    """
    started: list[tuple[float, int]] = []

    async def send(number: int, estimate: int, real: int, seconds: float) -> None:
        spent = await limiter.enter(estimate, ignore, PATIENCE)
        started.append((now(), number))
        await asyncio.sleep(seconds)
        limiter.record_usage(spent, Usage(real))

    async with asyncio.TaskGroup() as group:
        for number, (pause, estimate, real, seconds) in enumerate(arrivals):
            await asyncio.sleep(pause)
            group.create_task(send(number, estimate, real, seconds))
    return started


def largest_window(spent: Sequence[tuple[float, int]]) -> int:
    """The most that any 60 seconds have, a moment and 60 s later not counting as one."""
    times = [time for time, _ in spent]
    most = 0
    for index, time in enumerate(times):
        # What begins with it is all that may be the most; a billionth is what the clock may lack.
        end = bisect_right(times, time + 60.0 - 1e-6)
        most = max(most, sum(amount for _, amount in spent[index:end]))
    return most


ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.5, 7.0, 61.0]),
        st.integers(0, 120),
        st.integers(0, 200),
        st.sampled_from([0.0, 1.0, 90.0]),
    ),
    max_size=25,
)


def check_windows(
    arrivals: Sequence[tuple[float, int, int, float]], requests: int, tokens: int
) -> None:
    """`AssertionError` where a window has more than the limits, or a request overtakes."""
    started = run_virtually(send_all(Limiter("row", requests=requests), arrivals))
    assert [number for _, number in started] == list(range(len(arrivals)))
    assert largest_window([(time, 1) for time, _ in started]) <= requests

    exact = [(pause, estimate, estimate, took) for pause, estimate, _, took in arrivals]
    started = run_virtually(send_all(Limiter("row", tokens=tokens), exact))
    assert [number for _, number in started] == list(range(len(arrivals)))
    spent = [(time, exact[number][1]) for time, number in started]
    alone = [amount for _, amount in spent if amount > tokens]
    assert largest_window([one for one in spent if one[1] <= tokens]) <= tokens
    assert largest_window(spent) <= max([tokens, *alone])


async def send_and_account(
    limiter: Limiter, arrivals: Sequence[tuple[float, int, int, float]]
) -> list[tuple[float, float, int, int]]:
    """When each request started and ended, what was estimated, and what it really used."""
    accounts: list[tuple[float, float, int, int]] = []

    async def send(estimate: int, real: int, seconds: float) -> None:
        spent = await limiter.enter(estimate, ignore, PATIENCE)
        begin = now()
        await asyncio.sleep(seconds)
        limiter.record_usage(spent, Usage(real))
        accounts.append((begin, now(), estimate, real))

    async with asyncio.TaskGroup() as group:
        for pause, estimate, real, seconds in arrivals:
            await asyncio.sleep(pause)
            group.create_task(send(estimate, real, seconds))
    return accounts


def check_corrections(arrivals: Sequence[tuple[float, int, int, float]], tokens: int) -> None:
    """`AssertionError` where one was let pass although what was known by then forbade it."""
    accounts = run_virtually(send_and_account(Limiter("row", tokens=tokens), arrivals))
    for index, (start, _, estimate, _) in enumerate(accounts):
        known = min(estimate, tokens)
        for other, (begin, end, guess, real) in enumerate(accounts):
            if other == index or begin >= start:
                continue
            if begin > start - 60.0 + 1e-6:
                known += min(guess, real) if end <= start else guess
            if start - 60.0 + 1e-6 < end < start:
                known += max(real - guess, 0)
        assert known <= max(tokens, estimate), accounts


@given(ARRIVALS, st.integers(1, 150))
@settings(deadline=None, max_examples=60)
def test_no_request_passes_that_the_corrected_numbers_forbid(
    arrivals: Sequence[tuple[float, int, int, float]], tokens: int
) -> None:
    check_corrections(arrivals, tokens)


def test_numbers_that_are_not_corrected_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Limiter, "record_usage", lambda *_: None)
    with pytest.raises(AssertionError):
        check_corrections([(0.0, 10, 100, 1.0), (7.0, 10, 10, 1.0)], 100)


@given(ARRIVALS, st.integers(1, 5), st.integers(1, 150))
@settings(deadline=None, max_examples=60)
def test_no_minute_has_more_than_the_limits_and_no_request_overtakes(
    arrivals: Sequence[tuple[float, int, int, float]], requests: int, tokens: int
) -> None:
    check_windows(arrivals, requests, tokens)


@pytest.mark.parametrize("bug", ["window", "overtaking", "forgetting"])
def test_a_limiter_that_lets_too_many_pass_would_be_detected(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    if bug == "window":
        monkeypatch.setattr(limits, "WINDOW_SECONDS", 50.0)
    elif bug == "overtaking":
        advance = Limiter._advance

        def sort(self: Limiter) -> None:
            self._queue = type(self._queue)(sorted(self._queue, key=lambda one: one.tokens))
            advance(self)

        monkeypatch.setattr(Limiter, "_advance", sort)
    else:
        monkeypatch.setattr(Limiter, "_measure", lambda *_: 0.0)
    arrivals = [(0.0, 90 - 10 * number, 0, 0.0) for number in range(9)]
    with pytest.raises(AssertionError):
        check_windows(arrivals, 2, 100)


async def measure_starts(limiter: Limiter, *estimates: int, real: int | None = None) -> list[float]:
    """The seconds after which each of some requests is let pass, that all ask at once."""
    begin = now()
    used = [(0.0, each, each if real is None else real, 1.0) for each in estimates]
    return [round(time - begin, 3) for time, _ in await send_all(limiter, used)]


def test_what_was_estimated_too_high_is_given_back_and_what_too_low_counts() -> None:
    high = run_virtually(measure_starts(Limiter("row", tokens=100), 80, 80, 80, real=10))
    assert high == [0.0, 1.0, 2.0]
    low = run_virtually(measure_starts(Limiter("row", tokens=100), 10, 10, 95, real=100))
    assert low == [0.0, 0.0, 61.0]
    lower = run_virtually(measure_starts(Limiter("row", tokens=100), 99, 100, real=100))
    assert lower == [0.0, 61.0]


def test_without_a_reported_usage_the_estimate_is_kept() -> None:
    async def work() -> list[float]:
        limiter = Limiter("row", tokens=100)
        limiter.record_usage(await limiter.enter(80, ignore, PATIENCE), None)
        return await measure_starts(limiter, 80)

    assert run_virtually(work()) == [60.0]


def test_a_request_above_the_whole_limit_passes_alone() -> None:
    starts = run_virtually(measure_starts(Limiter("row", tokens=100), 50, 500, 50))
    assert starts == [0.0, 60.0, 120.0]


def test_both_limits_hold_at_once() -> None:
    limiter = Limiter("row", requests=2, tokens=100)
    assert repr(limiter) == "Limiter('row', requests=2, tokens=100)"
    assert run_virtually(measure_starts(limiter, 10, 10, 10, 90)) == [0.0, 0.0, 60.0, 60.0]


def test_a_wait_is_reported_when_it_is_noticeable() -> None:
    async def work() -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
        begin, reported = now(), []

        def take_notice(notice: Notice) -> None:
            assert notice.subject == "wait"
            reported.append((now() - begin, notice.text))

        limiter = Limiter("row", requests=1, tokens=10)
        for _ in range(2):
            await limiter.enter(1, take_notice, PATIENCE)
        long = list(reported)
        reported.clear()
        await asyncio.sleep(58.5)
        await limiter.enter(1, take_notice, PATIENCE)
        return long, reported

    long, short = run_virtually(work())
    assert long == [
        (
            limits.NOTICE_SECONDS,
            "row: waiting, to stay within requests-per-minute = 1 and tokens-per-minute = 10",
        )
    ]
    assert short == []


def test_a_cancel_gives_the_place_up_and_counts_nothing() -> None:
    async def work() -> float:
        begin = now()
        limiter = Limiter("row", requests=1)
        await limiter.enter(1, ignore, PATIENCE)
        first = asyncio.create_task(limiter.enter(1, ignore, PATIENCE))
        second = asyncio.create_task(limiter.enter(1, ignore, PATIENCE))
        await asyncio.sleep(10)
        first.cancel()
        await second
        # One that was let pass, and is cancelled before it has noticed.
        third = asyncio.create_task(limiter.enter(1, ignore, PATIENCE))
        await asyncio.sleep(0)
        limiter._starts.clear()
        limiter._spent.clear()
        limiter._advance()
        third.cancel()
        await asyncio.gather(first, third, return_exceptions=True)
        assert first.cancelled()
        assert third.cancelled()
        assert not limiter._starts
        await limiter.enter(1, ignore, PATIENCE)
        return now() - begin

    assert run_virtually(work()) == 60.0


def test_a_handler_that_raises_gives_the_place_up() -> None:
    async def work() -> None:
        limiter = Limiter("row", requests=1)
        await limiter.enter(1, ignore, PATIENCE)

        def stop(_: Notice) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await limiter.enter(1, stop, PATIENCE)
        assert not limiter._queue

    run_virtually(work())


def test_a_server_that_asks_to_wait_holds_the_whole_queue_back() -> None:
    async def work() -> tuple[list[float], list[str]]:
        reported: list[str] = []
        limiter = Limiter("row", requests=100)
        begin = now()
        limiter.pause(30.0)
        limiter.pause(5.0)

        async def enter() -> float:
            await limiter.enter(1, lambda notice: reported.append(notice.text), PATIENCE)
            return now() - begin

        return list(await asyncio.gather(enter(), enter())), reported

    starts, reported = run_virtually(work())
    assert starts == [30.0, 30.0]
    assert reported == ["row: waiting, because its server asked to wait 28 s"] * 2


def test_a_longer_wait_than_is_borne_is_an_error_at_once() -> None:
    async def work() -> float:
        begin = now()
        limiter = Limiter("row", requests=1)
        await limiter.enter(1, ignore, PATIENCE)
        waiting = asyncio.create_task(limiter.enter(1, ignore, PATIENCE))
        await asyncio.sleep(1)
        limiter.pause(3600.0)
        with pytest.raises(RateLimited, match="wait of 3600 s") as caught:
            await waiting
        assert caught.value.retry_after == 3600.0
        with pytest.raises(RateLimited):
            await limiter.enter(1, ignore, PATIENCE)
        return now() - begin

    assert run_virtually(work()) == 1.0


# Through what all providers send with.

Attempts = Sequence[Callable[[Watch], Any]]


async def converse(
    limiter: Limiter | None, attempts: Attempts, reported: list[Notice], **stream: float
) -> float:
    """One reply by these attempts; the seconds that it took."""
    begin = now()
    accumulator = Accumulator(Provenance("tests", "row", "model"), lambda _: None)
    rest = list(attempts)

    async def attempt(watch: Watch) -> None:
        deltas: Sequence[Delta] = await rest.pop(0)(watch)
        for delta in deltas:
            accumulator.accept(delta)

    with limited(limiter, 10):
        await attempt_reply(
            attempt,
            accumulator,
            provider="row",
            settings=StreamSettings(**stream),  # type: ignore[arg-type]
            notify=reported.append,
        )
    return now() - begin


async def answer(watch: Watch) -> Sequence[Delta]:
    watch.expect("first-byte-seconds", 5.0)
    await asyncio.sleep(1)
    watch.rest()
    usage = UsageDelta(Usage(100, output_tokens=100))
    return [ReplyOpened(), TextDelta("Hi"), usage, ReplyClosed("finished")]


async def refuse(watch: Watch) -> Sequence[Delta]:
    error = RateLimited("slowly", provider="row")
    error.retry_after = 20.0
    raise error


async def dawdle(watch: Watch) -> Sequence[Delta]:
    await asyncio.sleep(1000)
    raise AssertionError


def test_waiting_counts_against_no_time_limit() -> None:
    async def work() -> list[float]:
        limiter = Limiter("row", requests=1)
        took = [await converse(limiter, [answer], [], reply_seconds=3.0) for _ in range(3)]
        with pytest.raises(ReplyTimeout, match="reply-seconds"):
            await converse(limiter, [dawdle], [], reply_seconds=3.0)
        return took

    assert run_virtually(work()) == [1.0, 60.0, 60.0]


def test_a_wait_that_counts_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "rest", lambda self: None)
    with pytest.raises(ReplyTimeout):
        test_waiting_counts_against_no_time_limit()


def test_the_reported_usage_corrects_what_was_estimated() -> None:
    async def work() -> float:
        limiter = Limiter("row", tokens=210)
        await converse(limiter, [answer], [])
        return await converse(limiter, [answer], [])

    # 200 were used, 190 of them beyond the estimate and known only after a second.
    assert run_virtually(work()) == 1.0

    async def more() -> float:
        limiter = Limiter("row", tokens=205)
        await converse(limiter, [answer], [])
        return await converse(limiter, [answer], [])

    assert run_virtually(more()) == 60.0


def overload(advice: float | None) -> Callable[[Watch], Any]:
    async def fail(watch: Watch) -> Sequence[Delta]:
        error = ProviderOverloaded("too much", provider="row")
        error.retry_after = advice
        raise error

    return fail


@pytest.mark.parametrize(
    ("chance", "advice", "waits"),
    [
        (0.0, None, [0.25, 0.5, 1, 2, 4, 4]),
        (1.0, None, [0.5, 1, 2, 4, 8, 8]),
        (1.0, 60.0, [60] * 6),
        (1.0, 0.0, [0] * 6),
    ],
)
def test_retries_wait_twice_as_long_each_time_or_as_advised(
    monkeypatch: pytest.MonkeyPatch, chance: float, advice: float | None, waits: list[float]
) -> None:
    monkeypatch.setattr("random.random", lambda: chance)
    reported: list[Notice] = []
    attempts = [*[overload(advice)] * 6, answer]
    limits = {"retries": 6, "retry_wait_seconds": 60.0}
    assert run_virtually(converse(None, attempts, reported, **limits)) == 1.0 + sum(waits)
    assert [notice.text for notice in reported] == [
        f"overloaded; retrying in {seconds:.1f} s ({number} of 6)".replace(".0 s", " s")
        for number, seconds in enumerate(waits, 1)
    ]


def test_a_longer_wait_than_is_borne_and_a_retry_too_many_are_errors_at_once() -> None:
    for attempts in ([overload(60.1), answer], [overload(0.0)] * 7):
        reported: list[Notice] = []
        with pytest.raises(ProviderOverloaded):
            run_virtually(converse(None, attempts, reported, retries=6, retry_wait_seconds=60.0))
        assert len(reported) == (0 if len(attempts) == 2 else 6)


def test_every_attempt_counts_and_advice_on_waiting_holds_for_all() -> None:
    async def work() -> tuple[float, float, list[Notice]]:
        reported: list[Notice] = []
        limiter = Limiter("row", requests=3, tokens=15)
        first = asyncio.create_task(converse(limiter, [refuse, answer], reported))
        await asyncio.sleep(1)
        other = await converse(limiter, [answer], reported)
        assert limiter._starts
        return await first, other, reported

    first, other, reported = run_virtually(work())
    # The one that was refused keeps none of its tokens, and waits as advised; so does the other.
    assert sorted((first, other))[0] >= 19.0
    assert {notice.subject for notice in reported} == {"retry", "wait"}


def test_without_limits_nothing_waits() -> None:
    async def work() -> float:
        return sum([await converse(None, [answer], []) for _ in range(100)])

    assert run_virtually(work()) == 100.0


# Through a session.

ROW = """
[providers.slow]
module = "vibe_llms.providers.scripted"
credential = "none"
default-model = "demo"
requests-per-minute = 2
"""


def write(home: Path, text: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)


@pytest.mark.parametrize(
    ("line", "key"),
    [("requests-per-minute = 0", "requests-per-minute"), ("tokens-per-minute = 'x'", "tokens-per")],
)
async def test_what_is_no_limit_is_named(home: Path, line: str, key: str) -> None:
    write(home, f"[providers.slow]\nmodule = 'vibe_llms.providers.scripted'\n{line}\n")
    async with open_session() as session:
        with pytest.raises(ConfigurationError) as caught:
            await session.access_model("slow/demo")
    assert caught.value.key.startswith(key)


async def test_conversations_of_a_row_share_its_limits_and_a_cancel_ends_the_wait(
    home: Path,
) -> None:
    write(home, ROW)
    events: list[Event] = []
    async with open_session(event_handler=events.append) as session:
        conversations = [await session.begin("slow/demo") for _ in range(3)]
        for conversation in conversations[:2]:
            await conversation.converse("Hello!")
        waiting = asyncio.create_task(waited(conversations[2]))
        async with asyncio.timeout(30):
            while not any(isinstance(event, NoticeEvent) for event in events):
                await asyncio.sleep(0.01)
        await conversations[2].cancel()
        assert (await waiting).stop_reason == "interrupted"
        free = await session.begin("scripted/demo")
        assert (await free.converse("Hello!")).text
    check_events([e for e in events if e.conversation == conversations[2].identity])
    texts = [event.notice.text for event in events if isinstance(event, NoticeEvent)]
    assert texts == ["slow: waiting, to stay within requests-per-minute = 2"]


async def waited(conversation: Conversation) -> Turn:
    return await conversation.converse("Hello!")


async def test_a_model_of_no_row_has_no_limits(home: Path) -> None:
    write(home, ROW)
    async with open_session() as session:
        model = scripted_model(Script((ScriptedReply(parts=(Part(text="Hi"),)),) * 4))
        conversation = await session.begin(model)
        for _ in range(4):
            await conversation.converse("Hello!")
        assert session._providers.access_limiter(model) is None


async def test_a_fork_and_a_switch_of_the_model_keep_to_the_limits_of_the_row(home: Path) -> None:
    write(home, ROW.replace("= 2", "= 100") + "tokens-per-minute = 100000\n")
    async with open_session() as session:
        conversation = await session.begin("scripted/demo")
        await conversation.converse("Hello!")
        limiter = session._providers.access_row_limiter("slow")
        assert limiter is not None
        assert not limiter._starts
        await conversation.switch("slow/demo")
        await conversation.converse("Hello!")
        await (await conversation.fork()).converse("Hello!")
        assert len(limiter._starts) == 2
        assert sum(spent.tokens for spent in limiter._spent) > 0
        starts = list(limiter._starts)
        assert all(one <= other for one, other in pairwise(starts))
