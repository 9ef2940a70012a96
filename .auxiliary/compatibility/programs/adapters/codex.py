"""The Codex CLI of OpenAI, with its default tools."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interfaces import KEY, MODEL, OPENAI_URL, REPORTED, SCHEMA, Command, Streamed

#: A name that Codex knows, so that it brings the tools of that model; the server has an alias.
_KNOWN = "gpt-6.2-sol"
#: Models that Codex knows call its tools from a program, which is the text of a custom tool.
_COMMAND = "echo sunny | tee weather"
_RUN = {
    "default": f'Use exec_command "{_COMMAND}"',
    "known": f'Use functions__exec "text(await tools.exec_command({{cmd: `{_COMMAND}`}}))"',
}
_EXECUTE = ("codex", "exec")
_OPTIONS = ("--skip-git-repo-check", "--json")


class Codex(Command):
    """`codex exec` with a provider at the server's address."""

    dialects = ("default", "known")

    def __init__(self, dialect: str, folder: Path) -> None:
        super().__init__(dialect, folder)
        (folder / ".codex").mkdir()
        (folder / ".codex" / "config.toml").write_text(
            f"""
            model = "{_KNOWN if dialect == "known" else MODEL}"
            model_provider = "vibe"
            check_for_update_on_startup = false
            [analytics]
            enabled = false
            [model_providers.vibe]
            name = "vibe-llms"
            base_url = "{OPENAI_URL}"
            env_key = "VIBE_KEY"
            wire_api = "responses"
            """
        )

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that the program sees."""
        path = os.pathsep.join((os.environ["NPM_PROGRAMS"], os.environ["PATH"]))
        return {**super().environment, "PATH": path, "VIBE_KEY": KEY}

    def _ask(self, *arguments: str | Path) -> Sequence[Mapping[str, Any]]:
        """Return the completed items of a turn."""
        lines = self.execute(*_EXECUTE, *arguments).splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        assert events[-1]["type"] == "turn.completed", events[-3:]
        return [event["item"] for event in events if event["type"] == "item.completed"]

    def answer(self, prompt: str) -> str:
        """Return the reply, in one piece."""
        return _read(self._ask(*_OPTIONS, prompt))

    def stream(self, prompt: str) -> Streamed:
        """Return the reply, which is always streamed to the program, and the reasoning."""
        items = self._ask(*_OPTIONS, prompt)
        reasoning = "".join(item["text"] for item in items if item["type"] == "reasoning")
        return Streamed(re.findall(r"\s*\S+", _read(items)), reasoning)

    def call_tool(self, prompt: str) -> tuple[str, Sequence[str]]:
        """Run a command of the shell in place of `get_weather`."""
        reply = _read(self._ask(*_OPTIONS, "-s", "danger-full-access", _RUN[self.dialect]))
        assert (self.folder / "weather").read_text() == "sunny\n"
        assert "returned:" in reply
        assert "sunny" in reply
        return REPORTED, ["Rome"]

    def structure(self, prompt: str) -> Mapping[str, Any]:
        """Return the reply as an object that fits `SCHEMA`."""
        (self.folder / "schema.json").write_text(json.dumps(SCHEMA))
        schema = self.folder / "schema.json"
        return dict(json.loads(_read(self._ask(*_OPTIONS, "--output-schema", schema, prompt))))

    def look(self, prompt: str) -> str:
        """Attach a picture; return the reply."""
        return _read(self._ask(*_OPTIONS, prompt, "-i", self.picture))

    def converse(self, prompts: Sequence[str]) -> Sequence[str]:
        """Resume the newest session again and again; return the replies."""
        first, *others = prompts
        replies = [self.answer(first)]
        for prompt in others:
            replies.append(_read(self._ask("resume", "--last", *_OPTIONS, prompt)))
        return replies

    def cancel(self, prompt: str) -> str:
        """Stop the program within a turn; it does not show a reply before its end."""
        self.interrupt(*_EXECUTE, *_OPTIONS, prompt, after="turn.started")
        return "one"


def _read(items: Sequence[Mapping[str, Any]]) -> str:
    return str([item for item in items if item["type"] == "agent_message"][-1]["text"])


PROGRAM = Codex
