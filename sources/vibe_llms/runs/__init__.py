"""Runs: turns that outlive the connection or process that started them."""

from vibe_llms.runs.events import (
    AnswerRequested,
    ApprovalRequested,
    CallEnded,
    CallProgress,
    CallStarted,
    ConversationChanged,
    MessageAdded,
    MessageCompleted,
    MessageDelta,
    MessageFailed,
    MessageStarted,
    RunContinued,
    RunEnded,
    RunEvent,
    RunExpired,
    RunNotice,
)
from vibe_llms.runs.interfaces import CallApproval, RunQuestion, RunRecord, RunStatus, RunStore
from vibe_llms.runs.run import Run

__all__ = [
    "AnswerRequested",
    "ApprovalRequested",
    "CallApproval",
    "CallEnded",
    "CallProgress",
    "CallStarted",
    "ConversationChanged",
    "MessageAdded",
    "MessageCompleted",
    "MessageDelta",
    "MessageFailed",
    "MessageStarted",
    "Run",
    "RunContinued",
    "RunEnded",
    "RunEvent",
    "RunExpired",
    "RunNotice",
    "RunQuestion",
    "RunRecord",
    "RunStatus",
    "RunStore",
]
