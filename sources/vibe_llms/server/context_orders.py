"""Clients' orders for the context of a request, carried out before its turn.

Old results of tools become a line each, or the conversation is compacted. Both are digests of the
conversation that the request continues, so a stored conversation keeps them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import ContextMode
from vibe_llms.conversations.context_use import measure_tools
from vibe_llms.conversations.context_view import ContextView, revise_digest
from vibe_llms.conversations.context_window import (
    CHARACTERS_PER_TOKEN,
    UNKNOWN_WINDOW,
    estimate_tokens,
    measure_tokens,
)
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.digests import describe_omission
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    Canister,
    DigestCanister,
    InvocationCanister,
    ResultCanister,
    Usage,
)
from vibe_llms.runs.interfaces import read_lines, write_lines
from vibe_llms.server.compactions import ClientCompaction, CompactionSigner, export_compaction

_NO_ARGUMENTS = "{}"
#: Beginning of the changes that are stored with a run.
_STORED = b"context:"


class ToolClearing(Struct, frozen=True, kw_only=True):
    """Rules for clearing old uses of tools.

    If a request has more than `tokens`, or more than `uses` of tools, their results become a line
    each, except the last `keep` and those of `excluded` tools. Nothing is cleared if that saves
    less than `least` tokens. The arguments are cleared too for tools in `inputs`; None stands for
    all tools.
    """

    tokens: int | None = None
    uses: int | None = None
    keep: int = 3
    least: int = 0
    excluded: Collection[str] = ()
    inputs: Collection[str] | None = ()


class ClearedTools(Struct, frozen=True):
    """Number of cleared uses of tools, and the tokens that this saves."""

    uses: int = 0
    tokens: int = 0


class ContextOrder(Struct, frozen=True, kw_only=True):
    """A client's wishes for the context of a request.

    If it `compacts`, the conversation is compacted before a request of more than `threshold`
    tokens, or one that nearly fills the model's window, and at every size if that is `forced`. With
    `only`, the turn ends with the compaction. `focus` is a wish for the summary. The client sends
    the `repeated` system texts with each request, or the agent does. Results of `hidden` tools are
    left out, besides those of the agent. A compaction that is sent to the client is signed by the
    `signer`.
    """

    mode: ContextMode | None = None
    clearing: ToolClearing | None = None
    compacts: bool = False
    threshold: int | None = None
    forced: bool = False
    only: bool = False
    focus: str = ""
    repeated: Collection[str] = ()
    hidden: Collection[str] = ()
    signer: CompactionSigner | None = None

    @property
    def changes(self) -> bool:
        """True if the context may change before the turn."""
        return self.compacts or self.clearing is not None


class ManagedContext:
    """Changes of one request's context; writers read them when the reply begins.

    `begun` is True if the conversation began with the request.
    """

    def __init__(self, *, begun: bool = False) -> None:
        self.begun = begun
        self.cleared = ClearedTools()
        self.compaction: ClientCompaction | None = None
        #: True if the reply is the compaction alone.
        self.ends = False

    def write(self) -> bytes:
        """Return the changes as bytes to store with a run."""
        made = self.compaction
        lines = None if made is None else write_lines(made.messages)
        text, usage = ("", Usage()) if made is None else (made.text, made.usage)
        return _STORED + msgspec.msgpack.encode(
            _Stored(self.begun, self.cleared, lines, text, usage)
        )

    @classmethod
    def read(cls, data: bytes) -> ManagedContext:
        """Return the changes that `write` wrote, or none for other data."""
        if not is_context(data):
            return cls()
        stored = msgspec.msgpack.decode(data.removeprefix(_STORED), type=_Stored)
        managed = cls(begun=stored.begun)
        managed.cleared = stored.cleared
        if stored.lines is not None:
            messages = read_lines(stored.lines)
            managed.compaction = ClientCompaction(messages, stored.text, stored.usage)
        return managed


class _Stored(Struct, frozen=True):
    begun: bool
    cleared: ClearedTools
    lines: bytes | None
    text: str
    usage: Usage


def is_context(data: bytes) -> bool:
    """Return True if the data stored with a run are changes of its context."""
    return data.startswith(_STORED)


async def manage_context(
    conversation: Conversation,
    prompt: Sequence[Canister],
    order: ContextOrder,
    managed: ManagedContext,
    hidden: Collection[str],
) -> None:
    """Do with a conversation what an order says, before the turn of a prompt."""
    if order.clearing is not None:
        history, tools = conversation.canisters, conversation.invokers.values()
        digest, managed.cleared = clear_tools(history, prompt, tools, order.clearing)
        if digest is not None:
            await conversation.add([digest])
    if not order.compacts or not (order.forced or await _is_due(conversation, prompt, order)):
        return
    turn = await conversation.compact(order.focus) if conversation.canisters else None
    if (turn is not None and turn.canisters) or order.forced:
        made = await export_compaction(
            conversation,
            prompt,
            hidden={*hidden, *order.hidden},
            repeated=order.repeated,
            usage=Usage() if turn is None else turn.usage,
        )
        managed.compaction = made if order.signer is None else await made.sign(order.signer)
        managed.ends = order.only


def clear_tools(
    history: Sequence[Canister],
    prompt: Sequence[Canister],
    tools: Iterable[Invoker],
    clearing: ToolClearing,
) -> tuple[DigestCanister | None, ClearedTools]:
    """Return the digest that clears uses of tools, or None, and what is cleared then."""
    view = ContextView()
    shown = view.apply(history)
    digest = view.digest or DigestCanister()
    uses = [one for one in (*shown, *prompt) if isinstance(one, ResultCanister)]
    live = [one for one in uses if one.identity not in digest.shortened]
    originals = {one.identity: one for one in history}
    calls = {one.identity: one for one in history if isinstance(one, InvocationCanister)}
    shortened = dict(digest.shortened)
    size = measure_request([*shown, *prompt], tools)
    if _exceeds(size, clearing.tokens) or _exceeds(len(live), clearing.uses):
        # The results in the prompt are new to the model.
        for result in live[: max(len(live) - clearing.keep, 0)]:
            call = calls.get(result.invocation)
            name = "" if call is None else call.name
            if result.identity not in originals or name in clearing.excluded:
                continue
            shortened[result.identity] = describe_omission(result, name, _count_characters(result))
            if call is not None and (clearing.inputs is None or name in clearing.inputs):
                shortened[call.identity] = _NO_ARGUMENTS
    new = shortened.keys() - digest.shortened.keys()
    if new and _count_saved(originals, shortened, new) >= clearing.least:
        made = revise_digest(digest, shortened=shortened)
    else:
        made, shortened = None, dict(digest.shortened)
    cleared = [one for one in uses if one.identity in shortened]
    return made, ClearedTools(len(cleared), _count_saved(originals, shortened, shortened))


def measure_request(messages: Sequence[Canister], tools: Iterable[Invoker]) -> int:
    """Estimate the tokens of a request."""
    # Without the usage of an earlier reply, the tools are counted by their characters.
    characters = sum(map(measure_tokens, messages)) + measure_tools(tools)
    return max(estimate_tokens(reversed(messages)), characters)


async def _is_due(
    conversation: Conversation, prompt: Sequence[Canister], order: ContextOrder
) -> bool:
    settings = conversation.settings
    known = await settings.services.access_windows().window_of(conversation.model)
    nearly = int((known or UNKNOWN_WINDOW) * settings.context.compact_at)
    if order.threshold is not None:
        nearly = min(order.threshold, nearly) if known else order.threshold
    shown = [*ContextView().apply(conversation.canisters), *prompt]
    return measure_request(shown, conversation.invokers.values()) > nearly


def _exceeds(size: int, most: int | None) -> bool:
    return most is not None and size > most


def _count_saved(
    originals: dict[str, Canister], shortened: dict[str, str], names: Collection[str]
) -> int:
    """Return the tokens that texts in place of messages save."""
    return sum(
        max(measure_tokens(originals[one]) - len(shortened[one]) // CHARACTERS_PER_TOKEN, 0)
        for one in names
        if one in originals
    )


def _count_characters(result: ResultCanister) -> int:
    return measure_tokens(result) * CHARACTERS_PER_TOKEN
