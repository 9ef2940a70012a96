"""Patterns with which the database finds titles that may contain a text.

Case is folded as Python does it. The database folds only ASCII letters, which gives the same result
for titles in ASCII. For other titles it compares only characters that no other character folds to,
and `find_conversation` does the rest. So the result does not depend on a server's locale.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from unicodedata import category

from vibe_llms.storage.postgres.database import clean_text

_SPECIAL = re.compile(r"[%_\\]")
#: Letters to which characters outside ASCII, or parts of them, fold: the Kelvin sign to k.
_AMBIGUOUS = frozenset("afhijklnstwy")


def encode_patterns(text: str) -> Mapping[str, str]:
    """Return the `like` patterns of a text for ASCII titles and for all titles."""
    folded = clean_text(text).casefold()
    escaped = [_SPECIAL.sub(r"\\\g<0>", one) for one in folded]
    every = [sign if is_unique(one) else "%" for one, sign in zip(folded, escaped, strict=True)]
    return {"ascii": f"%{''.join(escaped)}%", "every": f"%{''.join(every)}%"}


def is_unique(character: str) -> bool:
    """Return True if no other character outside ASCII folds to this one."""
    if character.isascii():
        return character not in _AMBIGUOUS
    return category(character) == "Lo"
