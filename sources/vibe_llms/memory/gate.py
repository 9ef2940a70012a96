"""Gate that decides, without a model, which texts are not remembered, and why.

A turn is kept word for word, without its secrets. Facts are searched only in the user's own words:
secrets, quotations, letters of others, questions, instructions, and recalled text are removed
first. A fact that a model finds there must be supported by those words. The model decides which
other texts are not worth remembering.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache

import msgspec
from msgspec import Struct

from vibe_llms.base.redaction import REDACTED
from vibe_llms.embedding.words import STOP, UNSPACED, split_words
from vibe_llms.memory.metadata import digest_of_sentence
from vibe_llms.memory.patterns import COMMAND, DIRECTIVE, INSTRUCTION, LETTER, ONESELF
from vibe_llms.memory.reports import Refusal, Why
from vibe_llms.memory.secrets import holds_secret, mask_secrets, squeeze_space
from vibe_llms.memory.sentences import split_sentences

#: Maximum length of a turn in characters; a longer text is a document.
LONGEST_TURN = 32_000
LONGEST_FACT = 400
_LONGEST_PARAGRAPH = 3000
#: A text with fewer words and fewer characters cannot be understood on its own.
_FEWEST_WORDS, _FEWEST_CHARACTERS = 3, 15
#: Minimum share of a fact's words that the user must have said.
SUPPORT = 0.5
#: This many recalled words in a row are not a coincidence.
_COPIED_WORDS = 3
#: Words for the user, which a fact may use although the user did not.
_USER = "user users person nutzer benutzer usuario utilisateur utente gebruiker usuário"
_SHORTEST_STEM = 4
#: Words that say almost nothing about a person without their object.
_VERBS = (
    "be have like love prefer enjoy hate dislike live reside work name call want plan use own "
    "go get make know think feel say said tell told mention state interested currently"
)

_FENCE = re.compile(r"(```|~~~).*?(?:\1|\Z)", re.DOTALL)
_QUOTED_LINES = re.compile(r"(?m)(?:^[ \t]*>.*(?:\n|\Z))+")
#: A quotation of a sentence or more; quoted names and titles stay.
_QUOTATION = re.compile(
    r"\"[^\"\n]{40,2000}\"|\u201c[^\u201c\u201d]{40,2000}\u201d|\u00ab[^\u00ab\u00bb]{40,2000}\u00bb"
)
#: Line breaks, and the joiners that some scripts and emoji need.
_UNSEEN_KEPT = frozenset("\n\r\t\u200c\u200d")
_ASKING = ("?", "\uff1f", "\u061f")
_COLONS = (":", "\uff1a")
_JSON_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"?')
_PARAGRAPHS = re.compile(r"\n[ \t]*\n+")
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
#: With its sign and point: .5 and -5 are not 5.
_NUMBER = re.compile(r"(?:(?<![\w.,:])[-\u2212]?\.?)?\d+(?:[.,:]\d+)*")


class Sifted(Struct, frozen=True):
    """A text without its refused parts."""

    text: str
    refused: tuple[Refusal, ...] = ()


class Recalled:
    """Texts recalled in a turn, used to recognize their repetition."""

    def __init__(self, texts: Iterable[str] = (), *, digests: frozenset[str] = frozenset()) -> None:
        self._digests = digests
        whole = [one for text in texts for one in (text, *_read_quoted(text))]
        self._said = [f" {' '.join(_plain_words(text))} " for text in whole]

    def holds(self, text: str) -> bool:
        """Return True if the text was recalled word for word, or its digest is known."""
        if self._digests and digest_of_sentence(text) in self._digests:
            return True
        words = _plain_words(text)
        if not words or (len(words) < _COPIED_WORDS and len(text.strip()) < 8):
            return False
        wanted = f" {' '.join(words)} "
        return any(wanted in said for said in self._said)


def sift_turn(text: str, recalled: Recalled = Recalled()) -> Sifted:
    """Return a turn with its secrets masked, or no text and the reason."""
    why = None
    if not text.strip():
        why = Why.EMPTY
    elif len(text) > LONGEST_TURN:
        why = Why.LONG
    elif is_short(text):
        why = Why.SHORT
    elif recalled.holds(text):
        why = Why.RECALLED
    # Masking all of a text that is too long would take too much time.
    masked = mask_secrets(text[:LONGEST_TURN])
    if why is not None:
        return Sifted("", (Refusal(masked[:LONGEST_FACT], why, "turn"),))
    if masked != text:
        return Sifted(masked.strip(), (Refusal(REDACTED, Why.SECRET, "part"),))
    return Sifted(text.strip())


def sift_words(text: str, recalled: Recalled = Recalled()) -> Sifted:
    """Return the user's own statements, in which facts may be found; often none."""
    refused: list[Refusal] = []
    # A stored turn is a little longer where its secrets are masked.
    if len(text) > 2 * LONGEST_TURN:
        beginning = mask_secrets(text[:LONGEST_TURN])[:LONGEST_FACT]
        return Sifted("", (Refusal(beginning, Why.LONG, "part"),))

    def cut(found: re.Match[str]) -> str:
        refused.append(Refusal(found[0].strip(), Why.QUOTED, "part"))
        return "\n\n"

    # Before splitting: a key has several lines, and a password may be on the next line.
    text = squeeze_space(mask_secrets(make_visible(text)))
    for shape in (_FENCE, _QUOTED_LINES, _QUOTATION, _compiled(LETTER + r"[\s\S]*")):
        text = shape.sub(cut, text)
    kept: list[str] = []
    pasted = False
    for paragraph in filter(str.strip, _PARAGRAPHS.split(text)):
        why = Why.QUOTED if pasted else _refuse_paragraph(paragraph)
        # "Please translate this:" introduces a text by another person.
        pasted |= paragraph.rstrip().endswith(_COLONS) and not _matches(ONESELF, paragraph)
        if why is not None:
            refused.append(Refusal(paragraph.strip(), why, "part"))
            continue
        for sentence in split_sentences(paragraph):
            why = _refuse_sentence(sentence, recalled)
            if why is None:
                kept.append(sentence)
            else:
                refused.append(Refusal(sentence, why, "part"))
    return Sifted("\n".join(kept), tuple(refused))


def make_visible(text: str) -> str:
    """Remove invisible characters, which may hide instructions for a model."""
    if text.isprintable():
        return text
    return "".join(one for one in text if one in _UNSEEN_KEPT or not _is_unseen(one))


def normalize(text: str) -> str:
    """Convert a text to plain letters without joiners, for matching patterns."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", make_visible(text))
        text = text.replace("\u2019", "'").replace("\u200c", "").replace("\u200d", "")
    return squeeze_space(text)


def _is_unseen(character: str) -> bool:
    return (
        unicodedata.category(character) in ("Cc", "Cf") or "\U000e0100" <= character <= "\U000e01ef"
    )


def check_fact(text: str, said: str, recalled: Recalled = Recalled()) -> Why | None:
    """Return the reason to refuse a fact found in what the user `said`, or `None`."""
    # Skip the other checks, which would take too much time.
    if len(text) > LONGEST_FACT:
        return Why.LONG
    checks: Sequence[tuple[Why, bool]] = (
        (Why.EMPTY, not text.strip()),
        (Why.SHORT, is_short(text)),
        (Why.SECRET, holds_secret(text)),
        (Why.INSTRUCTION, is_instruction(text)),
        (Why.QUESTION, text.rstrip().endswith(_ASKING)),
        (Why.QUOTED, "```" in text or "\n" in text.strip()),
        (Why.RECALLED, recalled.holds(text)),
        (Why.UNSUPPORTED, not is_supported(text, said)),
    )
    return next((why for why, refused in checks if refused), None)


def is_short(text: str) -> bool:
    """Return True if a text is too short to be understood on its own, like a greeting.

    A Chinese character counts as three. A short text about the speaker is not too short.

    >>> is_short("Hi there!"), is_short("ok thanks"), is_short("I'm vegan.")
    (True, True, False)
    """
    words = _plain_words(text)
    if not words or (len(words) < 2 and text.isascii()):
        return True
    size = len(text.strip()) + 2 * len(UNSPACED.findall(text))
    brief = size < _FEWEST_CHARACTERS and len(words) < _FEWEST_WORDS
    return brief and not _matches(ONESELF, text)


def is_instruction(text: str) -> bool:
    """Return True if a fact instructs a model instead of describing the user."""
    return any((_matches(INSTRUCTION, text), _matches(DIRECTIVE, text), _begins(COMMAND, text)))


def is_supported(text: str, said: str) -> bool:
    """Return True if `said` has half of a text's significant words, and all its numbers and names.

    >>> is_supported("The user's cat is named Tom", "my cat Tom is ill")
    True
    >>> is_supported("The user's cat Tom is 7", "my cat Tom is ill")
    False
    """
    wanted, given = content_words(text), frozenset(split_words(said))
    wanted = wanted - _stem_all(_VERBS) or wanted
    if not wanted or _share(wanted, given) < SUPPORT:
        return False
    numbers = set(_NUMBER.findall(said))
    if any(number not in numbers for number in _NUMBER.findall(text)):
        return False
    return all(_is_said(word, given) for name in _names(text) for word in content_words(name))


def covers(text: str, fact: str) -> bool:
    """Return True if a text supports a fact; see `is_supported`."""
    return is_supported(fact, text)


def content_words(text: str) -> frozenset[str]:
    """Return the stemmed content words of a text, without words for the user."""
    return frozenset(split_words(text)) - _stem_all(_USER)


@cache
def _stem_all(words: str) -> frozenset[str]:
    """Stem words on first use: loading the stemmer takes a quarter of a second."""
    return frozenset(split_words(words))


def _share(wanted: frozenset[str], given: frozenset[str]) -> float:
    return sum(_is_said(word, given) for word in wanted) / len(wanted)


def _is_said(word: str, given: frozenset[str]) -> bool:
    """Return True if a word was said, possibly in a form that the stemmer does not know."""
    if word in given:
        return True
    if len(word) < _SHORTEST_STEM or not word.isalpha():
        return False
    begin = word[: max(_SHORTEST_STEM, -(-len(word) * 2 // 3))]
    return any(one.startswith(begin) for one in given)


def _names(text: str) -> Iterator[str]:
    """Yield the capitalized words that do not begin the text."""
    for found in list(_WORD.finditer(text))[1:]:
        word = found[0]
        if word[0].isupper() and word.lower() not in STOP:
            yield word


def _refuse_paragraph(text: str) -> Why | None:
    if _matches(INSTRUCTION, text):
        return Why.INSTRUCTION
    if len(text) > _LONGEST_PARAGRAPH:
        return Why.QUOTED
    return None


def _refuse_sentence(text: str, recalled: Recalled) -> Why | None:
    if holds_secret(text):
        return Why.SECRET
    if recalled.holds(text):
        return Why.RECALLED
    if text.rstrip().endswith(_ASKING) and not _matches(ONESELF, text):
        return Why.QUESTION
    return Why.SHORT if is_short(text) else None


def _read_quoted(text: str) -> Iterator[str]:
    """Yield the JSON strings in a text: recalled entries are written as such."""
    for found in _JSON_STRING.finditer(text):
        with suppress(msgspec.DecodeError):
            yield msgspec.json.decode(found[0], type=str)


def _plain_words(text: str) -> list[str]:
    """Return all words of a text as they were said, in lower case."""
    return [word.replace("\u2019", "'") for word in _WORD.findall(text.lower())]


def _matches(shape: str, text: str) -> bool:
    return _compiled(shape).search(normalize(text)) is not None


def _begins(shape: str, text: str) -> bool:
    return _compiled(shape).match(normalize(text)) is not None


@cache
def _compiled(shape: str) -> re.Pattern[str]:
    # Compiled on first use: most commands do not need it.
    return re.compile(shape)
