"""Maximum cost of a request: reserved before it is sent, and settled after it.

A conversation with budgets sets the `Spending` of its requests. A model asks it how long its reply
may be, and each attempt says when it is sent and what it used. Without budgets there is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Protocol

import msgspec

from vibe_llms.base.exceptions import RequestError
from vibe_llms.invocation.invokers import Invoker, describe
from vibe_llms.messages.canisters import Canister, Usage
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    Location,
    MediaContent,
    Reference,
    TextualContent,
    Upload,
    VideoContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.conversions import name_content
from vibe_llms.providers.interfaces import Model, TurnContext
from vibe_llms.providers.pieces import encode_json

#: Hidden tokens that providers add to a request, such as instructions for tool calls.
HIDDEN_TOKENS = 1_000
#: Tokens of the largest image that common models accept.
IMAGE_TOKENS = 5_000
#: Minimum bytes per token of sounds and videos, also at low bit rates.
STREAM_BYTES_PER_TOKEN = 16
#: Maximum tokens of a reply from an unknown model, if nothing else says more.
UNKNOWN_OUTPUT_TOKENS = 8_192
#: Maximum tokens of a reply that is not streamed; proxies would close a longer connection.
UNSTREAMED_OUTPUT_TOKENS = 21_333
_MEDIA = (ImageContent, AudioContent, VideoContent, FileContent)


class Spending(Protocol):
    """Budgets and limits that the requests of one round trip count against."""

    @property
    def bounded(self) -> bool:
        """True if the length of a request and its reply must be limited."""
        ...

    async def reserve(
        self, model: Model, input_tokens: int, output_tokens: int, *, least: int | None
    ) -> int:
        """Reserve the worst case of a request; return how many tokens its reply may have.

        The result is `output_tokens`, or fewer if the budgets allow no more, but at least `least`,
        or the configured minimum if that is `None`. Raise `BudgetExceeded` if it does not fit.
        """
        ...

    async def send(self) -> None:
        """Record that an attempt is sent now; each one after the first is reserved again."""
        ...

    async def record_usage(self, usage: Usage | None) -> None:
        """Record the end of an attempt and its usage; if unknown, all that was reserved."""
        ...

    async def close(self) -> None:
        """Release what was not sent, and settle the rest."""
        ...


_SPENDING: ContextVar[Spending | None] = ContextVar("spending", default=None)


def access_spending() -> Spending | None:
    """Return the budgets of the current round trip, or None."""
    return _SPENDING.get()


@asynccontextmanager
async def spend(spending: Spending) -> AsyncIterator[None]:
    """Count the requests of this context against budgets."""
    token = _SPENDING.set(spending)
    try:
        yield
    finally:
        _SPENDING.reset(token)
        await spending.close()


async def reserve_output(
    spending: Spending, model: Model, tokens: int, controls: Controls, context: TurnContext
) -> Controls:
    """Reserve the longest reply that the budgets allow; return the controls with its length.

    `tokens` is an upper bound of the request's own. A length that the call itself asks for is
    reserved unchanged; any other may become shorter.
    """
    if not spending.bounded:
        await spending.reserve(model, 0, 0, least=0)
        return controls
    settled, attributes = controls.over(context.default_controls), model.attributes
    if settled.extras.get(model.provider):
        raise RequestError(
            f"{model.provider}/{model.name}: 'extras' cannot be sent under a budget, because they "
            "could make a reply longer than was reserved"
        )
    asked = controls.output_tokens
    most = settled.output_tokens or attributes.default_output_tokens or attributes.output_tokens
    most = most or UNKNOWN_OUTPUT_TOKENS
    if asked is None:
        most = min(most, attributes.output_tokens or most)
        if not context.streaming:
            most = min(most, UNSTREAMED_OUTPUT_TOKENS)
    granted = await spending.reserve(model, tokens + HIDDEN_TOKENS, most, least=asked)
    return msgspec.structs.replace(controls, output_tokens=granted)


def bound_media(canisters: Iterable[Canister], model: Model) -> int:
    """Return an upper bound of the tokens of images and files in messages.

    Raise `RequestError` for a file that is given by its address, because its size is unknown.
    """
    tokens = 0
    for canister in canisters:
        for content in canister.contents:
            if isinstance(content, _MEDIA):
                tokens += _bound_medium(content, model)
    return tokens


def bound_messages(canisters: Sequence[Canister], invokers: Sequence[Invoker], model: Model) -> int:
    """Return an upper bound of the tokens of messages and tools: bytes of text, plus media."""
    size = bound_media(canisters, model)
    for canister in canisters:
        texts = [one for one in canister.contents if not isinstance(one, _MEDIA)]
        media = len(texts) < len(canister.contents)
        bare = msgspec.structs.replace(canister, contents=tuple(texts)) if media else canister
        size += len(encode_canister(bare))
        for content in texts:
            data = content.data if isinstance(content, TextualContent) else None
            size += data.size if isinstance(data, Reference) else 0
    return size + sum(len(encode_json(describe(invoker))) for invoker in invokers)


def _bound_medium(content: MediaContent, model: Model) -> int:
    data = content.data
    if isinstance(content, ImageContent):
        return IMAGE_TOKENS
    if isinstance(data, Location | Upload):
        raise RequestError(
            f"{model.provider}/{model.name}: {name_content(content)} at an address cannot be sent "
            "under a budget, because its size is not known; attach the file itself"
        )
    size = data.size if isinstance(data, Reference) else len(data)
    return size if isinstance(content, FileContent) else size // STREAM_BYTES_PER_TOKEN
