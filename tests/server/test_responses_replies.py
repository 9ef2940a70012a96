"""What the events of a run become in the dialect of Responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from vibe_llms.runs.events import (
    MessageCompleted,
    MessageDelta,
    MessageStarted,
    RunContinued,
    RunEvent,
    first_cursor,
)
from vibe_llms.server.responses_replies import StreamWriter
from vibe_llms.server.responses_tools import ClientTools

CUT: Sequence[RunEvent] = (MessageStarted("m", "assistant"), MessageDelta("m", "Hello."))


def write(*epochs: Sequence[RunEvent]) -> Iterator[dict[str, Any]]:
    """The events of the dialect, for the events of each epoch."""
    writer = StreamWriter(ClientTools())
    for epoch, events in enumerate(epochs, 1):
        cursor = first_cursor(epoch)
        for event in events:
            cursor += len(event.text) if isinstance(event, MessageDelta) else 1
            for line in writer.write(cursor, event).decode().splitlines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))


def test_a_message_that_was_complete_before_a_takeover_is_one_item() -> None:
    written = [*write(CUT, [RunContinued(), MessageCompleted("m")])]
    items = [one["item"] for one in written if one["type"] == "response.output_item.done"]
    assert [(one["id"], one["status"]) for one in items] == [("msg_m", "completed")]


def test_an_item_of_a_message_that_starts_again_ends_before_that_is_announced() -> None:
    written = [*write(CUT, [RunContinued("m"), MessageStarted("n", "assistant")])]
    *_, done, again = written
    assert (done["item"]["id"], done["item"]["status"]) == ("msg_m", "incomplete")
    assert (again["type"], again["message"]) == ("x:response.continued", "m")
