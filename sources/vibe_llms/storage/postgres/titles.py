"""Patterns by which the database finds the titles that may contain a text.

Case is folded as Python does it. The database folds ASCII letters only, which is the same for
titles in ASCII. Of other titles it compares the characters that nothing else folds to; the rest is
for `find_conversation`. So the answer does not depend on the locale of a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from unicodedata import category

from vibe_llms.storage.postgres.database import clean_text

_SPECIAL = re.compile(r"[%_\\]")
#: Characters outside ASCII, or parts of them, fold to these: the sign of Kelvin to k.
_AMBIGUOUS = frozenset("afhijklnstwy")


def encode_patterns(text: str) -> Mapping[str, str]:
    """What titles in ASCII are `like` if they contain a text, and what all titles are `like`."""
    folded = clean_text(text).casefold()
    escaped = [_SPECIAL.sub(r"\\\g<0>", one) for one in folded]
    every = [sign if is_unique(one) else "%" for one, sign in zip(folded, escaped, strict=True)]
    return {"ascii": f"%{''.join(escaped)}%", "every": f"%{''.join(every)}%"}


def is_unique(character: str) -> bool:
    """Whether nothing outside ASCII folds to a character, except itself."""
    if character.isascii():
        return character not in _AMBIGUOUS
    return category(character) == "Lo"
