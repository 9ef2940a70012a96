"""T5: a retry duplicates nothing: failures by their class and by the stage of the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest

from tests.fakes.backends import Interface
from tests.fakes.interfaces import HttpInterface, every_interface, every_server
from tests.fakes.server import HttpAnswer
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import ProviderError
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.events import (
    Event,
    InvocationStartedEvent,
    MessageProgressEvent,
    Notice,
    NoticeEvent,
    TextChunk,
)
from vibe_llms.providers import round_trip
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.testing import check_events

HELLO = [UserCanister.from_text("Hi")]
RETRYING = StreamSettings(first_byte_seconds=1.0, idle_seconds=1.0)
SOON = {"retry-after-ms": "1", "retry-after": "0"}

Case: TypeAlias = tuple[str, str]


def produce_failures(interface: Interface) -> dict[Case, tuple[Callable[[], Any], bool]]:
    """Failures by class and stage, and whether they may be tried again."""
    said = interface.texts("The sky ", "is blue.")
    found: dict[Case, tuple[Callable[[], Any], bool]] = {
        (name, "before headers"): (
            lambda produce=produce: produce(headers=SOON),  # type: ignore[misc]
            name not in ("refused", "unauthorized"),
        )
        for name, produce in interface.failures.items()
    }
    found["cut", "before first delta"] = (lambda: interface.cut(said, 0), True)
    if isinstance(interface, HttpInterface):
        found |= produce_server_failures(interface)
    else:
        found["cut", "after"] = (lambda: interface.cut(said, 0.55), False)
    return found


def produce_server_failures(
    interface: HttpInterface,
) -> dict[Case, tuple[Callable[[], HttpAnswer], bool]]:
    """Those of connections and streams."""
    chunks = interface.encode(interface.texts("The sky ", "is blue."))
    found: dict[Case, tuple[Callable[[], HttpAnswer], bool]] = {}
    found["reset", "before headers"] = (lambda: HttpAnswer(drop="reset"), True)
    found["close", "before headers"] = (lambda: HttpAnswer(drop="close"), True)
    found["read timeout", "before headers"] = (lambda: HttpAnswer(stall=-1), False)
    for stage, begun in (
        ("before first delta", chunks[: interface.opened]),
        ("after", chunks[: interface.spoken]),
    ):
        size = len(b"".join(begun))
        early = stage != "after"

        def produce_stream(begun: Sequence[bytes] = begun, **faults: object) -> HttpAnswer:
            return interface.stream_bytes(begun, **faults)

        for name, event in interface.late.items():
            (last, *_) = interface.encode([event])
            found[name, stage] = (
                lambda begun=begun, last=last: interface.stream_bytes([*begun, last]),  # type: ignore[misc]
                early,
            )
        found["reset", stage] = (
            lambda begun=begun, size=size: interface.stream_bytes(  # type: ignore[misc]
                [*begun, b":"], cut=size, end="reset"
            ),
            early,
        )
        found["clean", stage] = (produce_stream, early)
        found["read timeout", stage] = (
            lambda produce=produce_stream, size=size: produce(stall=size),  # type: ignore[misc]
            False,
        )
    return found


def seen_text(events: Sequence[Event]) -> str:
    return "".join(
        event.chunk.text
        for event in events
        if isinstance(event, MessageProgressEvent) and isinstance(event.chunk, TextChunk)
    )


async def check_failure(interface: Interface, case: Case, failures: int) -> None:
    """After some failures the reply succeeds, or fails with what may not be tried again."""
    produce, repeatable = produce_failures(interface)[case]
    events: list[Event] = []
    notices: list[Notice] = []
    replies = [*(produce() for _ in range(failures)), interface.texts("Once.")]
    with interface.play(*replies) as backend:
        model = await interface.produce_model(backend, stream=RETRYING, event_handler=events.append)
        context = TurnContext(notify=notices.append)
        error: ProviderError | None = None
        try:
            await model.converse(HELLO, context=context)
        except ProviderError as raised:
            error = raised
        requests = len(replies) - len(backend.replies)
        await model.client.close()
    check_events(events, turn=False)
    shown = seen_text(events)
    if repeatable and failures <= 2:
        assert error is None, f"{case}: {error}"
        assert (requests, shown) == (failures + 1, "Once."), case
    else:
        assert error is not None, case
        assert requests == (3 if repeatable else 1), f"{case}: {requests} requests"
        assert "The sky is ".startswith(shown), f"{case}: {shown!r}"
    assert len(notices) == requests - 1, case
    for number, notice in enumerate(notices):
        assert notice.subject == "retry"
        assert f"({number + 1} of 2)" in notice.text


@pytest.mark.parametrize("failures", [1, 3])
@every_interface
async def test_failures_are_tried_again_only_before_anything_was_seen(
    interface: Interface, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(interface, HttpInterface):
        monkeypatch.setattr(round_trip, "FIRST_WAIT_SECONDS", 0.001)
    # What answers in this process does one thing after the other.
    few = asyncio.Semaphore(100 if isinstance(interface, HttpInterface) else 1)

    async def check(case: Case) -> None:
        async with few:
            await check_failure(interface, case, failures)

    async with asyncio.TaskGroup() as group:
        for case in produce_failures(interface):
            group.create_task(check(case))


@every_interface
async def test_a_retry_after_text_was_seen_would_be_detected(
    interface: Interface, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset(self: Accumulator) -> bool:
        self._draft = None
        return True

    monkeypatch.setattr(Accumulator, "reset", reset)
    case = ("clean" if isinstance(interface, HttpInterface) else "cut", "after")
    with pytest.raises(AssertionError):
        await check_failure(interface, case, 1)


@every_server
async def test_a_tool_that_ran_does_not_run_again_when_the_next_request_is_tried_again(
    interface: HttpInterface,
) -> None:
    runs: list[int] = []

    def count() -> int:
        runs.append(1)
        return len(runs)

    events: list[Event] = []
    with interface.serve() as server:
        server.replies = [
            interface.tools(("count", "{}")),
            interface.failures["overloaded"](headers=SOON),
            HttpAnswer(drop="reset"),
            interface.texts("Done."),
        ]
        async with interface.open_session(server, retries=2) as session:
            conversation = await session.begin(interface.address, event_handler=events.append)
            turn = await conversation.converse("Count.", invokers=[count])
        assert server.refusals == []
    assert (turn.text, runs, server.replies) == ("Done.", [1], [])
    assert sum(isinstance(event, InvocationStartedEvent) for event in events) == 1
    retries = [event for event in events if isinstance(event, NoticeEvent)]
    assert [event.notice.subject for event in retries] == ["retry", "retry"]
    check_events(events)
