"""Exports of LibreChat, written by hand after its structure."""

from __future__ import annotations

from typing import Any

NO_PARENT = "00000000-0000-0000-0000-000000000000"


def message(identity: str, parent: str, text: str, *, user: bool = False, **others: Any) -> Any:
    """A message; its time is in its id, such as `m3`."""
    return {
        "messageId": identity,
        "parentMessageId": parent,
        "text": text,
        "sender": "User" if user else "GPT-4",
        "isCreatedByUser": user,
        "model": None if user else "gpt-4o",
        "createdAt": f"2024-05-28T18:08:{int(identity[1:]):02}.014Z",
        "error": False,
        "unfinished": False,
        **others,
    }


def conversation(*messages: Any, **others: Any) -> Any:
    """A conversation with these messages."""
    return {
        "conversationId": "l1",
        "endpoint": "openAI",
        "title": "Stories",
        "exportAt": "08:12:16 GMT-0400 (Eastern Daylight Time)",
        "branches": True,
        "recursive": False,
        "options": {"model": "gpt-4o"},
        "messages": list(messages),
        **others,
    }


def talk() -> Any:
    """A message without text between others, contents with a call, and two beginnings."""
    call = {"id": "c1", "name": "search", "args": '{"q": "ship"}', "output": "A ship.", "type": "x"}
    contents = [
        {"type": "think", "think": "Hm."},
        {"type": "text", "text": {"value": "I look."}},
        {"type": "tool_call", "tool_call": call},
        {"type": "text", "text": "Here it is."},
        {"type": "agent_update", "agent_update": {"index": 1}},
    ]
    return conversation(
        message("m1", NO_PARENT, "Tell a story", user=True),
        message("m2", "m1", "", content=[]),
        message("m3", "m2", "", user=False, content=contents),
        message("m4", "m3", "More", user=True, files=[{"filename": "a.pdf"}]),
        message("m5", "m4", "It wa", unfinished=True),
        message("m6", NO_PARENT, "Tell a long story", user=True),
        message("m7", "m6", "Once.", files=[]),
    )


def talk_as_tree() -> Any:
    """The same as a tree."""
    flat = talk()
    found = {one["messageId"]: {**one, "children": []} for one in flat["messages"]}
    first: list[Any] = []
    for one in found.values():
        below = found.get(one.pop("parentMessageId"))
        (first if below is None else below["children"]).append(one)
    del flat["messages"]
    return {**flat, "recursive": True, "messagesTree": first}
