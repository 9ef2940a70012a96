"""The endpoints of Responses: a stored response is a run, and outlives the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from vibe_llms.base.exceptions import (
    ConversationBusy,
    ConversationMoved,
    ConversationNotFound,
    RunNotFound,
)
from vibe_llms.base.offloading import LOOP_BYTES, offload
from vibe_llms.conversations.context_export import load_contents
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    InvocationCanister,
    ReplyCanister,
    ResultCanister,
    SupervisorCanister,
    Turn,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.events import Event
from vibe_llms.messages.identities import produce_identity
from vibe_llms.runs.events import (
    AnswerRequested,
    ApprovalRequested,
    RunEnded,
    RunExpired,
    first_cursor,
    measure,
)
from vibe_llms.runs.interfaces import RunStatus, read_lines
from vibe_llms.runs.recorder import translate
from vibe_llms.runs.run import Run
from vibe_llms.server.answers import answer
from vibe_llms.server.chat_replies import DONE, name_call
from vibe_llms.server.compactions import CompactionSigner, PastAgents, export_past
from vibe_llms.server.context_orders import is_context
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import ClientFailure, Rejected, describe_failure
from vibe_llms.server.files import gather_files
from vibe_llms.server.reading import read_query
from vibe_llms.server.recorded import find_run_failure
from vibe_llms.server.responses_compact import (
    describe_compacted,
    describe_compaction,
    find_compaction,
    has_trigger,
    order_compaction,
    read_compaction,
)
from vibe_llms.server.responses_identities import find_run
from vibe_llms.server.responses_items import Continued, find_reference
from vibe_llms.server.responses_replies import (
    PREFIX,
    Item,
    ResponseState,
    StreamWriter,
    describe_input,
    describe_response,
)
from vibe_llms.server.responses_requests import (
    ResponseRequest,
    read_count,
    read_order,
    read_request,
)
from vibe_llms.server.responses_tools import ClientTools
from vibe_llms.server.spaces import UserSpace
from vibe_llms.server.turns import (
    RecordedTurn,
    ServedTurn,
    TurnOrder,
    TurnOutcome,
    check_calls,
    count_tokens,
    find_end,
)

#: Seconds for which a cancellation waits for the end of the turn.
_CANCEL_SECONDS = 5.0
_NOT_RUN = "The call was not run: the user cancelled it while it waited."


class ResponseQuery(Struct):
    """Event stream options; `starting_after` is the number of the last event that was received."""

    stream: bool = False
    starting_after: int = -1


class InputItemsQuery(Struct):
    """A page of input items, after the item with the id `after`."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str = ""


class InputTokensCounted(Struct, tag_field="object", tag="response.input_tokens"):
    """Number of tokens that the model would read."""

    input_tokens: int


class _Origin(Struct, frozen=True, omit_defaults=True):
    """Data stored with the run of a response: the requested model, the request, and its past.

    The `past` has the agents of earlier responses.
    """

    model: str
    request: ResponseRequest
    past: PastAgents = PastAgents()


async def create_response(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Create a response; only a response that is not stored is cancelled by a disconnect."""
    request = await exchange.decode(read_request, core.settings)
    request = await _resolve_references(space, request)
    model = request.model or (await space.session.find_model())[0]
    if request.stored and has_trigger(request):
        raise Rejected(
            "a compaction is not stored; set store to false, or use context_management",
            param="store",
        )
    if not request.stored:
        order, before = await _read_unstored(core, exchange, space, request)
        model = order.model
        context = order.context
        if context.compacts and context.signer is None:
            context = replace(context, signer=await _access_signer(core, space))
        order = replace(order, said=[*before, *order.said], context=context)
        await answer(
            core,
            exchange,
            space,
            order,
            lambda served: _UnstoredWriter(request, model, served),
            stream=bool(request.stream),
        )
        return
    found = exchange.request_key and await space.session.access_runs().find(exchange.request_key)
    if found:
        served, run = None, found
    else:
        served, run = await _start(core, exchange, space, request, model)
    exchange.conversation = run.record.conversation
    if request.stream:
        if space.limit and not request.background:
            # The head follows the reservation, so that clients can retry a refused request.
            async with exchange.until_disconnect(), aclosing(run.events()) as events:
                await anext(events)
            await _require_success(space, served, run)
        await _stream(exchange, space, run)
        return
    if not request.background:
        with suppress(TimeoutError):
            async with exchange.until_disconnect(), asyncio.timeout(core.settings.turn_seconds):
                await _wait(run)
        await _require_success(space, served, run)
    await _reply(exchange, await _describe(run))


async def _require_success(space: UserSpace, served: ServedTurn | None, run: Run) -> None:
    """Raise the failure of a response, after deleting it."""
    if failure := await find_run_failure(run):
        if served is not None:
            await served.withdraw()
        await space.session.access_runs().store.remove_run(space.user, run.identity)
        raise Rejected.from_failure(failure)


async def count_input_tokens(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Count the tokens that the model would read, without calling it or storing anything."""
    request = await exchange.decode(read_count, core.settings)
    async with exchange.until_disconnect(), core.turn_limit():
        request = await _resolve_references(space, request)
        order, before = await _read_unstored(core, exchange, space, request)
        counted = await count_tokens(space, order, before)
        await exchange.reply(msgspec.json.encode(InputTokensCounted(counted.tokens)))


async def compact_response(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Compact input items or a response; the returned item replaces them in later inputs.

    Nothing is stored.
    """
    request = await exchange.decode(read_count, core.settings)
    if not request.items and request.previous_response_id is None:
        raise Rejected("input or previous_response_id is required", param="input")
    context = order_compaction(request, await _access_signer(core, space))
    async with exchange.until_disconnect(), core.turn_limit():
        request = replace(await _resolve_references(space, request), store=False)
        order, before = await _read_unstored(core, exchange, space, request)
        wanted = order.context
        context = replace(context, repeated=wanted.repeated, hidden=wanted.hidden)
        order = replace(order, said=[*before, *order.said], context=context, schema=None)
        with space.turn():
            served = await ServedTurn.begin(space, order)
            await served.manage_context()
    compaction = served.managed.compaction
    assert compaction is not None
    await _reply(exchange, describe_compacted(compaction))


async def _read_unstored(
    core: ServerCore, exchange: HttpExchange, space: UserSpace, request: ResponseRequest
) -> tuple[TurnOrder, Sequence[Canister]]:
    """Read a request that stores nothing; return its turn and the earlier messages."""
    before: Sequence[Canister] = ()
    if request.previous_response_id is None:
        model = request.model or (await space.session.find_model())[0]
        order = await _read_order(core, exchange, space, request, model)
    else:
        conversation, last, order, past = await _read_continuation(core, exchange, space, request)
        stored = (await space.archive.restore(conversation)).canisters
        end = find_end(stored, last)
        if not end:
            raise _refuse_missing(request.previous_response_id, "previous_response_id")
        # A conversation that is not stored has no archive to load contents from.
        agent, _ = await space.resolve_model(order.model)
        if {*past.names} == {agent or ""}:
            before = await load_contents(stored[:end], space.archive.load_all)
        else:
            before = await export_past(stored[:end], space.archive.load_all, past)
        # The settings of the agents may have changed meanwhile.
        repeated = [*order.context.repeated, *past.prompts]
        context = replace(order.context, repeated=repeated, hidden=past.hidden)
        order = replace(order, context=context)
    if request.instructions:
        supervisor = SupervisorCanister.from_text(request.instructions)
        order = replace(order, said=[supervisor, *order.said])
    return order, before


async def _read_order(
    core: ServerCore,
    exchange: HttpExchange,
    space: UserSpace,
    request: ResponseRequest,
    model: str,
    continued: Continued = Continued(),
) -> TurnOrder:
    most = space.settings.request_tools
    compacted: Sequence[Canister] = ()
    triggered = has_trigger(request)
    if triggered:
        request = replace(request, input=[*map(dict, request.items[:-1])])
    if (place := find_compaction(request.items)) is not None:
        signer, whole = await _access_signer(core, space), request
        request, compacted = await exchange.offload(lambda: read_compaction(whole, place, signer))
    files = await gather_files(exchange, space, request)
    order = await exchange.offload(
        lambda: read_order(request, model, exchange.omissions, continued, most, files)
    )
    if triggered:
        order = replace(order, context=order_compaction(request, await _access_signer(core, space)))
    return replace(order, said=[*compacted, *order.said]) if compacted else order


async def _access_signer(core: ServerCore, space: UserSpace) -> CompactionSigner:
    return CompactionSigner(await core.secrets.access(), space.user)


async def _resolve_references(space: UserSpace, request: ResponseRequest) -> ResponseRequest:
    """Return a request with references to items replaced by the items.

    Clients that rely on the server's storage refer to the items of earlier responses. In total,
    such items may have as many bytes as a body.
    """
    if isinstance(request.input, str) or not any(map(find_reference, request.items)):
        return request
    known: dict[str, Mapping[str, Item]] = {}
    items: list[dict[str, Any]] = []
    size, most = 0, space.settings.body_bytes
    for place, item in enumerate(request.items):
        wanted = find_reference(item)
        if wanted is None:
            items.append(dict(item))
            continue
        run = find_run(wanted)
        if run is not None and run not in known:
            known[run] = await _survey_items(space, run)
        found = known.get(run or "", {}).get(wanted)
        if found is None:
            raise Rejected(
                f"Item with id {wanted!r} not found. Items of responses with store=false are not "
                "stored; send the item itself, or leave it out.",
                status=404,
                param=f"input[{place}].id",
                code="item_not_found",
            )
        size += len(msgspec.json.encode(found))
        if size > most:
            raise Rejected(
                f"the referenced items have more than {most:,} bytes (body-bytes)",
                status=413,
                param=f"input[{place}].id",
                code="request_too_large",
            )
        items.append(dict(found))
    return replace(request, input=items)


async def _survey_items(space: UserSpace, identity: str) -> Mapping[str, Item]:
    """Return the items of a stored response by identity, or nothing if it does not exist."""
    try:
        run = await _access(space, PREFIX + identity)
    except Rejected:
        return {}
    described = await _describe(run)
    inputs = describe_input(_read_origin(run).request, run.identity)
    return {item["id"]: item for item in (*inputs, *described["output"])}


async def show_response(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show a response, or its events after a number: `stream=true&starting_after=N`."""
    run = await _access(space, exchange.argument)
    exchange.conversation = run.record.conversation
    query = read_query(ResponseQuery, exchange.query)
    if query.stream:
        await _stream(exchange, space, run, after=query.starting_after)
        return
    await _reply(exchange, await _describe(run))


async def cancel_response(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Cancel a response; messages that arrived are kept."""
    run = await _access(space, exchange.argument)
    exchange.conversation = run.record.conversation
    await run.cancel()
    with suppress(TimeoutError):
        async with asyncio.timeout(_CANCEL_SECONDS):
            async for _cursor, _event in run.events():
                pass
    await _reply(exchange, await _describe(run))


async def delete_response(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Delete a response, and its messages unless others follow them."""
    run = await _access(space, exchange.argument)
    exchange.conversation = run.record.conversation
    if not (await run.access()).status.ended:
        raise Rejected("the response has not ended; cancel it first", status=409, code="not_ended")
    await _remove_messages(space, run)
    await space.session.access_runs().store.remove_run(space.user, run.identity)
    space.collect_later()
    body = {"id": PREFIX + run.identity, "object": "response.deleted", "deleted": True}
    await _reply(exchange, body)


async def _remove_messages(space: UserSpace, run: Run) -> None:
    turn, record, archive = await run.read(), run.record, space.archive
    if await space.is_busy(record.conversation):
        return
    own = {one.identity for one in (*read_lines(record.opening), *turn.canisters)}
    # Messages that another process adds meanwhile are kept.
    with suppress(ConversationNotFound, ConversationMoved):
        restored = await archive.restore(record.conversation)
        stored = restored.canisters
        place = len(stored)
        while place and (
            stored[place - 1].identity in own
            or (place < len(stored) and isinstance(stored[place - 1], DocumentCanister))
        ):
            place -= 1
        if place == len(stored):
            return
        before = stored[place - 1].identity if place else ""
        origin = restored.details.forked_from
        if not before or (origin is not None and before == origin.canister):
            await archive.remove(record.conversation, last=stored[-1].identity)
        else:
            await archive.retract(record.conversation, after=before, last=stored[-1].identity)


async def list_input_items(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List the input items of a response, newest first unless `order=asc`."""
    run = await _access(space, exchange.argument)
    exchange.conversation = run.record.conversation
    query = read_query(InputItemsQuery, exchange.query)
    items = [*describe_input(_read_origin(run).request, run.identity)]
    if query.order == "desc":
        items.reverse()
    if after := query.after:
        places = [number for number, item in enumerate(items, 1) if item["id"] == after]
        if not places:
            raise Rejected(f"item {after!r} not found", param="after")
        items = items[places[0] :]
    page = items[: query.limit]
    await _reply(
        exchange,
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > len(page),
        },
    )


async def _start(
    core: ServerCore,
    exchange: HttpExchange,
    space: UserSpace,
    request: ResponseRequest,
    model: str,
) -> tuple[ServedTurn, Run]:
    """Start the run of a new response, in a new conversation or after an earlier response."""
    instructions = [request.instructions] if request.instructions else []
    key, awaited = exchange.request_key, not request.background

    if request.previous_response_id is None:
        order = await _read_order(core, exchange, space, request, model)
        served = await ServedTurn.begin(space, order, recorded=True)
        await _prepare(core, exchange, served)
        origin = await exchange.offload(lambda: msgspec.json.encode(_Origin(model, request)))
        return served, await served.start(instructions, origin, key, awaited=awaited)
    conversation, last, order, past = await _read_continuation(core, exchange, space, request)
    begun = _Origin(order.model, request, past)
    origin = await exchange.offload(lambda: msgspec.json.encode(begun))
    served = await ServedTurn.follow(space, order, conversation, last)
    if order.context.compacts and await space.is_busy(served.conversation):
        served = await served.fork(last)
    await _prepare(core, exchange, served)
    try:
        return served, await served.start(instructions, origin, key, awaited=awaited)
    except ConversationBusy:
        # Another response has continued the conversation first.
        served = await served.fork(last)
        return served, await served.start(instructions, origin, key, awaited=awaited)


async def _prepare(core: ServerCore, exchange: HttpExchange, served: ServedTurn) -> None:
    """Change the context of a response, whose run begins afterwards."""
    async with exchange.until_disconnect(), core.turn_limit():
        await served.prepare()


async def _read_continuation(
    core: ServerCore, exchange: HttpExchange, space: UserSpace, request: ResponseRequest
) -> tuple[str, str, TurnOrder, PastAgents]:
    """Return the conversation and message that a request continues, its turn, and its past."""
    assert request.previous_response_id is not None
    earlier = await _access(space, request.previous_response_id, "previous_response_id")
    record = await earlier.access()
    if not record.status.ended:
        raise Rejected(
            f"the response {request.previous_response_id} has not ended",
            status=409,
            param="previous_response_id",
            code="not_ended",
        )
    turn = await earlier.read()
    if not any(isinstance(one, ReplyCanister) for one in turn.canisters):
        if record.status is RunStatus.COMPLETED:
            # It had a reply, which was removed from the conversation.
            raise _refuse_missing(request.previous_response_id, "previous_response_id")
        raise Rejected(
            f"the response {request.previous_response_id} has no reply to continue",
            param="previous_response_id",
        )
    answered = {one.invocation for one in turn.canisters if isinstance(one, ResultCanister)}
    unanswered = [
        one
        for one in turn.canisters
        if isinstance(one, InvocationCanister) and one.identity not in answered
    ]
    # Clients cannot answer the agent's own calls.
    declared = {one.name for one in record.recipe.declared}
    open_calls = {
        name_call(one.identity): one.identity for one in unanswered if one.name in declared
    }
    origin = _read_origin(earlier)
    agent = space.find_agent(record.recipe.agent or "")
    prompt = space.session.access_agent(agent).instruct() if agent else ""
    past = origin.past.add(record.recipe.agent or "", record.recipe.unshown, prompt)
    model = request.model or origin.model
    continued = Continued(earlier.identity, open_calls)
    order = await _read_order(core, exchange, space, request, model, continued)
    identities = {*open_calls.values()}
    answers: list[ResultCanister] = []
    said: list[Canister] = []
    for one in order.said:
        if isinstance(one, ResultCanister) and one.invocation in identities:
            answers.append(one)
        else:
            said.append(one)
    if sorted(one.invocation for one in answers) != sorted(identities):
        raise Rejected(
            "each open call must be answered once; open calls: "
            + (", ".join(open_calls) or "none"),
            param="input",
        )
    check_calls(said)
    cut_off = [one for one in unanswered if one.name not in declared]
    # Results must precede the client's other messages.
    order = replace(order, said=[*await _close_calls(earlier, cut_off), *answers, *said])
    return record.conversation, turn.canisters[-1].identity, order, past


async def _close_calls(run: Run, calls: Sequence[InvocationCanister]) -> Sequence[ResultCanister]:
    """Return results for the agent's calls that were cut off by the end of the run."""
    if not calls:
        return ()
    waited = {one.invocation for one in await run.survey_approvals() if one.allowed is None}
    waited |= {
        one.invocation
        for one in await run.survey_questions()
        if one.answer is None and not one.held
    }
    return [
        ResultCanister(
            (TextualContent(_NOT_RUN if one.identity in waited else INTERRUPTED),),
            invocation=one.identity,
            failed=True,
            trusted=True,
        )
        for one in calls
    ]


async def _access(space: UserSpace, identity: str, param: str | None = None) -> Run:
    missing = _refuse_missing(identity, param)
    if not identity.startswith(PREFIX):
        raise missing
    try:
        run = await space.session.access_run(identity.removeprefix(PREFIX))
    except RunNotFound:
        raise missing from None
    # Excludes prefixes of identities, and runs that are not responses.
    origin = run.record.origin
    if run.identity != identity.removeprefix(PREFIX) or not origin or is_context(origin):
        raise missing
    return run


def _refuse_missing(identity: str, param: str | None) -> Rejected:
    return Rejected(
        f"response {identity!r} not found",
        status=404,
        code="response_not_found",
        param=param,
    )


def _read_origin(run: Run) -> _Origin:
    return msgspec.json.decode(run.record.origin, type=_Origin)


async def _wait(run: Run) -> None:
    """Wait until a run has ended or waits for a decision."""
    async for _, event in run.events():
        if isinstance(event, ApprovalRequested | AnswerRequested):
            return


async def _describe(run: Run, tools: ClientTools | None = None) -> Item:
    turn = await run.read()
    record = run.record
    origin = await offload(len(record.origin) > LOOP_BYTES, _read_origin, run)
    waiting = record.status is RunStatus.WAITING
    state = ResponseState(
        identity=run.identity,
        model=origin.model,
        created=record.created,
        status=record.status,
        ended=record.updated if record.status.ended else None,
        turn=turn,
        approvals=await run.survey_approvals() if waiting else (),
        hidden=record.recipe.unshown,
        questions=await run.survey_questions() if waiting else (),
        kind=record.kind,
        failure=await find_run_failure(run),
    )
    tools = origin.request.read_tools() if tools is None else tools
    return describe_response(origin.request, tools, state)


async def _reply(exchange: HttpExchange, body: Item) -> None:
    await exchange.reply(msgspec.json.encode(body))


async def _stream(exchange: HttpExchange, space: UserSpace, run: Run, *, after: int = -1) -> None:
    """Stream the events of a response, which continues if the client disconnects."""
    with space.following():
        async with (
            exchange.until_disconnect(),
            aclosing(_write_events(exchange, run, after)) as parts,
        ):
            await exchange.stream(parts)


async def _write_events(
    exchange: HttpExchange, run: Run, after: int
) -> AsyncGenerator[bytes, None]:
    origin = _read_origin(run)
    tools = origin.request.read_tools()
    writer = StreamWriter(tools, after, run=run.identity, hidden=run.record.recipe.unshown)
    begun = ResponseState(identity=run.identity, model=origin.model, created=run.record.created)
    yield writer.begin(describe_response(origin.request, tools, begun))
    try:
        async for cursor, event in run.events():
            if isinstance(event, RunEnded | RunExpired):
                yield writer.end(cursor, await _describe(run, tools)) + DONE
            elif written := writer.write(cursor, event):
                yield written
    except RunNotFound as error:
        # The run was deleted with its conversation.
        failure = describe_failure(error)
        yield exchange.dialect.write_failure(failure, exchange.request_id) + DONE


class _UnstoredWriter:
    """Writer of an unstored response, from the events of its turn."""

    def __init__(
        self,
        request: ResponseRequest,
        model: str,
        served: ServedTurn | RecordedTurn,
    ) -> None:
        self._request = request
        self._managed = served.managed
        self._state = ResponseState(
            identity=produce_identity(),
            model=model,
            created=datetime.now(UTC),
            hidden=served.hidden,
        )
        self._tools = request.read_tools()
        self._made: StreamWriter | None = None
        self._cursor = first_cursor(1)
        self._begun = False

    def encode(self, outcome: TurnOutcome) -> bytes:
        """Encode the whole response."""
        return msgspec.json.encode(self._conclude(outcome.turn))

    def write(self, event: Event) -> bytes:
        """Return the events of the response for an event of the turn."""
        translated = translate(event)
        if translated is None:
            return b""
        self._cursor += measure(translated)
        return self._begin(self._writer.write(self._cursor, translated))

    def finish(self, outcome: TurnOutcome) -> bytes:
        """Return the events that end the response."""
        end = self._writer.end(self._cursor + 1, self._conclude(outcome.turn))
        return self._begin(end) + DONE

    def fail(self, failure: ClientFailure) -> bytes:
        """Return the events that end a failed response."""
        state = replace(
            self._state,
            status=RunStatus.FAILED,
            ended=datetime.now(UTC),
            failure=failure,
        )
        end = self._writer.end(self._cursor + 1, self._describe(state))
        return self._begin(end) + DONE

    def _begin(self, written: bytes) -> bytes:
        if not written or self._begun:
            return written
        self._begun = True
        # Has the first number, although it is written only when another event follows.
        begun = StreamWriter(ClientTools()).begin(self._describe(self._state), self._compaction)
        return begun + written

    @property
    def _writer(self) -> StreamWriter:
        if self._made is None:
            # Whether there is a compaction is known when the turn begins.
            first = 0 if self._compaction is None else 1
            self._made = StreamWriter(self._tools, hidden=self._state.hidden, first=first)
        return self._made

    @cached_property
    def _compaction(self) -> Item | None:
        compaction = self._managed.compaction
        return None if compaction is None else describe_compaction(compaction)

    def _conclude(self, turn: Turn[None]) -> Item:
        if (compaction := self._managed.compaction) is not None:
            turn = replace(turn, usage=turn.usage + compaction.usage)
        state = replace(
            self._state,
            turn=turn,
            status=RunStatus.COMPLETED,
            ended=datetime.now(UTC),
            compaction=self._compaction,
        )
        return self._describe(state)

    def _describe(self, state: ResponseState) -> Item:
        return describe_response(self._request, self._tools, state)
