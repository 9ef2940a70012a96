"""Asking the person at the terminal what a server of tools wants to know."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import Callable
from typing import Any

from vibe_llms.cli.layout import cut
from vibe_llms.cli.questions import Line, Question, Questions, bind
from vibe_llms.cli.terminal import DIM, is_terminal, note, one_line, visible
from vibe_llms.ensembles.questions import (
    ElicitationAnswer,
    ElicitationField,
    ElicitationRequest,
    Elicitor,
)
from vibe_llms.exceptions import AnswerInvalid

#: Lines that a form or an address takes below what a server says, about.
_BELOW = 10
#: The cells of the name or the default of a field.
_LONGEST_LABEL = 200
_DECLINE, _CANCEL = ElicitationAnswer("decline"), ElicitationAnswer("cancel")


def produce_elicitor(questions: Questions) -> Elicitor:
    """Who answers servers here: the user at the terminal; where there is none, all is declined."""
    if is_terminal(sys.stdin) and is_terminal(sys.stderr):
        return TerminalElicitor(questions)
    return _decline


async def _decline(request: ElicitationRequest) -> ElicitationAnswer:
    what = f"you to open {request.url}" if request.url else "something to be filled in"
    note(
        f"{request.ensemble} wants {what} ({request.message}); not a terminal, so it was declined",
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

    def __init__(self, questions: Questions) -> None:
        self._questions = questions

    async def __call__(self, request: ElicitationRequest) -> ElicitationAnswer:
        """What the person says: Ctrl-D declines, Ctrl-C breaks off."""
        async with self._questions.open() as question:
            lines = f"{request.ensemble} asks: {request.message}".split("\n")
            body = [Line(line) for line in lines]
            question.show(body, below=_BELOW)
            try:
                answering = self._lead if request.url else self._fill
                return await answering(request, question)
            except _Left as left:
                return left.answer

    async def _lead(self, request: ElicitationRequest, question: Question) -> ElicitationAnswer:
        question.show([Line(f"It wants you to open {request.url}")], below=3)
        if not await _decide("Open it in a browser? [y]es, [n]o:", question):
            return _DECLINE
        if not await asyncio.to_thread(webbrowser.open, request.url):
            question.print("There is no browser here; open the address yourself.")
        return ElicitationAnswer("accept")

    async def _fill(self, request: ElicitationRequest, question: Question) -> ElicitationAnswer:
        question.print("(Ctrl-D declines, Ctrl-C breaks off)", DIM)
        values: dict[str, Any] = {}
        for field in request.fields:
            for line in _describe(field):
                question.print(line, DIM)
            value = await _answer(request.ensemble, field, question)
            if value is not None:
                values[field.name] = value
        agreed = "Is that all right? [y]es, [n]o:"
        if not request.fields and not await _decide(agreed, question):
            return _DECLINE
        return ElicitationAnswer("accept", values)


async def _answer(ensemble: str, field: ElicitationField, question: Question) -> Any:
    """A value that fits; nothing where a field is left out that may be.

    Each line names who asks: long descriptions of a server may have moved its name off the screen.
    """
    while True:
        text = await _read_line(f"{ensemble} asks: {_label(field)}:", question)
        if not text.strip() and (field.default is not None or not field.required):
            return field.default
        try:
            return field.parse(text)
        except AnswerInvalid as error:
            question.print(str(error))


async def _decide(words: str, question: Question) -> bool:
    while True:
        answer = (await _read_line(words, question)).strip().lower()
        if answer in ("y", "yes", "n", "no"):
            return answer.startswith("y")


def _label(field: ElicitationField) -> str:
    """The name of a field, and what is taken where nothing is typed."""
    label = cut(visible(one_line(field.title or field.name)), _LONGEST_LABEL)
    if field.default is not None:
        label += f" [{cut(visible(one_line(_show(field.default))), _LONGEST_LABEL)}]"
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


async def _read_line(words: str, question: Question) -> str:
    def leave(answer: ElicitationAnswer) -> Callable[[Any], None]:
        return lambda event: event.app.exit(exception=_Left(answer))

    return await question.read(words, bind({"c-c": leave(_CANCEL), "c-d": leave(_DECLINE)}))
