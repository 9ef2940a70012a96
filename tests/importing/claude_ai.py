"""Exports of Claude.ai, written by hand after its structure."""

from __future__ import annotations

from typing import Any

ROOT = "00000000-0000-4000-8000-000000000000"


def message(
    identity: str, sender: str, text: str, parent: str = ROOT, **others: Any
) -> dict[str, Any]:
    """A message; its time is in its number, such as `m3`."""
    moment = f"2026-03-01T10:{int(identity[1:]):02}:00.000000Z"
    return {
        "uuid": identity,
        "parent_message_uuid": parent,
        "sender": sender,
        "text": text,
        "content": [{"type": "text", "text": text, "citations": []}] if text else [],
        "attachments": [],
        "files": [],
        "created_at": moment,
        "updated_at": moment,
        **others,
    }


def conversation(*messages: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A conversation with these messages."""
    return {
        "uuid": "c1",
        "name": "Sails",
        "summary": "",
        "created_at": "2026-03-01T10:00:00.000000Z",
        "updated_at": "2026-03-01T10:30:00.000000Z",
        "account": {"uuid": "a"},
        "chat_messages": list(messages),
        **others,
    }


def talk(*, longer: bool = False) -> dict[str, Any]:
    """Two questions with their answers; a third if it is longer."""
    said = [
        message("m1", "human", "How do sails work?"),
        message("m2", "assistant", "Like wings.", "m1"),
        message("m3", "human", "And upwind?", "m2"),
        message("m4", "assistant", "At an angle.", "m3"),
    ]
    more = [message("m5", "human", "Why?", "m4"), message("m6", "assistant", "Lift.", "m5")]
    return conversation(*said, *(more if longer else ()))
