"""Search words of a text: lower case, stemmed, without stop words."""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
from collections.abc import Callable, Iterable
from datetime import date, datetime
from functools import lru_cache
from itertools import islice
from math import log

#: Typographic apostrophe.
_CURVED = "\u2019"
_WORD = re.compile(rf"[^\W_]+(?:['{_CURVED}][^\W_]+)*")
#: The same with the vowel signs of Indic scripts, which do not count as letters.
_SIGN = r"(?:[^\W_]|[\u0900-\u0963\u0966-\u0dff])"
_WIDE_WORD = re.compile(rf"{_SIGN}+(?:['{_CURVED}]{_SIGN}+)*")
#: Invisible characters that do not separate words.
_UNSEEN = re.compile("[\u00ad\u200c\u200d\u2060\ufeff]")
#: Scripts without spaces between words: each character is a word of its own.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u312f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

#: Words of a question about the present; then newer entries count more.
_PRESENT = re.compile(
    r"\b(?:now|nowadays|currently|current|today|tonight|lately|recently|recent|latest|newest|still|"
    r"at present|presently|at the moment|any ?more|any longer|these (?:days|weeks|months)|"
    r"this (?:week|month|year|morning|evening|weekend)|so far|up to date|as of late)\b",
    re.IGNORECASE,
)

_STOP_WORDS = """
    a about after again all also am an and any are as at be because been before being below
    between both but by can could d did do does doing don down during each else ever few for from
    further had has have having he her here hers herself him himself his how i if in into is it its
    itself just ll m me more most my myself no nor not now of off on once only or other our ours
    ourselves out over own re s same she should so some such t than that the their theirs them
    themselves then there these they this those through to too under until up ve very was we were
    what when where which while who whom why will with would you your yours yourself yourselves
    """
#: English stop words.
STOP = frozenset(_STOP_WORDS.split())


@lru_cache(maxsize=1)
def _stemmer() -> Callable[[str], str]:
    from Stemmer import Stemmer

    # `_stem` has a cache of its own.
    stem: Callable[[str], str] = Stemmer("english", 0).stemWord
    return stem


#: The stemmer is not thread-safe.
_STEMMING = threading.Lock()
#: Marks that end a statement without changing it. A question mark does change it, and so does a
#: leading point: .5 is not 5.
_ENDS = ".,;:!\u2026"
_QUOTES = "\"'`\u2018\u2019\u201c\u201d"
#: Superscripts, subscripts, and fractions differ from plain digits: 10\u00b2 is not 102.
_RAISED = re.compile("([\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u209c\u2150-\u215f\u2189]+)")


#: Number of entries added to the count; see `rarity_of`.
_VIRTUAL = 100
#: Maximum number of words of a question that are searched, since each takes time.
MOST_WORDS = 256


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    with _STEMMING:
        return _stemmer()(word)


def asks_about_now(question: str) -> bool:
    """Return True if a question is about the present.

    >>> asks_about_now("Where do I live these days?"), asks_about_now("Who knows Ada?")
    (True, False)
    """
    return _PRESENT.search(question) is not None


def split_words(text: str) -> list[str]:
    """Return the words of a text in order, stemmed, without stop words."""
    return [_stem(word) for word in split_forms(text)]


def split_forms(text: str) -> list[str]:
    """Return the words of a text in order, with their endings, without stop words."""
    pattern = _WORD
    if not text.isascii():
        pattern = _WIDE_WORD
        text = _UNSEEN.sub("", UNSPACED.sub(r" \g<0> ", text)).casefold()
        text = unicodedata.normalize("NFKD", text)
        text = "".join(character for character in text if not unicodedata.combining(character))
    words: list[str] = pattern.findall(text.lower())
    if "'" in text or _CURVED in text:
        words = [word.replace(_CURVED, "'").removesuffix("'s").replace("'", "") for word in words]
    return [word for word in words if word and word not in STOP]


def split_query(text: str, most: int = MOST_WORDS, *, stop_words: bool = True) -> list[str]:
    """Return the first distinct words of a question; stop words only if it has no others."""
    found = dict.fromkeys(split_forms(text))
    if stop_words and not found:
        found = dict.fromkeys(_WORD.findall(text.lower()))
    return list(dict.fromkeys(map(_stem, islice(found, most))))


def label(speaker: str, created: datetime, topics: Iterable[str] = ()) -> frozenset[str]:
    """Return the words for the speaker, date, and topics of an entry."""
    about = split_words(" ".join((speaker, *topics)))
    return frozenset((*about, *_name_day(created.date())))


@lru_cache(maxsize=4096)
def _name_day(day: date) -> tuple[str, ...]:
    words = (_MONTHS[day.month - 1], _DAYS[day.weekday()], str(day.year), str(day.day))
    return tuple(map(_stem, words))


def is_of_date(label: str) -> bool:
    """Return True if a label is part of a date: a month, a day of the week, or a number."""
    return label.isdecimal() or label in _date_words()


@lru_cache(maxsize=1)
def _date_words() -> frozenset[str]:
    return frozenset(map(_stem, (*_MONTHS, *_DAYS)))


def rarity_of(frequency: int, count: int) -> float:
    """Return the weight of a word that `frequency` of `count` entries contain."""
    # With virtual entries, so that a memory of three has rare words too.
    return log(1 + (count + _VIRTUAL - frequency + 0.5) / (frequency + 0.5))


def digest_of(text: str) -> str:
    """Return a digest that ignores case and punctuation.

    Only marks around words count as punctuation: `C` and `C++`, 5 and -5 are not the same, nor are
    .5 and 5, or 6' and 6".
    """
    parts = map(bare_word, plain_letters(text).casefold().split())
    words = " ".join(part for part in parts if part)
    return hashlib.sha256((words or text.strip()).encode("utf-8", "replace")).hexdigest()[:32]


def plain_letters(text: str) -> str:
    """Normalize a text to NFKC, except numbers that would change their value."""
    if text.isascii():
        return text
    parts = _RAISED.split(text)
    parts[::2] = [unicodedata.normalize("NFKC", part) for part in parts[::2]]
    return "".join(parts)


def bare_word(part: str) -> str:
    """Return a word without the marks around it."""
    opened = part.lstrip(_QUOTES)
    bare = opened.rstrip(_ENDS + _QUOTES)
    if opened == part and bare[-1:].isdigit():
        # A quotation mark after a number may mean feet or inches.
        return part.rstrip(_ENDS)
    return bare
