"""Questions of tools at the terminal: approval of calls, and forms of servers (elicitation)."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vibe_llms.base.exceptions import AnswerInvalid
from vibe_llms.cli.questions import QuestionLine, Questions, TypedQuestion, bind
from vibe_llms.cli.terminal import BOLD, DIM, is_terminal, note
from vibe_llms.cli.text import cut, spell
from vibe_llms.invocation.approval import ApprovalRequest, Approver, Decision
from vibe_llms.invocation.questions import (
    ElicitationAnswer,
    ElicitationField,
    ElicitationRequest,
    Elicitor,
)
from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.messages.hidden import one_line, visible

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings

_CHOICES = "[y]es, [n]o, [n]o because REASON"
_FURTHER_CHOICES = ", [a]lways {scope}, always this [t]ool in this session"
_MORE = ": v shows everything"
_DECISIONS = {
    **dict.fromkeys(("y", "yes"), Decision.ALLOW),
    **dict.fromkeys(("a", "always"), Decision.ALWAYS),
    **dict.fromkeys(("t", "tool"), Decision.ALWAYS_TOOL),
    **dict.fromkeys(("", "n", "no"), Decision.DENY),
}
_REASON = re.compile(r"(?:n|no),? +(?:because +)?(\S.*)", re.IGNORECASE)
_WORD = re.compile(r"[\w.-]+")
_TOOL = re.compile(r"[\w./:-]+")
#: Maximum characters shown of a tool's name, so that the arguments fit on the screen.
_LONGEST_NAME = 100
#: Maximum characters of a value that stays on one line.
_SHORT = 60
#: Depth from which values stay on one line.
_DEEPEST = 8
#: Approximate lines of a form or an address below the server's text.
_BELOW = 10
#: Maximum cells of a field's label or default.
_LONGEST_LABEL = 200
_DECLINE, _CANCEL = ElicitationAnswer("decline"), ElicitationAnswer("cancel")


def produce_approver(*, approve_all: bool, questions: Questions) -> Approver | None:
    """Make the approver of calls: it allows all, or asks at the terminal.

    None without a terminal; then calls that need approval do not run.
    """
    if approve_all:
        return _allow
    if is_terminal(sys.stdin) and is_terminal(sys.stderr):
        return TerminalApprover(questions)
    return None


async def _allow(_: ApprovalRequest) -> Decision:
    return Decision.ALLOW


class TerminalApprover:
    """An approver that shows a call in full and asks, one call at a time."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    async def __call__(self, request: ApprovalRequest) -> Decision:
        """Ask the user for a decision; Ctrl-C interrupts the turn."""
        choices = _CHOICES
        if not request.each_time:
            choices += _FURTHER_CHOICES.format(scope=request.scope or "this call")
        name, reason = request.invoker.name, request.reason
        bindings = bind({"c-c": _interrupt, "c-d": _refuse})
        async with self._questions.open() as question:
            return await _ask_about(
                question, name, request.invocation, reason, choices=choices, bindings=bindings
            )


async def decide_call(
    questions: Questions, name: str, invocation: InvocationCanister, reason: str, *, whole: bool
) -> Decision | None:
    """Ask for a decision on a call of a run; None if Ctrl-C or Ctrl-D leaves it open.

    `whole` shows all of its arguments, even if they are longer than the screen.
    """
    bindings = bind(dict.fromkeys(("c-c", "c-d"), _leave_open))
    async with questions.open() as question:
        with suppress(_Open):
            return await _ask_about(
                question, name, invocation, reason, choices=_CHOICES, bindings=bindings, whole=whole
            )
    return None


async def _ask_about(
    question: TypedQuestion,
    name: str,
    invocation: InvocationCanister,
    reason: str,
    *,
    choices: str,
    bindings: KeyBindings,
    whole: bool = False,
) -> Decision:
    name = _show_tool(name)
    # Millions of lines take seconds; other turns continue in the meantime.
    body = await asyncio.to_thread(draw_arguments, invocation)
    question.print(f"The model calls {name}", BOLD)
    question.print(f"({reason})", DIM)
    below = (len(choices) + len(name)) // question.cells + 4
    cut = not whole and question.show(body, below=below, more=_MORE)
    if whole:
        question.show_whole(body)
    question.print(choices, DIM)
    while True:
        answer = (await question.read(f"Run {name}?", bindings)).strip()
        if cut and answer.lower() == "v":
            question.show_whole(body)
        elif (decision := read_decision(answer)) is not None:
            return decision
        else:
            question.print(f"Please answer: {choices}", DIM)


def read_decision(answer: str) -> Decision | None:
    """Read a decision from an answer; None if it is not understood.

    >>> read_decision("No, because it is late").reason
    'it is late'
    """
    if found := _REASON.fullmatch(answer):
        return Decision(False, reason=found[1])
    return _DECISIONS.get(answer.lower())


def _show_tool(name: str) -> str:
    """Return the name of a tool, in quotes if it could be read as our text."""
    short = name
    if len(name) > _LONGEST_NAME:
        half = _LONGEST_NAME // 2
        short = f"{name[:half]}…{name[-half:]}"
    if not name.isascii():
        return spell(short)
    return short if _TOOL.fullmatch(short) else json.dumps(short, ensure_ascii=False)


def _refuse(event: Any) -> None:
    event.app.exit(result="n")


class _Open(Exception):
    """Raised when the user leaves the question open."""


def _leave_open(event: Any) -> None:
    event.app.exit(exception=_Open())


def _interrupt(event: Any) -> None:
    event.app.exit(result="n")
    # The handler of the turn ends it.
    signal.raise_signal(signal.SIGINT)


def draw_arguments(invocation: InvocationCanister) -> list[QuestionLine]:
    """Draw the arguments of a call in full; multi-line texts keep their lines."""
    parsed = invocation.parsed
    if parsed is None:
        return [QuestionLine(line) for line in invocation.arguments.split("\n")]
    if not parsed:
        return [QuestionLine("(no arguments)")]
    try:
        return [line for key, one in parsed.items() for line in _draw(f"{_name(key)}:", one, 0)]
    except RecursionError:
        return [QuestionLine(invocation.arguments)]


def _draw(label: str, value: Any, indent: int) -> Iterator[QuestionLine]:
    below = indent + 2
    if isinstance(value, str) and "\n" in value:
        yield QuestionLine(label, indent, below)
        yield from (QuestionLine(line, below + 2, below + 2) for line in value.split("\n"))
        return
    parts: list[tuple[str, Any]] = []
    if indent < 2 * _DEEPEST:
        if isinstance(value, Mapping):
            parts = [(f"{_name(key)}:", one) for key, one in value.items()]
        elif isinstance(value, list):
            parts = [("-", one) for one in value]
    flat = json.dumps(value, ensure_ascii=False)
    if not parts or (len(flat) <= _SHORT and "\\n" not in flat):
        yield QuestionLine(f"{label} {flat}", indent, below + 2)
        return
    yield QuestionLine(label, indent, below)
    for name, one in parts:
        yield from _draw(name, one, below)


def _name(key: str) -> str:
    return key if _WORD.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def produce_elicitor(questions: Questions) -> Elicitor:
    """Make the elicitor: asks at the terminal; without one, declines everything."""
    if is_terminal(sys.stdin) and is_terminal(sys.stderr):
        return TerminalElicitor(questions)
    return _decline


async def _decline(request: ElicitationRequest) -> ElicitationAnswer:
    what = f"you to open {request.url}" if request.url else "you to fill in a form"
    note(
        f"{request.ensemble} asks {what} ({request.message}); declined: not a terminal",
        dim=True,
    )
    return _DECLINE


class _Abandoned(Exception):
    """Raised when the user ends a question without an answer."""

    def __init__(self, answer: ElicitationAnswer) -> None:
        super().__init__(answer.action)
        self.answer = answer


class TerminalElicitor:
    """An elicitor that shows who asks and the question, then asks for one field at a time."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    async def __call__(self, request: ElicitationRequest) -> ElicitationAnswer:
        """Ask the user for an answer; Ctrl-D declines, Ctrl-C cancels."""
        async with self._questions.open() as question:
            lines = f"{request.ensemble} asks: {request.message}".split("\n")
            body = [QuestionLine(line) for line in lines]
            question.show(body, below=_BELOW)
            try:
                answering = self._ask_to_open if request.url else self._fill
                return await answering(request, question)
            except _Abandoned as abandoned:
                return abandoned.answer

    async def _ask_to_open(
        self, request: ElicitationRequest, question: TypedQuestion
    ) -> ElicitationAnswer:
        question.show([QuestionLine(f"It wants you to open {request.url}")], below=3)
        if not await _decide("Open it in a browser? [y]es, [n]o:", question):
            return _DECLINE
        import webbrowser

        if not await asyncio.to_thread(webbrowser.open, request.url):
            question.print("No browser found; open the address yourself.")
        return ElicitationAnswer("accept")

    async def _fill(
        self, request: ElicitationRequest, question: TypedQuestion
    ) -> ElicitationAnswer:
        question.print("(Ctrl-D declines, Ctrl-C cancels)", DIM)
        values: dict[str, Any] = {}
        for field in request.fields:
            for line in _describe(field):
                question.print(line, DIM)
            value = await _answer(request.ensemble, field, question)
            if value is not None:
                values[field.name] = value
        # The text above may look like one of our questions.
        agreed = f"{request.ensemble} asks: Do you agree? [y]es, [n]o:"
        if not request.fields and not await _decide(agreed, question):
            return _DECLINE
        return ElicitationAnswer("accept", values)


async def _answer(ensemble: str, field: ElicitationField, question: TypedQuestion) -> Any:
    """Ask for a valid value; return None if an optional field is left empty.

    Each line names who asks, because a long description may have scrolled the name away.
    """
    while True:
        text = await _read_line(f"{ensemble} asks: {_label(field)}:", question)
        if not text.strip() and (field.default is not None or not field.required):
            return field.default
        try:
            return field.parse(text)
        except AnswerInvalid as error:
            question.print(str(error))


async def _decide(words: str, question: TypedQuestion) -> bool:
    while True:
        answer = (await _read_line(words, question)).strip().lower()
        if answer in ("y", "yes", "n", "no"):
            return answer.startswith("y")


def _label(field: ElicitationField) -> str:
    """Return the name of a field and its default."""
    label = cut(visible(one_line(field.title or field.name)), _LONGEST_LABEL)
    if field.default is not None:
        label += f" [{cut(visible(one_line(_show(field.default))), _LONGEST_LABEL)}]"
    elif not field.required:
        label += " (optional)"
    return label


def _describe(field: ElicitationField) -> list[str]:
    lines = [field.description] if field.description else []
    lines += [
        f"  {number}. {value}" + ("" if title == value else f" ({title})")
        for number, (value, title) in enumerate(field.choices, 1)
    ]
    if field.kind == "boolean":
        lines.append("  yes or no")
    elif field.kind == "choices":
        lines.append("  several, separated by commas")
    return lines


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


async def _read_line(words: str, question: TypedQuestion) -> str:
    def leave(answer: ElicitationAnswer) -> Callable[[Any], None]:
        return lambda event: event.app.exit(exception=_Abandoned(answer))

    return await question.read(words, bind({"c-c": leave(_CANCEL), "c-d": leave(_DECLINE)}))
