"""Decoding of the rows that `PostgresRunStore` reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from vibe_llms.conversations.settings import TurnState
from vibe_llms.runs import rules
from vibe_llms.runs.interfaces import CallApproval, Recipe, RunQuestion, RunRecord, RunStatus
from vibe_llms.storage.interfaces import Details

_RECIPE = msgspec.json.Decoder(Recipe)
_DETAILS = msgspec.json.Decoder(Details)
_APPROVAL = msgspec.json.Decoder(CallApproval)
_QUESTION = msgspec.json.Decoder(RunQuestion)
_STATE = msgspec.json.Decoder(TurnState)
#: Number of columns common to all queries.
_STATUS_COLUMNS = 9
_ENDING = msgspec.json.Decoder(tuple[str, str, str])


def read_record(row: Sequence[Any]) -> RunRecord:
    """Decode a run from the columns of `statements.RECORDS` or `statements.LISTED`."""
    recipe, prompt, state, *rest = row[_STATUS_COLUMNS:]
    opening, details, origin = rest or (b"", None, b"")
    with rules.readable(row[1]):
        return RunRecord(
            **read_status(row[:_STATUS_COLUMNS]),
            recipe=_RECIPE.decode(recipe),
            prompt=prompt,
            opening=opening,
            details=None if details is None else _DETAILS.decode(details),
            state=_STATE.decode(state),
            origin=origin,
        )


def read_status(row: Sequence[Any]) -> dict[str, Any]:
    """Decode the changeable fields of a run from the columns of `statements.REFRESH`."""
    user, identity, conversation, status, epoch, cancelling, created, updated, ending = row
    reason, error, kind = ("", "", "") if ending is None else _ENDING.decode(ending)
    return {
        "identity": identity,
        "user": user,
        "conversation": conversation,
        "status": RunStatus(status),
        "created": created,
        "updated": updated,
        "epoch": epoch,
        "cancelling": cancelling,
        "reason": reason,
        "error": error,
        "kind": kind,
    }


def read_approval(row: Sequence[Any]) -> CallApproval:
    """Decode a call that needs approval."""
    return _APPROVAL.decode(row[0])


def read_question(row: Sequence[Any]) -> RunQuestion:
    """Decode a question of a run."""
    return _QUESTION.decode(row[0])
