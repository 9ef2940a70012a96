"""Asking the person at the terminal whether a tool may be called."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from vibe_llms.cli.questions import Line, Questions, bind
from vibe_llms.cli.terminal import BOLD, DIM, is_terminal, note, note_columns, one_line
from vibe_llms.cli.tools import summarize
from vibe_llms.conversation import Conversation
from vibe_llms.ensembles.core import ENSEMBLES
from vibe_llms.invocation.approval import ApprovalRequest, Approver, Decision, Gatekeeper
from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.session import Session

_CHOICES = "[y]es, [n]o, [n]o because REASON"
_FURTHER_CHOICES = ", [a]lways this call, always this [t]ool in this session"
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
#: A longer name of a tool is shortened: the arguments must stay on the screen.
_LONGEST_NAME = 100
#: Up to so many characters, a value of several parts stays in one line.
_SHORT = 60
#: Deeper than this, everything stays in one line.
_DEEPEST = 8


def produce_approver(*, approve_all: bool, questions: Questions) -> Approver | None:
    """What decides on calls: everything is allowed, or the user at the terminal is asked.

    `None` without a terminal; such calls do not run.
    """
    if approve_all:
        return _allow
    if is_terminal(sys.stdin) and is_terminal(sys.stderr):
        return TerminalApprover(questions)
    return None


async def _allow(_: ApprovalRequest) -> Decision:
    return Decision.ALLOW


class TerminalApprover:
    """Shows a call in full and asks, one call after the other."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    async def __call__(self, request: ApprovalRequest) -> Decision:
        """What the user says; Ctrl-C ends the turn as it does elsewhere."""
        name = _show_tool(request.invoker.name)
        # Millions of lines take seconds, in which other turns go on.
        body = await asyncio.to_thread(draw_arguments, request.invocation)
        bindings = bind({"c-c": _interrupt, "c-d": _refuse})
        async with self._questions.open() as question:
            question.print(f"The model calls {name}", BOLD)
            question.print(f"({request.reason})", DIM)
            choices = _CHOICES if request.each_time else _CHOICES + _FURTHER_CHOICES
            below = (len(choices) + len(name)) // question.cells + 4
            cut = question.show(body, below=below, more=_MORE)
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
    """What an answer means; nothing where it means nothing.

    >>> read_decision("No, because it is late").reason
    'it is late'
    """
    if found := _REASON.fullmatch(answer):
        return Decision(False, reason=found[1])
    return _DECISIONS.get(answer.lower())


def _show_tool(name: str) -> str:
    """The name of a tool; in quotes where it could be read as words of ours."""
    if len(name) > _LONGEST_NAME:
        half = _LONGEST_NAME // 2
        name = f"{name[:half]}…{name[-half:]}"
    return name if _TOOL.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _refuse(event: Any) -> None:
    event.app.exit(result="n")


def _interrupt(event: Any) -> None:
    event.app.exit(result="n")
    # The handler of the turn ends it.
    signal.raise_signal(signal.SIGINT)


def tell_tools(session: Session, conversation: Conversation) -> None:
    """The tools of a conversation and the rule in force for each; and what else there is."""
    rows = [
        (one.name, session.gatekeeper.describe(one), summarize(one))
        for one in conversation.invokers.values()
    ]
    note_columns([*rows, *((name, "off", "") for name in conversation.withheld)])
    opened = {one.name for one in conversation.ensembles}
    others = [row.name for row in session.configuration.rows(ENSEMBLES) if row.name not in opened]
    if others:
        note(f"(not opened: {', '.join(others)}; /tools on NAME opens one)", dim=True)
    elif not opened and not conversation.invokers:
        note("(No tools; vibe-llms mcp add NAME -- COMMAND adds a server)", dim=True)


def tell_approvals(gatekeeper: Gatekeeper) -> None:
    """What was allowed and decided on since the session was opened."""
    rows = [(tool, str(rule), "") for tool, rule in gatekeeper.rules.items()]
    rows += [(tool, "always", "with any arguments") for tool in gatekeeper.allowed_tools]
    rows += [(one.name, "always", f"with {one_line(one.arguments)}") for one in gatekeeper.allowed]
    note_columns(rows)
    if not rows:
        note("(nothing was allowed for good)", dim=True)


def draw_arguments(invocation: InvocationCanister) -> list[Line]:
    """The arguments of a call, all of them; a text of several lines is shown in its lines."""
    parsed = invocation.parsed
    if parsed is None:
        return [Line(line) for line in invocation.arguments.split("\n")]
    if not parsed:
        return [Line("(no arguments)")]
    try:
        return [line for key, one in parsed.items() for line in _draw(f"{_name(key)}:", one, 0)]
    except RecursionError:
        return [Line(invocation.arguments)]


def _draw(label: str, value: Any, indent: int) -> Iterator[Line]:
    below = indent + 2
    if isinstance(value, str) and "\n" in value:
        yield Line(label, indent, below)
        yield from (Line(line, below + 2, below + 2) for line in value.split("\n"))
        return
    parts: list[tuple[str, Any]] = []
    if indent < 2 * _DEEPEST:
        if isinstance(value, Mapping):
            parts = [(f"{_name(key)}:", one) for key, one in value.items()]
        elif isinstance(value, list):
            parts = [("-", one) for one in value]
    flat = json.dumps(value, ensure_ascii=False)
    if not parts or (len(flat) <= _SHORT and "\\n" not in flat):
        yield Line(f"{label} {flat}", indent, below + 2)
        return
    yield Line(label, indent, below)
    for name, one in parts:
        yield from _draw(name, one, below)


def _name(key: str) -> str:
    return key if _WORD.fullmatch(key) else json.dumps(key, ensure_ascii=False)
