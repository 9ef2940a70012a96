"""Exports of Open WebUI, written by hand after its structure."""

from __future__ import annotations

import base64
from typing import Any

from tests.importing.chatgpt import PIXEL

PICTURE = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
OLD_REPLY = (
    '<details type="reasoning" done="true" duration="3">\n'
    "<summary>Thought for 3 seconds</summary>\n"
    "&gt; Two &amp; two.\n&gt; Four.\n</details>\nLet me ask. "
    '<details type="tool_calls" done="true" id="call_1" name="sum" '
    'arguments="&quot;{\\&quot;a\\&quot;: 2}&quot;" result="&quot;4&quot;" files="">\n'
    "<summary>Tool Executed</summary>\n</details>\nIt is 4, not <details>."
)


def message(identity: str, parent: str | None, role: str, content: str, **others: Any) -> Any:
    """A message; its time is in its id, such as `m3`."""
    return {
        "id": identity,
        "parentId": parent,
        "childrenIds": [],
        "role": role,
        "content": content,
        "timestamp": 1_700_000_000 + int(identity[1:]),
        **others,
    }


def conversation(*messages: Any, current: str = "", models: Any = ("llama",), **others: Any) -> Any:
    """A conversation with these messages."""
    return {
        "id": "w1",
        "user_id": "u",
        "title": "Sums",
        "chat": {
            "title": "Sums",
            "models": list(models),
            "history": {
                "currentId": current or messages[-1]["id"],
                "messages": {one["id"]: one for one in messages},
            },
            "messages": [{"role": "user", "content": "only the present branch"}],
        },
        "created_at": 1_700_000_000,
        "updated_at": 1_700_000_900,
        "archived": False,
        "pinned": True,
        "meta": {"tags": ["math"]},
        "folder_id": None,
        **others,
    }


def talk() -> Any:
    """A picture and a file, an answer in the earlier form, and one with `output`."""
    files = [
        {"type": "image", "url": PICTURE},
        {"type": "file", "name": "a.txt", "file": {"filename": "a.txt", "data": {"content": "A."}}},
        {"type": "file", "name": "b.pdf", "file": {"filename": "b.pdf", "data": {}}},
    ]
    output = [
        {"type": "reasoning", "content": [{"type": "output_text", "text": "Exact."}]},
        {"type": "function_call", "call_id": "c2", "name": "sum", "arguments": '{"a": 3}'},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "6"}],
            "status": "completed",
        },
        {"type": "open_webui:widget", "x": 1},
        {"type": "message", "content": [{"type": "output_text", "text": "It is 6."}]},
    ]
    return conversation(
        message("m1", None, "user", "What is 2 + 2?", files=files),
        message("m2", "m1", "assistant", OLD_REPLY, model="llama"),
        message("m3", "m2", "user", "And 3 + 3?"),
        message(
            "m4",
            "m3",
            "assistant",
            '<details type="reasoning"><summary>x</summary>wrong</details>wrong',
            model="llama",
            output=output,
            sources=[{"source": {"name": "Sums", "url": "https://s.example"}}],
            usage={"prompt_tokens": 7, "completion_tokens": 3},
        ),
    )
