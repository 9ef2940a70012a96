"""Escapes HTML in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: The start of an HTML tag, but not of a link in angle brackets.
TAG = re.compile(r"<(?=[A-Za-z/!?])(?!(?:https?|mailto):[^<>\s`]*>)")
#: Code within a line, but not across the cells of a table.
_CODE = re.compile(r"(?<![\\`])(?P<ticks>`+)(?!`)[^\n|]*?(?<!`)(?P=ticks)(?!`)")
_CODE_OR_TAG = re.compile(f"(?P<code>{_CODE.pattern})|{TAG.pattern}")


def escape_html(text: str) -> str:
    """Return Markdown with its HTML escaped; fenced blocks stay unchanged and are closed.

    Inline code stays unchanged if all Markdown readers agree where it begins and ends. Source:
    https://spec.commonmark.org/0.31.2/#raw-html.
    """
    from markdown_it import MarkdownIt

    lines, drawn, start = text.split("\n"), list[str](), 0
    # Parsing inline text takes time quadratic in its length.
    parser = MarkdownIt("commonmark", {"html": False}).disable("inline")
    # Only an unclosed block contains the added line.
    for block in parser.parse(f"{text}\n\nend"):
        if block.type == "fence" and block.map is not None:
            first, end = block.map
            # With a bar, the line could also begin a table.
            opening = lines[first].replace("|", "&#124;")
            drawn += [*_escape_prose(lines[start:first]), opening, *lines[first + 1 : end]]
            drawn += [block.markup] if end > len(lines) + 1 else []
            start = end
    return "\n".join([*drawn, *_escape_prose(lines[start:])])


def _escape_prose(lines: Sequence[str]) -> Sequence[str]:
    prose = "\n".join(lines)
    # Some readers take a backtick in a URL as part of the URL.
    words = _CODE.sub("\0", prose).split()
    if any("`" in one or ("\0" in one and ("//" in one or "www." in one)) for one in words):
        prose = TAG.sub("&lt;", prose)
    else:
        prose = _CODE_OR_TAG.sub(lambda found: found["code"] or "&lt;", prose)
    return prose.split("\n") if lines else []
