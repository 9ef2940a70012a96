"""Stages: what a client may show of the calls of tools that run on the server.

A stage has the name of the tool, the arguments, progress and the result, and is closed also where
the tool fails. A tool with `show_in_stage=False` shows neither arguments, progress nor result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec
from msgspec import Struct

from vibe_llms.events import (
    Event,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
)
from vibe_llms.messages.canisters import Canister, InvocationCanister, ResultCanister
from vibe_llms.messages.contents import text_of


class Stage(Struct, omit_defaults=True):
    """A stage, or more of one: its content grows, and it is open until it has a status."""

    index: int
    name: str | None = None
    content: str | None = None
    status: str | None = None


class StageWriter:
    """Writes the stages of one reply; `hidden` are names of tools that show only their names."""

    def __init__(self, hidden: Collection[str] = ()) -> None:
        self._hidden = hidden
        self._places: dict[str, int] = {}

    def write(self, event: Event) -> Sequence[Stage]:
        """What an event adds to a stage."""
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
    """The stages of a turn that has ended: of its calls that have results."""
    calls = {one.identity: one for one in canisters if isinstance(one, InvocationCanister)}
    results = [one for one in canisters if isinstance(one, ResultCanister)]
    for place, result in enumerate(one for one in results if one.invocation in calls):
        call = calls[result.invocation]
        content = None
        if call.name not in hidden:
            content = write_arguments(call) + write_result(result)
        yield Stage(place, name=call.name, content=content, status=_status_of(result))


def write_arguments(call: InvocationCanister) -> str:
    """The arguments of a call, as Markdown."""
    arguments = call.arguments or "{}"
    if call.parsed is not None:
        arguments = msgspec.json.format(arguments, indent=2)
    return f"## Request arguments:\n\n```json\n{arguments}\n```\n\n"


def write_result(result: ResultCanister) -> str:
    """The result of a call, as Markdown."""
    return f"## Response:\n\n{result.display or text_of(result.contents)}\n"


def _status_of(result: ResultCanister) -> str:
    return "failed" if result.failed else "completed"
