"""Session files of Claude Code, Codex, gptme and aichat, written by hand after their structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.importing.open_webui import PICTURE

SESSION = "11111111-2222-4333-8444-555555555555"


def line(identity: str, parent: str | None, kind: str, content: Any = None, **others: Any) -> Any:
    """A line of Claude Code; its time is in its id, such as `u3`."""
    message = others.pop("message", None)
    if content is not None:
        message = {"role": kind, "content": content, **(message or {})}
    return {
        "type": kind,
        "uuid": identity,
        "parentUuid": parent,
        "sessionId": SESSION,
        "isSidechain": False,
        "cwd": "/home/ada",
        "version": "2.0",
        "timestamp": f"2026-02-01T10:00:{int(identity[1:]):02}.000Z",
        **({"message": message} if message else {}),
        **others,
    }


def reply(identity: str, parent: str, name: str, *blocks: Any, **others: Any) -> Any:
    """A line of an API message with this id."""
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_1h_input_tokens": 20},
        "output_tokens": 7,
    }
    message = {"id": name, "model": "claude-opus-5", "usage": usage, "stop_reason": "tool_use"}
    return line(identity, parent, "assistant", list(blocks), message=message, **others)


def call(identity: str, name: str, **arguments: Any) -> Any:
    """A block that calls a tool."""
    return {"type": "tool_use", "id": identity, "name": name, "input": arguments}


def result(identity: str, text: Any, **others: Any) -> Any:
    """A block with a result."""
    return {"type": "tool_result", "tool_use_id": identity, "content": text, **others}


def claude_code() -> Sequence[Any]:
    """Parallel calls, lines of one message, reminders, a compaction, and a sub-agent within."""
    image = {"type": "base64", "media_type": "image/png", "data": PICTURE.partition(",")[2]}
    reminder = "<system-reminder>SECRET</system-reminder>"
    return [
        {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}},
        {"type": "queue-operation", "operation": "enqueue", "sessionId": SESSION},
        line("u1", None, "user", "Caveat: SECRET", isMeta=True),
        line("u2", "u1", "user", "<command-name>/clear</command-name>SECRET"),
        line("u3", "u2", "user", f"Fix the tests.{reminder}"),
        line("u4", "u3", "progress", data={"x": 1}),
        reply(
            "a5",
            "u4",
            "msg_1",
            {"type": "thinking", "thinking": "", "signature": "c2lnbmVk"},
        ),
        reply("a6", "a5", "msg_1", {"type": "text", "text": "I look."}),
        reply("a7", "a6", "msg_1", call("t1", "Read", path="a.py")),
        reply("a8", "a7", "msg_1", call("t2", "Bash", command="ls")),
        line("u9", "a7", "user", [result("t1", "a = 1")], toolUseResult={"huge": "x" * 99}),
        line(
            "u10",
            "a8",
            "user",
            [result("t2", [{"type": "text", "text": "b"}, {"type": "image", "source": image}])],
        ),
        reply("a11", "u10", "msg_2", call("t3", "Bash", command="rm")),
        line("u12", "a11", "user", [result("t3", "denied", is_error=True)]),
        line("u13", "u12", "user", "[Request interrupted by user for tool use]"),
        line(
            "s14",
            None,
            "system",
            subtype="compact_boundary",
            logicalParentUuid="u13",
        ),
        line("u15", "s14", "user", "This session is continued. SECRET", isCompactSummary=True),
        line("u16", "u15", "user", [{"type": "text", "text": "Thanks."}]),
        reply("a17", "u16", "msg_3", {"type": "server_tool_use", "x": 1}),
        line("a18", "a17", "assistant", "Overloaded", isApiErrorMessage=True),
        line("b1", None, "user", "Sub-agent task", isSidechain=True),
        {**reply("b2", "b1", "msg_9", {"type": "text", "text": "Done."}), "isSidechain": True},
        {"type": "summary", "summary": "Fix tests", "leafUuid": "a17"},
    ]


def rollout(kind: str, payload: Any, second: int) -> Any:
    """A line of Codex."""
    return {"timestamp": f"2026-02-01T10:00:{second:02}.000Z", "type": kind, "payload": payload}


def spoken(role: str, text: str) -> Any:
    """A message of Codex."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


CODEX_ITEMS: Sequence[Any] = [
    spoken("developer", "SECRET"),
    spoken("user", "<environment_context>SECRET</environment_context>"),
    spoken("user", "Fix it."),
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Plan."}],
        "encrypted_content": "encrypted-by-openai",
    },
    spoken("assistant", "I look."),
    {"type": "function_call", "name": "shell", "arguments": '{"cmd": "ls"}', "call_id": "c1"},
    {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2"},
    {
        "type": "function_call_output",
        "call_id": "c1",
        "output": '{"output": "a.py", "metadata": {"exit_code": 1}}',
    },
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "Done"},
    {"type": "web_search_call", "status": "completed", "action": {"query": "x"}},
    spoken("assistant", "Fixed."),
]


def codex(*, identity: str = "k1", start: int = 1, **meta: Any) -> list[Any]:
    """A session of the present generation."""
    lines = [
        rollout("session_meta", {"id": identity, "timestamp": "2026-02-01T10:00:00Z", **meta}, 0),
        rollout("turn_context", {"model": "gpt-6-codex"}, 0),
    ]
    for number, item in enumerate(CODEX_ITEMS):
        lines.append(rollout("response_item", item, start + number))
        if item.get("role") == "user":
            lines.append(rollout("event_msg", {"type": "user_message", "message": "Fix it."}, 1))
    usage = {"input_tokens": 50, "cached_input_tokens": 40, "output_tokens": 9}
    usage["reasoning_output_tokens"] = 4
    count = {"type": "token_count", "info": {"last_token_usage": usage}}
    lines.append(rollout("event_msg", count, 20))
    lines.append(rollout("compacted", {"message": "SECRET", "replacement_history": []}, 21))
    return lines


def gptme() -> Sequence[Any]:
    """A hidden prompt, a call in the text, its output as a system message, and a file."""
    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("system", "You are gptme. SECRET", {"hide": True}),
        ("user", "List files", {"files": ["/home/ada/a.txt"]}),
        (
            "assistant",
            "```shell\nls\n```",
            {"metadata": {"model": "claude", "usage": {"input_tokens": 3, "output_tokens": 2}}},
        ),
        ("system", "Ran command: ls\na.txt", {}),
        ("assistant", "One file.", {}),
    ]
    return [
        {
            "role": role,
            "content": content,
            "timestamp": f"2026-02-01T10:00:{number:02}+00:00",
            **others,
        }
        for number, (role, content, others) in enumerate(rows)
    ]


AICHAT = f"""\
model: openai:gpt-4o
temperature: 0.5
compressed_messages:
- role: system
  content: Be brief.
- role: user
  content:
  - type: text
    text: What is this?
  - type: image_url
    image_url:
      url: {PICTURE}
- role: assistant
  content: A pixel.
messages:
- role: system
  content: 'Summary: SECRET'
- role: user
  content: And the weather?
- role: tool
  content:
    tool_results:
    - call:
        name: weather
        arguments:
          city: Oslo
        id: c1
      output: mild
    text: I look.
- role: assistant
  content: Mild.
data_urls: {{}}
"""
