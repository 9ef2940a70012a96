"""The endpoints under `/api/runs`: runs of a user, their events, and decisions on calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from vibe_llms.base.exceptions import ConversationNotFound, RunNotFound, VibeLlmsError
from vibe_llms.base.offloading import LOOP_BYTES, offload
from vibe_llms.conversations.attachments import produce_attachment
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import History
from vibe_llms.invocation.approval import Decision
from vibe_llms.invocation.questions import ElicitationAnswer
from vibe_llms.messages.contents import Content, repair_text
from vibe_llms.runs.descriptions import AskedQuestion, QueuedMessage, RunDescription, view_run
from vibe_llms.runs.events import MessageFailed, RunEnded, RunExpired, encode_event
from vibe_llms.runs.interfaces import UNFINISHED, RunRecord, RunStatus
from vibe_llms.runs.run import Run
from vibe_llms.server.api_conversations import (
    NameText,
    TagText,
    produce_fork,
    reopen_conversation,
)
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected, describe_kind
from vibe_llms.server.files import find_file, load_file
from vibe_llms.server.pages import PageQuery, refuse_after
from vibe_llms.server.reading import SMALL_BODY_BYTES, read_body, read_query
from vibe_llms.server.request_limits import check_characters
from vibe_llms.server.schemas import read_schema
from vibe_llms.server.spaces import UserSpace

#: The values of `RunStatus`, and `unfinished` for all runs that have not ended.
_Wanted: TypeAlias = Literal[
    "queued", "running", "waiting", "completed", "failed", "cancelled", "unfinished"
]


class RunListQuery(PageQuery):
    """Filter and page of runs."""

    status: _Wanted | None = None
    conversation: Annotated[str, Meta(description="Only runs of this conversation.")] = ""


class RunQuery(Struct):
    """Start of an event stream."""

    after: Annotated[int, Meta(ge=0, le=2**63 - 1, description="Events after this cursor.")] = 0


class RunOrder(Struct, forbid_unknown_fields=True):
    """A turn to start, in a new conversation, a stored one, or a fork of a stored one.

    Without `prompt`, the model answers the last messages of the conversation, such as a prompt
    whose reply failed. `fork_at` is the id of the last message that the fork has, or empty for a
    fork without messages. With `supersede`, the fork takes the name of the conversation, and lists
    show it instead, as after an undo. `model` is the name of an agent or the address of a model.
    Without it, a stored conversation keeps its model, and a new one uses the default. `files` are
    ids of files to attach, and `collections` names of collections of documents that the model may
    search. `output` is a JSON Schema that the reply must follow, without regular expressions and
    recursion. A new conversation gets `name` and `tags`.
    """

    prompt: Annotated[str, Meta(min_length=1)] | None = None
    model: str | None = None
    conversation: str | None = None
    fork_at: str | None = None
    supersede: bool = False
    files: Annotated[list[str], Meta(max_length=100)] = []
    collections: Annotated[list[str], Meta(max_length=100)] = []
    output: dict[str, Any] | None = None
    name: NameText = ""
    tags: Annotated[list[TagText], Meta(max_length=100)] = []


class RunMessage(Struct, forbid_unknown_fields=True):
    """A message to add to a run; `files` are ids of files to attach."""

    prompt: Annotated[str, Meta(min_length=1)]
    files: Annotated[list[str], Meta(max_length=100)] = []


class RunDecision(Struct, forbid_unknown_fields=True):
    """A decision to allow or deny a call; the model reads the reason of a denial.

    With `always`, the tool is allowed for the rest of the conversation, while its definition and
    the reason to ask are the same.
    """

    invocation: str
    allowed: bool
    reason: str = ""
    always: bool = False


class RunAnswer(Struct, forbid_unknown_fields=True):
    """Answer to a question: the values of its form by name, or a refusal."""

    question: str
    action: Literal["accept", "decline"] = "accept"
    values: dict[str, Any] = {}


class RunList(Struct):
    """Runs, newest first."""

    runs: list[RunDescription]
    has_more: bool


class RunApproval(Struct):
    """A decision on a call; `always` is false if the call asks each time."""

    invocation: str
    allowed: bool
    always: bool


_ORDER = msgspec.json.Decoder(RunOrder)
_MESSAGE = msgspec.json.Decoder(RunMessage)
_DECISION = msgspec.json.Decoder(RunDecision)
_ANSWER = msgspec.json.Decoder(RunAnswer)


async def list_runs(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List runs, newest first."""
    query = read_query(RunListQuery, exchange.query)
    try:
        # One more than the page, to know if there are more.
        found = await space.session.survey_runs(
            statuses=_find_statuses(query.status),
            conversation=query.conversation,
            after=query.after,
            limit=query.limit + 1,
        )
    except RunNotFound:
        raise refuse_after(query) from None
    page = [_describe(one) for one in found[: query.limit]]
    await exchange.reply(msgspec.json.encode(RunList(page, len(found) > len(page))))


def _find_statuses(wanted: _Wanted | None) -> Sequence[RunStatus]:
    if wanted is None:
        return ()
    return UNFINISHED if wanted == "unfinished" else (RunStatus(wanted),)


async def start_run(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Start a turn and respond at once; the turn continues if the client disconnects.

    A repeated request with the same `Idempotency-Key` gets the same run, and makes no second fork.
    """
    order = await exchange.decode(partial(read_body, _ORDER), core.settings)
    _check_order(order)
    check_characters(len(order.prompt or ""), core.settings)
    if exchange.request_key is not None:
        found = await space.session.access_runs().find(exchange.request_key)
        if found is not None:
            exchange.conversation = found.record.conversation
            await exchange.reply(msgspec.json.encode(_describe(found.record)), status=201)
            return
    output = None if order.output is None else read_schema(order.output, "output")
    attached = await _attach(space, order.files)
    forked = fork = ""
    if order.conversation is not None and order.fork_at is not None:
        forked = order.conversation
        fork = await produce_fork(
            space, forked, order.fork_at, exchange.request_key, keep_name=order.supersede
        )
        order = replace(order, conversation=fork)
    try:
        conversation = await _open_conversation(space, order)
        said = [] if order.prompt is None else [order.prompt, *attached]
        prompt = conversation.read_prompt(said) if said else ()
        runs = space.session.access_runs()
        run = await runs.start(conversation, prompt, output=output, request=exchange.request_key)
    except (VibeLlmsError, Rejected):
        await _discard(space, fork)
        raise
    if run.record.conversation != fork:
        # The run belongs to an earlier request with the same key.
        await _discard(space, fork)
    elif forked and order.supersede:
        with suppress(ConversationNotFound):
            history, _ = await History.restore(space.archive, forked)
            await history.give_way(fork)
    exchange.conversation = run.record.conversation
    await exchange.reply(msgspec.json.encode(_describe(run.record)), status=201)


async def show_run(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show a run, with the calls and questions that it waits or waited for."""
    run = await _access(exchange, space)
    view = await view_run(run)
    await exchange.reply(msgspec.json.encode(replace(view, error=_read_error(run.record))))


async def follow_run(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Stream the events of a run after a cursor; the last one is `ended`.

    The identity of each event is its cursor. `Last-Event-ID` overrides `after`. Some days after the
    end, `expired` is the only event.
    """
    run = await _access(exchange, space)
    last = exchange.headers.get(b"last-event-id", b"").decode("latin-1")
    query = read_query(RunQuery, {"after": last} if last else exchange.query)
    with space.following():
        async with exchange.until_disconnect(), aclosing(_write_events(run, query.after)) as parts:
            await exchange.stream(parts)


async def cancel_run(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Request the end of a run; messages that arrived are kept."""
    run = await _access(exchange, space)
    await run.cancel()
    await exchange.reply(msgspec.json.encode(_describe(await run.access())))


async def steer_run(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Add a message to a run; the model reads it with the next request, after the results."""
    run = await _access(exchange, space)
    wanted = await exchange.decode(partial(read_body, _MESSAGE), core.settings)
    check_characters(len(wanted.prompt), core.settings)
    prompt = [wanted.prompt, *await _attach(space, wanted.files)]
    message = await run.steer_once(prompt, exchange.request_key)
    await exchange.reply(msgspec.json.encode(QueuedMessage.of(message)), status=201)


async def take_back_message(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Take back a message that was added to a run and is not sent yet."""
    run = await _access(exchange, space)
    message = await run.take_back(exchange.arguments[1])
    await exchange.reply(msgspec.json.encode(QueuedMessage.of(message)))


async def decide_call(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Decide on a call that a run waits for; repeating the decision changes nothing."""
    run = await _access(exchange, space)
    wanted = read_body(_DECISION, await exchange.read(core.settings), most_bytes=SMALL_BODY_BYTES)
    if wanted.always and not wanted.allowed:
        raise Rejected("only an allowed tool can be allowed always", param="always")
    remember: Literal["tool", ""] = "tool" if wanted.always else ""
    decision = Decision(wanted.allowed, remember, wanted.reason)
    made = await run.decide(wanted.invocation, decision)
    approval = RunApproval(made.invocation, allowed=bool(made.allowed), always=made.always)
    await exchange.reply(msgspec.json.encode(approval))


async def answer_question(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Answer a question of a run; repeating the answer changes nothing."""
    run = await _access(exchange, space)
    wanted = read_body(_ANSWER, await exchange.read(core.settings), most_bytes=SMALL_BODY_BYTES)
    answer = ElicitationAnswer(wanted.action, wanted.values)
    made = await run.answer(wanted.question, answer)
    await exchange.reply(msgspec.json.encode(AskedQuestion.of(made)))


def _check_order(order: RunOrder) -> None:
    if order.conversation is None:
        if order.prompt is None:
            raise Rejected("a new conversation needs a prompt", param="prompt")
        if order.fork_at is not None:
            raise Rejected("name the conversation to fork", param="conversation")
    elif order.name or order.tags:
        raise Rejected(
            "only a new conversation gets a name and tags; change those of a stored one with PATCH",
            param="name" if order.name else "tags",
        )
    if order.supersede and order.fork_at is None:
        raise Rejected("only a fork can supersede a conversation", param="supersede")
    if order.prompt is None and (order.files or order.output is not None):
        raise Rejected("files and output need a prompt", param="prompt")


async def _discard(space: UserSpace, fork: str) -> None:
    if fork:
        with suppress(ConversationNotFound):
            await space.archive.remove(fork)


async def _open_conversation(space: UserSpace, order: RunOrder) -> Conversation:
    session = space.session
    for name in order.collections:
        await session.access_documents().catalog.access(name)
    if order.conversation is None:
        name = order.model or (await session.find_model())[0]
        agent, model = await space.resolve_model(name)
        memory = space.uses_memory(agent, model)
        return await session.begin(
            model,
            agent=agent,
            memory=memory,
            collections=order.collections,
            skills=session.choose_skills(agent),
            name=repair_text(order.name),
            tags=[*map(repair_text, order.tags)],
        )
    return await reopen_conversation(
        space, order.conversation, order.model, collections=order.collections
    )


async def _attach(space: UserSpace, files: Sequence[str]) -> Sequence[Content]:
    """Return files of a user, given by their ids, as contents of a message."""
    uploaded = [await find_file(space, one, "files") for one in files]
    loaded = [(file, await load_file(space, file, file.id)) for file in uploaded]
    return [
        await offload(len(data) > LOOP_BYTES, produce_attachment, data, file.name, file.mimetype)
        for file, data in loaded
    ]


async def _access(exchange: HttpExchange, space: UserSpace) -> Run:
    identity = exchange.argument
    run = await space.session.access_run(identity)
    if run.identity != identity:
        raise RunNotFound(f"run {identity!r} not found")
    exchange.conversation = run.record.conversation
    return run


async def _write_events(run: Run, after: int) -> AsyncGenerator[bytes, None]:
    # Sends the head at once, even if no event arrives for long.
    yield b": events\n\n"
    async with aclosing(run.events(after=after)) as events:
        async for cursor, event in events:
            shown = event
            match event:
                case MessageFailed():
                    # The last event has the error.
                    shown = replace(event, error="")
                case RunEnded(error=error) | RunExpired(error=error) if error:
                    shown = replace(event, error=_read_error(await run.access()))
            yield b"id: %d\ndata: %b\n\n" % (cursor, encode_event(shown))


def _describe(record: RunRecord) -> RunDescription:
    return replace(RunDescription.of(record), error=_read_error(record))


def _read_error(record: RunRecord) -> str:
    """Return the error of a run in words for clients."""
    return record.error and describe_kind(record.kind, record.error).message
