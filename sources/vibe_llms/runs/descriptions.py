"""Runs as JSON, for scripts and for clients of the server; stable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vibe_llms.messages.canisters import InvocationCanister, UserCanister
from vibe_llms.messages.contents import text_of
from vibe_llms.runs.interfaces import RunRecord, read_lines
from vibe_llms.runs.run import Run


def describe_run(record: RunRecord) -> Mapping[str, Any]:
    """What is known of a run, besides its messages."""
    return {
        "id": record.identity,
        "status": record.status,
        "conversation": record.conversation,
        "model": record.recipe.model,
        "created": record.created,
        "updated": record.updated,
        "error": record.error,
    }


async def describe_approvals(run: Run) -> Sequence[Mapping[str, Any]]:
    """The calls that a run waits or waited for, with their arguments."""
    calls = await read_calls(run)
    return [
        {
            "invocation": one.invocation,
            "name": one.name,
            "arguments": calls[one.invocation].arguments if one.invocation in calls else "",
            "reason": one.reason,
            "allowed": one.allowed,
        }
        for one in await run.survey_approvals()
    ]


async def read_calls(run: Run) -> Mapping[str, InvocationCanister]:
    """The calls of a run by their identities, as far as they are stored."""
    turn = await run.read()
    return {one.identity: one for one in turn.canisters if isinstance(one, InvocationCanister)}


def read_title(record: RunRecord) -> str:
    """What the user said."""
    said = [one for one in read_lines(record.prompt) if isinstance(one, UserCanister)]
    return text_of(said[-1].contents) if said else ""
