"""What followers and the model are told where a worker continues a run: what starts again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from vibe_llms.conversations.corrections import describe_correction, is_correction
from vibe_llms.ensembles.interfaces import Ensemble, OutsideEnsemble
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
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
    MessageCompleted,
    MessageDelta,
    MessageFailed,
    MessageStarted,
    RunContinued,
    RunEvent,
    RunNotice,
)

#: What a run adds after its prompt.
_OF_RUNS = (AssistantCanister, InvocationCanister, ResultCanister)


def find_own(
    history: Sequence[Canister], prompt: Sequence[Canister], elsewhere: Collection[str] = ()
) -> Sequence[Canister]:
    """The messages of a run in a history: its prompt, and what it added, until something else did.

    The results of tools that run `elsewhere` are of the next turn.
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
        added = isinstance(canister, _OF_RUNS) or is_correction(history, place)
        if answers or not added:
            return history[places[0] : place]
    return history[places[0] :]


def find_end(history: Sequence[Canister], prompt: Sequence[Canister]) -> str:
    """The last message of a run that other messages follow; empty if it is the last of all."""
    own = find_own(history, prompt)
    return own[-1].identity if own and own[-1] is not history[-1] else ""


def describe_loss(history: Sequence[Canister], ensembles: Iterable[Ensemble]) -> Iterator[str]:
    """What the model has to know of the programs that its calls have used: they may be new ones."""
    programs = {one.name for one in ensembles if isinstance(one, OutsideEnsemble)}
    calls = [one.name.partition("/")[0] for one in history if isinstance(one, InvocationCanister)]
    if used := sorted(programs.intersection(calls)):
        yield (
            f"This turn was interrupted and continues now. What the tools of {', '.join(used)} had "
            "in memory before, such as variables, open files and connections, may be lost. Check "
            "it before you rely on it."
        )


def find_open(events: Sequence[RunEvent], stored: Collection[str]) -> str:
    """The message that was begun last and is not in the history; empty if there is none."""
    opened = ""
    for event in events:
        match event:
            case MessageStarted(message=message):
                opened = message
            case MessageCompleted() | MessageFailed() | RunContinued():
                opened = ""
    return "" if opened in stored else opened


def count_vain(events: Sequence[RunEvent]) -> int:
    """How many workers in a row have continued the run, and then kept nothing."""
    vain = 0
    for event in events:
        match event:
            case RunContinued():
                vain += 1
            case MessageCompleted() | CallEnded() | ApprovalRequested() | AnswerRequested():
                vain = 0
    return vain


def find_missing(events: Sequence[RunEvent], added: Sequence[Canister]) -> Iterator[RunEvent]:
    """The events that were lost with a worker, for what it had added to the history."""
    started = {one.message for one in events if isinstance(one, MessageStarted)}
    ended = {one.message for one in events if isinstance(one, MessageCompleted | MessageFailed)}
    running = {one.invocation for one in events if isinstance(one, CallStarted)}
    returned = {one.invocation for one in events if isinstance(one, CallEnded)}
    shown: dict[tuple[str, DeltaKind], int] = {}
    for one in events:
        if isinstance(one, MessageDelta):
            key = (one.message, one.kind)
            shown[key] = shown.get(key, 0) + len(one.text)
    noticed = {one.message for one in events if isinstance(one, RunNotice)}
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
            case UserCanister() if identity not in noticed:
                # A correction: a run adds no other message of this kind.
                yield RunNotice("output", describe_correction(canister), identity)


def _texts_of(canister: AssistantCanister | InvocationCanister) -> Iterator[tuple[DeltaKind, str]]:
    if isinstance(canister, InvocationCanister):
        yield "arguments", canister.arguments
        return
    contents = canister.contents
    yield "reasoning", "".join(one.text for one in contents if isinstance(one, ReasoningContent))
    yield "text", "".join(one.text for one in contents if isinstance(one, TextualContent))
