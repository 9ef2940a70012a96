"""The gate: what is refused before anything is remembered, and why. No model is asked here.

A turn is kept as it was said, without its secrets. Facts are looked for only in what is left of the
user's words when questions, quotations, instructions and what was recalled are taken out, and a
fact that a model found there has to be supported by those words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache

import msgspec
from msgspec import Struct

from vibe_llms.memory.outlines import digest_of_sentence
from vibe_llms.memory.phrases import (
    ASKED,
    CLAUSE,
    COMMAND,
    DENIAL,
    DIRECTIVE,
    DISLIKE,
    GREETING_SIGNS,
    GREETINGS,
    INSTRUCTION,
    LETTER,
    MATERIAL,
    NO_DENIAL,
    ONESELF,
    QUESTION,
    QUESTION_SIGNS,
    REQUEST,
    TO_ME,
)
from vibe_llms.memory.reports import Refusal, Why
from vibe_llms.memory.secrets import holds_secret, mask_secrets, squeeze_space
from vibe_llms.memory.sentences import split_sentences
from vibe_llms.memory.words import STOP, UNSPACED, split_words
from vibe_llms.redaction import REDACTED

#: What is longer is a document, and no turn to be remembered.
LONGEST_TURN = 32_000
LONGEST_FACT = 400
_LONGEST_PARAGRAPH = 3000
_SHORTEST_FACT = 8
#: The share of a fact's words that the user must have said.
SUPPORT = 0.5
#: So many words in a row are no accident; fewer only where they are the whole text.
_COPIED_WORDS = 3
#: Words for the user, which a fact may have without his saying them.
USER_WORDS = frozenset(
    split_words("user users person nutzer benutzer usuario utilisateur utente gebruiker usuário")
)
_SHORTEST_STEM = 4
#: Words that say next to nothing of a person before it is known what or whom they are about.
_VERBS = frozenset(
    split_words(
        "be have like love prefer enjoy hate dislike live reside work name call want plan use own "
        "go get make know think feel say said tell told mention state interested currently"
    )
)

_FENCE = re.compile(r"(```|~~~).*?(?:\1|\Z)", re.DOTALL)
_QUOTED_LINES = re.compile(r"(?m)(?:^[ \t]*>.*(?:\n|\Z))+")
#: What stands in quotation marks and is a sentence or more; names and titles stay.
_QUOTATION = re.compile(
    r"\"[^\"\n]{40,2000}\"|\u201c[^\u201c\u201d]{40,2000}\u201d|\u00ab[^\u00ab\u00bb]{40,2000}\u00bb"
)
#: Lines, and what joins letters in some scripts, and emoji.
_UNSEEN_KEPT = frozenset("\n\r\t\u200c\u200d")
_ASKING = ("?", "\uff1f", "\u061f")
_JSON_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"?')
_PARAGRAPHS = re.compile(r"\n[ \t]*\n+")
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
#: With what makes another number of it: .5 and -5 are not 5.
_NUMBER = re.compile(r"(?:(?<![\w.,:])[-\u2212]?\.?)?\d+(?:[.,:]\d+)*")


class Sifted(Struct, frozen=True):
    """What is left of a text when the refused parts are out."""

    text: str
    refused: tuple[Refusal, ...] = ()


class Recalled:
    """What was recalled in a turn, to be known again in what is said there."""

    def __init__(self, texts: Iterable[str] = (), *, digests: frozenset[str] = frozenset()) -> None:
        self._digests = digests
        whole = [one for text in texts for one in (text, *_read_quoted(text))]
        self._said = [f" {' '.join(_plain_words(text))} " for text in whole]

    def holds(self, text: str) -> bool:
        """Whether a text stands there word for word, or is one of which there is a digest."""
        if self._digests and digest_of_sentence(text) in self._digests:
            return True
        words = _plain_words(text)
        if not words or (len(words) < _COPIED_WORDS and len(text.strip()) < _SHORTEST_FACT):
            return False
        wanted = f" {' '.join(words)} "
        return any(wanted in said for said in self._said)


def sift_turn(text: str, recalled: Recalled = Recalled()) -> Sifted:
    """A turn as it may be kept: its secrets masked; or nothing of it, and why."""
    why = None
    if not text.strip():
        why = Why.EMPTY
    elif len(text) > LONGEST_TURN:
        why = Why.LONG
    elif is_greeting(text):
        why = Why.GREETING
    elif recalled.holds(text):
        why = Why.RECALLED
    # What is too long is not gone through: that would take its time, and nobody keeps it.
    masked = mask_secrets(text[:LONGEST_TURN])
    if why is not None:
        return Sifted("", (Refusal(masked[:LONGEST_FACT], why, "turn"),))
    if masked != text:
        return Sifted(masked.strip(), (Refusal(REDACTED, Why.SECRET, "part"),))
    return Sifted(text.strip())


def sift_words(text: str, recalled: Recalled = Recalled()) -> Sifted:
    """The user's own statements in what was said: where facts may be found; often nothing."""
    refused: list[Refusal] = []
    # A turn that was kept is a little longer where its secrets have marks.
    if len(text) > 2 * LONGEST_TURN:
        beginning = mask_secrets(text[:LONGEST_TURN])[:LONGEST_FACT]
        return Sifted("", (Refusal(beginning, Why.LONG, "part"),))

    def cut(found: re.Match[str]) -> str:
        refused.append(Refusal(found[0].strip(), Why.QUOTED, "part"))
        return "\n\n"

    # Before anything is taken apart: a key has several lines, and a password may stand on the next.
    text = squeeze_space(mask_secrets(make_visible(text)))
    for shape in (_FENCE, _QUOTED_LINES, _QUOTATION):
        text = shape.sub(cut, text)
    text, others = _leave_out_others(text)
    refused += (Refusal(part, Why.QUOTED, "part") for part in others)
    kept: list[str] = []
    for paragraph in filter(str.strip, _PARAGRAPHS.split(text)):
        why = _refuse_paragraph(paragraph)
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


def _leave_out_others(text: str) -> tuple[str, list[str]]:
    """The text without letters of others, and without what only something is to be done with."""
    parts: list[str] = []
    letter = _compiled(LETTER).search(text)
    if letter is not None:
        parts.append(text[letter.start() :].strip())
        text = text[: letter.start()]
    kept, place = "", 0
    for found in _compiled(MATERIAL).finditer(text):
        if found.start() < place or _matches(ONESELF, _compiled(TO_ME).sub("", found[0])):
            continue
        gap = _PARAGRAPHS.search(text, found.end())
        end = len(text) if gap is None else gap.start()
        if not text[found.end() : end].strip():
            # The text itself comes in paragraphs of its own.
            end = len(text)
        parts.append(text[found.start() : end].strip())
        kept += text[place : found.start()]
        place = end
    return kept + text[place:], parts


def make_visible(text: str) -> str:
    """The text without signs that nobody sees, in which instructions for a model may be hidden."""
    if text.isprintable():
        return text
    return "".join(one for one in text if one in _UNSEEN_KEPT or not _is_unseen(one))


def normalize(text: str) -> str:
    """The text in plain letters and without joiners, as phrases are looked for."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", make_visible(text))
        text = text.replace("\u2019", "'").replace("\u200c", "").replace("\u200d", "")
    return squeeze_space(text)


def _is_unseen(character: str) -> bool:
    return (
        unicodedata.category(character) in ("Cc", "Cf") or "\U000e0100" <= character <= "\U000e01ef"
    )


def check_fact(text: str, said: str, recalled: Recalled = Recalled()) -> Why | None:
    """Why a fact is refused that a model found in what the user `said`; none if it is not."""
    # What is too long is not gone through.
    if len(text) > LONGEST_FACT:
        return Why.LONG
    checks: Sequence[tuple[Why, bool]] = (
        (Why.EMPTY, not text.strip()),
        (Why.GREETING, is_greeting(text)),
        (Why.SHORT, is_short(text)),
        (Why.SECRET, holds_secret(text)),
        (Why.INSTRUCTION, is_instruction(text)),
        (Why.QUESTION, text.rstrip().endswith(_ASKING)),
        (Why.QUOTED, "```" in text or "\n" in text.strip()),
        (Why.RECALLED, recalled.holds(text)),
        (Why.UNSUPPORTED, not is_supported(text, said) or is_denied(text, said)),
    )
    return next((why for why, refused in checks if refused), None)


def is_greeting(text: str) -> bool:
    """Whether a text is nothing but a greeting, thanks, a yes or a no.

    >>> is_greeting("Hi there!"), is_greeting("Thanks, I moved to Porto.")
    (True, False)
    """
    words = re.sub("[,\u3001\u3002~]", " ", normalize(text).lower()).split()
    plain = [word.strip(".,;:!?\xa1\xbf'\"()*") for word in words]
    # Signs alone, a smile for example, say no more than a nod.
    return len(plain) <= 8 and all(
        word in _greetings()
        or not any(map(str.isalnum, word))
        or _compiled(f"(?:{GREETING_SIGNS})+").fullmatch(word)
        for word in plain
    )


def is_short(text: str) -> bool:
    """Whether a text cannot be understood by itself; a Chinese character says as much as three."""
    said = text.strip()
    size = len(said) + 2 * len(UNSPACED.findall(said))
    return size < _SHORTEST_FACT or (len(said) == size and len(_plain_words(text)) < 2)


def is_instruction(text: str) -> bool:
    """Whether a fact tells a model what to do, in place of saying something of the user."""
    return any((_matches(INSTRUCTION, text), _matches(DIRECTIVE, text), _begins(COMMAND, text)))


def is_supported(text: str, said: str) -> bool:
    """Whether somebody said half of what a text is about, and all of its numbers and names.

    >>> is_supported("The user's cat is named Tom", "my cat Tom is ill")
    True
    >>> is_supported("The user's cat Tom is 7", "my cat Tom is ill")
    False
    """
    wanted, given = content_words(text), frozenset(split_words(said))
    wanted = wanted - _VERBS or wanted
    if not wanted or _share(wanted, given) < SUPPORT:
        return False
    numbers = set(_NUMBER.findall(said))
    if any(number not in numbers for number in _NUMBER.findall(text)):
        return False
    return all(_is_said(word, given) for name in _names(text) for word in content_words(name))


def is_denied(text: str, said: str) -> bool:
    """Whether somebody said what a text is about only in denying it, and the text does not.

    >>> is_denied("The user lives in Lisbon", "I do not live in Lisbon")
    True
    >>> is_denied("The user lives in Porto", "I do not live in Lisbon but in Porto")
    False
    """
    if _denies(text) or _matches(DISLIKE, text):
        return False
    words = content_words(text)
    wanted = words - _VERBS or words
    about = [
        (clause, _share(wanted, frozenset(split_words(clause))))
        for clause in _compiled(CLAUSE).split(said)
    ]
    saying = [clause for clause, share in about if share]
    return bool(saying) and all(map(_denies, saying))


def _denies(text: str) -> bool:
    return _matches(DENIAL, _compiled(NO_DENIAL).sub(" ", text))


def covers(text: str, fact: str) -> bool:
    """Whether a text says half of what a fact is about, and all of its numbers and names."""
    return is_supported(fact, text)


def content_words(text: str) -> frozenset[str]:
    """The words that carry what a text says, stemmed; those for the user are none."""
    return frozenset(split_words(text)) - USER_WORDS


def _share(wanted: frozenset[str], given: frozenset[str]) -> float:
    return sum(_is_said(word, given) for word in wanted) / len(wanted)


def _is_said(word: str, given: frozenset[str]) -> bool:
    """Whether a word was said, also in another form that the stemmer does not know."""
    if word in given:
        return True
    if len(word) < _SHORTEST_STEM or not word.isalpha():
        return False
    begin = word[: max(_SHORTEST_STEM, -(-len(word) * 2 // 3))]
    return any(one.startswith(begin) for one in given)


def _names(text: str) -> Iterator[str]:
    """The words with a capital letter that do not begin the text."""
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
    if is_greeting(text):
        return Why.GREETING
    if holds_secret(text):
        return Why.SECRET
    if recalled.holds(text):
        return Why.RECALLED
    if _only_asks(normalize(text)):
        return Why.QUESTION
    return Why.SHORT if len(_plain_words(text)) < 2 and text.isascii() else None


def _only_asks(text: str) -> bool:
    """Whether a sentence asks for something, and says nothing of who asks."""
    request = _compiled(REQUEST).match(text)
    asks = text.rstrip().endswith(_ASKING) and _begins(QUESTION, text)
    if request is None and not (asks or _matches(QUESTION_SIGNS, text) or _matches(ASKED, text)):
        return False
    rest = text if request is None else text[request.end() :]
    return not _matches(ONESELF, _compiled(TO_ME).sub("", rest))


def _read_quoted(text: str) -> Iterator[str]:
    """What stands in a text as strings of JSON: entries are recalled as such."""
    for found in _JSON_STRING.finditer(text):
        with suppress(msgspec.DecodeError):
            yield msgspec.json.decode(found[0], type=str)


def _plain_words(text: str) -> list[str]:
    """All words of a text as they were said, small."""
    return [word.replace("\u2019", "'") for word in _WORD.findall(text.lower())]


def _matches(shape: str, text: str) -> bool:
    return _compiled(shape).search(normalize(text)) is not None


def _begins(shape: str, text: str) -> bool:
    return _compiled(shape).match(normalize(text)) is not None


@cache
def _compiled(shape: str) -> re.Pattern[str]:
    # Not compiled on import: most commands remember nothing.
    return re.compile(shape)


@cache
def _greetings() -> frozenset[str]:
    return frozenset(GREETINGS.split())
