"""Streams that are cut: what a reply gives then, and what is the same of it for every provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tests.fakes.recordings import is_cut
from tests.fakes.server import End
from vibe_llms.configuration import StreamSettings
from vibe_llms.events import Event, MessageCompletedEvent, MessageFailedEvent
from vibe_llms.exceptions import ProviderUnreachable, ReplyCut
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Provenance,
    ReplyCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ReasoningContent
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.exchanges import Assimilator, Exchange, hold
from vibe_llms.providers.interfaces import Client, ignore_notices
from vibe_llms.providers.transport import Outgoing, Transport

SIZES = (1, 31, 512)
ENDS: tuple[End, ...] = ("clean", "close")
STREAM = StreamSettings(retries=0)


class Outcome(NamedTuple):
    """What a reply gave: canisters and events, and whether it failed as cut."""

    canisters: Sequence[ReplyCanister]
    events: Sequence[Event]
    failed: bool


def ways(cut: int, *, every: bool) -> Iterator[tuple[End, int]]:
    """How a stream is cut at a place, and in what chunks: in all ways, or in one of its own."""
    sizes = SIZES if every else (SIZES[(cut % 50 > 0) + (cut % 5 > 0)],)
    for end in ENDS if every else (ENDS[cut % 2],):
        for size in sizes:
            yield end, size


async def replay(
    transport: Transport, provenance: Provenance, produce_assimilator: Callable[[], Assimilator]
) -> Outcome:
    """What a reply over a transport gives."""
    provider = provenance.row
    events: list[Event] = []
    accumulator = Accumulator(provenance, events.append)
    exchange = Exchange(
        provider=provider,
        transport=transport,
        settings=STREAM,
        produce_assimilator=produce_assimilator,
        read_error=lambda status, headers, body: ReplyCut("refused", provider=provider),
        notify=ignore_notices,
    )
    try:
        await hold(exchange, Outgoing("POST", "/"), accumulator)
    except ReplyCut:
        return Outcome(accumulator.canisters, events, failed=True)
    return Outcome(accumulator.canisters, events, failed=False)


async def hear(client: Any, model: str, end: End) -> Outcome:
    """What a reply over sockets gives, whose connection ends so."""
    events: list[Event] = []
    client.event_handler = events.append
    speaker: Client = client
    try:
        canisters = await (await speaker.access_model(model)).converse(
            [UserCanister.from_text("Hi")]
        )
    except (ReplyCut, ProviderUnreachable) as error:
        # A reset may take the headers too, before they were read.
        if not isinstance(error, ReplyCut) and end != "reset":
            raise
        received = tuple(
            event.partial if isinstance(event, MessageFailedEvent) else event.canister
            for event in events
            if isinstance(event, MessageCompletedEvent | MessageFailedEvent)
        )
        return Outcome(received, events, failed=True)
    return Outcome(canisters, events, failed=False)


def check_cut(
    outcome: Outcome,
    stripped: Sequence[Any],
    strip: Callable[[Sequence[ReplyCanister]], Sequence[Any]],
    place: str,
) -> tuple[int, ReplyCanister]:
    """A cut reply failed once and at last, after whole messages; how many, and what came then."""
    canisters, events, failed = outcome
    assert failed, f"{place}: a cut reply was taken for whole"
    failures = [event for event in events if isinstance(event, MessageFailedEvent)]
    assert len(failures) == 1, place
    assert events[-1] is failures[0], place
    completed = [event.canister for event in events if isinstance(event, MessageCompletedEvent)]
    # Messages before it are whole, as they would have been without the cut.
    assert strip(completed) == stripped[: len(completed)], place
    partial = failures[0].partial
    assert is_cut(partial), place
    assert [*completed, partial] == [*canisters], place
    return len(completed), partial


def check_words(partial: ReplyCanister, whole: AssistantCanister, place: str) -> None:
    """What came of a message is how it begins."""
    assert isinstance(partial, AssistantCanister), place
    assert whole.text.startswith(partial.text), place
    assert _thoughts(whole).startswith(_thoughts(partial)), place


def _thoughts(canister: AssistantCanister) -> str:
    return "".join(c.text for c in canister.contents if isinstance(c, ReasoningContent))
