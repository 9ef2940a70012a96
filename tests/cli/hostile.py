"""Texts that try to drive a terminal, to hide something in it, or to deceive who reads it (C2)."""

from __future__ import annotations

import random
import re
import unicodedata

#: What hides or reorders text although it is no control character.
HIDING = re.compile(
    r"[\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f\U000e0100-\U000e01ef]"
)
#: What we send ourselves: styles, and moves of the cursor within what is drawn anew.
_OURS = re.compile(r"\x1b\[[0-9;]*m|\r\x1b\[\d*A\x1b\[J|\r\x1b\[K|\r\n")


def check_harmless(output: str) -> None:
    """`AssertionError` where anything but our own styles and moves drives the terminal."""
    rest = _OURS.sub("\n", output)
    for character in rest:
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs"), (
            f"U+{ord(character):04X} in {rest!r}"
        )
    assert not HIDING.search(rest), rest


def produce_payloads(seed: int, count: int) -> list[str]:
    """Escape sequences of all kinds, controls and marks of direction, alone and mixed."""
    whole = [
        "\x1b[2J", "\x1b[31m", "\x1b]52;c;cm0gLXJm\x07", "\x1b]0;title\x1b\\", "\x1bP0;0|x\x1b\\",
        "\x1b_Gx\x1b\\", "\x1b^x\x1b\\", "\x1bc", "\x1b(0", "\x1b[?1049h", "\x1b[6n", "\x9b2J",
        "\x9d52;c;eA==\x9c", "\x90x\x9c", "\x85", "\x00", "\x07", "\x08\x08\x08", "\r", "\x0b",
        "\x0c", "\x0e", "\x7f", "\u202e", "\u2066", "\u200b", "\u200f", "\ufeff", "\U000e0041",
        "\u2028", "&#27;[2J", "&#x202e;", "&ZeroWidthSpace;", "<\x1b[2J>", "`\x1b[2J`", "|\x1b[2J|",
        "[a](\x1b[2J)", "[a](https://e.x/\u202e)", "![\x1b](\x9b)", "# \x1b[2J", "\x1b]8;;https://e.x\x1b\\",
    ]  # fmt: skip
    chance = random.Random(seed)
    mixes = [
        "".join(chance.choice([*whole, "word ", "\n\n"]) for _ in range(chance.randint(1, 6)))
        for _ in range(count - len(whole))
    ]
    return [*whole, *mixes][:count]
