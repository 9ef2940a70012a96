"""Checks that messages fit into a model's context window, before anything is stored or sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from vibe_llms.base.exceptions import ContextOverflow, ProviderError
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import AssistantCanister, Canister, InvocationCanister
from vibe_llms.messages.contents import (
    FileContent,
    NativeContent,
    ReasoningContent,
    Reference,
    TextualContent,
    UnknownContent,
)
from vibe_llms.providers.interfaces import Loader, Model

#: Context window in tokens that is assumed for a model whose window is unknown.
UNKNOWN_WINDOW = 32_768
#: Share of the context window above which tokens are counted before a request.
_COUNTED_SHARE = 0.8
CHARACTERS_PER_TOKEN = 3
_PICTURE_TOKENS = 1600
_REPLIES = (AssistantCanister, InvocationCanister)
_BYTES = (str, bytes)


async def check_context_window(
    model: Model,
    history: Sequence[Canister],
    said: Sequence[Canister],
    invokers: Sequence[Invoker],
    load: Loader,
    limit: int | None,
) -> None:
    """Raise `ContextOverflow` if history and new messages are certainly too long for a model.

    `limit` is the context window of the model, if it is known.
    """
    if limit is None or not is_near_limit(limit, history, said):
        return
    try:
        count = await model.count_tokens([*history, *said], invokers, load)
    except ContextOverflow:
        raise
    except ProviderError:
        # Not every server counts tokens; the request itself will fail if it is too long.
        return
    tokens = count.at_least if count.estimated else count.tokens
    if tokens > limit:
        about = "at least " if count.estimated else ""
        overflow = ContextOverflow(
            f"the history and the new message have {about}{tokens} tokens, but "
            f"{model.name} accepts {limit}; compact the conversation, or use another model",
            provider=model.provider,
        )
        overflow.tokens, overflow.limit = tokens, limit
        raise overflow


def is_near_limit(limit: int | None, history: Sequence[Canister], said: Sequence[Canister]) -> bool:
    """Return True if history and new messages may be too long, so tokens must be counted."""
    backwards = chain(reversed(said), reversed(history))
    return limit is not None and estimate_tokens(backwards) >= limit * _COUNTED_SHARE


class SizeMeter:
    """A meter for a growing history that measures each message once."""

    def __init__(self) -> None:
        self._count = self._size = 0
        self._last: Canister | None = None

    def is_near_size(
        self, model: Model, history: Sequence[Canister], said: Sequence[Canister]
    ) -> bool:
        """Return True if history and new messages may have too many bytes for one request."""
        limit = model.attributes.request_bytes
        # Base64 adds a third to media, and JSON adds escapes.
        return limit is not None and self._measure(history) + measure_size(said) > limit / 2

    def _measure(self, history: Sequence[Canister]) -> int:
        count = self._count
        if count > len(history) or (count and history[count - 1] is not self._last):
            count = self._size = 0
        if count < len(history):
            self._size += measure_size(history[count:])
            self._count, self._last = len(history), history[-1]
        return self._size


class TokenMeter:
    """A meter for the tokens of a growing history that measures each message once."""

    def __init__(self) -> None:
        self._count = self._tokens = 0
        self._last: Canister | None = None

    def estimate(self, history: Sequence[Canister], said: Iterable[Canister]) -> int:
        """Return what `estimate_tokens` returns for the history and new messages."""
        count = self._count
        if count > len(history) or (count and history[count - 1] is not self._last):
            count = self._tokens = 0
        if count < len(history):
            self._tokens = _add_tokens(self._tokens, history[count:] if count else history)
            self._count, self._last = len(history), history[-1]
        return _add_tokens(self._tokens, said)


def measure_size(canisters: Iterable[Canister]) -> int:
    """Return the number of bytes in the contents of messages."""
    size = 0
    for canister in canisters:
        size += len(getattr(canister, "arguments", ""))
        for content in canister.contents:
            size += _size_of(getattr(content, "data", ""))
    return size


def estimate_tokens(backwards: Iterable[Canister]) -> int:
    """Return a low estimate: the usage of the last reply, plus the characters after it."""
    tokens = 0
    for canister in backwards:
        if counted := _count_reply(canister):
            return tokens + counted
        tokens += measure_tokens(canister)
    return tokens


def _add_tokens(tokens: int, canisters: Iterable[Canister]) -> int:
    """Return the tokens of a request that gets longer by these messages."""
    for canister in canisters:
        tokens = _count_reply(canister) or tokens + measure_tokens(canister)
    return tokens


def _count_reply(canister: Canister) -> int:
    """Return the tokens of a reply and its request as the provider counted them, or 0."""
    if not isinstance(canister, _REPLIES) or canister.ending is None:
        return 0
    usage = canister.ending.usage
    return usage.total_tokens if usage is not None and usage.input_tokens else 0


def measure_tokens(canister: Canister) -> int:
    """Return an estimate of the tokens of one message, by its characters."""
    tokens = len(getattr(canister, "arguments", "")) // CHARACTERS_PER_TOKEN
    for content in canister.contents:
        match content:
            case TextualContent(data=data) | ReasoningContent(data=data):
                tokens += _size_of(data) // CHARACTERS_PER_TOKEN
            case NativeContent(native=native):
                tokens += 0 if native is None else len(native.data) // CHARACTERS_PER_TOKEN
            case FileContent(data=data, mimetype=mimetype) if mimetype.startswith("text/"):
                tokens += _size_of(data) // CHARACTERS_PER_TOKEN
            case UnknownContent():
                pass
            case _:
                tokens += _PICTURE_TOKENS
    return tokens


def _size_of(data: object) -> int:
    """Return the length of a text or of bytes, also of a reference; 0 for other places."""
    if isinstance(data, Reference):
        return data.size
    return len(data) if isinstance(data, _BYTES) else 0
