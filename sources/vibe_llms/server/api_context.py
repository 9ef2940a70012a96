"""The endpoints that show what fills a conversation's context window, and compact it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.exceptions import ConversationBusy
from vibe_llms.conversations.context_use import ContextUse
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import DigestCanister, Usage
from vibe_llms.messages.contents import repair_text
from vibe_llms.server.api_conversations import reopen_conversation
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.reading import SMALL_BODY_BYTES, read_body
from vibe_llms.server.spaces import UserSpace, require_caller_key


class ContextDescription(Struct):
    """The tokens of a conversation's next request, and the model's context window.

    `parts` says what the tokens are. The window is assumed if it is not `known`. `covered` messages
    are summarized. The conversation is compacted at `compact_at` tokens, or never if that is null.
    `price` is in US dollars, without a cache.
    """

    tokens: int
    window: int
    free: int
    parts: Mapping[str, int]
    messages: int
    covered: int
    known: bool
    estimated: bool
    compact_at: int | None
    price: Decimal | None

    @classmethod
    def of(cls, use: ContextUse) -> ContextDescription:
        """Return the JSON form of a context use."""
        return cls(
            tokens=use.tokens,
            window=use.window,
            free=use.free,
            parts=use.parts,
            messages=use.messages,
            covered=use.covered,
            known=use.known,
            estimated=use.estimated,
            compact_at=use.compact_at,
            price=use.price,
        )


class CompactionOrder(Struct, forbid_unknown_fields=True):
    """Settings of a compaction: `focus` is a wish for the summary, in words."""

    focus: Annotated[str, Meta(max_length=10_000)] = ""


class DigestDescription(Struct):
    """A digest: messages from `first` to `last` are summarized in `text`, if there are any.

    A request had about `before` tokens, and has about `after` tokens now. `usage` is null if no
    model wrote a summary.
    """

    id: str
    first: str
    last: str
    before: int
    after: int
    shortened: int
    usage: Usage | None
    text: str

    @classmethod
    def of(cls, digest: DigestCanister) -> DigestDescription:
        """Return the JSON form of a digest."""
        return cls(
            id=digest.identity,
            first=digest.first,
            last=digest.last,
            before=digest.before,
            after=digest.after,
            shortened=len(digest.shortened),
            usage=digest.ending.usage if digest.ending is not None else None,
            text=digest.text,
        )


class Compaction(Struct):
    """The digest of a compaction; null if the conversation is too short for one."""

    digest: DigestDescription | None


_ORDER = msgspec.json.Decoder(CompactionOrder)


async def show_context(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show what fills the model's context window, without calling the model."""
    async with exchange.until_disconnect(), core.turn_limit():
        conversation = await _open(exchange, space)
        use = await conversation.measure_context()
        await exchange.reply(msgspec.json.encode(ContextDescription.of(use)))


async def compact_conversation(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Let the model summarize a conversation; a disconnect cancels this.

    The messages stay as they are; a digest is added, from which later requests are made.
    """
    body = await exchange.read(core.settings)
    order = read_body(_ORDER, body or b"{}", most_bytes=SMALL_BODY_BYTES)
    async with exchange.until_disconnect(), core.turn_limit():
        conversation = await _open(exchange, space)
        identity = conversation.identity
        if await space.is_busy(identity):
            raise ConversationBusy(
                "a run of this conversation has not ended; wait for it, or cancel it"
            )
        with space.turn():
            turn = await conversation.compact(repair_text(order.focus))
        if conversation.identity != identity:
            # The digest is in a fork, because others have added messages meanwhile.
            await space.archive.remove(conversation.identity)
            raise ConversationBusy("the conversation was continued meanwhile; compact it again")
    made = [DigestDescription.of(one) for one in turn.canisters if isinstance(one, DigestCanister)]
    await exchange.reply(msgspec.json.encode(Compaction(made[0] if made else None)))


async def _open(exchange: HttpExchange, space: UserSpace) -> Conversation:
    conversation = await reopen_conversation(space, exchange.argument)
    exchange.conversation = exchange.argument
    model = conversation.model
    if space.session.is_of_callers(model.provider):
        require_caller_key(f"{model.provider}/{model.name}")
    return conversation
