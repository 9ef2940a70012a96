"""Finds the item of a streamed reply that an event belongs to.

An event names its item by a place (`output_index`) and an identity. Servers may omit one or both,
give one place to several items, or send another identity with each event. The place decides if its
item is of the right kind; then the identity; then the last open item.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from msgspec import Raw

from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.openai.responses.events import (
    ITEM,
    PART,
    PLACE,
    AnnotationAdded,
    ArgumentsDone,
    ArgumentsGrown,
    Item,
    ItemAdded,
    ItemDone,
    ItemEvent,
    ItemPart,
    PartAdded,
    PartDone,
    Reader,
    RefusalDone,
    RefusalGrown,
    SummaryAdded,
    SummaryDone,
    SummaryGrown,
    TextDone,
    TextGrown,
    ThoughtDone,
    ThoughtGrown,
)
from vibe_llms.providers.repairs import TextJoiner

_KINDS: dict[type[Any], str] = {
    **dict.fromkeys((TextGrown, RefusalGrown, TextDone, RefusalDone, AnnotationAdded), "message"),
    **dict.fromkeys((SummaryGrown, ThoughtGrown, SummaryAdded), "reasoning"),
    **dict.fromkeys((SummaryDone, ThoughtDone), "reasoning"),
    **dict.fromkeys((ArgumentsGrown, ArgumentsDone), "function_call"),
    **dict.fromkeys((PartAdded, PartDone), "message"),
}
#: Number of items that are compared if many have the same place or none.
_NEAR = 16
#: Events that do not begin an item.
_LATER = (AnnotationAdded, PartAdded, SummaryAdded)
#: Events that repeat the text of deltas.
_REPEATS = (TextDone, RefusalDone, SummaryDone, ThoughtDone, PartDone)


class SaidPart:
    """The part of a message that was passed on; `members` are set at its end."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.pieces: list[str] = []
        self.cited = 0
        self.members: dict[str, Raw] | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)


class ReplyItem:
    """An item of the reply.

    `index` is its place; `identities` holds all ids that its events had. It is `implied` if it
    began without an event of its own, `done` once its last event has come, `over` if no such event
    will come, and `closed` once all of it was passed on.
    """

    def __init__(self, number: int, kind: str, index: int | None, *, implied: bool) -> None:
        self.number, self.kind, self.index, self.implied = number, kind, index, implied
        self.identities: set[str] = set()
        self.waiting: list[ItemEvent] = []
        self.done = self.over = self.closed = False
        self.begun: Item | None = None
        self.joiner = TextJoiner()
        # Parts of a message, and the open one. `announced` means that a new part begins, `sealed`
        # that the open part is complete.
        self.parts: list[SaidPart] = []
        self.part: SaidPart | None = None
        self.announced = self.sealed = False
        # Text of reasoning, the start of its last part, and the place of that part.
        self.thoughts: list[str] = []
        self.begins = 0
        self.place: tuple[str, int | None] | None = None
        # Members of a call.
        self.name = self.call = ""
        self.arguments: list[str] = []
        self.opened = self.stated = False
        self.kept: Raw | None = None

    @property
    def between(self) -> bool:
        """True if an event separates the last part from the next."""
        return self.announced or self.sealed

    @property
    def text(self) -> str:
        """The text of a message that was passed on."""
        return "".join(part.text for part in self.parts)

    def begins_like(self, parts: Sequence[ItemPart], before: str) -> bool:
        """Return True if the text passed on is the beginning of these parts, part by part."""
        for number, said in enumerate(self.parts):
            if number >= len(parts):
                return False
            whole = repair_text(text_of(parts[number]))
            text = (before if number == 0 else "") + said.text
            if not (whole == text if number < len(self.parts) - 1 else whole.startswith(text)):
                return False
        return bool(parts)

    def is_like(self, head: Item, text: str) -> bool:
        """Return True if an item of the whole response may be this one."""
        match self.kind:
            case "message":
                return self.text.startswith(text) or text.startswith(self.text)
            case "function_call":
                if self.call and head.call_id:
                    return self.call == head.call_id
                return not (self.name and head.name) or self.name == head.name
            case _:
                return True


class ReplyPlaces:
    """The items of a reply; those from `taken` on are not in the queue yet."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._items: list[ReplyItem] = []
        self._unfinished: list[ReplyItem] = []
        # The items at each place, the last item of each kind, and the last of each identity.
        self._here: dict[int | None, list[ReplyItem]] = {}
        self._latest: dict[str, ReplyItem] = {}
        self._known: dict[str, ReplyItem] = {}
        self.taken = 0

    def find(self, event: ItemEvent, data: bytes) -> ReplyItem | None:
        """Return the item of an event, perhaps a new one, or None if the event only repeats."""
        if isinstance(event, ItemAdded):
            return self._find_added(event)
        if isinstance(event, ItemDone):
            return self._find_done(event)
        kind, index = _KINDS[type(event)], event.output_index
        identity = self._reader.read(PLACE, Raw(data)).item_id or "" if data else ""
        found = self._find_open(event, kind, index, identity)
        if found is not None:
            known = not identity or identity in found.identities
            if not (found.closed or (found.done and found.kind != "function_call")):
                self._name(found, identity)
                return found
            # It is complete: events with its place or identity are late, others are of a new item.
            if isinstance(event, _REPEATS) or (known and (identity or index is not None)):
                return None
        if isinstance(event, _LATER) or (isinstance(event, PartDone) and not self._says(event)):
            return None
        return self._begin(kind, index, identity, implied=True)

    def match(self, heads: Sequence[Item]) -> list[ReplyItem]:
        """Return the streamed or new item for each item of the whole response."""
        calls = {one.call: one for one in self._items if one.call}
        streamed = tuple(self._items)
        texts = [self._text_of(head) for head in heads]
        found: dict[int, ReplyItem] = {}
        free = dict.fromkeys(streamed)

        def take(number: int, candidates: Iterable[ReplyItem | None], *, alike: bool) -> None:
            head = heads[number]
            for one in candidates if number not in found else ():
                if one is None or one not in free or one.kind != kind_of(head):
                    continue
                if not alike or one.is_like(head, texts[number]):
                    del free[one]
                    found[number] = one
                    return

        for number, head in enumerate(heads):
            known = (self._known.get(head.id or ""), calls.get(head.call_id or ""))
            take(number, known, alike=False)
        for number in range(len(heads)):
            take(number, self._here.get(number, [])[-_NEAR:], alike=True)
        for number in range(len(heads)):
            take(number, list(islice(free, _NEAR)), alike=True)
        return [
            found.get(number) or self._begin(kind_of(head), number, head.id or "")
            for number, head in enumerate(heads)
        ]

    def _begin(
        self, kind: str, index: int | None, identity: str, *, implied: bool = False
    ) -> ReplyItem:
        if self._items and self._items[-1].implied and not self._items[-1].done:
            # No event will end it.
            self._items[-1].over = self._items[-1].kind != "function_call"
        item = ReplyItem(len(self._items), kind, index, implied=implied)
        self._items.append(item)
        self._unfinished = [one for one in self._unfinished if not one.done and not one.closed]
        self._unfinished.append(item)
        self._here.setdefault(index, []).append(item)
        self._latest[kind] = item
        self._name(item, identity)
        return item

    def _name(self, item: ReplyItem, identity: str) -> None:
        if identity:
            item.identities.add(identity)
            self._known[identity] = item

    def _find_open(
        self, event: ItemEvent, kind: str, index: int | None, identity: str
    ) -> ReplyItem | None:
        if index is not None:
            at_place = self._here.get(index, [])[: -_NEAR - 1 : -1]
            for one in at_place:
                if _suits(one, event, kind):
                    return one
            _take_place(at_place)
        named = self._known.get(identity)
        if named is not None and _suits(named, event, kind):
            return named
        for one in reversed(self._unfinished):
            # A server that omits the places of items may still count their parts.
            open_ = not one.done and not one.closed and (index is None or one.index is None)
            if open_ and _suits(one, event, kind):
                return one
        return self._latest.get(kind) if index is None and not identity else None

    def _find_added(self, event: ItemAdded) -> ReplyItem | None:
        head = self._reader.read(ITEM, event.item)
        kind, index, identity = kind_of(head), event.output_index, head.id or ""
        named = self._known.get(identity)
        here = self._here.get(index, []) if index is not None else []
        one = here[-1] if here else named
        if one is None and index is None:
            one = self._latest.get(kind)
            one = one if one is not None and one.implied else None
        if one is None or (not here and index is not None and one.index is not None):
            return self._begin(kind, index, identity)
        same = one.kind == kind and one is named
        if one.done or one.closed:
            return None if same and here else self._begin(kind, index, identity)
        if one.kind == kind and (same or one.implied or not (identity and one.identities)):
            # Its deltas came first, or it is announced again.
            one.implied = False
            self._name(one, identity)
            return one
        _take_place([one])
        return self._begin(kind, index, identity)

    def _find_done(self, event: ItemDone) -> ReplyItem | None:
        head = self._reader.read(ITEM, event.item)
        kind, index, identity = kind_of(head), event.output_index, head.id or ""
        item = self._find_unfinished(head, kind, index, identity)
        if item is None:
            if self._repeats(head, kind, index, identity):
                return None
            item = self._begin(kind, index, identity)
        item.done = True
        self._name(item, identity)
        return item

    def _find_unfinished(
        self, head: Item, kind: str, index: int | None, identity: str
    ) -> ReplyItem | None:
        """Return the unfinished item that an event ends."""
        unfinished = [one for one in reversed(self._unfinished) if not (one.done or one.closed)]
        if index is not None:
            _take_place([one for one in unfinished if one.index == index and one.kind != kind])
        alike = [one for one in unfinished if one.kind == kind and self._may_be(one, head)]
        for one in alike:
            if index is not None and one.index == index:
                return one
        for one in alike:
            if identity and identity in one.identities:
                return one
        return next((one for one in alike if index is None or one.index is None), None)

    def _repeats(self, head: Item, kind: str, index: int | None, identity: str) -> bool:
        """Return True if a complete item is sent again."""
        text = self._text_of(head)
        named = self._known.get(identity)
        if named is not None and named.kind == kind and (named.done or named.closed):
            return index is None or named.index in (None, index)
        for one in self._here.get(index, [])[-_NEAR:]:
            if one.kind != kind or not (one.done or one.closed):
                continue
            unknown = not identity or not one.identities
            if kind == "function_call":
                if one.call and one.call == head.call_id:
                    return True
                if unknown and not head.call_id:
                    return True
            elif kind == "message":
                if text == one.text:
                    return True
            elif unknown:
                return True
        return False

    @staticmethod
    def _may_be(one: ReplyItem, head: Item) -> bool:
        return not (one.call and head.call_id) or one.call == head.call_id

    def _text_of(self, head: Item) -> str:
        parts = (self._reader.read(PART, raw) for raw in head.content or ())
        return repair_text("".join(map(text_of, parts)))

    def _says(self, event: PartDone) -> bool:
        """Return True if the end of a part has text that may be missing."""
        if bytes(event.part) == b"null":
            return False
        part = self._reader.read(PART, event.part)
        return part.type != "reasoning_text" and bool(text_of(part))


def _take_place(items: Sequence[ReplyItem]) -> None:
    """Mark items as over because another item took their index."""
    for one in items:
        if not one.done and one.kind != "function_call":
            one.over = True


def _suits(one: ReplyItem, event: ItemEvent, kind: str) -> bool:
    if kind == "function_call":
        # Items of tools that the server runs may have arguments too.
        return one.kind not in ("message", "reasoning")
    return one.kind == kind or (one.kind == "reasoning" and isinstance(event, PartAdded | PartDone))


def text_of(part: ItemPart) -> str:
    """Return the text of a part, or of a refusal."""
    return (part.refusal if part.type == "refusal" else part.text) or part.text or ""


def kind_of(head: Item) -> str:
    """Return the type of an item, or infer it from its members."""
    if head.type:
        return repair_text(head.type)
    if head.call_id or head.arguments is not None:
        return "function_call"
    return "message" if head.content is not None else "reasoning" if head.summary else ""
