"""The display of a turn: the answer on stdout, everything else on stderr.

Each display is an event handler. Control sequences from models, tools or names never reach a
terminal. In a pipe, the answer's bytes are unchanged, and it ends with one newline.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from vibe_llms.cli.failures import describe
from vibe_llms.cli.markdown import MarkdownStream
from vibe_llms.cli.notes import Notes
from vibe_llms.cli.progress import Stages, Waiting
from vibe_llms.cli.terminal import (
    VisibleText,
    aside,
    can_redraw,
    columns,
    has_colours,
    is_terminal,
    note,
    write,
    write_json,
)
from vibe_llms.cli.text import Flow
from vibe_llms.messages.events import (
    Event,
    EventHandler,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    NoticeEvent,
    ReasoningChunk,
    TextChunk,
    TurnEndedEvent,
)
from vibe_llms.messages.hidden import one_line, visible

_FENCE = re.compile(r"(\s*)(`{3,}|~{3,})(.*)")


class Display:
    """The display of an answer as it arrives: rendered Markdown on a terminal, else unchanged."""

    def __init__(
        self,
        *,
        render: bool | None = None,
        hide_reasoning: bool = False,
        quiet: bool = False,
        transform: Callable[[str], str] | None = None,
        tools_debug: bool = False,
    ) -> None:
        self._output = sys.stdout
        rendered = has_colours(self._output) if render is None else render
        self._markdown = MarkdownStream(self._output) if rendered and transform is None else None
        self._plain = VisibleText() if is_terminal(self._output) else None
        self._hide_reasoning = hide_reasoning
        self._quiet = quiet
        self._transform = transform
        self._waiting = Waiting(enabled=not quiet)
        self._stages = Stages(
            self._print, self._waiting.show, folded=can_redraw(sys.stderr), whole=tools_debug
        )
        self._notes = Notes(lambda text: self._print(one_line(f"note: {text}")))
        self._model = "the answer"
        self._text: list[str] = []
        self._last = "\n"
        self._reasoning = ""
        self._flow = Flow()

    def begin(self, model: str) -> None:
        """Start a turn, showing the model that is waited for."""
        self._model = model
        self._notes.begin()
        self._waiting.show(f"waiting for {model}")

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if type(event) is not NoticeEvent:
            self._notes.flush()
        match event:
            case MessageProgressEvent(chunk=TextChunk(text)):
                self._end_reasoning()
                self._show(text)
            case MessageProgressEvent(chunk=ReasoningChunk(text)):
                self._reason(text)
            case MessageStartedEvent(role="assistant"):
                self._separate()
            case MessageFailedEvent():
                self._end_reasoning()
            case InvocationStartedEvent(invocation=invocation):
                self._separate()
                self._stages.begin(invocation)
            case InvocationProgressEvent(invocation=invocation, text=text, done=done, total=total):
                self._stages.report(invocation, text, done, total)
            case InvocationCompletedEvent() | InvocationFailedEvent():
                self._stages.end(event.invocation, event.result)
            case NoticeEvent(notice=notice):
                if not (notice.subject == "retry" and self._waiting.show_news(notice.text)):
                    self._notes.add(notice)
            case TurnEndedEvent():
                self._waiting.clear()
                self._end_reasoning()
                self._end_line()

    def finish(self) -> None:
        """Print all remaining output of a complete answer."""
        if self._transform is not None:
            self._emit(self._transform("".join(self._text)))
            self._end_line()

    def pause(self) -> None:
        """Finish the current drawing before other output."""
        self._notes.flush()
        self._end_reasoning()
        self._separate()

    def close(self) -> None:
        """End the turn, whether it succeeded or failed; safe to call twice."""
        self._notes.close()
        self._waiting.clear()
        if self._markdown is not None:
            self._markdown.close()

    def _show(self, text: str) -> None:
        if not text:
            return
        self._text.append(text)
        if self._transform is not None:
            return
        if is_terminal(self._output):
            self._waiting.show_in_silence(f"waiting for {self._model}")
        else:
            self._waiting.clear()
        if self._markdown is not None:
            self._markdown.feed(text)
        else:
            self._emit(text)

    def _emit(self, text: str) -> None:
        if text:
            write(self._output, text if self._plain is None else self._plain.feed(text))
            self._last = text[-1]

    def _separate(self) -> None:
        """Begin a new line between two messages of a turn."""
        if self._text and not self._text[-1].endswith("\n"):
            self._text.append("\n")
        self._end_line()

    def _end_line(self) -> None:
        if self._markdown is not None:
            self._markdown.close()
            return
        if self._plain is not None:
            write(self._output, self._plain.close())
        if self._last != "\n":
            self._emit("\n")

    def _reason(self, text: str) -> None:
        if self._quiet:
            return
        if self._hide_reasoning:
            if not self._reasoning:
                self._waiting.show("thinking")
            self._reasoning = " "
            return
        self._waiting.clear()
        if self._markdown is not None:
            self._markdown.close()
        if is_terminal(sys.stderr):
            text = self._flow.feed(visible(text), columns(sys.stderr))
        if text:
            aside(text, dim=True)
        self._reasoning = text or self._reasoning or " "

    def _end_reasoning(self) -> None:
        if self._reasoning and not self._hide_reasoning:
            if left := self._flow.close(columns(sys.stderr)):
                aside(left, dim=True)
                self._reasoning = left
            ended = self._reasoning.endswith("\n")
            aside(("" if ended else "\n") + ("\n" if is_terminal(sys.stderr) else ""))
        self._reasoning = ""

    def _print(self, text: str) -> None:
        if self._quiet:
            return
        self._waiting.clear()
        self._end_reasoning()
        if self._markdown is not None:
            self._markdown.hide()
        elif is_terminal(self._output):
            self._end_line()
        note(text, dim=True)


def print_notices(*, quiet: bool = False) -> EventHandler:
    """Make an event handler that prints notices only."""

    def handle(event: Event) -> None:
        if isinstance(event, NoticeEvent) and not quiet:
            note(one_line(f"note: {event.notice.text}"), dim=True)

    return handle


class Silence:
    """The display for `--json`: only notices; the caller prints one object at the end."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._notes = Notes(self._print)
        self._quiet = quiet
        self._waiting = Waiting(enabled=not quiet)

    def begin(self, model: str) -> None:
        """Start a turn, showing the model that is waited for."""
        self._notes.begin()
        self._waiting.show(f"waiting for {model}")

    def __call__(self, event: Event) -> None:
        """Show a notice."""
        if not isinstance(event, NoticeEvent):
            self._notes.flush()
        elif not (event.notice.subject == "retry" and self._waiting.show_news(event.notice.text)):
            self._notes.add(event.notice)

    def finish(self) -> None:
        """Do nothing: the caller prints the answer."""

    def pause(self) -> None:
        """Print the notes that were held back."""
        self._notes.flush()

    def close(self) -> None:
        """End the turn."""
        self._notes.close()
        self._waiting.clear()

    def _print(self, text: str) -> None:
        self._waiting.clear()
        if not self._quiet:
            note(one_line(f"note: {text}"), dim=True)


class EventLines(Silence):
    """The display for `--jsonl`: each event as a line of JSON."""

    def begin(self, model: str) -> None:
        """Do nothing: the events name the model."""

    def __call__(self, event: Event) -> None:
        """Print an event."""
        write_json(encode_event(event))


def encode_event(event: Event) -> str:
    """Encode an event as JSON: its name under `event`, then its members; stable."""
    members: dict[str, Any] = {"event": _name_of(event, "Event")}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if isinstance(value, BaseException):
            value = describe(value)
        elif name == "chunk":
            value = {"kind": _name_of(value, "Chunk"), "text": value.text}
        members[name] = value
    return msgspec.json.encode(members).decode()


def take_code(which: Literal["first", "last"]) -> Callable[[str], str]:
    """Make a function that returns an answer's first or last code block, or the whole answer."""

    def take(text: str) -> str:
        blocks = find_code(text)
        if not blocks:
            return text
        return blocks[0] if which == "first" else blocks[-1]

    return take


def find_code(text: str) -> list[str]:
    """Return the code blocks of Markdown without the indentation of their fences."""
    blocks: list[str] = []
    indent, fence = "", ""
    for line in text.removesuffix("\n").split("\n"):
        found = _FENCE.match(line)
        if not fence:
            if found and not (found[2][0] == "`" and "`" in found[3]):
                indent, fence = found[1], found[2]
                blocks.append("")
        elif found and found[2].startswith(fence) and not found[3].strip():
            fence = ""
        else:
            blocks[-1] += f"{line.removeprefix(indent)}\n"
    return blocks


def _name_of(value: object, ending: str) -> str:
    """Return the name of a class in JSON: `message-progress` for `MessageProgressEvent`."""
    name = type(value).__name__.removesuffix(ending)
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")
