"""How a fact is worded, and whether two facts that look alike may say different things.

Likeness, of words or of vectors, does not see what changes the sense of a sentence: a "not",
another number, another name, who does it to whom, what it stands in. Here that is looked for, and
any sign of it is enough to keep two facts apart: facts that are kept apart for nothing cost little.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from vibe_llms.memory.sentences import split_sentences
from vibe_llms.memory.statements import is_turned, is_turning, read_statement
from vibe_llms.memory.words import bare_word, plain_letters, split_words

_BRACKETS = "()[]{}\u201e\u00ab\u00bb"
_CLOSING = "\"'`\u2018\u2019\u201c\u201d)]}\u00bb!"
_CHANGING = ("?", ":")
_MARKS = f".,;:!?\"'`\u2018\u2019\u201c\u201d\u2026{_BRACKETS}"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Numbers in words; and the parts of a day, which stand for hours.
_NUMBERS = _words(
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    hundred thousand million half quarter third dozen once twice first second fourth fifth sixth
    seventh eighth ninth tenth last morning noon afternoon evening night
    null eins zwei drei vier f\u00fcnf sechs sieben acht neun zehn elf zw\u00f6lf hundert
    tausend halb halben viertel einmal zweimal erste ersten zweite zweiten dritte dritten
    vierte vierten
    """
)
_PERSONS = {
    word: words[0]
    for words in (
        ("i", "me", "my", "mine", "ich", "mich", "mir", "mein", "meine", "meinen", "meiner"),
        ("you", "your", "yours", "du", "dich", "dir", "dein", "deine"),
        ("he", "him", "his", "er", "ihn", "ihm", "sein", "seine", "seinen"),
        ("she", "her", "hers", "ihr", "ihre", "ihren"),
        ("we", "us", "our", "ours", "wir", "uns", "unser", "unsere"),
        ("they", "them", "their", "theirs"),
    )
    for word in words
}


#: At most so many words stand for another one in the same frame.
_SWAPPED = 2


class Wording(Struct, frozen=True):
    """What a text is made of.

    `words` are those that it is searched by, in order. `turning` are the words that change its
    sense, `figures` its numbers and signs, `names` what is written with a capital, in order, and
    `persons` whom its pronouns mean. `parts` are all its words, in order, and `statements` the same
    sentence by sentence, as they are compared.
    """

    words: tuple[str, ...]
    parts: tuple[str, ...]
    turning: frozenset[str]
    figures: frozenset[str]
    names: tuple[str, ...]
    persons: frozenset[str]
    statements: tuple[tuple[str, ...], ...]


def read_wording(text: str) -> Wording:
    """How a text is worded."""
    parts: list[str] = []
    names: list[str] = []
    figures: set[str] = set()
    turning: set[str] = set()
    persons: set[str] = set()
    statements: list[tuple[str, ...]] = []
    for sentence in split_sentences(plain_letters(text).replace("\u2019", "'")):
        begin = len(parts)
        for raw in sentence.split():
            part = raw.strip(_MARKS)
            if any(map(str.isdecimal, part)):
                # .5 is not 5, and 6' is not 6".
                part = bare_word(raw.strip(_BRACKETS)).strip(_BRACKETS)
            if not part:
                continue
            word = part.casefold().removesuffix("'s")
            parts.append(word)
            if word.endswith("n't"):
                turning.add("not")
            elif is_turning(word):
                turning.add(word)
            elif word in _PERSONS:
                persons.add(_PERSONS[word])
            elif word in _NUMBERS or any(map(str.isdecimal, word)):
                figures.add(word)
            elif not word.replace("-", "").replace("'", "").isalpha():
                # C and C++, me@here and me@there.
                turning.add(word)
            elif part[0].isupper() and (stems := split_words(part)):
                names += stems
        ending = sentence.rstrip(_CLOSING)[-1:]
        if begin < len(parts) and ending in _CHANGING:
            # A question says nothing, nor is what stands below a heading said by itself.
            turning.add(ending)
        statements.append(read_statement(parts[begin:], asked=ending == "?"))
    return Wording(
        tuple(split_words(text)),
        tuple(parts),
        frozenset(turning),
        frozenset(figures),
        tuple(names),
        frozenset(persons),
        tuple(filter(None, statements)),
    )


def tell_apart(one: Wording, other: Wording) -> str:
    """What speaks against that two facts say the same, in a word; empty where nothing does."""
    if one.turning != other.turning or _turns(one, other) or _turns(other, one):
        return "sense"
    if not (one.figures <= other.figures or other.figures <= one.figures):
        return "figures"
    if not (one.persons <= other.persons or other.persons <= one.persons):
        return "persons"
    # A word that only begins a sentence has a capital too, so the other may have it without one.
    if _has_more(one.names, other) and _has_more(other.names, one):
        return "names"
    shared = set(one.names) & set(other.names)
    if _keep(one.names, shared) != _keep(other.names, shared):
        return "order"
    if min(len(one.parts), len(other.parts)) == 1 and one.parts != other.parts:
        # Of whom one word is said nobody knows.
        return "words"
    return "" if not _is_swapped(one.parts, other.parts) else "words"


def _turns(one: Wording, other: Wording) -> bool:
    """Whether a statement of the one stands in the other where it is not said."""
    return any(
        part not in other.statements and is_turned(part, other.statements)
        for part in one.statements
    )


def _has_more(names: Iterable[str], other: Wording) -> bool:
    known = {*other.names, *other.words}
    return any(name not in known for name in names)


def _keep(names: Iterable[str], kept: set[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name in kept]


def _is_swapped(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether both have the same frame, and something else in it."""
    if len(one) == len(other):
        pairs = list(zip(one, other, strict=True))
        differing = [pair for pair in pairs if pair[0] != pair[1]]
        same_frame = 2 * len(differing) <= len(pairs)
        return same_frame and any(
            split_words(first) != split_words(second) for first, second in differing
        )
    begin = 0
    while begin < min(len(one), len(other)) and one[begin] == other[begin]:
        begin += 1
    end = 0
    while end < min(len(one), len(other)) - begin and one[-1 - end] == other[-1 - end]:
        end += 1
    first, second = one[begin : len(one) - end], other[begin : len(other) - end]
    if not (first and second) or max(len(first), len(second)) > _SWAPPED or not begin + end:
        return False
    return split_words(" ".join(first)) != split_words(" ".join(second))
