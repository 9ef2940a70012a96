"""The gate: what is refused before anything is remembered, and why. No model is asked here.

A turn is kept as it was said, without its secrets. Facts are looked for only in what is left of the
user's words when questions, quotations, instructions and what was recalled are taken out, and a
fact that a model found there has to be supported by those words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache

import msgspec
from msgspec import Struct

from vibe_llms.memory.reports import Refusal, Why
from vibe_llms.memory.secrets import holds_secret, mask_secrets
from vibe_llms.memory.sentences import split_sentences
from vibe_llms.memory.words import STOP, split_words
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

_GREETING_WORDS = """
    hi hello hey hallo hola bonjour salut ciao ola good morning afternoon evening night day gm gn
    thanks thank thx ty you very much so a lot many danke merci gracias obrigado grazie
    ok okay k kk yes yeah yep yup no nope nah sure fine great nice cool perfect awesome right
    exactly alright understood got it i see bye goodbye later cheers welcome please sorry wow lol
    haha hm hmm well then now there all that is was this works for me again everyone bitte ja nein
    gut si sí oui non go on ahead continue more next stop done well-done
    """
_ENGLISH_QUESTION = r"""(?ix)
    \s* (?: (?: and | but | so | ok | okay | hey | hi | please | well | then ) [\s,]+ )*
    (?: who | whom | whose | what | when | where | why | which | how
      | can | could | would | will | should | shall | is | are | was | were | am | do | does | did
      | has | have | had | may | might | must ) \b
    """
#: Where a question speaks of the user, it may tell something of the user.
_OF_ONESELF = r"(?i)\b(?:i|i'm|i've|i'd|i'll|my|mine|me|myself|we|our|ours|us)\b"
_REQUEST = r"""(?ix)
    \s* (?: (?: and | but | so | ok | okay | now | then | please | also | just | hey ) [\s,]+ )*
    (?: write | translate | summari[sz]e | explain | tell | show | give | list | find | fix | make
      | create | generate | describe | compare | calculate | compute | convert | rewrite | continue
      | check | search | look | print | run | solve | draw | define | name | help | repeat | answer
      | add | remove | refactor | implement | debug | test | open | read | send | try ) \b
    """
_INSTRUCTION = r"""(?ix)
      \b (?: ignore | disregard | forget | override | bypass ) \s+
         (?: (?: all | any | of | the | these | those | your | my | every | previous | prior | above
               | earlier | preceding | other | safety | system ) \s+ )*
         (?: instructions? | prompts? | rules? | guidelines? | directions? | messages? | context
           | everything \s+ (?: you | above | before | prior | that | i \s+ (?: said | told ) )
           | above | previous ) \b
    | \b system \s+ (?: prompt | message | instructions? ) \b
    | \b developer \s+ (?: prompt | message | instructions? ) \b | \b enter \s+ developer \s+ mode
    | \b (?: new | updated | real | actual | following ) \s+ instructions? \s* :
    | \b you \s+ (?: are \s+ now | must \s+ now | will \s+ now ) \b
    | \b from \s+ now \s+ on ,? \s+ (?: you | the \s+ (?: assistant | model | ai ) ) \b
    | \b (?: act | behave | respond ) \s+ as \s+ (?: if \s+ you | though \s+ you | dan \b
         | an? \s+ (?: unrestricted | unfiltered | uncensored | evil ) )
    | \b pretend \s+ (?: to \s+ be | that \s+ you | you )
    | \b (?: do \s+ not | don't | never ) \s+ (?: tell | inform | warn | ask ) \s+
         (?: the \s+ )? (?: user | person | human ) \b
    | \b jailbr (?: eak | oken ) | \b DAN \s+ mode
    | < /? (?: system | assistant | instructions? | \|im_ ) | <\| | \[ /? INST \] | <</? SYS
    """
#: What no fact says, though a person may say it of something else.
_DIRECTIVE = r"""(?ix)
    \b (?: assistant | model | chatbot | ai ) \s+
        (?: must | should | shall | has \s+ to | is \s+ to | needs? \s+ to | will \s+ always
          | is \s+ (?: allowed | required | instructed | authori[sz]ed ) )
    """
#: What a fact cannot begin with, as it then tells somebody to do something.
_COMMAND = r"""(?ix)
    \s* (?: always | never | please | do \s not | don't | you \s (?: must | should | shall | have
          | need | are | can | will ) | execute | run \b | call \b | send \b | reveal | respond
          | answer \b | reply | ignore | disregard | remember \s to | make \s sure | be \s sure )
    """
_FENCE = re.compile(r"(```|~~~).*?(?:\1|\Z)", re.DOTALL)
_QUOTED_LINES = re.compile(r"(?m)(?:^[ \t]*>.*(?:\n|\Z))+")
#: What stands in quotation marks and is a sentence or more; names and titles stay.
_QUOTATION = re.compile(
    r"\"[^\"\n]{40,2000}\"|\u201c[^\u201d]{40,2000}\u201d|\u00ab[^\u00bb]{40,2000}\u00bb"
)
_JSON_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_PARAGRAPHS = re.compile(r"\n[ \t]*\n+")
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


class Sifted(Struct, frozen=True):
    """What is left of a text when the refused parts are out."""

    text: str
    refused: tuple[Refusal, ...] = ()


class Recalled:
    """What was recalled in a turn, to be known again in what is said there."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        whole = [one for text in texts for one in (text, *_read_quoted(text))]
        self._said = [f" {' '.join(_plain_words(text))} " for text in whole]

    def holds(self, text: str) -> bool:
        """Whether a text stands there word for word."""
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
        refused.append(Refusal(mask_secrets(found[0]), Why.QUOTED, "part"))
        return "\n\n"

    for shape in (_FENCE, _QUOTED_LINES, _QUOTATION):
        text = shape.sub(cut, text)
    kept: list[str] = []
    for paragraph in filter(str.strip, _PARAGRAPHS.split(text)):
        why = _refuse_paragraph(paragraph)
        if why is not None:
            refused.append(Refusal(mask_secrets(paragraph.strip()), why, "part"))
            continue
        for sentence in split_sentences(paragraph):
            why = _refuse_sentence(sentence, recalled)
            if why is None:
                kept.append(sentence)
            else:
                refused.append(Refusal(mask_secrets(sentence), why, "part"))
    return Sifted("\n".join(kept), tuple(refused))


def check_fact(text: str, said: str, recalled: Recalled = Recalled()) -> Why | None:
    """Why a fact is refused that a model found in what the user `said`; none if it is not."""
    checks: Sequence[tuple[Why, bool]] = (
        (Why.EMPTY, not text.strip()),
        (Why.LONG, len(text) > LONGEST_FACT),
        (Why.GREETING, is_greeting(text)),
        (Why.SHORT, len(text.strip()) < _SHORTEST_FACT or len(_plain_words(text)) < 2),
        (Why.SECRET, holds_secret(text)),
        (Why.INSTRUCTION, is_instruction(text)),
        (Why.QUESTION, text.rstrip().endswith(("?", "\uff1f"))),
        (Why.QUOTED, "```" in text or "\n" in text.strip()),
        (Why.RECALLED, recalled.holds(text)),
        (Why.UNSUPPORTED, not is_supported(text, said)),
    )
    return next((why for why, refused in checks if refused), None)


def is_greeting(text: str) -> bool:
    """Whether a text is nothing but a greeting, thanks, a yes or a no.

    >>> is_greeting("Hi there!"), is_greeting("Thanks, I moved to Porto.")
    (True, False)
    """
    words = text.lower().replace("\u2019", "'").split()
    plain = [word.strip(".,;:!?'\"()*") for word in words]
    # Signs alone, a smile for example, say no more than a nod.
    return len(plain) <= 8 and all(
        word in _greetings() or not any(map(str.isalnum, word)) for word in plain
    )


def is_instruction(text: str) -> bool:
    """Whether a fact tells a model what to do, in place of saying something of the user."""
    return _matches(_INSTRUCTION, text) or _matches(_DIRECTIVE, text) or _begins(_COMMAND, text)


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
    if _matches(_INSTRUCTION, text):
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
    asks = text.rstrip().endswith("?") and _begins(_ENGLISH_QUESTION, text)
    if (asks or _begins(_REQUEST, text)) and not _matches(_OF_ONESELF, text):
        return Why.QUESTION
    return Why.SHORT if len(_plain_words(text)) < 2 and text.isascii() else None


def _read_quoted(text: str) -> Iterator[str]:
    """What stands in a text as strings of JSON: entries are recalled as such."""
    for found in _JSON_STRING.finditer(text):
        with suppress(msgspec.DecodeError):
            yield msgspec.json.decode(found[0], type=str)


def _plain_words(text: str) -> list[str]:
    """All words of a text as they were said, small."""
    return [word.replace("\u2019", "'") for word in _WORD.findall(text.lower())]


def _matches(shape: str, text: str) -> bool:
    return _compiled(shape).search(text) is not None


def _begins(shape: str, text: str) -> bool:
    return _compiled(shape).match(text) is not None


@cache
def _compiled(shape: str) -> re.Pattern[str]:
    # Not compiled on import: most commands remember nothing.
    return re.compile(shape)


@cache
def _greetings() -> frozenset[str]:
    return frozenset(_GREETING_WORDS.split())
