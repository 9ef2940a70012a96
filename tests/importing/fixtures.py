"""One export of each program, with all that its reader understands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.importing import chatgpt, claude_ai, librechat, open_webui, sessions, test_llm
from tests.importing.conftest import write_json, write_lines, write_zip


def write_claude_ai(folder: Path) -> Path:
    """A reply with a call in it, unknown blocks, an attachment, and a missing file."""
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "summaries": []},
        {"type": "text", "text": "I look.", "citations": [{"url": "https://s.example"}]},
        {"type": "tool_use", "id": None, "name": "web_search", "input": {"query": "sails"}},
        {
            "type": "tool_result",
            "tool_use_id": None,
            "content": [{"type": "text", "text": "Found."}, {"type": "knowledge", "x": 1}],
            "is_error": False,
        },
        {"type": "text", "text": "Like wings."},
        {"type": "token_budget"},
        {"type": "widget", "y": [1]},
        {"type": "tool_use", "id": "t2", "name": "repl", "input": {}},
    ]
    attached = {"file_name": "notes.txt", "extracted_content": "Wind.", "file_size": 5}
    tree = claude_ai.conversation(
        claude_ai.message(
            "m1",
            "human",
            "",
            attachments=[attached],
            files=[{"file_uuid": "f", "file_name": "boat.png"}],
        ),
        claude_ai.message("m2", "assistant", "I look. Like wings.", "m1", content=blocks),
        claude_ai.message("m3", "human", "Thanks", "m2"),
    )
    return write_zip(folder / "claude.zip", {"conversations.json": [tree], "projects.json": []})


def write_chatgpt(folder: Path) -> Path:
    """Every kind of contents, with files."""
    members = {"conversations.json": [chatgpt.talk_with_everything()], **chatgpt.files()}
    return write_zip(folder / "chatgpt.zip", members)


def write_llm(folder: Path) -> Path:
    """Both generations."""
    test_llm.write_thread(folder / "logs.db")
    return folder / "logs.db"


def write_old_llm(folder: Path) -> Path:
    """The earlier generation."""
    test_llm.write_responses(folder / "old.db")
    return folder / "old.db"


def write_aichat(folder: Path) -> Path:
    """A session."""
    (folder / "trip.yaml").write_text(sessions.AICHAT, "utf-8")
    return folder / "trip.yaml"


#: Writers of exports into a folder, by name.
FIXTURES: Mapping[str, Callable[[Path], Path]] = {
    "claude-ai": write_claude_ai,
    "chatgpt": write_chatgpt,
    "open-webui": lambda folder: write_json(folder / "w.json", [open_webui.talk()]),
    "librechat": lambda folder: write_json(folder / "l.json", librechat.talk()),
    "claude-code": lambda folder: write_lines(folder / "s.jsonl", sessions.claude_code()),
    "codex": lambda folder: write_lines(folder / "r.jsonl", sessions.codex()),
    "llm": write_llm,
    "old-llm": write_old_llm,
    "gptme": lambda folder: write_lines(folder / "conversation.jsonl", sessions.gptme()),
    "aichat": write_aichat,
}
