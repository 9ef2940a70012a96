"""The tool `reread`, with which a model reads messages that a digest leaves out."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from vibe_llms.base.offloading import LOOP_MESSAGES, offload
from vibe_llms.conversations.context_view import without_digests
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    SupervisorCanister,
    is_untrusted,
    role_of,
)
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.providers.interfaces import Loader

NAME = "reread"
#: Characters of an answer, at most.
_MOST_CHARACTERS = 6_000
#: Characters of one passage that is found by words.
_PASSAGE = 600
_WORD = re.compile(r"\w+")
#: Words count as the same if these first letters are the same, in any language.
_STEM = 6
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
        messages = [
            one
            for one in without_digests(self._access())
            if not isinstance(one, SupervisorCanister)
        ]
        if id:
            found = [one for one in messages if one.identity == id.strip()]
            if not found:
                return _fail(f"No message has the id {id!r}. Use words to find it.")
            return await self._read(found[0], max(offset, 0))
        if words.strip():
            return await self._search(messages, words)
        return _fail("Give the id of a message, or words to find.")

    async def _read(self, canister: Canister, offset: int) -> InvocationOutput:
        text = (await self._load_texts([canister]))[0]
        if offset and offset >= len(text):
            return _fail(f"The message has only {len(text):,} characters.")
        part = text[offset : offset + _MOST_CHARACTERS]
        end = offset + len(part)
        more = f" Continue with offset {end}." if end < len(text) else ""
        head = f"[{role_of(canister)}, characters {offset} to {end} of {len(text)}.{more}]"
        return _say(f"{head}\n{part}", [canister])

    async def _search(self, messages: Sequence[Canister], words: str) -> InvocationOutput:
        texts = await self._load_texts(messages)
        passages = [
            passage
            for canister, text in zip(messages, texts, strict=True)
            for passage in _split(canister, text)
        ]
        chosen: list[_Passage] = []
        room = _MOST_CHARACTERS
        for passage in await offload(len(messages) > LOOP_MESSAGES, rank, passages, words):
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


def rank(passages: Sequence[_Passage], words: str) -> Sequence[_Passage]:
    """Return the passages with any of the words, the best first, by BM25."""
    wanted = {*_stems(words)}
    counts = [Counter(one for one in _stems(passage.text) if one in wanted) for passage in passages]
    lengths = [len(passage.text) for passage in passages]
    mean = sum(lengths) / max(len(lengths), 1)
    holders = Counter(word for count in counts for word in count)
    rarity = {
        word: math.log(1 + (len(passages) - number + 0.5) / (number + 0.5))
        for word, number in holders.items()
    }

    def rate(place: int) -> float:
        share = 1 - _LENGTH_SHARE + _LENGTH_SHARE * lengths[place] / mean
        return sum(
            rarity[word] * number * (_SATURATION + 1) / (number + _SATURATION * share)
            for word, number in counts[place].items()
        )

    rated = [(rate(place), place) for place, count in enumerate(counts) if count]
    return [passages[place] for _, place in sorted(rated, key=lambda one: (-one[0], one[1]))]


def _stems(text: str) -> Iterator[str]:
    return (word[:_STEM] for word in _WORD.findall(text.casefold()))


def _say(text: str, canisters: Sequence[Canister]) -> InvocationOutput:
    trusted = not any(map(is_untrusted, canisters))
    return InvocationOutput((TextualContent(text),), trusted=trusted)


def _fail(text: str) -> InvocationOutput:
    return InvocationOutput((TextualContent(text),), failed=True, trusted=True)
