"""Sessions of Claude Code: `~/.claude/projects/PROJECT/SESSION.jsonl`.

There is no official schema, so lines of unknown types only connect others. The lines of one API
message are one message. Text that the program wrote in the user's name is left out with a count.
Sub-agents are conversations of their own, tagged `sub-agent`, with the session in their id.

Source: github.com/simonw/claude-code-transcripts, github.com/daaain/claude-code-log and
github.com/ticpu/claude-conversation-search-mcp, docs/jsonl-format.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from vibe_llms.importing.exports import Export, ExportFile
from vibe_llms.importing.fields import read_identity, read_object, read_string
from vibe_llms.importing.interfaces import ExportedRecord, Sample, register
from vibe_llms.importing.line_importers import LineImporter, SessionLines
from vibe_llms.importing.messages import ExportedConversation
from vibe_llms.importing.readers.claude_code_lines import SessionConversion
from vibe_llms.importing.trees import count

#: Copies of results, and large lines of the program's own, which are not read.
_DROPPED = ("toolUseResult", "snapshot", "attachment", "data")
_TITLES = {"summary": "summary", "ai-title": "aiTitle", "custom-title": "customTitle"}


class ClaudeCodeImporter(LineImporter):
    """Reader of Claude Code's sessions."""

    def recognize(self, sample: Sample) -> bool:
        """Recognize lines with a session and an identity."""
        return any({"sessionId", "uuid", "type"} <= one.keys() for one in sample.lines)

    def survey(self, file: ExportFile, export: Export) -> Iterator[ExportedRecord]:
        """Yield the conversation of a session, and those of its sub-agents."""
        del export
        lines = SessionLines(file)
        groups: dict[str, list[dict[str, Any]]] = {"": []}
        agents: dict[str, str] = {}
        for line in lines:
            agent = _find_agent(line, agents)
            identity = read_string(line, "uuid")
            if identity:
                agents[identity] = agent
            kept = {key: value for key, value in line.items() if key not in _DROPPED}
            groups.setdefault(agent, []).append(kept)
        for agent, found in groups.items():
            if any("message" in one for one in found):
                value = (agent, found, lines.losses if not agent else [])
                yield ExportedRecord(file, value, consumed=file.size)

    def convert(self, record: ExportedRecord, export: Export) -> ExportedConversation:
        """Return a conversation."""
        del export
        agent, lines, losses = record.value
        session = next(filter(None, (read_string(one, "sessionId") for one in lines)), "")
        conversion = SessionConversion(lines, self.native)
        hidden = conversion.hidden
        notes = (count(hidden, "message that Claude Code wrote itself"),) if hidden else ()
        times = [one.created for one in conversion.messages if one.created]
        identity = session or PurePosixPath(record.file.name).stem
        return ExportedConversation(
            id=f"{identity}/{agent}" if agent else identity,
            title=_find_title(lines),
            created=times[0] if times else None,
            updated=max(times, default=None),
            tags=("sub-agent",) if agent else (),
            messages=conversion.messages,
            losses=tuple(losses),
            notes=notes,
            fallback=record.file.changed,
        )


def _find_agent(line: Mapping[str, Any], agents: Mapping[str, str]) -> str:
    """Return the sub-agent of a line, or "" for the session's own; earlier versions name none."""
    if line.get("isSidechain") is not True:
        return ""
    named = read_identity(line, "agentId")
    parent = read_string(line, "parentUuid")
    return named or agents.get(parent, "") or read_string(line, "uuid") or "sub-agent"


def _find_title(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the user's title, or else the latest that the program made."""
    found = {
        kind: title
        for line in lines
        if (kind := read_string(line, "type")) in _TITLES
        if (title := read_string(line, _TITLES[kind]) or read_string(read_object(line), "title"))
    }
    return next((found[kind] for kind in reversed(_TITLES) if kind in found), "")


register("claude-code", ClaudeCodeImporter)
