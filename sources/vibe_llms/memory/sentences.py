"""Split texts into sentences, for all of memory.

Sentences are unchanged parts of the text. The time is linear in the length of any text: a mark is
judged by the characters near it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

#: Marks that end a sentence if space follows; also of Arabic, Urdu, Hindi, Armenian, Amharic.
_ENDS = ".!?\u2026\u061f\u06d4\u0964\u0965\u0589\u1362"
#: Marks that always end a sentence: of Chinese and Japanese, Khmer and Burmese.
_WIDE = "\u3002\uff01\uff1f\uff61\u17d4\u104b"
#: Characters that may follow the end of a sentence before the space.
_QUOTES = "\"'\u2019\u201d\u201c\u00bb)\\]}\u300d\u300f\uff09\u3011"
_EMOJI = "\u2600-\u27bf\u2b00-\u2bff\ufe0f\u200d\U0001f000-\U0001faff"
# Every part after a mark is optional, so the pattern never backtracks. Possessive quantifiers would
# make that explicit, but do not work in Python before 3.11.5.
_MARK = rf"""(?x)
      `[^`]*`
    | (?P<wide> [{_WIDE}] [{_WIDE}{_ENDS}]* ) (?P<quoted> [{_QUOTES}]* )
      (?: [^\S\n]* [{_EMOJI}]+ )* (?P<space> \s* )
    | (?P<marks> [{_ENDS}]+ ) (?: \[ \d{{1,3}} \] )*
      (?P<closed> (?: [^\S\n]* \u00bb | [{_QUOTES}*_] )* )
      (?: [^\S\n]* [{_EMOJI}]+ )* (?P<gap> \s* )
    """
#: Characters before and after a mark that count; words are shorter.
_NEAR = 40
#: Abbreviations that never end a sentence, since their word follows.
_OPEN = """
    mr mrs ms mx dr drs prof rev hon gen col capt lt sgt st mt vs cf viz approx ca circa incl
    hr fr frl dipl ing str bzw evtl ggf inkl exkl sog vgl bspw zzgl abzgl geb gest
    mme mlle mgr sr sra srta dra ud uds sig dott ing avv egr spett exmo exma dhr mevr mw bijv
    jan feb mar apr jun jul aug sep sept oct okt nov dec dez
    """
#: Abbreviations before a number; without one they end the sentence.
_COUNTED = "no nr nos fig vol p pp art n n\u00fam num tel kap ch sec abs abb bd ziff pos"
#: Abbreviations that a sentence may end with.
_EITHER = "etc usw inc ltd co corp jr a.m p.m am pm al ecc enz i.d.r"
_MONTHS = """
    january february march april may june july august september october november december
    januar j\u00e4nner februar m\u00e4rz mai juni juli oktober dezember
    januari februari maart mei augustus januari marts maj
    leden ledna \u00fanora b\u0159ezna dubna kv\u011btna
    klasse stock etage jahrhundert jahrhunderts mal weltkrieg semester platz lebensjahr
    """
_INITIALS = re.compile(r"(?:\w\.)+\w")
_WORD = re.compile(r"[^\W\d_]+")
_INITIAL_BEHIND = re.compile(r"\w\.")
_ITEM = re.compile(r"\w{1,3}[.)]\s")
_FENCES = ("```", "~~~")
_OPENERS = "\"'\u2018\u201c\u201e\u00ab\u00bf\u00a1\u300c\u300e\uff08\u3010([{*_-#>"
#: Minimum length of a wrapped line; the next one begins with a lower-case letter.
_SHORTEST_CUT = 40


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences in order, unchanged; each line is at least one.

    A block of code is one sentence. A wrapped line continues in the next one.

    >>> split_sentences("I met Dr. Who on 3.5. at 4 p.m. in Bonn. It was fun!")
    ['I met Dr. Who on 3.5. at 4 p.m. in Bonn.', 'It was fun!']
    """
    return [part for block in _split_blocks(text) for part in _split_block(*block)]


def is_ended(text: str) -> bool:
    """Return True if a text ends like a sentence, possibly within quotation marks."""
    return _end().search(text[-_NEAR:]) is not None


def _split_blocks(text: str) -> Iterator[tuple[str, bool]]:
    """Yield lines with their continuations, and whole blocks of code, marked True if code."""
    lines = text.splitlines(keepends=True)
    closing = _pair_fences(lines)
    place = 0
    while place < len(lines):
        start = place
        if (end := closing.get(place)) is not None:
            place = end + 1
            yield "".join(lines[start:place]), True
            continue
        place += 1
        while place < len(lines) and place not in closing and _goes_on(lines, place):
            place += 1
        yield "".join(lines[start:place]), False


def _pair_fences(lines: list[str]) -> dict[int, int]:
    """Return the first and last lines of the blocks of code that have an end."""
    closing: dict[int, int] = {}
    opened, fence = -1, ""
    for place, line in enumerate(lines):
        mark = line.lstrip()[:3]
        if mark not in _FENCES:
            continue
        if opened < 0:
            opened, fence = place, mark
        elif mark == fence:
            closing[opened] = place
            opened = -1
    return closing


def _goes_on(lines: list[str], place: int) -> bool:
    """Return True if a line continues the sentence of the line before."""
    line, begin = lines[place - 1].strip(), lines[place].lstrip()[:4]
    return (
        len(line) >= _SHORTEST_CUT
        and begin[:1].islower()
        and not is_ended(line)
        and line[-1] not in ":;"
        and not _ITEM.match(begin)
    )


def _split_block(text: str, code: bool) -> Iterator[str]:
    start = 0
    if not code:
        for found in _find_marks(text):
            if _ends(text, found, start):
                if part := text[start : found.end()].strip():
                    yield part
                start = found.end()
    if part := text[start:].strip():
        yield part


def _find_marks(text: str) -> Iterator[re.Match[str]]:
    """Find the marks in a text; searching for their first characters is much faster."""
    first, mark = _first(), _mark()
    place = 0
    while begin := first.search(text, place):
        found = mark.match(text, begin.start())
        if found is not None:
            yield found
        place = begin.end() if found is None else found.end()


def _ends(text: str, found: re.Match[str], start: int) -> bool:
    """Return True if marks end the sentence that begins at `start`."""
    behind = text[found.end() : found.end() + 1]
    marks = found["marks"]
    if found["wide"]:
        # After a quotation, a sentence may continue without a space.
        return bool(not found["quoted"] or found["space"] or not behind or behind in _OPENERS)
    if marks is None or not behind:
        return marks is not None
    if not found["gap"]:
        return False
    if behind.islower() and (found["closed"] or marks[-1] == "\u2026" or marks.endswith("..")):
        # "Really?" she said, and: well… perhaps.
        return False
    return marks != "." or not _abbreviates(text, found.start(), found.end(), start)


def _abbreviates(text: str, dot: int, behind: int, start: int) -> bool:
    """Return True if a single dot belongs to the word before it."""
    before = text[max(start, dot - _NEAR) : dot].split()
    if not before or text[dot - 1].isspace():
        return False
    word = before[-1].lstrip(_OPENERS)
    if not word:
        return False
    following = text[behind : behind + _NEAR]
    next_word = _WORD.match(following.lstrip(_OPENERS))
    first = following[0]
    small = word.casefold()
    if len(before) == 1 and (len(word) == 1 or (word.isdecimal() and len(word) <= 3)):
        # Number of a list item, or an initial: no sentence is that short.
        return True
    if word.isdecimal():
        named = "" if next_word is None else next_word[0].casefold()
        return len(word) <= 2 and named in _table(_MONTHS)
    if small in _table(_EITHER):
        return first.islower()
    if small in _table(_COUNTED):
        return first.isdecimal()
    if small in _table(_OPEN) or _INITIALS.fullmatch(word):
        return True
    if len(word) > 1 or not word.isalpha():
        return False
    if word.islower():
        # z. B., d. h.
        return _INITIAL_BEHIND.match(following) is not None
    if len(before) > 1 and before[-2].endswith("."):
        return len(before[-2]) == 2 or first.isupper()
    after_name = len(before) == 1 or before[-2][0].isupper()
    return word.isupper() and word != "I" and after_name and first.isupper()


@cache
def _mark() -> re.Pattern[str]:
    # Compiled on first use: most commands remember nothing.
    return re.compile(_MARK)


@cache
def _first() -> re.Pattern[str]:
    return re.compile(rf"[`{_WIDE}{_ENDS}]")


@cache
def _end() -> re.Pattern[str]:
    return re.compile(rf"[{_ENDS}{_WIDE}][{_QUOTES}*_]*[{_EMOJI}\s]*\Z")


@cache
def _table(words: str) -> frozenset[str]:
    return frozenset(words.split())
