"""llm, the program of the command line, by Chat Completions and Responses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from interfaces import KEY, MODEL, OPENAI_URL, SCHEMA, Command, Streamed

_LLM = Path(sys.executable).with_name("llm")
_TOOL = """
def get_weather(city: str) -> str:
    "Return the weather."
    with open("cities", "a") as file:
        print(city, file=file)
    return "sunny"
"""


class LLM(Command):
    """The program with a file that says which models there are."""

    dialects = ("chat", "responses")

    def __init__(self, dialect: str, folder: Path) -> None:
        super().__init__(dialect, folder)
        model = {
            "model_id": "thinker",
            "model_name": MODEL,
            "api_base": OPENAI_URL,
            "api_key_name": "vibe",
            "supports_schema": True,
            "supports_tools": True,
            "vision": True,
            "reasoning": True,
            "responses": dialect == "responses",
        }
        # JSON is YAML too.
        (folder / "extra-openai-models.yaml").write_text(json.dumps([model]))
        (folder / "keys.json").write_text(json.dumps({"vibe": KEY}))

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that the program sees."""
        return {**super().environment, "LLM_USER_PATH": str(self.folder)}

    def answer(self, prompt: str) -> str:
        """Return the reply, in one piece."""
        return self.execute(_LLM, "-m", "thinker", "--no-stream", prompt)

    def stream(self, prompt: str) -> Streamed:
        """Return what is printed, and the reasoning that is kept in the log."""
        text = self.execute(_LLM, "-m", "thinker", prompt)
        (logged,) = json.loads(self.execute(_LLM, "logs", "--json", "-n", "1"))
        return Streamed(re.findall(r"\s*\S+", text), str(logged.get("reasoning")))

    def call_tool(self, prompt: str) -> tuple[str, Sequence[str]]:
        """Offer `get_weather`; return the reply and the cities asked for."""
        reply = self.execute(_LLM, "-m", "thinker", "--functions", _TOOL, prompt)
        return reply, (self.folder / "cities").read_text().split()

    def structure(self, prompt: str) -> Mapping[str, Any]:
        """Return the reply as an object that fits `SCHEMA`."""
        return json.loads(
            self.execute(_LLM, "-m", "thinker", "--schema", json.dumps(SCHEMA), prompt)
        )

    def look(self, prompt: str) -> str:
        """Attach a picture; return the reply."""
        return self.execute(_LLM, "-m", "thinker", "-a", self.picture, prompt)

    def converse(self, prompts: Sequence[str]) -> Sequence[str]:
        """Continue the newest conversation again and again; return the replies."""
        first, *others = prompts
        replies = [self.execute(_LLM, "-m", "thinker", first)]
        return [*replies, *(self.execute(_LLM, "-c", prompt) for prompt in others)]

    def cancel(self, prompt: str) -> str:
        """Stop the program within a reply."""
        return self.interrupt(_LLM, "-m", "thinker", prompt, after="one")


PROGRAM = LLM
