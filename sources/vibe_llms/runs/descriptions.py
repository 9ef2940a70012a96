"""Stable JSON form of runs, for scripts and clients of the server."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Self

from msgspec import Struct
from msgspec.structs import asdict

from vibe_llms.invocation.questions import ElicitationField
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import text_of
from vibe_llms.runs.interfaces import (
    OUTLINE_CHARACTERS,
    RunQuestion,
    RunRecord,
    RunStatus,
    read_lines,
)
from vibe_llms.runs.run import Run, find_calls


class RunDescription(Struct, kw_only=True):
    """A run.

    `title` is the beginning of the user's last message in its prompt, and `error` the reason if it
    failed.
    """

    id: str
    status: RunStatus
    conversation: str
    title: str
    model: str
    created: datetime
    updated: datetime
    error: str

    @classmethod
    def of(cls, record: RunRecord) -> Self:
        """Describe a run."""
        return cls(
            id=record.identity,
            status=record.status,
            conversation=record.conversation,
            title=read_title(record)[:OUTLINE_CHARACTERS],
            model=record.recipe.model,
            created=record.created,
            updated=record.updated,
            error=record.error,
        )


class RunCall(Struct, kw_only=True):
    """A tool call that needs approval, and why; `allowed` is null until it is decided.

    `ensemble` is the MCP server or other ensemble that the tool belongs to, or empty. A tool with
    `each_time` cannot be allowed always.
    """

    invocation: str
    name: str
    arguments: str
    reason: str
    allowed: bool | None
    ensemble: str
    each_time: bool


class AskedQuestion(Struct, kw_only=True):
    """A question that a run asks the user; `answered` is null until it is answered.

    `sender` is the MCP server or "the model", and `url` an address to open instead of filling in
    `fields`.
    """

    id: str
    invocation: str
    name: str
    sender: str
    message: str
    fields: list[ElicitationField]
    url: str
    answered: Literal["accept", "decline", "cancel"] | None

    @classmethod
    def of(cls, question: RunQuestion) -> Self:
        """Describe a question."""
        request, answer = question.request, question.answer
        return cls(
            id=question.identity,
            invocation=question.invocation,
            name=question.name,
            sender=request.ensemble,
            message=request.message,
            fields=[*request.fields],
            url=request.url,
            answered=None if answer is None else answer.action,
        )


class QueuedMessage(Struct, kw_only=True):
    """A message that the user added to a run and that is not sent yet."""

    id: str
    created: datetime
    text: str

    @classmethod
    def of(cls, message: UserCanister) -> Self:
        """Describe a message."""
        return cls(id=message.identity, created=message.created, text=text_of(message.contents))


class RunView(RunDescription, kw_only=True):
    """A run, with its approvals and questions, decided or not, and its `queued` messages.

    `output` is the typed output of a completed run, or null.
    """

    approvals: list[RunCall]
    questions: list[AskedQuestion]
    queued: list[QueuedMessage]
    output: Any


async def view_run(run: Run) -> RunView:
    """Describe a run with its approvals and questions."""
    turn = await run.read()
    calls = find_calls(turn)
    approvals = [
        RunCall(
            invocation=one.invocation,
            name=one.name,
            arguments=calls[one.invocation].arguments if one.invocation in calls else "",
            reason=one.reason,
            allowed=one.allowed,
            ensemble=one.ensemble,
            each_time=one.each_time,
        )
        for one in await run.survey_approvals()
    ]
    questions = [*map(AskedQuestion.of, await run.survey_questions())]
    queued = [*map(QueuedMessage.of, await run.survey_queued())]
    described = asdict(RunDescription.of(run.record))
    return RunView(
        **described, approvals=approvals, questions=questions, queued=queued, output=turn.output
    )


def read_title(record: RunRecord) -> str:
    """Return the text of the user's last message in the prompt."""
    said = [one for one in read_lines(record.prompt) if isinstance(one, UserCanister)]
    return text_of(said[-1].contents) if said else ""
