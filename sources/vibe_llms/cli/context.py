"""Draws what fills the context window of a conversation."""

from __future__ import annotations

from vibe_llms.cli.text import pad
from vibe_llms.conversations.context_use import ContextUse

#: Cells of the longest name and of the longest number.
_NAME, _NUMBER = 10, 11
#: Cells of the longest bar, and of the shortest that is drawn.
_BAR, _SHORTEST = 60, 5


def draw_context(use: ContextUse, columns: int) -> str:
    """Return a summary, and a bar for each part of the window if the terminal is wide enough."""
    about = "about " if use.estimated else ""
    assumed = "" if use.known else ", an assumed window: set context-tokens in the model's row"
    share = f"{use.tokens / use.window:.0%}"
    lines = [f"{about}{use.tokens:,} of {use.window:,} tokens ({share}{assumed})"]
    cells = min(columns - _NAME - _NUMBER - 3, _BAR)
    for name, tokens in {**use.parts, "free": use.free}.items():
        if tokens and cells < _SHORTEST:
            lines.append(f"{name}: {tokens:,}")
        elif tokens:
            filled = max(round(tokens / use.window * cells), 1)
            bar = ("·" if name == "free" else "█") * min(filled, cells)
            lines.append(f"{pad(name, _NAME)} {tokens:>{_NUMBER},} {bar}")
    summarized = f", of which a digest summarizes {use.covered}" if use.covered else ""
    lines.append(f"{use.messages} messages{summarized}")
    if use.price is not None:
        lines.append(f"reading them without a cache costs about ${use.price:.4f} each turn")
    if use.compact_at is None:
        lines.append("the conversation is compacted only by /compact")
    else:
        lines.append(f"the conversation is compacted at {use.compact_at:,} tokens")
    return "\n".join(lines)
