"""Runs as scripts and clients of the server see them; stable."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Self

from msgspec import Struct
from msgspec.structs import asdict

from vibe_llms.invocation.questions import ElicitationField
from vibe_llms.messages.canisters import InvocationCanister, Turn, UserCanister
from vibe_llms.messages.contents import text_of
from vibe_llms.runs.interfaces import RunQuestion, RunRecord, RunStatus, read_lines
from vibe_llms.runs.run import Run


class RunDescription(Struct, kw_only=True):
    """A run; `error` says why it failed."""

    id: str
    status: RunStatus
    conversation: str
    model: str
    created: datetime
    updated: datetime
    error: str

    @classmethod
    def of(cls, record: RunRecord) -> Self:
        """A run as it is shown."""
        return cls(
            id=record.identity,
            status=record.status,
            conversation=record.conversation,
            model=record.recipe.model,
            created=record.created,
            updated=record.updated,
            error=record.error,
        )


class RunCall(Struct, kw_only=True):
    """A call that a run waits or waited for; `reason` says why, `allowed` is null until then."""

    invocation: str
    name: str
    arguments: str
    reason: str
    allowed: bool | None


class AskedQuestion(Struct, kw_only=True):
    """A question that a run asks or asked; `answered` says how, and is null until then.

    `sender` is who asks it, `url` an address to open instead of filling in `fields`.
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
        """A question as it is shown."""
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


class RunView(RunDescription, kw_only=True):
    """A run, with the calls and questions that it waits or waited for.

    `output` is its typed output, once it has completed; null without one.
    """

    approvals: list[RunCall]
    questions: list[AskedQuestion]
    output: Any


async def view_run(run: Run) -> RunView:
    """A run, with the calls and questions that it waits or waited for."""
    turn = await run.read()
    calls = _find_calls(turn)
    approvals = [
        RunCall(
            invocation=one.invocation,
            name=one.name,
            arguments=calls[one.invocation].arguments if one.invocation in calls else "",
            reason=one.reason,
            allowed=one.allowed,
        )
        for one in await run.survey_approvals()
    ]
    questions = [*map(AskedQuestion.of, await run.survey_questions())]
    described = asdict(RunDescription.of(run.record))
    return RunView(**described, approvals=approvals, questions=questions, output=turn.output)


async def read_calls(run: Run) -> Mapping[str, InvocationCanister]:
    """The calls of a run by their identities, as far as they are stored."""
    return _find_calls(await run.read())


def _find_calls(turn: Turn) -> Mapping[str, InvocationCanister]:
    return {one.identity: one for one in turn.canisters if isinstance(one, InvocationCanister)}


def read_title(record: RunRecord) -> str:
    """What the user said."""
    said = [one for one in read_lines(record.prompt) if isinstance(one, UserCanister)]
    return text_of(said[-1].contents) if said else ""
