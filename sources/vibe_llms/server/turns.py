"""Serves one turn of a client that sends its whole history, whatever its dialect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.controls import Controls
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.documents import without_documents
from vibe_llms.conversations.outputs import produce_form
from vibe_llms.conversations.streams import EventStream
from vibe_llms.events import Event
from vibe_llms.exceptions import (
    ArchiveDamaged,
    ContentUnsupported,
    ConversationMoved,
    ConversationNotFound,
    ForkPointInvalid,
    FormatNewer,
    RequestError,
    StorageUnavailable,
)
from vibe_llms.invocation.invokers import Invoker, find_invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ReplyCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    Turn,
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
from vibe_llms.offloading import offload
from vibe_llms.providers.caller_keys import find_caller_key
from vibe_llms.providers.conversions import name_content
from vibe_llms.providers.interfaces import TokenCount
from vibe_llms.providers.tokenizers import BYTES_A_TOKEN, MEDIA_TOKENS
from vibe_llms.runs.interfaces import RequestKey, read_lines
from vibe_llms.runs.run import Run
from vibe_llms.server.addresses import check_addresses
from vibe_llms.server.continuations import Chain, Place, hash_system
from vibe_llms.server.failures import Failure, Rejected
from vibe_llms.server.fitting import fit_controls
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.request_limits import check_characters
from vibe_llms.server.spaces import UserSpace
from vibe_llms.storage.interfaces import Archive

#: What stands between the texts of several messages, which clients see as one.
BETWEEN = "\n\n"
#: A stored conversation, or a place in it, is gone.
_GONE = (ConversationNotFound, ArchiveDamaged, FormatNewer, ForkPointInvalid)


class TurnOrder(Struct, frozen=True, kw_only=True):
    """What a client asks for: all that was said, its own tools, and how to answer.

    Each result in `said` names the call, in `said` too, that it belongs to. `states` are what the
    agent is known to have done before its messages in `said`, by their identities. With `media`,
    the outcome has the images and files of the turn, and the hash of what the client sees.
    `omissions` name what it asks for and does not get.
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
    omissions: Omissions = msgspec.field(default_factory=Omissions)


class Outcome(Struct, frozen=True, kw_only=True):
    """A turn that has ended, as a client sees it: the text, and the calls that it has to answer.

    `visible` is the hash of all that the client sees of the history, if the order asks for it.
    """

    turn: Turn[None]
    text: str
    calls: Sequence[InvocationCanister]
    visible: bytes

    @property
    def media(self) -> Sequence[MediaContent]:
        """The images and files that the model and the tools have made."""
        return _survey_media(self.turn)


class ReplyWriter(Protocol):
    """Writes the reply to one request in a dialect: whole, or as events."""

    def encode(self, outcome: Outcome) -> bytes:
        """The whole reply."""
        ...

    def write(self, event: Event) -> bytes:
        """What an event becomes; nothing before there is something to show."""
        ...

    def finish(self, outcome: Outcome) -> bytes:
        """What follows the last event."""
        ...

    def fail(self, failure: Failure, /) -> bytes:
        """What follows the last event of a turn that has failed; nothing if that is an error."""
        ...


def count_characters(said: Iterable[Canister]) -> int:
    """Return how many characters the texts and the calls of messages have."""
    count = 0
    for canister in said:
        if isinstance(canister, InvocationCanister):
            count += len(canister.arguments)
        for content in canister.contents:
            if isinstance(content, TextualContent) and isinstance(content.data, str):
                count += len(content.data)
    return count


class ServedTurn:
    """A turn of a conversation that continues what the client sent."""

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
        self._prompt = prompt
        self._chain = chain
        self._begun = begun
        #: The last message before the turn.
        self._before = conversation.canisters[-1].identity if conversation.canisters else ""

    @classmethod
    async def begin(
        cls, space: UserSpace, order: TurnOrder, *, recorded: bool = False
    ) -> ServedTurn:
        """The turn that an order asks for, as a run if `recorded`; raises for an invalid order."""
        check_characters(count_characters(order.said), space.settings)
        large = is_large(order.said)
        await offload(large, check_calls, order.said)
        split = _count_past(order.said)
        if recorded and split == len(order.said):
            # A run needs a prompt: without one, it is the last reply.
            split -= 1
        past, prompt = order.said[:split], order.said[split:]
        await check_addresses(prompt, space.settings.media_hosts)
        agent, model = await _resolve(space, order.model)
        # Models may change within a conversation; an agent has histories of its own.
        chain = Chain(agent or "", wanted=order.store or order.media)
        await offload(large, chain.extend, past)
        stored = order.store and bool(past)
        place = await space.continuations.find(chain.value) if stored else None
        await offload(large, chain.extend, prompt)
        if place is not None:
            # What it is a continuation of may be gone.
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
            save=order.store,
        )
        order, said = await fit_order(space, order, conversation, prompt)
        return cls(space, order, conversation, said, chain, begun=True)

    def stream(self) -> EventStream[None]:
        """The turn as events."""
        return self._conversation.stream(self._prompt or None, controls=self._order.controls)

    async def converse(self) -> Turn[None]:
        """The whole turn, unstreamed on the wire too."""
        return await self._conversation.converse(
            self._prompt or None, controls=self._order.controls, streaming=False
        )

    @classmethod
    async def follow(
        cls, space: UserSpace, order: TurnOrder, conversation: str, last: str
    ) -> ServedTurn:
        """The turn that follows a message of a stored conversation; a fork if it is not the last.

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
        # Refused before anything is stored, such as a fork.
        order, prompt = await fit_order(space, order, found, said)
        served = cls(space, order, found, prompt, chain, begun=False)
        return served if found.canisters[-1].identity == last else await served.fork(last)

    async def fork(self, last: str) -> ServedTurn:
        """The same turn in a fork that ends with a message."""
        fork = await self._conversation.fork(last, open_calls=True)
        return ServedTurn(self._space, self._order, fork, self._prompt, self._chain, begun=True)

    async def start(
        self, instructions: Sequence[str], origin: bytes, request: RequestKey | None = None
    ) -> Run:
        """The turn as a run, which does not end with the connection.

        Where it does not begin, the fork that was made for it is deleted.
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
            )
        except RequestError:
            await self._discard()
            raise
        if run.record.conversation != conversation.identity:
            # It is the run of an earlier request with the same key.
            await self._discard()
        return run

    async def _discard(self) -> None:
        if self._begun:
            with suppress(ConversationNotFound):
                await self._space.archive.remove(self._conversation.identity)

    @property
    def hidden(self) -> Collection[str]:
        """The names of tools whose arguments and results are not shown."""
        return {one.name for one in self._conversation.invokers.values() if not one.show_in_stage}

    async def conclude(self, turn: Turn[None]) -> Outcome:
        """The outcome; what the client will send if it goes on from here is remembered."""
        conversation = self._conversation
        if turn.stop_reason == StopReason.INTERRUPTED:
            raise ConversationNotFound(f"the conversation {conversation.identity} was deleted")
        place = Place(conversation.identity, conversation.canisters[-1].identity, b"")
        return await _conclude(self._space, self._order, self._chain, turn, place)

    async def withdraw(self) -> None:
        """Delete what the client said in a turn that failed before the model said anything."""
        if self._order.store:
            archive, identity = self._space.session.archive, self._conversation.identity
            await withdraw(archive, identity, "" if self._begun else self._before, self._before)


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
    space: UserSpace, order: TurnOrder, chain: Chain, turn: Turn[None], place: Place
) -> Outcome:
    """The outcome of a turn; the chain of the history before it grows by what it says."""
    text, calls = _read(order, turn)
    chain.add_text(text)
    for call in calls:
        chain.add_call(call)
    if order.store:
        # The reply is stored; without this, the next request begins another conversation.
        with suppress(StorageUnavailable):
            await space.continuations.put(
                chain.value, replace(place, system=hash_system(order.said))
            )
    if order.media:
        turn = await _load_media(space, turn)
    return Outcome(turn=turn, text=text, calls=calls, visible=chain.value)


async def _load_media(space: UserSpace, turn: Turn[None]) -> Turn[None]:
    """A turn with the images and files that the model and the tools have made in it."""
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

    def __init__(self, space: UserSpace, order: TurnOrder, run: Run) -> None:
        self._space = space
        self._order = order
        self.run = run

    @property
    def hidden(self) -> Collection[str]:
        """The names of tools whose arguments and results are not shown."""
        return self.run.record.recipe.unshown

    async def conclude(self) -> Outcome:
        """The outcome; see `ServedTurn.conclude`."""
        space, order = self._space, self._order
        agent, _ = await space.resolve_model(order.model)
        chain = Chain(agent or "")
        await offload(is_large(order.said), chain.extend, order.said)
        turn = await self.run.read()
        conversation = self.run.record.conversation
        last = turn.canisters[-1].identity if turn.canisters else ""
        return await _conclude(space, order, chain, turn, Place(conversation, last, b""))

    async def withdraw(self) -> None:
        """Delete the run, and what the client said in it, unless the model has said something."""
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
                await withdraw(archive, record.conversation, before, before)
        await runs.store.remove_run(record.user, record.identity)


async def withdraw(archive: Archive, conversation: str, kept: str, before: str) -> None:
    """Delete what follows the message `before`, unless the model has said something there.

    Without a message that is `kept`, the whole conversation is deleted, such as a fork.
    """
    # Whatever another process has added since stays.
    with suppress(ConversationNotFound, ConversationMoved):
        stored = (await archive.restore(conversation)).canisters
        places = [place for place, one in enumerate(stored) if one.identity == before]
        added = stored[places[-1] + 1 :] if places else stored
        if any(isinstance(one, ReplyCanister) for one in added):
            return
        if not (kept and places):
            await archive.remove(conversation, last=stored[-1].identity if stored else "")
        elif added:
            await archive.retract(conversation, after=kept, last=added[-1].identity)


async def count_tokens(
    space: UserSpace, order: TurnOrder, before: Sequence[Canister] = ()
) -> TokenCount:
    """How many tokens the model would read for a turn; nothing of it is stored.

    What was said `before` may be in the archive.
    """
    check_characters(count_characters(order.said), space.settings)
    if not before:
        check_calls(order.said)
    split = _count_past(order.said)
    await check_addresses(order.said[split:], space.settings.media_hosts)
    said = [*await _permit(space, order.said[:split]), *order.said[split:]]
    agent, model = await _resolve(space, order.model)
    conversation = await space.session.begin(
        model,
        agent=agent,
        history=[*before, *said] or None,
        invokers=order.tools,
        memory=False,
    )
    return await conversation.count_tokens()


def estimate_tokens(said: Iterable[Canister], tools: Iterable[Invoker]) -> int:
    """About how many tokens messages and tools have: a quarter of their characters, or more."""
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
    """What the model thought in a turn, as far as it is shown."""
    return "".join(
        content.text
        for canister in turn.canisters
        if isinstance(canister, AssistantCanister)
        for content in canister.contents
        if isinstance(content, ReasoningContent)
    )


def check_calls(said: Sequence[Canister]) -> None:
    """Raise if a call has no result before the next message, as providers do."""
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
    """What was said, with all that the agent is known to have done before its messages."""
    for canister in said:
        state = states.get(canister.identity, ())
        yield from state
        if not (state and isinstance(canister, AssistantCanister)):
            yield canister


def _count_past(said: Sequence[Canister]) -> int:
    """How many messages are before the prompt, which is what follows the last reply."""
    for index in range(len(said) - 1, -1, -1):
        if isinstance(said[index], AssistantCanister | InvocationCanister):
            return index + 1
    return 0


async def _resolve(space: UserSpace, name: str) -> tuple[str | None, str | None]:
    """The agent or the model of a name; `Rejected` if it needs a key that is not there."""
    agent, model = await space.resolve_model(name)
    if space.needs_caller_key(agent, model) and find_caller_key() is None:
        raise Rejected(
            f"{name} needs the key of your own provider, in the header X-Provider-Key",
            code="caller_key",
        )
    return agent, model


async def _resume(
    space: UserSpace, order: TurnOrder, named: tuple[str | None, str | None], conversation: str
) -> Conversation:
    """A stored conversation with the agent or the model that the client names."""
    agent, model = named
    return await space.session.resume(
        conversation,
        agent=agent,
        model=model or space.find_model(agent),
        invokers=order.tools,
        memory=space.uses_memory(agent, model),
    )


async def _permit(space: UserSpace, past: Sequence[Canister]) -> Sequence[Canister]:
    """Return what was said before, with descriptions in place of addresses that are not allowed."""
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
    past: Sequence[Canister], prompt: Sequence[Canister], stored: Sequence[Canister], place: Place
) -> Sequence[Canister] | None:
    """What is new of a history whose past is stored up to a place; `None` if it does not fit."""
    ends = [number for number, one in enumerate(stored, 1) if one.identity == place.canister]
    paired = _pair(past, prompt, stored[: ends[0]]) if ends else None
    if paired is None or hash_system(past) == place.system:
        return paired
    return [*(one for one in past if isinstance(one, SupervisorCanister)), *paired]


def _pair(
    past: Sequence[Canister], prompt: Sequence[Canister], stored: Sequence[Canister]
) -> Sequence[Canister] | None:
    """The prompt, with results of the calls as they are stored rather than as they were sent.

    Only calls that the client was shown are answered, never those of the agent. `None` if fewer
    calls are open in what is stored, such as after another answer to them.
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
    """Return an order and its prompt as the model takes them; a schema is a control, or words.

    `Rejected` if the client has a tool whose name is one of the agent's, or if a tool may ask while
    the key is the caller's.
    """
    if space.session.is_of_callers(conversation.model.provider):
        asks = [one.name for one in conversation.invokers.values() if one.approval == "ask"]
        if asks:
            raise Rejected(
                f"the tool {asks[0]} asks before it runs, and no key of a caller waits for that",
                code="caller_key",
            )
    if order.tools:
        own = replace(conversation.settings.toolbox, own=()).every
        if clash := [tool.name for tool in order.tools if find_invoker(own, tool.name)]:
            raise Rejected(
                f"the agent has a tool {clash[0]!r} already; give yours another name",
                param="tools",
            )
    controls, instruction = order.controls, order.instruction
    model = conversation.settings.settle(conversation.invokers)[0]
    form = None
    if order.schema is not None:
        # It is checked against the schema of schemas, which takes long.
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
    """Return a prompt whose results have descriptions in place of media that the model cannot take.

    The user can leave an image out; a client cannot send a result without what a tool made.
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
                TextualContent(f"[{name_content(one)} is left out: the model cannot take it]")
                if isinstance(one, MediaContent)
                else one
                for one in canister.contents
            )
            omissions.add("content", "tool_result")
            said[place] = replace(canister, contents=contents)
    return said
