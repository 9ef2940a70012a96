"""The tool `reread`, with which a model reads messages that a digest leaves out."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from vibe_llms.base.offloading import LOOP_MESSAGES, offload
from vibe_llms.conversations.context_view import ContextView, without_digests
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    SupervisorCanister,
    is_untrusted,
    role_of,
)
from vibe_llms.messages.contents import MediaContent, Reference, TextualContent
from vibe_llms.providers.interfaces import Loader

NAME = "reread"
#: Characters of an answer, at most.
_MOST_CHARACTERS = 6_000
#: Characters of one passage that is found by words.
_PASSAGE = 600
_WORD = re.compile(r"\w+")
#: Words count as similar if these first letters are the same, in any language.
_STEM = 4
#: Share of its rating that a passage adds to those beside it: an answer is beside its question.
_NEARBY = 0.4
#: Share of its rating that a passage has if the model has it in its request.
_SHOWN = 0.3
#: Parameters of BM25; the usual ones. Source: Robertson and Zaragoza 2009, section 3.
_SATURATION, _LENGTH_SHARE = 1.2, 0.75


class _Passage(Struct, frozen=True):
    canister: Canister
    offset: int
    text: str


def produce_reread(access: Callable[[], Sequence[Canister]], load: Loader) -> Invoker:
    """Return the tool for a conversation; `access` returns its messages."""
    return Invoker.from_function(_Reader(access, load).reread, name=NAME, outside=True)


class _Reader:
    """A reader of the original messages of one conversation."""

    def __init__(self, access: Callable[[], Sequence[Canister]], load: Loader) -> None:
        self._access = access
        self._load = load

    async def reread(self, id: str = "", offset: int = 0, words: str = "") -> InvocationOutput:  # noqa: A002
        """Read earlier messages of this conversation that were left out or summarized.

        Give an id to read one message, or words to find passages in all messages.

        Args:
            id: The id of a message, as the summary or a note in brackets gives it.
            offset: The number of characters of this message to skip.
            words: Words that the passages contain, such as names and numbers.
        """
        # More messages may be appended while a thread searches.
        history = tuple(self._access())
        messages = [
            one for one in without_digests(history) if not isinstance(one, SupervisorCanister)
        ]
        if id:
            found = [one for one in messages if one.identity == id.strip()]
            if not found:
                return _fail(f"No message has the id {id!r}. Use words to find it.")
            return await self._read(found[0], max(offset, 0))
        if words.strip():
            return await self._search(messages, words, history)
        return _fail("Give the id of a message, or words to find.")

    async def _read(self, canister: Canister, offset: int) -> InvocationOutput:
        text = (await self._load_texts([canister]))[0]
        # Images and files come with the first part.
        media = [one for one in canister.contents if isinstance(one, MediaContent) and not offset]
        if offset and offset >= len(text):
            return _fail(f"The message has only {len(text):,} characters.")
        part = text[offset : offset + _MOST_CHARACTERS]
        end = offset + len(part)
        more = f" Continue with offset {end}." if end < len(text) else ""
        head = f"[{role_of(canister)}, characters {offset} to {end} of {len(text)}.{more}]"
        return _say(f"{head}\n{part}", [canister], media)

    async def _search(
        self, messages: Sequence[Canister], words: str, history: Sequence[Canister]
    ) -> InvocationOutput:
        texts = await self._load_texts(messages)
        passages = [
            passage
            for canister, text in zip(messages, texts, strict=True)
            for passage in _split(canister, text)
        ]
        chosen: list[_Passage] = []
        room = _MOST_CHARACTERS
        large = len(messages) > LOOP_MESSAGES
        for passage in await offload(large, _search, passages, words, history):
            room -= len(passage.text) + 80
            if room < 0:
                break
            chosen.append(passage)
        if not chosen:
            return _fail("No message contains any of these words. Try others.")
        chosen.sort(key=lambda one: (one.canister.identity, one.offset))
        parts = [
            f"[{role_of(one.canister)}, id {one.canister.identity}, character {one.offset}]\n"
            f"{one.text}"
            for one in chosen
        ]
        return _say("\n\n".join(parts), [one.canister for one in chosen])

    async def _load_texts(self, canisters: Sequence[Canister]) -> Sequence[str]:
        """Return the whole text of each message; the arguments are the text of a call."""
        wanted = [
            content.whole if content.whole is not None else content.data
            for one in canisters
            for content in one.contents
            if isinstance(content, TextualContent)
        ]
        loaded = await self._load([one for one in wanted if isinstance(one, Reference)])
        texts = iter(wanted)

        def read(canister: Canister) -> str:
            if isinstance(canister, InvocationCanister):
                return f"{canister.name} {canister.arguments}"
            parts: list[str] = []
            for content in canister.contents:
                if isinstance(content, TextualContent):
                    data = next(texts)
                    parts.append(
                        loaded[data.hash].decode("utf-8", "replace")
                        if isinstance(data, Reference)
                        else data
                    )
            return "\n".join(parts)

        return [read(one) for one in canisters]


def _split(canister: Canister, text: str) -> Iterator[_Passage]:
    """Yield the passages of a message, which end at a line or a space if there is one."""
    start = 0
    while start < len(text):
        end = start + _PASSAGE
        if end < len(text):
            for separator in ("\n", " "):
                if (found := text.rfind(separator, start + _PASSAGE // 2, end)) > 0:
                    end = found + 1
                    break
        if part := text[start:end].strip():
            yield _Passage(canister, start, part)
        start = end


def _search(
    passages: Sequence[_Passage], words: str, history: Sequence[Canister]
) -> Sequence[_Passage]:
    """Return the passages that were found; the model has some messages in its request anyway."""
    whole = {one.identity: one.contents for one in history}
    shown = {
        one.identity for one in ContextView().apply(history) if one.contents is whole[one.identity]
    }
    return rank(passages, words, shown)


def rank(
    passages: Sequence[_Passage], words: str, shown: AbstractSet[str] = frozenset()
) -> Sequence[_Passage]:
    """Return the passages with any of the words, and those beside them, the best first.

    They are rated by BM25 with the square of the rarity, since questions have many common words.
    The model has the messages in `shown`, by identity, so others are preferred.
    """
    wanted = {*_terms(words)}
    counts = [Counter(one for one in _terms(passage.text) if one in wanted) for passage in passages]
    lengths = [len(passage.text) for passage in passages]
    mean = sum(lengths) / max(len(lengths), 1)
    holders = Counter(word for count in counts for word in count)
    rarity = {
        word: math.log(1 + (len(passages) - number + 0.5) / (number + 0.5)) ** 2
        for word, number in holders.items()
    }

    def rate(place: int) -> float:
        share = 1 - _LENGTH_SHARE + _LENGTH_SHARE * lengths[place] / mean
        return sum(
            rarity[word] * number * (_SATURATION + 1) / (number + _SATURATION * share)
            for word, number in counts[place].items()
        )

    rates = [*map(rate, range(len(passages))), 0.0, 0.0]
    rated = [
        rates[place]
        + _NEARBY * (rates[place - 1] + rates[place + 1])
        + _NEARBY**2 * (rates[place - 2] + rates[place + 2])
        for place in range(len(passages))
    ]
    for place, passage in enumerate(passages):
        if passage.canister.identity in shown:
            rated[place] *= _SHOWN
    places = (place for place, rate in enumerate(rated) if rate)
    return [passages[place] for place in sorted(places, key=lambda one: (-rated[one], one))]


def _terms(text: str) -> Iterator[str]:
    """Yield the words of a text, and the beginnings of the longer ones."""
    for word in _WORD.findall(text.casefold()):
        yield word[:_STEM]
        if len(word) > _STEM:
            yield word


def _say(
    text: str, canisters: Sequence[Canister], media: Sequence[MediaContent] = ()
) -> InvocationOutput:
    trusted = not any(map(is_untrusted, canisters))
    return InvocationOutput((TextualContent(text), *media), trusted=trusted)


def _fail(text: str) -> InvocationOutput:
    return InvocationOutput((TextualContent(text),), failed=True, trusted=True)
