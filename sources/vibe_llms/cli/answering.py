"""Asking the person at the terminal what a server of tools wants to know."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import Callable
from typing import Any

from vibe_llms.cli.terminal import is_terminal, note, visible
from vibe_llms.ensembles.questions import (
    ElicitationAnswer,
    ElicitationField,
    ElicitationRequest,
    Elicitor,
)
from vibe_llms.exceptions import AnswerInvalid

_DECLINE, _CANCEL = ElicitationAnswer("decline"), ElicitationAnswer("cancel")


def produce_elicitor(*, pause: Callable[[], None], turn: asyncio.Lock | None = None) -> Elicitor:
    """Who answers servers here: the person at the terminal; where there is none, all is declined.

    `pause` is called before a question, so that nothing moves on the terminal beside it; `turn` is
    held meanwhile, by all who ask at this terminal.
    """
    if is_terminal(sys.stdin) and is_terminal(sys.stderr):
        return TerminalElicitor(pause, turn or asyncio.Lock())
    return _decline


async def _decline(request: ElicitationRequest) -> ElicitationAnswer:
    what = f"you to open {request.url}" if request.url else "something to be filled in"
    note(
        f"{request.ensemble} wants {what} ({request.message}); there is nobody at a terminal, so "
        "it was declined",
        dim=True,
    )
    return _DECLINE


class _Left(Exception):
    """The person leaves a question in another way than by answering it."""

    def __init__(self, answer: ElicitationAnswer) -> None:
        super().__init__(answer.action)
        self.answer = answer


class TerminalElicitor:
    """Shows whose question it is and what it says, then asks for one field after the other."""

    def __init__(self, pause: Callable[[], None], turn: asyncio.Lock) -> None:
        self._pause = pause
        self._turn = turn

    async def __call__(self, request: ElicitationRequest) -> ElicitationAnswer:
        """What the person says: Ctrl-D declines, Ctrl-C breaks off."""
        async with self._turn:
            self._pause()
            note(f"{request.ensemble} asks: {request.message}")
            try:
                return await (self._lead(request) if request.url else self._fill(request))
            except _Left as left:
                return left.answer

    async def _lead(self, request: ElicitationRequest) -> ElicitationAnswer:
        note(f"It wants you to open {request.url}")
        if not await self._decide("Open it in a browser? [y]es, [n]o: "):
            return _DECLINE
        if not await asyncio.to_thread(webbrowser.open, request.url):
            note("There is no browser here; open the address yourself.")
        return ElicitationAnswer("accept")

    async def _fill(self, request: ElicitationRequest) -> ElicitationAnswer:
        note("(Ctrl-D declines, Ctrl-C breaks off)", dim=True)
        values: dict[str, Any] = {}
        for field in request.fields:
            for line in _describe(field):
                note(line, dim=True)
            value = await self._answer(field)
            if value is not None:
                values[field.name] = value
        if not request.fields and not await self._decide("Is that all right? [y]es, [n]o: "):
            return _DECLINE
        return ElicitationAnswer("accept", values)

    async def _answer(self, field: ElicitationField) -> Any:
        """A value that fits; nothing where a field is left out that may be."""
        while True:
            text = await _read_line(f"{_label(field)}: ")
            if not text.strip() and (field.default is not None or not field.required):
                return field.default
            try:
                return field.parse(text)
            except AnswerInvalid as error:
                note(str(error))

    async def _decide(self, question: str) -> bool:
        while True:
            answer = (await _read_line(question)).strip().lower()
            if answer in ("y", "yes", "n", "no"):
                return answer.startswith("y")


def _label(field: ElicitationField) -> str:
    """The name of a field, and what is taken where nothing is typed."""
    label = visible(" ".join((field.title or field.name).split()))
    if field.default is not None:
        label += f" [{visible(_show(field.default))}]"
    elif not field.required:
        label += " (may be left out)"
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
        lines.append("  several, with commas between them")
    return lines


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


async def _read_line(question: str) -> str:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.output import create_output

    bindings = KeyBindings()

    @bindings.add("c-c")
    def _break_off(event: Any) -> None:
        event.app.exit(exception=_Left(_CANCEL))

    @bindings.add("c-d")
    def _decline_all(event: Any) -> None:
        event.app.exit(exception=_Left(_DECLINE))

    session: PromptSession[str] = PromptSession(
        key_bindings=bindings,
        output=create_output(stdout=sys.stderr),
        reserve_space_for_menu=0,
    )
    # The turn has its own way with signals while it runs.
    return await session.prompt_async(question, handle_sigint=False)
