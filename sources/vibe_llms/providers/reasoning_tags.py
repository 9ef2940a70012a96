"""Reasoning that a model writes into its text, between tags at the very beginning."""

from __future__ import annotations

import re

#: Names of the tags around reasoning, as in `<think>` and `</think>`.
TAGS = ("think", "thinking", "thought", "reasoning", "reason", "seed:think", "mm:think")
_OPENING = re.compile(rf"\s*<({'|'.join(TAGS)})>")
_OPENINGS = tuple(f"<{tag}>" for tag in TAGS)


class TagSplitter:
    """Splitter of a reply's text into reasoning and the rest, as it arrives.

    Only a tag at the beginning counts; later ones are text. A possible beginning of a tag is held
    back. White space around the tags is dropped.
    """

    def __init__(self) -> None:
        self.tag = ""
        self.done = False
        self._held = ""
        self._said = False

    def feed(self, text: str) -> tuple[str, str]:
        """Return the reasoning and the text that can be passed on."""
        if self.done and self._said:
            return "", text
        self._held += text
        thought = ""
        if not self.tag and not self.done:
            found = _OPENING.match(self._held)
            if found is not None:
                self.tag, self._held = found[1], self._held[found.end() :]
            elif not _may_begin(self._held):
                self.done = self._said = True
        if self.tag and not self.done:
            thought = self._think()
        if not self.done:
            return thought, ""
        rest, self._held = self._held, ""
        if not self._said:
            # White space after the closing tag belongs to the tag.
            rest = rest.lstrip()
            self._said = bool(rest)
        return thought, rest

    def conclude(self) -> tuple[str, str]:
        """Return the reasoning and the text that were held back."""
        rest, self._held = self._held, ""
        return (rest, "") if self.tag and not self.done else ("", rest)

    def _think(self) -> str:
        closing = f"</{self.tag}>"
        thought, found, rest = self._held.partition(closing)
        if found:
            self.done, self._held = True, rest
            return thought
        keep = next((n for n in range(len(closing) - 1, 0, -1) if thought.endswith(closing[:n])), 0)
        self._held = thought[len(thought) - keep :]
        return thought[: len(thought) - keep]


def _may_begin(text: str) -> bool:
    text = text.lstrip()
    return any(opening.startswith(text) for opening in _OPENINGS)
