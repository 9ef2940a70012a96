"""Asking the person at the terminal whether a tool may be called."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

from vibe_llms.cli.terminal import is_terminal, note, one_line
from vibe_llms.cli.tools import draw_tool
from vibe_llms.conversation import Conversation
from vibe_llms.ensembles.core import ENSEMBLES
from vibe_llms.invocation.approval import ApprovalRequest, Approver, Decision, Gatekeeper
from vibe_llms.session import Session

_QUESTION = "Run it? [y]es, [n]o, [a]lways with these arguments: "
_DECISIONS = {
    **dict.fromkeys(("y", "yes"), Decision.ALLOW),
    **dict.fromkeys(("a", "always"), Decision.ALWAYS),
    **dict.fromkeys(("", "n", "no"), Decision.DENY),
}


def produce_approver(
    *, approve_all: bool, pause: Callable[[], None], turn: asyncio.Lock | None = None
) -> Approver | None:
    """Who decides on calls here: everything is allowed, or a person at the terminal is asked.

    Nobody where there is no terminal; such calls do not run. `pause` is called before a question,
    so that nothing moves on the terminal beside it; `turn` is held meanwhile, by all who ask at
    this terminal.
    """
    if approve_all:
        return _allow
    if is_terminal(sys.stdin) and is_terminal(sys.stderr):
        return TerminalApprover(pause, turn or asyncio.Lock())
    return None


async def _allow(_: ApprovalRequest) -> Decision:
    return Decision.ALLOW


class TerminalApprover:
    """Shows a call in full and asks, one call after the other."""

    def __init__(self, pause: Callable[[], None], turn: asyncio.Lock) -> None:
        self._pause = pause
        self._turn = turn

    async def __call__(self, request: ApprovalRequest) -> Decision:
        """What the person says; Ctrl-C ends the turn as it does elsewhere."""
        async with self._turn:
            self._pause()
            note(f"The model calls {request.invocation.name} with {draw_arguments(request)}")
            note(f"({request.reason})", dim=True)
            while True:
                answer = (await self._ask()).strip().lower()
                if answer in _DECISIONS:
                    return _DECISIONS[answer]

    async def _ask(self) -> str:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.output import create_output

        bindings = KeyBindings()

        @bindings.add("c-c")
        @bindings.add("c-d")
        def _leave(event: Any) -> None:
            event.app.exit(result="n")
            if event.key_sequence[0].key == "c-c":
                # Whoever holds the turn ends it.
                signal.raise_signal(signal.SIGINT)

        session: PromptSession[str] = PromptSession(
            key_bindings=bindings,
            output=create_output(stdout=sys.stderr),
            reserve_space_for_menu=0,
        )
        # The turn has its own way with signals while it runs.
        return await session.prompt_async(_QUESTION, handle_sigint=False)


def tell_tools(session: Session, conversation: Conversation) -> None:
    """The tools of a conversation and what happens when they are called; and what else there is."""
    for invoker in conversation.invokers.values():
        note(draw_tool(invoker))
    for name in conversation.withheld:
        note(f"{name:<24} off")
    opened = {one.name for one in conversation.ensembles}
    others = [row.name for row in session.configuration.rows(ENSEMBLES) if row.name not in opened]
    if others:
        note(f"(not opened: {', '.join(others)}; /tools on NAME opens one)", dim=True)
    elif not opened and not conversation.invokers:
        note("(there are none; vibe-llms mcp add NAME -- COMMAND adds a server)", dim=True)


def tell_approvals(gatekeeper: Gatekeeper) -> None:
    """What was allowed and decided on since the session was opened."""
    for tool, rule in gatekeeper.rules.items():
        note(f"{tool:<24} {rule}")
    for invocation in gatekeeper.allowed:
        note(f"{invocation.name:<24} allow    with {one_line(invocation.arguments)}")
    if not gatekeeper.rules and not gatekeeper.allowed:
        note("(nothing was allowed for good)", dim=True)


def draw_arguments(request: ApprovalRequest) -> str:
    """The arguments of a call, all of them; several lines where one would be long."""
    parsed = request.invocation.parsed
    if parsed is None:
        return request.invocation.arguments
    short = json.dumps(parsed, ensure_ascii=False)
    return short if len(short) < 60 else json.dumps(parsed, ensure_ascii=False, indent=2)
