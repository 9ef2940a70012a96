"""Messages of other programs as canisters, the same at every import.

The identity of a canister is made of the source's id of its message and of the message's own time,
so an import that is repeated gives the same lines, and a conversation that has grown only more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import assert_never

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import ImportUnreadable
from vibe_llms.importing.media import LoadedMedia, load_media
from vibe_llms.importing.messages import (
    ExportedCall,
    ExportedContent,
    ExportedConversation,
    ExportedDocument,
    ExportedMedia,
    ExportedMessage,
    ExportedPart,
    ExportedResult,
)
from vibe_llms.importing.trees import MessageTree
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    Provenance,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import Content, Reference, TextualContent
from vibe_llms.messages.identities import derive_timed_identity

#: Model of a reply if the source does not name it.
UNKNOWN_MODEL = "unknown"
_EPOCH = datetime.fromtimestamp(0, UTC)


class OpenCall(Struct, frozen=True):
    """A call without a result yet: the identity of its canister, the source's id, and the tool."""

    identity: str
    call: str
    name: str


class DraftState(Struct, frozen=True):
    """State after a message: the calls without results so far, and the time."""

    calls: tuple[OpenCall, ...] = ()
    created: datetime | None = None


class Drafter:
    """Maker of the canisters of one conversation. `source` is the name of the importer's row.

    `losses` counts what could not be imported, and `notes` what became something else.
    """

    def __init__(
        self, conversation: ExportedConversation, tree: MessageTree, *, source: str, module: str
    ) -> None:
        self._conversation = conversation
        self._tree = tree
        self._source = source
        self._module = module
        self._places: dict[str, DraftState] = {"": DraftState(created=conversation.created)}
        self._canisters: dict[str, tuple[Canister, ...]] = {}
        self.losses: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        #: Files of the export that canisters refer to, by hash.
        self.media: dict[str, LoadedMedia] = {}

    def draft(self, identity: str) -> Sequence[Canister]:
        """Return the canisters of a message, drafting those before it first."""
        for one in self._tree.path(identity):
            if one not in self._canisters:
                place = self._places[self._tree.parents[one]]
                draft = _Draft(self, self._tree.messages[one], place)
                self._canisters[one] = tuple(draft.canisters)
                self._places[one] = draft.place
        return self._canisters[identity]

    def count_unanswered(self, ends: Sequence[str]) -> int:
        """Return the number of calls without a result on the branches to these messages."""
        return len({call.identity for end in ends for call in self._places[end].calls})

    def identify(self, message: ExportedMessage, part: str, created: datetime | None) -> str:
        """Return the identity of a part of a message."""
        names = (self._source, self._conversation.id, message.id, part)
        known = created if self._conversation.dated else None
        return derive_timed_identity(known, "\0".join(names))

    def date(self, created: datetime | None) -> datetime:
        """Return the time of a canister, which is always known."""
        return created or self._conversation.fallback or _EPOCH

    def provenance(self, message: ExportedMessage) -> Provenance:
        """Return the source of a reply, with the model that the source names."""
        return Provenance(self._module, self._source, message.model or UNKNOWN_MODEL)


class _Draft:
    """The canisters of one message in its place."""

    def __init__(self, drafter: Drafter, message: ExportedMessage, place: DraftState) -> None:
        self._drafter = drafter
        self._message = message
        self._known = message.created or place.created
        self._created = drafter.date(self._known)
        self._calls = list(place.calls)
        self._replies = 0
        self._replying = False
        self.canisters: list[Canister] = []
        waiting: list[Content] = []
        for part in _arrange(message):
            match part:
                case ExportedCall():
                    self._speak(waiting)
                    self._call(part)
                case ExportedResult():
                    self._speak(waiting)
                    self._answer(part)
                case ExportedDocument(contents=contents, title=title):
                    self._speak(waiting)
                    self._attach(self._load(contents), title)
                case _:
                    waiting += self._load([part])
        self._speak(waiting)
        self._end()

    @property
    def place(self) -> DraftState:
        """The place of the messages after this one."""
        return DraftState(tuple(self._calls), self._known)

    def _identify(self, part: str = "") -> str:
        name = part or str(len(self.canisters))
        return self._drafter.identify(self._message, name, self._known)

    def _reply(self) -> str:
        """Return the identity of the round trip, which a result ends."""
        if not self._replying:
            self._replies += 1
            self._replying = True
        return self._identify(f"reply {self._replies}")

    def _speak(self, waiting: list[Content]) -> None:
        """Add a canister of contents, and empty the list."""
        contents = tuple(waiting)
        waiting.clear()
        if not contents:
            return
        identity, created = self._identify(), self._created
        match self._message.speaker:
            case "user":
                self.canisters.append(UserCanister(contents, identity=identity, created=created))
            case "supervisor":
                self.canisters.append(
                    SupervisorCanister(contents, identity=identity, created=created)
                )
            case "assistant":
                self.canisters.append(
                    AssistantCanister(
                        contents,
                        identity=identity,
                        created=created,
                        reply=self._reply(),
                        provenance=self._drafter.provenance(self._message),
                    )
                )
            case "tool":
                self._attach(contents, "")
            case never:
                assert_never(never)

    def _attach(self, contents: tuple[Content, ...], title: str) -> None:
        self._replying = False
        if contents:
            self.canisters.append(
                DocumentCanister(
                    contents, identity=self._identify(), created=self._created, title=title
                )
            )

    def _call(self, part: ExportedCall) -> None:
        identity = self._identify()
        self.canisters.append(
            InvocationCanister(
                identity=identity,
                created=self._created,
                name=part.name,
                arguments=part.arguments or "{}",
                call=part.call,
                reply=self._reply(),
                provenance=self._drafter.provenance(self._message),
            )
        )
        self._calls.append(OpenCall(identity, part.call, part.name))

    def _answer(self, part: ExportedResult) -> None:
        contents = self._load(part.contents)
        call = self._take_call(part)
        if call is None:
            self._drafter.notes["result without a call, kept as a document"] += 1
            self._attach(contents, f"Result of {part.name}" if part.name else "Result")
            return
        self._replying = False
        self.canisters.append(
            ResultCanister(
                contents,
                identity=self._identify(),
                created=self._created,
                invocation=call.identity,
                failed=part.failed,
            )
        )

    def _take_call(self, part: ExportedResult) -> OpenCall | None:
        """Return the call that a result belongs to, and close it."""
        if part.call:
            fitting = [one for one in self._calls if one.call == part.call]
        else:
            fitting = [one for one in self._calls if one.name == part.name] or self._calls
        if not fitting:
            return None
        call = fitting[-1]
        self._calls.remove(call)
        return call

    def _end(self) -> None:
        """Mark the last canister of the reply with its usage and the reason of its end."""
        message = self._message
        if not self._replying or not (message.reason or message.usage or message.interrupted):
            return
        reason = StopReason.INTERRUPTED if message.interrupted else message.reason
        ending = Ending(
            reason or StopReason.FINISHED, usage=message.usage, interrupted=message.interrupted
        )
        self.canisters[-1] = msgspec.structs.replace(self.canisters[-1], ending=ending)

    def _load(self, contents: Sequence[ExportedContent]) -> tuple[Content, ...]:
        loaded: list[Content] = []
        for content in contents:
            if not isinstance(content, ExportedMedia):
                loaded.append(content)
                continue
            try:
                found = load_media(content)
            except ImportUnreadable as error:
                self._drafter.losses["file that cannot be read"] += 1
                loaded.append(TextualContent(f"[{error}]"))
                continue
            if isinstance(found.content.data, Reference):
                self._drafter.media[found.content.data.hash] = found
            loaded.append(found.content)
        return tuple(loaded)


def _arrange(message: ExportedMessage) -> Sequence[ExportedPart]:
    """Return the parts of a message; what the user attached comes before the words."""
    parts = message.parts
    if message.speaker != "user" or any(isinstance(part, ExportedResult) for part in parts):
        return parts
    return sorted(parts, key=lambda part: not isinstance(part, ExportedDocument))
