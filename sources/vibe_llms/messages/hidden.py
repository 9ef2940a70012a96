"""Text with hidden characters made visible.

Hidden characters are those that hide, move or reorder text, by their Unicode properties. Joiners
and selectors stay where a script or an emoji needs them: between letters from Arabic to Mongolian,
between emoji, after a sign with two forms, after an ideograph.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache

#: The command's own marks at a terminal, which no other text may show; tables use thin lines.
OURS = str.maketrans("┃┏┗", "│┌└")

# Default_Ignorable_Code_Point, from DerivedCoreProperties.txt of Unicode 17.0: invisible if a font
# lacks it. Python's `unicodedata` does not have this property.
_IGNORABLE = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5)),
    *((0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F)),
    *((0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0)),
    *((0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF)),
)
# Prepended_Concatenation_Mark, from PropList.txt of Unicode 17.0: category Cf, but visible.
_DRAWN = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
_HIDDEN_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
# Category So, but invisible.
_BLANK = "\u2800"
_IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
_EMOJI = ((0x2600, 0x27BF), (0xFE0F, 0xFE0F), (0x1F000, 0x1FAFF))


@lru_cache(4096)
def is_hidden(character: str) -> bool:
    r"""Return True if a character is invisible or controls a terminal, except for white space.

    >>> is_hidden("\u00ad"), is_hidden("\u202e"), is_hidden("a"), is_hidden("\n")
    (True, True, False, False)
    """
    if character in "\n\t" or character in _DRAWN:
        return False
    return (
        unicodedata.category(character) in _HIDDEN_CATEGORIES
        or _is_in(character, _IGNORABLE)
        or character == _BLANK
    )


def replace_hidden(text: str, show: Callable[[str], str]) -> str:
    """Replace each hidden character by the result of `show`."""
    hidden = {character for character in set(text) if is_hidden(character)}
    if not hidden:
        return text
    return "".join(
        show(character) if character in hidden and not _belongs(text, index) else character
        for index, character in enumerate(text)
    )


def _belongs(text: str, index: int) -> bool:
    """Return True if the text around a hidden character needs it."""
    character = text[index]
    before = text[index - 1] if index else "\0"
    after = text[index + 1] if index + 1 < len(text) else "\0"
    match ord(character):
        case 0x200D:
            return (_is_in(before, _EMOJI) or _is_joined(before)) and (
                _is_in(after, (*_EMOJI, (0x2190, 0x21FF))) or _is_joined(after)
            )
        case 0x200C:
            return _is_joined(before) and _is_joined(after)
        case 0xFE0E | 0xFE0F:
            return _has_two_forms(before)
        case 0xFE00 | 0xFE01 | 0xFE02:
            return _is_in(before, _IDEOGRAPHS)
        case 0x180E:
            return _is_mongolian(before) and _is_mongolian(after)
        case 0x180B | 0x180C | 0x180D | 0x180F:
            return _is_mongolian(before)
        case code:
            return 0xE0100 <= code <= 0xE01EF and _is_in(before, _IDEOGRAPHS)


def _is_joined(character: str) -> bool:
    """Return True for a letter or a mark of a script that joins its letters."""
    return "\u0600" <= character < "\u1d00" and unicodedata.category(character)[0] in "LM"


def _is_mongolian(character: str) -> bool:
    return "\u1820" <= character <= "\u18aa"


def _has_two_forms(character: str) -> bool:
    """Return True if the character has a text form and an emoji form."""
    if character in "#*0123456789‼⁉\u2139〰":
        return True
    return character > "\x7f" and unicodedata.category(character) in ("So", "Sm", "Sk")


def _is_in(character: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    code = ord(character)
    return any(first <= code <= last for first, last in ranges)


def visible(text: str) -> str:
    r"""Replace control characters by visible symbols, so no escape sequence survives.

    New lines and tabs stay. Characters that hide or reorder text become visible too, and the mark
    of our questions is replaced.

    >>> visible("a\x1b[2Jb\rc\r\n")
    'a␛[2Jb␍c\n'
    """
    return replace_hidden(text.replace("\r\n", "\n").translate(OURS), show_hidden)


def show_hidden(character: str) -> str:
    """Return a visible symbol for a hidden character."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if code == 0x2800:
        return " "
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def one_line(text: str) -> str:
    """Return the text without line breaks."""
    return " ".join(text.split())
