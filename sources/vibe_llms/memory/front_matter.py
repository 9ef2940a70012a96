"""Parser for the plain front matter of most entries, many times faster than YAML.

Each line is `name: value`, or an item of a list. Values are words, quoted texts, or shares.
Anything else, such as most text written by hand, is left to YAML.
"""

from __future__ import annotations

import re
from collections.abc import Collection

#: Words that YAML 1.1 reads as values of other types.
_RESERVED = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))
#: Texts that YAML reads unchanged: words that begin with a letter, a UUID, and plain characters
#: within quotation marks.
_TEXT = (
    r"(?:(?P<{0}words>[^\W\d_]\w*(?:[ -]\w+)*|[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})"
    r"|'(?P<{0}quoted>[ -&(-~\w]*)')"
)
_LINE = re.compile(
    rf"(?:(?P<name>[a-z_]+):(?: {_TEXT.format('')}| (?P<share>[0-9]\.[0-9]+)|)"
    rf"|- {_TEXT.format('item_')})"
)


def read_plain(
    head: str, known: Collection[str]
) -> tuple[dict[str, str | float | list[str]], str] | None:
    """Return the members of plain front matter, and the lines whose names are not `known`.

    Return `None` if it needs YAML.
    """
    front: dict[str, str | float | list[str]] = {}
    foreign = ""
    items: list[str] | None = None
    is_known = True
    for line in head.split("\n"):
        if (found := _LINE.fullmatch(line)) is None:
            return None
        name, words, quoted, share, item, quoted_item = found.groups()
        if name is None:
            text = quoted_item if item is None else item
            if items is None or text is None or (item or "").lower() in _RESERVED:
                return None
            items.append(text)
        else:
            if items == [] or name in front or name in _RESERVED:
                return None
            items = None
            if words is not None:
                if words.lower() in _RESERVED:
                    return None
                front[name] = words
            elif quoted is not None:
                front[name] = quoted
            elif share is not None:
                front[name] = float(share)
            else:
                front[name] = items = []
            is_known = name in known
        if not is_known:
            foreign += f"{line}\n"
    return None if items == [] else (front, foreign)
