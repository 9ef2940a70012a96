"""aider, in its mode for questions."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from interfaces import KEY, MODEL, OPENAI_URL, Command, Streamed

_NAME = f"openai/{MODEL}"
_OPTIONS = (
    *("--model", _NAME, "--weak-model", _NAME, "--chat-mode", "ask"),
    *("--model-metadata-file", "models.json", "--max-chat-history-tokens", "100000"),
    *("--no-git", "--no-pretty", "--no-fancy-input", "--map-tokens", "0", "--yes-always"),
    *("--no-check-update", "--no-show-release-notes", "--no-show-model-warnings"),
    *("--analytics-disable", "--no-detect-urls", "--no-suggest-shell-commands"),
)
_AIDER = (Path(sys.executable).with_name("aider"), *_OPTIONS)


class Aider(Command):
    """The program with a file that says that the model takes images."""

    def __init__(self, dialect: str, folder: Path) -> None:
        super().__init__(dialect, folder)
        model = {
            "max_input_tokens": 100_000,
            "max_output_tokens": 10_000,
            "litellm_provider": "openai",
            "mode": "chat",
            "supports_vision": True,
        }
        (folder / "models.json").write_text(json.dumps({_NAME: model}))

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that the program sees."""
        address = {"OPENAI_API_BASE": OPENAI_URL, "OPENAI_API_KEY": KEY}
        return {**super().environment, **address, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

    def answer(self, prompt: str) -> str:
        """Return the reply, in one piece."""
        return self.execute(*_AIDER, "--no-stream", "--message", prompt)

    def stream(self, prompt: str) -> Streamed:
        """Return what is printed; the reasoning is above the reply."""
        reasoning, _, text = self.execute(*_AIDER, "--message", prompt).partition("ANSWER")
        return Streamed(re.findall(r"\s*\S+", text), reasoning)

    def look(self, prompt: str) -> str:
        """Add a picture to the chat; return the reply."""
        return self.execute(*_AIDER, "--read", self.picture, "--message", prompt)

    def converse(self, prompts: Sequence[str]) -> Sequence[str]:
        """Type the prompts; return the replies."""
        printed = self.execute(*_AIDER, typed="".join(f"{prompt}\n" for prompt in prompts))
        return re.findall(r"This is turn \d+\.", printed)

    def cancel(self, prompt: str) -> str:
        """Stop the program within a reply."""
        return self.interrupt(*_AIDER, "--message", prompt, after="one")


PROGRAM = Aider
