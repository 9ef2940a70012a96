"""Recovery of a run by another worker: lost events, and notes to the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from vibe_llms.base.exceptions import RequestError
from vibe_llms.conversations.corrections import (
    describe_correction,
    find_last_prompt,
    is_correction,
)
from vibe_llms.conversations.history import start_of_turn
from vibe_llms.invocation.ensembles import Ensemble, OutsideEnsemble
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
    role_of,
)
from vibe_llms.messages.contents import ReasoningContent, TextualContent
from vibe_llms.runs.events import (
    AnswerRequested,
    ApprovalRequested,
    CallEnded,
    CallStarted,
    DeltaKind,
    MessageAdded,
    MessageCompleted,
    MessageDelta,
    MessageFailed,
    MessageStarted,
    RunContinued,
    RunEvent,
    RunNotice,
)

#: Types of messages that a run adds after its prompt.
_ADDED_TYPES = (AssistantCanister, InvocationCanister, ResultCanister, DigestCanister)


def find_own(
    history: Sequence[Canister], prompt: Sequence[Canister], elsewhere: Collection[str] = ()
) -> Sequence[Canister]:
    """Return the messages of a run in a history: its prompt and the messages that it added.

    Results of tools that run `elsewhere` belong to the next turn.
    """
    asked = {one.identity for one in prompt}
    places = [place for place, one in enumerate(history) if one.identity in asked]
    if not places:
        return ()
    calls: set[str] = set()
    for place in range(places[-1] + 1, len(history)):
        canister = history[place]
        if isinstance(canister, InvocationCanister) and canister.name in elsewhere:
            calls.add(canister.identity)
        answers = isinstance(canister, ResultCanister) and canister.invocation in calls
        steered = isinstance(canister, UserCanister) and canister.steered
        added = isinstance(canister, _ADDED_TYPES) or steered or is_correction(history, place)
        if answers or not added:
            return history[places[0] : place]
    return history[places[0] :]


def find_unanswered(history: Sequence[Canister]) -> Sequence[Canister]:
    """Return the prompt of the last turn, if the model is to answer the history.

    Raises `RequestError` if there is no prompt, or the last message is a reply.
    """
    start, last = start_of_turn(history), find_last_prompt(history)
    if start is None or last is None:
        raise RequestError("the conversation has no message to answer; send a prompt")
    said = [one for one in history if not isinstance(one, DigestCanister)]
    if isinstance(said[-1], AssistantCanister):
        raise RequestError(
            "the conversation ends with a reply; send a prompt, or fork it at the message that is "
            "to be answered again"
        )
    return history[start : last + 1]


def find_end(history: Sequence[Canister], prompt: Sequence[Canister]) -> str:
    """Return the last message of a run if other messages follow it, else an empty string."""
    own = find_own(history, prompt)
    return own[-1].identity if own and own[-1] is not history[-1] else ""


def describe_loss(history: Sequence[Canister], ensembles: Iterable[Ensemble]) -> Iterator[str]:
    """Yield a note to the model about tool programs that may have lost their state."""
    programs = {one.name for one in ensembles if isinstance(one, OutsideEnsemble)}
    calls = [one.name.partition("/")[0] for one in history if isinstance(one, InvocationCanister)]
    if used := sorted(programs.intersection(calls)):
        yield (
            "This turn was interrupted and continues now. The state that the tools of "
            f"{', '.join(used)} had in memory, such as variables, open files and "
            "connections, may be lost. Check it before you rely on it."
        )


def find_open(events: Sequence[RunEvent], stored: Collection[str]) -> str:
    """Return the last started message that is not in the history, or an empty string."""
    opened = ""
    for event in events:
        match event:
            case MessageStarted(message=message):
                opened = message
            case MessageCompleted() | MessageFailed() | RunContinued():
                opened = ""
    return "" if opened in stored else opened


def count_fruitless(events: Sequence[RunEvent]) -> int:
    """Return how many workers in a row have continued the run without storing anything."""
    fruitless = 0
    for event in events:
        match event:
            case RunContinued():
                fruitless += 1
            case MessageCompleted() | CallEnded() | ApprovalRequested() | AnswerRequested():
                fruitless = 0
    return fruitless


def find_missing(events: Sequence[RunEvent], added: Sequence[Canister]) -> Iterator[RunEvent]:
    """Yield the events that a worker lost, for the messages that it added to the history."""
    started = {one.message for one in events if isinstance(one, MessageStarted)}
    ended = {one.message for one in events if isinstance(one, MessageCompleted | MessageFailed)}
    running = {one.invocation for one in events if isinstance(one, CallStarted)}
    returned = {one.invocation for one in events if isinstance(one, CallEnded)}
    shown: dict[tuple[str, DeltaKind], int] = {}
    for one in events:
        if isinstance(one, MessageDelta):
            key = (one.message, one.kind)
            shown[key] = shown.get(key, 0) + len(one.text)
    noticed = {one.message for one in events if isinstance(one, RunNotice | MessageAdded)}
    names = {one.identity: one.name for one in added if isinstance(one, InvocationCanister)}
    for canister in added:
        identity = canister.identity
        match canister:
            case AssistantCanister() | InvocationCanister() if identity not in ended:
                if identity not in started:
                    name = getattr(canister, "name", "")
                    yield MessageStarted(identity, role_of(canister), canister.reply, name)
                for kind, text in _texts_of(canister):
                    if rest := text[shown.get((identity, kind), 0) :]:
                        yield MessageDelta(identity, rest, kind)
                yield MessageCompleted(identity)
            case ResultCanister(invocation=call) if call not in returned:
                if call not in running:
                    yield CallStarted(call, names.get(call, ""))
                yield CallEnded(call, identity, canister.failed)
            case UserCanister(steered=True) if identity not in noticed:
                yield MessageAdded(identity)
            case UserCanister() if identity not in noticed:
                # A correction, the only other message of this kind that a run adds.
                yield RunNotice("output", describe_correction(canister), identity)


def _texts_of(canister: AssistantCanister | InvocationCanister) -> Iterator[tuple[DeltaKind, str]]:
    if isinstance(canister, InvocationCanister):
        yield "arguments", canister.arguments
        return
    contents = canister.contents
    yield "reasoning", "".join(one.text for one in contents if isinstance(one, ReasoningContent))
    yield "text", "".join(one.text for one in contents if isinstance(one, TextualContent))
