"""What a request may cost: reserved before it is sent, and settled after it.

A conversation with budgets sets the `Spending` of its requests; a model asks it how long its reply
may be, and each attempt says when it is sent and what it used. Without budgets there is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Protocol

import msgspec

from vibe_llms.controls import Controls
from vibe_llms.exceptions import RequestError
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
from vibe_llms.providers.conversions import name_content
from vibe_llms.providers.interfaces import Model, TurnContext
from vibe_llms.providers.pieces import encode_json

#: What providers add to a request that no one sees, such as how tools are called.
HIDDEN_TOKENS = 1_000
#: The largest image that common models take.
IMAGE_TOKENS = 5_000
#: Sounds and videos have fewer tokens than this part of their bytes, also at low bit rates.
STREAM_BYTES_PER_TOKEN = 16
#: The longest reply of a model of which nothing is known, where nothing says more.
UNKNOWN_OUTPUT_TOKENS = 8_192
#: More takes so long that proxies close the connection if nothing is streamed.
UNSTREAMED_OUTPUT_TOKENS = 21_333
_MEDIA = (ImageContent, AudioContent, VideoContent, FileContent)


class Spending(Protocol):
    """The budgets that the requests of one round trip count against."""

    async def reserve(
        self, model: Model, input_tokens: int, output_tokens: int, *, least: int | None
    ) -> int:
        """Reserve the worst case of a request; returns how many tokens its reply may have.

        That is all of `output_tokens`, or fewer if the budgets allow no more. It is not below
        `least`, nor, if that is `None`, below what the configuration says. `BudgetExceeded` if it
        does not fit.
        """
        ...

    async def send(self) -> None:
        """Record that an attempt is sent now; after the first one, each is reserved again."""
        ...

    async def settle(self, usage: Usage | None) -> None:
        """Record the end of an attempt, and what it used; all that was reserved if not known."""
        ...

    async def close(self) -> None:
        """Release what was not sent, and settle the rest."""
        ...


_SPENDING: ContextVar[Spending | None] = ContextVar("spending", default=None)


def access_spending() -> Spending | None:
    """The budgets of the current round trip, if there are any."""
    return _SPENDING.get()


@asynccontextmanager
async def spend(spending: Spending) -> AsyncIterator[None]:
    """Count what is sent in this context against budgets."""
    token = _SPENDING.set(spending)
    try:
        yield
    finally:
        _SPENDING.reset(token)
        await spending.close()


async def reserve_output(
    spending: Spending, model: Model, tokens: int, controls: Controls, context: TurnContext
) -> Controls:
    """The controls with the longest reply that the budgets allow, which is reserved.

    `tokens` is an upper bound of the request's own. What the call itself asks for is reserved as it
    is; anything else may become shorter.
    """
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
    """At most how many tokens the images and files of messages have.

    `RequestError` for a file that is given by its address, since its size is not known here.
    """
    tokens = 0
    for canister in canisters:
        for content in canister.contents:
            if isinstance(content, _MEDIA):
                tokens += _bound_medium(content, model)
    return tokens


def bound_messages(canisters: Sequence[Canister], invokers: Sequence[Invoker], model: Model) -> int:
    """At most how many tokens messages and tools have: the bytes of their text, and their media."""
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
