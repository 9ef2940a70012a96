"""`ServedTurn`: a turn for a client that sends its whole history, in any dialect."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.exceptions import (
    ArchiveDamaged,
    ContentUnsupported,
    ConversationMoved,
    ConversationNotFound,
    ForkPointInvalid,
    FormatNewer,
    RequestError,
    StorageUnavailable,
    VibeLlmsError,
)
from vibe_llms.base.offloading import offload
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.documents import without_documents
from vibe_llms.conversations.outputs import produce_form
from vibe_llms.conversations.streams import EventStream
from vibe_llms.invocation.invokers import Invoker, find_own
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    InvocationCanister,
    ReplyCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    Turn,
    Usage,
    UserCanister,
    is_large,
)
from vibe_llms.messages.contents import (
    Content,
    Location,
    MediaContent,
    ReasoningContent,
    Reference,
    TextualContent,
    text_of,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event
from vibe_llms.providers.conversions import name_content
from vibe_llms.providers.interfaces import TokenCount
from vibe_llms.providers.tokenizers import BYTES_A_TOKEN, MEDIA_TOKENS
from vibe_llms.runs.interfaces import RequestKey, read_lines
from vibe_llms.runs.run import Run
from vibe_llms.server.addresses import check_addresses
from vibe_llms.server.context_orders import (
    ContextOrder,
    ManagedContext,
    clear_tools,
    manage_context,
)
from vibe_llms.server.continuations import Chain, ContinuationPlace, hash_system
from vibe_llms.server.failures import ClientFailure, Rejected
from vibe_llms.server.fitting import fit_controls
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.request_limits import check_characters
from vibe_llms.server.spaces import UserSpace, require_caller_key
from vibe_llms.storage.interfaces import Archive

#: Separator between the texts of several messages, which clients see as one.
BETWEEN = "\n\n"
#: Errors for a stored conversation, or a place in it, that no longer exists.
_GONE = (ConversationNotFound, ArchiveDamaged, FormatNewer, ForkPointInvalid)


class TurnOrder(Struct, frozen=True, kw_only=True):
    """A client's request: the whole history, its own tools, and how to answer.

    A history that only the client knows is not compacted unless its `context` asks for it, because
    each request would pay for a summary.

    Each result in `said` names its call, which is in `said` too. `states` are verified messages of
    the agent that precede its messages in `said`, by identity. With `media`, the outcome has the
    images and files of the turn, and the hash of the client-visible history. `omissions` collects
    unsupported features of the request.
    """

    model: str
    said: Sequence[Canister]
    tools: Sequence[Invoker] = ()
    controls: Controls = Controls()
    schema: Mapping[str, Any] | None = None
    instruction: str = ""
    store: bool = True
    states: Mapping[str, Sequence[Canister]] = {}
    media: bool = False
    context: ContextOrder = ContextOrder()
    omissions: Omissions = msgspec.field(default_factory=Omissions)


class TurnOutcome(Struct, frozen=True, kw_only=True):
    """A finished turn as the client sees it: the text, and the calls that it must answer.

    `visible` is the hash of the client-visible history, if the order requests it.
    """

    turn: Turn[None]
    text: str
    calls: Sequence[InvocationCanister]
    visible: bytes

    @property
    def media(self) -> Sequence[MediaContent]:
        """Images and files that the model and the tools produced."""
        return _survey_media(self.turn)


class ReplyWriter(Protocol):
    """Writer of the reply to one request in a dialect, whole or as events."""

    def encode(self, outcome: TurnOutcome) -> bytes:
        """Encode the whole reply."""
        ...

    def write(self, event: Event) -> bytes:
        """Return the output for an event; empty until there is something to show."""
        ...

    def finish(self, outcome: TurnOutcome) -> bytes:
        """Return the output after the last event."""
        ...

    def fail(self, failure: ClientFailure, /) -> bytes:
        """Return the output after a failure, or nothing if the dialect's error event suffices."""
        ...


def count_characters(said: Iterable[Canister]) -> int:
    """Return the number of characters in the texts and calls of messages."""
    count = 0
    for canister in said:
        if isinstance(canister, InvocationCanister):
            count += len(canister.arguments)
        for content in canister.contents:
            if isinstance(content, TextualContent) and isinstance(content.data, str):
                count += len(content.data)
    return count


class ServedTurn:
    """A turn of a conversation that continues the client's history."""

    def __init__(
        self,
        space: UserSpace,
        order: TurnOrder,
        conversation: Conversation,
        prompt: Sequence[Canister],
        chain: Chain,
        *,
        begun: bool,
    ) -> None:
        self._space = space
        self._order = order
        self._conversation = conversation
        self._identity = conversation.identity
        self._prompt = prompt
        self._chain = chain
        self._begun = begun
        self.managed = ManagedContext(begun=begun)
        #: Identity of the last message before the turn.
        self._before = conversation.canisters[-1].identity if conversation.canisters else ""

    @classmethod
    async def begin(
        cls, space: UserSpace, order: TurnOrder, *, recorded: bool = False
    ) -> ServedTurn:
        """Prepare the turn of an order, as a run if `recorded`; raise for an invalid order."""
        check_characters(count_characters(order.said), space.settings)
        large = is_large(order.said)
        await offload(large, check_calls, order.said)
        split = _count_past(order.said)
        if recorded and split == len(order.said):
            # A run needs a prompt; if there is none, it is the last reply.
            split -= 1
        past, prompt = order.said[:split], order.said[split:]
        await check_addresses(prompt, space.settings.media_hosts)
        agent, model = await _resolve(space, order.model)
        # Models may change within a conversation, but each agent has separate histories.
        chain = Chain(agent or "", wanted=order.store or order.media)
        await offload(large, chain.extend, past)
        stored = order.store and bool(past)
        place = await space.continuations.find(chain.value) if stored else None
        await offload(large, chain.extend, prompt)
        if place is not None:
            # The stored conversation may have been deleted.
            with suppress(*_GONE):
                found = await _resume(space, order, (agent, model), place.conversation)
                said = _continue(past, prompt, found.canisters, place)
                if said is not None:
                    return await cls._follow(space, order, found, said, chain, place.canister)
        conversation = await space.session.begin(
            model,
            agent=agent,
            history=[*restore_states(await _permit(space, past), order.states)] or None,
            invokers=order.tools,
            memory=space.uses_memory(agent, model),
            context_mode=order.context.mode or ("off" if past else None),
            save=order.store,
        )
        order, said = await fit_order(space, order, conversation, prompt)
        return cls(space, order, conversation, said, chain, begun=True)

    async def prepare(self) -> None:
        """Do what the order says with the context of a run, which counts as a turn meanwhile."""
        if self._order.context.changes:
            with self._space.turn():
                await self.manage_context()

    async def manage_context(self) -> None:
        """Do what the order says with the context of the turn, before it begins."""
        managed, context = self.managed, self._order.context
        if not context.changes:
            return
        if agent := self._conversation.settings.agent:
            system = self._space.session.access_agent(agent).instruct()
            context = replace(context, repeated=[*context.repeated, system])
        try:
            await manage_context(self._conversation, self._prompt, context, managed, self.hidden)
        except (VibeLlmsError, Rejected, CancelledError):
            await self.withdraw()
            raise
        if managed.compaction is not None:
            # The client sends the compaction in place of the history.
            self._chain = self._chain.begin_again()
            messages = managed.compaction.messages
            await offload(is_large(messages), self._chain.extend, messages)

    async def conclude_context(self) -> TurnOutcome:
        """Return the outcome of a turn that ends with a compaction."""
        turn = Turn[None]((), "", None, Usage(), StopReason.FINISHED)
        conversation, managed = self._conversation, self.managed
        if self._order.store and conversation.history.stored and managed.compaction is not None:
            # The prompt was not sent yet, so it is the prompt of the next turn too.
            messages = managed.compaction.messages
            chain = self._chain.begin_again()
            await offload(is_large(messages), chain.extend, messages[: _count_past(messages)])
            place = ContinuationPlace(
                conversation.identity,
                conversation.canisters[-1].identity,
                hash_system(self._order.said),
            )
            with suppress(StorageUnavailable):
                await self._space.continuations.put(chain.value, place)
        return TurnOutcome(turn=turn, text="", calls=(), visible=b"")

    def stream(self) -> EventStream[None]:
        """Return the turn as a stream of events."""
        return self._conversation.stream(self._prompt or None, controls=self._order.controls)

    async def converse(self) -> Turn[None]:
        """Run the whole turn, without streaming from the provider either."""
        return await self._conversation.converse(
            self._prompt or None, controls=self._order.controls, streaming=False
        )

    @classmethod
    async def follow(
        cls, space: UserSpace, order: TurnOrder, conversation: str, last: str
    ) -> ServedTurn:
        """Prepare the turn after a message of a stored conversation, or of a fork if not the last.

        All of `said` is the prompt.
        """
        await check_addresses(order.said, space.settings.media_hosts)
        agent, model = await _resolve(space, order.model)
        found = await _resume(space, order, (agent, model), conversation)
        return await cls._follow(space, order, found, order.said, Chain(agent or ""), last)

    @classmethod
    async def _follow(
        cls,
        space: UserSpace,
        order: TurnOrder,
        found: Conversation,
        said: Sequence[Canister],
        chain: Chain,
        last: str,
    ) -> ServedTurn:
        # Invalid orders are refused before anything is stored, such as a fork.
        order, prompt = await fit_order(space, order, found, said)
        served = cls(space, order, found, prompt, chain, begun=False)
        end = find_end(found.canisters, last)
        return served if end == len(found.canisters) else await served.fork(last)

    async def fork(self, last: str) -> ServedTurn:
        """Return the same turn in a fork that ends with a message, and the digests after it."""
        canisters = self._conversation.canisters
        if end := find_end(canisters, last):
            last = canisters[end - 1].identity
        fork = await self._conversation.fork(last, open_calls=True)
        return ServedTurn(self._space, self._order, fork, self._prompt, self._chain, begun=True)

    async def start(
        self,
        instructions: Sequence[str],
        origin: bytes,
        request: RequestKey | None = None,
        *,
        awaited: bool,
    ) -> Run:
        """Start the turn as a run, which continues without the connection; see `Runs.start`.

        If it cannot start, a conversation or fork created for it is deleted.
        """
        conversation = self._conversation
        try:
            run = await self._space.session.access_runs().start(
                conversation,
                conversation.read_prompt(self._prompt),
                instructions=instructions,
                controls=self._order.controls,
                origin=origin,
                request=request,
                awaited=awaited,
            )
        except RequestError:
            await self._discard()
            raise
        if run.record.conversation != conversation.identity:
            # The run belongs to an earlier request with the same key.
            await self._discard()
        return run

    async def _discard(self) -> None:
        if self._begun:
            with suppress(ConversationNotFound):
                await self._space.archive.remove(self._conversation.identity)

    @property
    def conversation(self) -> str:
        """Identity of the conversation."""
        return self._conversation.identity

    @property
    def hidden(self) -> Collection[str]:
        """Names of tools whose arguments and results are not shown."""
        return {one.name for one in self._conversation.invokers.values() if not one.show_in_stage}

    async def conclude(self, turn: Turn[None]) -> TurnOutcome:
        """Return the outcome, and remember the history that the client will continue."""
        conversation = self._conversation
        if turn.stop_reason == StopReason.INTERRUPTED:
            raise ConversationNotFound(f"the conversation {conversation.identity} was deleted")
        place = ContinuationPlace(conversation.identity, conversation.canisters[-1].identity, b"")
        return await _conclude(self._space, self._order, self._chain, turn, place)

    async def withdraw(self) -> None:
        """Delete the client's messages of a turn that failed before the model replied."""
        if self._order.store:
            archive, kept = self._space.session.archive, "" if self._begun else self._before
            own = {one.identity for one in self._prompt}
            # A turn that became too long, or came second, has continued in a fork.
            for identity in {self._identity, self._conversation.identity}:
                await withdraw(archive, identity, kept, self._before, own)


def _read(order: TurnOrder, turn: Turn[None]) -> tuple[str, Sequence[InvocationCanister]]:
    names = {tool.name for tool in order.tools}
    texts: list[str] = []
    calls: list[InvocationCanister] = []
    for canister in turn.canisters:
        match canister:
            case AssistantCanister(contents=contents) if text := text_of(contents):
                texts.append(text)
            case InvocationCanister(name=name) if name in names:
                calls.append(canister)
    return BETWEEN.join(texts), calls


async def _conclude(
    space: UserSpace, order: TurnOrder, chain: Chain, turn: Turn[None], place: ContinuationPlace
) -> TurnOutcome:
    """Return the outcome of a turn, and extend the chain of the history by its reply."""
    text, calls = _read(order, turn)
    chain.add_text(text)
    for call in calls:
        chain.add_call(call)
    if order.store:
        # The reply is stored already; without this entry, a new conversation follows it.
        with suppress(StorageUnavailable):
            await space.continuations.put(
                chain.value, replace(place, system=hash_system(order.said))
            )
    if order.media:
        turn = await _load_media(space, turn)
    return TurnOutcome(turn=turn, text=text, calls=calls, visible=chain.value)


async def _load_media(space: UserSpace, turn: Turn[None]) -> Turn[None]:
    """Load the images and files that the model and the tools produced in a turn."""
    references = [one.data for one in _survey_media(turn) if isinstance(one.data, Reference)]
    if not references:
        return turn
    loaded = await space.session.archive.load_all(references)

    def fill(content: Content) -> Content:
        if isinstance(content, MediaContent) and isinstance(content.data, Reference):
            return replace(content, data=loaded.get(content.data.hash, content.data))
        return content

    filled = [replace(one, contents=tuple(map(fill, one.contents))) for one in turn.canisters]
    return replace(turn, canisters=tuple(filled))


def _survey_media(turn: Turn[None]) -> Sequence[MediaContent]:
    return [
        content
        for canister in turn.canisters
        if isinstance(canister, AssistantCanister | ResultCanister)
        for content in canister.contents
        if isinstance(content, MediaContent)
    ]


class RecordedTurn:
    """A turn that is a run: of this request, or of an earlier one with the same key."""

    def __init__(
        self, space: UserSpace, order: TurnOrder, run: Run, managed: ManagedContext
    ) -> None:
        self._space = space
        self._order = order
        self.run = run
        self.managed = managed

    @property
    def hidden(self) -> Collection[str]:
        """Names of tools whose arguments and results are not shown."""
        return self.run.record.recipe.unshown

    async def conclude(self) -> TurnOutcome:
        """Return the outcome; see `ServedTurn.conclude`."""
        space, order = self._space, self._order
        agent, _ = await space.resolve_model(order.model)
        chain = Chain(agent or "")
        # The client sends a compaction in place of the history.
        compaction = self.managed.compaction
        said = order.said if compaction is None else compaction.messages
        await offload(is_large(said), chain.extend, said)
        turn = await self.run.read()
        conversation = self.run.record.conversation
        last = turn.canisters[-1].identity if turn.canisters else ""
        return await _conclude(
            space, order, chain, turn, ContinuationPlace(conversation, last, b"")
        )

    async def withdraw(self) -> None:
        """Delete the run and the client's messages in it, unless the model has replied."""
        runs, record = self._space.session.access_runs(), self.run.record
        if any(isinstance(one, ReplyCanister) for one in (await self.run.read()).canisters):
            return
        archive = self._space.session.archive
        prompt = {one.identity for one in read_lines(record.prompt)}
        with suppress(ConversationNotFound):
            stored = (await archive.restore(record.conversation)).canisters
            places = [place for place, one in enumerate(stored) if one.identity in prompt]
            if places:
                before = stored[places[0] - 1].identity if places[0] else ""
                kept = "" if self.managed.begun else before
                await withdraw(archive, record.conversation, kept, before, prompt)
        await runs.store.remove_run(record.user, record.identity)


async def withdraw(
    archive: Archive, conversation: str, kept: str, before: str, own: Collection[str]
) -> None:
    """Delete the messages after `before`, unless the model has replied or others are there.

    `own` are the messages of the client. Without a message `kept`, the whole conversation, such as
    a fork, is deleted.
    """
    # Messages added by another process meanwhile are kept.
    with suppress(ConversationNotFound, ConversationMoved):
        stored = (await archive.restore(conversation)).canisters
        places = [place for place, one in enumerate(stored) if one.identity == before]
        added = stored[places[-1] + 1 :] if places else stored
        while kept and places and added and isinstance(added[0], DigestCanister):
            # It was paid for, and later requests are shorter by it.
            kept, added = added[0].identity, added[1:]
        if any(_must_stay(one, own) for one in added):
            return
        if not (kept and places):
            await archive.remove(conversation, last=stored[-1].identity if stored else "")
        elif added:
            await archive.retract(conversation, after=kept, last=added[-1].identity)


def _must_stay(canister: Canister, own: Collection[str]) -> bool:
    """Return True for a reply, and for a message of another request."""
    if isinstance(canister, UserCanister | ResultCanister):
        return canister.identity not in own
    return isinstance(canister, ReplyCanister)


async def count_tokens(
    space: UserSpace, order: TurnOrder, before: Sequence[Canister] = ()
) -> TokenCount:
    """Count the tokens that the model would read for a turn, without storing anything.

    The messages `before` may be in the archive.
    """
    check_characters(count_characters(order.said), space.settings)
    if not before:
        check_calls(order.said)
    split = _count_past(order.said)
    await check_addresses(order.said[split:], space.settings.media_hosts)
    said = [*await _permit(space, order.said[:split]), *order.said[split:]]
    agent, model = await _resolve(space, order.model)
    history = [*before, *said]
    if order.context.clearing is not None:
        digest, _ = clear_tools(history, (), order.tools, order.context.clearing)
        history += [digest] if digest is not None else []
    conversation = await space.session.begin(
        model,
        agent=agent,
        history=history or None,
        invokers=order.tools,
        memory=False,
    )
    return await conversation.count_tokens()


def estimate_tokens(said: Iterable[Canister], tools: Iterable[Invoker]) -> int:
    """Estimate the tokens of messages and tools from their number of characters."""
    size = media = 0
    for canister in said:
        if isinstance(canister, InvocationCanister):
            size += len(canister.name) + len(canister.arguments)
        for content in canister.contents:
            match content:
                case TextualContent(data=str(text)):
                    size += len(text)
                case TextualContent(data=Reference(size=length)):
                    size += length
                case _ if isinstance(content, MediaContent):
                    media += MEDIA_TOKENS
    for tool in tools:
        size += len(tool.name) + len(tool.description)
        size += len(msgspec.json.encode(tool.arguments_schema))
    return max(1, size // BYTES_A_TOKEN) + media


def read_thoughts(turn: Turn[None]) -> str:
    """Return the visible reasoning of the model in a turn."""
    return "".join(
        content.text
        for canister in turn.canisters
        if isinstance(canister, AssistantCanister)
        for content in canister.contents
        if isinstance(content, ReasoningContent)
    )


def check_calls(said: Sequence[Canister]) -> None:
    """Raise `Rejected` if a call has no result before the next message, as providers do."""
    unanswered: dict[str, InvocationCanister] = {}
    for canister in said:
        match canister:
            case InvocationCanister():
                unanswered[canister.identity] = canister
            case ResultCanister(invocation=invocation):
                if unanswered.pop(invocation, None) is None:
                    raise Rejected("a result does not follow the call that it belongs to")
            case UserCanister() | AssistantCanister():
                _require_answered(unanswered)
    _require_answered(unanswered)


def _require_answered(unanswered: Mapping[str, InvocationCanister]) -> None:
    if unanswered:
        names = ", ".join(call.call or call.name for call in unanswered.values())
        raise Rejected(f"each call must be followed by its result; missing: {names}")


def restore_states(
    said: Iterable[Canister], states: Mapping[str, Sequence[Canister]]
) -> Iterator[Canister]:
    """Yield the messages with the agent's verified messages, which replace its texts."""
    for canister in said:
        state = states.get(canister.identity, ())
        yield from state
        if not (state and isinstance(canister, AssistantCanister)):
            yield canister


def _count_past(said: Sequence[Canister]) -> int:
    """Return the number of messages up to the last reply or digest; the prompt follows them."""
    for index in range(len(said) - 1, -1, -1):
        if isinstance(said[index], AssistantCanister | InvocationCanister | DigestCanister):
            return index + 1
    return 0


async def _resolve(space: UserSpace, name: str) -> tuple[str | None, str | None]:
    """Return the named agent or model; `Rejected` if it needs a key that is missing."""
    agent, model = await space.resolve_model(name)
    if space.needs_caller_key(agent, model):
        require_caller_key(name)
    return agent, model


async def _resume(
    space: UserSpace, order: TurnOrder, named: tuple[str | None, str | None], conversation: str
) -> Conversation:
    """Resume a stored conversation with the agent or model that the client names."""
    agent, model = named
    return await space.session.resume(
        conversation,
        agent=agent,
        model=model or space.find_model(agent),
        invokers=order.tools,
        memory=space.uses_memory(agent, model),
        context_mode=order.context.mode,
    )


async def _permit(space: UserSpace, past: Sequence[Canister]) -> Sequence[Canister]:
    """Return earlier messages, with descriptions in place of addresses that are not allowed."""
    permitted = [*past]
    for place, canister in enumerate(past):
        if any(isinstance(getattr(one, "data", None), Location) for one in canister.contents):
            try:
                await check_addresses([canister], space.settings.media_hosts)
            except Rejected:
                contents = tuple(map(_describe_located, canister.contents))
                permitted[place] = replace(canister, contents=contents)
    return permitted


def _describe_located(content: Content) -> Content:
    if isinstance(getattr(content, "data", None), Location):
        return TextualContent(f"[{name_content(content)} is left out]")
    return content


def _continue(
    past: Sequence[Canister],
    prompt: Sequence[Canister],
    stored: Sequence[Canister],
    place: ContinuationPlace,
) -> Sequence[Canister] | None:
    """Return the new messages of a history stored up to a place; None if it does not fit."""
    end = find_end(stored, place.canister)
    paired = _pair(past, prompt, stored[:end]) if end else None
    if paired is None or hash_system(past) == place.system:
        return paired
    return [*(one for one in past if isinstance(one, SupervisorCanister)), *paired]


def find_end(stored: Sequence[Canister], last: str) -> int:
    """Return the number of messages up to a message and the digests after it, or 0."""
    end = next((number for number, one in enumerate(stored, 1) if one.identity == last), 0)
    while 0 < end < len(stored) and isinstance(stored[end], DigestCanister):
        end += 1
    return end


def _pair(
    past: Sequence[Canister], prompt: Sequence[Canister], stored: Sequence[Canister]
) -> Sequence[Canister] | None:
    """Return the prompt, with results paired with the stored calls instead of the sent ones.

    Only calls that the client was shown are answered, never the agent's own. Returns None if too
    few stored calls are open, such as after another answer to them.
    """
    shown = {one.name for one in past if isinstance(one, InvocationCanister)}
    sent = [one.identity for one in past if isinstance(one, InvocationCanister)]
    answered = {one.invocation for one in stored if isinstance(one, ResultCanister)}
    kept = [
        one.identity
        for one in stored
        if isinstance(one, InvocationCanister)
        and one.name in shown
        and one.identity not in answered
    ]
    results = sum(isinstance(one, ResultCanister) for one in prompt)
    if min(len(sent), len(kept)) < results:
        return None
    names = dict(zip(sent[len(sent) - results :], kept[len(kept) - results :], strict=True))
    return [
        replace(one, invocation=names[one.invocation]) if isinstance(one, ResultCanister) else one
        for one in prompt
    ]


async def fit_order(
    space: UserSpace, order: TurnOrder, conversation: Conversation, prompt: Sequence[Canister]
) -> tuple[TurnOrder, Sequence[Canister]]:
    """Adapt an order and its prompt to the model; a schema becomes a control or an instruction.

    Raises `Rejected` if a tool of the client has the name of an agent's tool, or if a tool needs
    approval while the key is the caller's.
    """
    if space.session.is_of_callers(conversation.model.provider):
        asks = [one.name for one in conversation.invokers.values() if one.approval == "ask"]
        if asks:
            raise Rejected(
                f"the tool {asks[0]} needs approval, which is not possible with a caller's key",
                code="caller_key",
            )
    if order.tools:
        own = replace(conversation.settings.toolbox, own=()).all_tools
        if clash := [tool.name for tool in order.tools if find_own(own, tool.name)]:
            raise Rejected(
                f"the agent already has a tool {clash[0]!r}; rename yours",
                param="tools",
            )
    controls, instruction = order.controls, order.instruction
    model = conversation.settings.choose_tools(conversation.invokers)[0]
    form = None
    if order.schema is not None:
        # Validating the schema takes long.
        form = await offload(True, produce_form, order.schema)
    if form is not None and model.attributes.takes("response-schema"):
        controls = Controls(response_schema=order.schema).over(controls)
    controls = await fit_controls(model, controls, order.omissions)
    if form is not None:
        known = model.attributes.controls is not None
        sure = not known or model.attributes.surely_takes("response-schema")
        if controls.response_schema is None or not sure:
            instruction = form.instruction
    extra = [SupervisorCanister.from_text(instruction)] if instruction else []
    said = [*extra, *_describe_results(conversation, prompt, order.omissions)]
    return replace(order, controls=controls), said


def _describe_results(
    conversation: Conversation, prompt: Sequence[Canister], omissions: Omissions
) -> Sequence[Canister]:
    """Return a prompt whose results describe media that the model cannot take.

    A user could leave out an image, but a client cannot remove it from a tool's result.
    """
    reads = conversation.settings.services.access_documents is not None
    said = [*prompt]
    for place, canister in enumerate(prompt):
        if not isinstance(canister, ResultCanister):
            continue
        try:
            conversation.model.check(
                without_documents([canister]) if reads else [canister], Controls()
            )
        except ContentUnsupported:
            contents = tuple(
                TextualContent(f"[{name_content(one)} is left out: the model does not support it]")
                if isinstance(one, MediaContent)
                else one
                for one in canister.contents
            )
            omissions.add("content", "tool_result")
            said[place] = replace(canister, contents=contents)
    return said
