"""The endpoints under `/api/conversations`: the stored conversations of a user."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.exceptions import (
    ConversationAmbiguous,
    ConversationMoved,
    ConversationNotFound,
)
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import History, locate
from vibe_llms.messages.contents import repair_text
from vibe_llms.runs.interfaces import RequestKey
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.pages import PageQuery, refuse_after
from vibe_llms.server.reading import SMALL_BODY_BYTES, read_body, read_query
from vibe_llms.server.spaces import UserSpace
from vibe_llms.storage.conversations import derive_conversation_identity
from vibe_llms.storage.descriptions import (
    ConversationSummary,
    Fork,
    FoundMessage,
    describe_head,
    encode_conversation,
)
from vibe_llms.storage.families import describe_family

NameText = Annotated[str, Meta(max_length=1000)]
TagText = Annotated[str, Meta(min_length=1, max_length=100)]


class ConversationsQuery(PageQuery):
    """Filter and page of conversations; `superseded` includes those replaced by an undo."""

    tag: str = ""
    superseded: bool = False


class ConversationList(Struct):
    """Conversations, most recent first."""

    conversations: list[ConversationSummary]
    has_more: bool


class MessagesQuery(Struct):
    """Search for messages that contain all words of a text."""

    text: Annotated[str, Meta(min_length=1)]
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    superseded: bool = False


class MessageList(Struct):
    """Messages found, best match first."""

    messages: list[FoundMessage]


class ForkOrder(Struct, forbid_unknown_fields=True):
    """Settings of a fork: its last message `at`, or null for all messages, and its `name`."""

    at: str | None = None
    name: NameText = ""


class ConversationChange(Struct, forbid_unknown_fields=True):
    """Changes to a conversation; an empty `name` removes the name."""

    name: NameText | None = None
    add_tags: list[TagText] = []
    remove_tags: list[TagText] = []


class ConversationRemoved(Struct):
    """A deleted conversation."""

    id: str
    deleted: bool = True


_FORK = msgspec.json.Decoder(ForkOrder)
_CHANGE = msgspec.json.Decoder(ConversationChange)


async def list_conversations(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List conversations, most recent first."""
    query = read_query(ConversationsQuery, exchange.query)
    try:
        # One more than the page, to know if there are more.
        found = await space.archive.survey(
            limit=query.limit + 1, tag=query.tag, superseded=query.superseded, after=query.after
        )
    except ConversationNotFound:
        raise refuse_after(query) from None
    page = [ConversationSummary.of(one) for one in found[: query.limit]]
    listed = ConversationList(page, len(found) > len(page))
    await exchange.reply(msgspec.json.encode(listed))


async def search_messages(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Find messages that contain all words of a text."""
    query = read_query(MessagesQuery, exchange.query)
    found = await space.session.search(query.text, limit=query.limit, superseded=query.superseded)
    await exchange.reply(msgspec.json.encode(MessageList([*map(FoundMessage.of, found)])))


async def show_conversation(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show a conversation with its messages, as they are stored.

    Long texts and other data are references; get their bytes from `/api/contents`.
    """
    restored = await space.archive.restore(exchange.argument)
    exchange.conversation = exchange.argument
    await exchange.reply(encode_conversation(restored))


async def show_family(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show all forks of the conversation that this one was forked from, and where they part."""
    relatives = await space.archive.survey_family(exchange.argument)
    exchange.conversation = exchange.argument
    family = describe_family(exchange.argument, relatives)
    await exchange.reply(msgspec.json.encode(family))


async def fork_conversation(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Create a conversation from the first messages of another."""
    order = read_body(_FORK, await exchange.read(core.settings), most_bytes=SMALL_BODY_BYTES)
    history, _ = await History.restore(space.archive, exchange.argument)
    identity = exchange.conversation = exchange.argument
    twin = await history.fork(locate(history.canisters, order.at), name=repair_text(order.name))
    made = Fork(id=twin.identity, forked_from=identity, messages=len(twin.canisters))
    await exchange.reply(msgspec.json.encode(made), status=201)


async def change_conversation(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Rename a conversation, add tags to it, or remove them."""
    change = read_body(_CHANGE, await exchange.read(core.settings), most_bytes=SMALL_BODY_BYTES)
    details = await space.archive.revise(
        exchange.argument,
        name=None if change.name is None else repair_text(change.name),
        add_tags=[*map(repair_text, change.add_tags)],
        remove_tags=[*map(repair_text, change.remove_tags)],
    )
    identity = exchange.conversation = exchange.argument
    await exchange.reply(msgspec.json.encode(describe_head(identity, details)))


async def remove_conversation(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Permanently delete a conversation and its runs; a running turn is cancelled."""
    identity = exchange.conversation = await access_conversation(space, exchange.argument)
    # The cancelled turn deletes the conversation if no model has replied yet.
    with suppress(ConversationNotFound):
        await space.session.remove(identity)
    await space.continuations.forget(identity)
    space.collect_later()
    await exchange.reply(msgspec.json.encode(ConversationRemoved(identity)))


async def access_conversation(space: UserSpace, identity: str) -> str:
    """Return the identity if it is complete; names and prefixes are not accepted here."""
    try:
        found = await space.archive.resolve(identity)
    except (ConversationAmbiguous, ConversationNotFound):
        found = ""
    if found != identity:
        raise ConversationNotFound(f"conversation {identity!r} not found")
    return identity


async def reopen_conversation(
    space: UserSpace, given: str, named: str | None = None, *, collections: Sequence[str] = ()
) -> Conversation:
    """Resume a stored conversation with its own agent or model, or with the one that is `named`."""
    identity = await access_conversation(space, given)
    if named is not None:
        agent, model = await space.resolve_model(named)
        model = model or space.find_model(agent)
    else:
        begun_with = (await space.archive.restore(identity)).details.agent
        agent, model = space.find_agent(begun_with), None
    memory = space.uses_memory(agent, model)
    return await space.session.resume(
        identity,
        agent=agent,
        model=model,
        memory=memory,
        collections=collections,
        skills=space.session.choose_skills(agent),
    )


async def produce_fork(
    space: UserSpace,
    given: str,
    at: str,
    request: RequestKey | None = None,
    *,
    keep_name: bool = False,
) -> str:
    """Store a fork that ends with the message `at`, or has none if that is empty.

    With `keep_name`, it has the name of the conversation.

    A repeated request gets the same fork, even if the server ended before its run was recorded.
    """
    history, _ = await History.restore(space.archive, await access_conversation(space, given))
    end = locate(history.canisters, at) if at else 0
    identity = ""
    if request is not None:
        user, key = space.user.encode(), request.key.encode()
        identity = derive_conversation_identity(user, key, request.digest)
    try:
        name = history.details.name if keep_name else ""
        twin = await history.fork(end, name=name, identity=identity)
        if not twin.stored:
            await space.archive.create(twin.identity, twin.details, ())
    except ConversationMoved:
        made = (await space.archive.restore(identity)).canisters
        if [one.identity for one in made] == [one.identity for one in history.canisters[:end]]:
            return identity
        # The run that continued the fork was forgotten, as was its key.
        return await produce_fork(space, given, at, keep_name=keep_name)
    return twin.identity
