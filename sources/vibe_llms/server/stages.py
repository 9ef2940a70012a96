"""Stages: the parts of server-side tool calls that clients may show.

A stage has the name of the tool, its arguments, progress, and result, and is closed even if the
tool fails. For a tool with `show_in_stage=False`, only the name is shown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec
from msgspec import Struct

from vibe_llms.messages.canisters import Canister, InvocationCanister, ResultCanister
from vibe_llms.messages.contents import text_of
from vibe_llms.messages.events import (
    Event,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
)


class Stage(Struct, omit_defaults=True):
    """A stage, or a piece of one: its content grows, and it is open until it has a status."""

    index: int
    name: str | None = None
    content: str | None = None
    status: str | None = None


class StageWriter:
    """Writer of the stages of one reply; tools named in `hidden` show only their names."""

    def __init__(self, hidden: Collection[str] = ()) -> None:
        self._hidden = hidden
        self._places: dict[str, int] = {}

    def write(self, event: Event) -> Sequence[Stage]:
        """Return the pieces that an event adds to stages."""
        match event:
            case InvocationStartedEvent(invocation=call):
                self._places[call.identity] = place = len(self._places)
                content = None if self._hides(call) else write_arguments(call)
                return [Stage(place, name=call.name, content=content)]
            case InvocationProgressEvent(invocation=call, text=text) if text and not self._hides(
                call
            ):
                return [Stage(self._places[call.identity], content=f"{text}\n\n")]
            case (
                InvocationCompletedEvent(invocation=call, result=result)
                | InvocationFailedEvent(invocation=call, result=result)
            ):
                content = None if self._hides(call) else write_result(result)
                place = self._places[call.identity]
                return [Stage(place, content=content, status=_status_of(result))]
        return ()

    def _hides(self, call: InvocationCanister) -> bool:
        return call.name in self._hidden


def describe_stages(canisters: Sequence[Canister], hidden: Collection[str]) -> Iterator[Stage]:
    """Yield the stages of a finished turn, one for each call with a result."""
    calls = {one.identity: one for one in canisters if isinstance(one, InvocationCanister)}
    results = [one for one in canisters if isinstance(one, ResultCanister)]
    for place, result in enumerate(one for one in results if one.invocation in calls):
        call = calls[result.invocation]
        content = None
        if call.name not in hidden:
            content = write_arguments(call) + write_result(result)
        yield Stage(place, name=call.name, content=content, status=_status_of(result))


def write_arguments(call: InvocationCanister) -> str:
    """Return the arguments of a call as Markdown."""
    arguments = call.arguments or "{}"
    if call.parsed is not None:
        arguments = msgspec.json.format(arguments, indent=2)
    return f"## Request arguments:\n\n```json\n{arguments}\n```\n\n"


def write_result(result: ResultCanister) -> str:
    """Return the result of a call as Markdown."""
    return f"## Response:\n\n{result.display or text_of(result.contents)}\n"


def _status_of(result: ResultCanister) -> str:
    return "failed" if result.failed else "completed"
