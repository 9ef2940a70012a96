"""The items of a streamed reply, one after the other, however their events come.

An item is read from its `done` event, since what came before may be partial; what a server did not
stream of it is taken from there too, so that an unstreamed reply is the same path without deltas.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Raw

from vibe_llms.messages.contents import ImageContent, NativeContent, repair_text
from vibe_llms.providers.deltas import (
    ArgumentsDelta,
    CitationDelta,
    ContentClosed,
    ContentOpened,
    ContentReceived,
    Delta,
    InvocationClosed,
    InvocationOpened,
    ReasoningDelta,
    TextDelta,
)
from vibe_llms.providers.openai.responses.citations import read_citation
from vibe_llms.providers.openai.responses.events import (
    ITEM,
    PART,
    AnnotationAdded,
    ArgumentsGrown,
    Item,
    ItemAdded,
    ItemDone,
    ItemEvent,
    Part,
    PartDone,
    Reader,
    RefusalGrown,
    SummaryGrown,
    TextGrown,
    ThoughtGrown,
)
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.repairs import TextJoiner, repair

_BETWEEN_SUMMARIES = "\n\n"


class OpenItem:
    """The item that is being received.

    `said` is what was passed on of its parts so far, of reasoning and arguments in `said[0]`.
    `reported` are the citations of its parts that were passed on, `ended` the members of the parts
    that are closed.
    """

    def __init__(self, index: int, kind: str) -> None:
        self.index, self.kind = index, kind
        self.said: dict[int, list[str]] = {}
        self.reported: dict[int, int] = {}
        self.ended: dict[int, dict[str, Raw]] = {}
        self.part: int | None = None
        self.place: tuple[str, int] | None = None
        self.joiner = TextJoiner()


class ItemQueue:
    """Events of items in, deltas of one item after the other out.

    An item is known by its place. Some servers give one place to several items and send a message
    twice; there its identity decides. They also add an empty message to calls, which is passed on
    only where the reply says nothing else. `open` is the item that is being received; `called` says
    whether a function was called, `refused` whether the model refused.
    """

    def __init__(self, reader: Reader, name_of: Callable[[str], str]) -> None:
        self._reader = reader
        self._name_of = name_of
        self.open: OpenItem | None = None
        self.called = False
        self.refused = False
        # Events of items that began while another one was open.
        self._waiting: dict[int, list[ItemEvent]] = {}
        # The identities of the items that are whole, by their places.
        self._done: dict[int, str] = {}
        # What was passed on of the messages that are whole, by their identities.
        self._heard: dict[str, str] = {}
        self._blank: tuple[OpenItem, Item, Raw] | None = None
        self._spoke = False
        # Items whose text is not quite what was sent: a lone surrogate cannot be kept.
        self._repaired: set[int] = set()

    @property
    def waiting(self) -> bool:
        """Whether an item is not whole yet."""
        return self.open is not None or bool(self._waiting)

    def note_repair(self, index: object, item: object) -> None:
        """An item as Python read it: whether its text had to be repaired."""
        if isinstance(index, int) and repair(item) != item:
            self._repaired.add(index)

    def accept(self, event: ItemEvent) -> Iterator[Delta]:
        """An event of the open item; those of others wait, since a reply is passed on in order."""
        item = self.open
        if item is not None and event.output_index != item.index:
            self._waiting.setdefault(event.output_index, []).append(event)
            return
        if event.output_index in self._done:
            if not self._is_another(event):
                return
            del self._done[event.output_index]
        yield from self._grow(item, event)
        while self.open is None and self._waiting:
            for one in self._waiting.pop(min(self._waiting)):
                yield from self._grow(self.open, one)

    def accept_rest(self, index: int, raw: Raw) -> Iterator[Delta]:
        """An item of the whole response, where nothing of it was streamed, or not its end."""
        if index in self._done or (self.open is not None and self.open.index != index):
            return
        if self._reader.read(ITEM, raw).id not in self._done.values():
            yield from self.accept(ItemDone(index, raw))

    def conclude(self) -> Iterator[Delta]:
        """The reply ends. Of an item that a limit cut stays what came, of a call only a mark."""
        if self._blank is not None and not self._spoke:
            yield from self._close_message(*self._blank)
        item = self.open
        if item is None:
            return
        if item.kind == "message":
            yield from self._close_part(item)
        elif item.kind == "reasoning" and item.place is not None:
            yield ContentClosed()

    def _is_another(self, event: ItemEvent) -> bool:
        """Whether an item begins at the place of one that is whole."""
        if not isinstance(event, ItemAdded):
            return False
        identity = self._reader.read(ITEM, event.item).id
        return bool(identity) and self._done[event.output_index] not in ("", identity)

    def _grow(self, item: OpenItem | None, event: ItemEvent) -> Iterator[Delta]:
        match event:
            case TextGrown(index, delta, part) | RefusalGrown(index, delta, part):
                item = item or self._begin(index, "message")
                yield from self._say(item, part, delta, refused=type(event) is RefusalGrown)
            case SummaryGrown(index, delta, part):
                item = item or self._begin(index, "reasoning")
                yield from self._think(item, ("summary", part), delta)
            case ThoughtGrown(index, delta, part):
                item = item or self._begin(index, "reasoning")
                yield from self._think(item, ("content", part), delta)
            case ArgumentsGrown(_, delta):
                if item is not None and item.kind == "function_call":
                    yield from self._argue(item, delta)
            case AnnotationAdded(_, annotation, part):
                if item is not None and item.part == part:
                    yield from self._cite(item, part, annotation)
            case PartDone(_, raw, part):
                if item is not None and item.kind == "message":
                    item.ended[part] = self._reader.members(raw)
            case ItemAdded(index, raw):
                if item is None:
                    yield from self._open(index, self._reader.read(ITEM, raw))
            case ItemDone(index, raw):
                kept = self._reader.keep(raw)
                head = self._reader.read(ITEM, kept)
                if item is None:
                    yield from self._open(index, head)
                assert self.open is not None
                yield from self._close(self.open, head, kept)

    def _begin(self, index: int, kind: str) -> OpenItem:
        self.open = OpenItem(index, kind)
        return self.open

    def _open(self, index: int, head: Item) -> Iterator[Delta]:
        self._begin(index, repair_text(head.type))
        if head.type == "function_call":
            self.called = True
            name = self._name_of(repair_text(head.name or ""))
            yield InvocationOpened(name, repair_text(head.call_id or ""))

    def _say(
        self, item: OpenItem, part: int, text: str, *, refused: bool = False
    ) -> Iterator[Delta]:
        if item.part != part:
            yield from self._close_part(item)
            item.part = part
            yield ContentOpened("text")
        self.refused = self.refused or refused
        if text := item.joiner.join(text):
            item.said.setdefault(part, []).append(text)
            yield TextDelta(text)

    def _think(self, item: OpenItem, place: tuple[str, int], text: str) -> Iterator[Delta]:
        if item.place is None:
            yield ContentOpened("reasoning")
        elif item.place != place:
            text = _BETWEEN_SUMMARIES + text
        item.place = place
        if text := item.joiner.join(text):
            item.said.setdefault(0, []).append(text)
            yield ReasoningDelta(text)

    def _argue(self, item: OpenItem, text: str) -> Iterator[Delta]:
        if text := item.joiner.join(text):
            item.said.setdefault(0, []).append(text)
            yield ArgumentsDelta(text)

    def _cite(self, item: OpenItem, part: int, annotation: Raw) -> Iterator[Delta]:
        item.reported[part] = item.reported.get(part, 0) + 1
        if (citation := read_citation(self._reader.keep(annotation))) is not None:
            yield CitationDelta(citation)

    def _close_part(
        self, item: OpenItem, whole: Mapping[str, Raw] | None = None
    ) -> Iterator[Delta]:
        """The open part of a message ends; `whole` are the members of the message, if it does too.

        The identity of the message is known only where it has come to its end.
        """
        part = item.part
        if part is None:
            return
        if rest := item.joiner.conclude():
            item.said.setdefault(part, []).append(rest)
            yield TextDelta(rest)
        item.part = None
        ended = item.ended.get(part)
        native = None
        if ended is not None:
            members = {k: v for k, v in ended.items() if k not in ("text", "refusal")}
            payload: dict[str, Any] = {"place": item.index, "part": members}
            if whole is not None:
                payload["item"] = whole
            native = Raw(encode_json(payload))
        yield ContentClosed(native)

    def _close(self, item: OpenItem, head: Item, kept: Raw) -> Iterator[Delta]:
        self._done[item.index] = head.id or ""
        self._spoke = self._spoke or item.kind not in ("message", "reasoning")
        match item.kind:
            case "message" if self._is_blank(item, head):
                self._blank = (item, head, kept)
            case "message":
                self._spoke = True
                yield from self._close_message(item, head, kept)
            case "reasoning":
                yield from self._close_reasoning(item, head, kept)
            case "function_call":
                yield from self._close_call(item, head, kept)
            case "image_generation_call" if head.result:
                yield self._receive_image(head, kept)
            case label:
                yield ContentReceived(NativeContent(label=label), kept)
        self.open = None

    def _is_blank(self, item: OpenItem, head: Item) -> bool:
        """Whether a message says nothing, or nothing that was not heard before."""
        if item.part is not None:
            return False
        parts = [self._reader.read(PART, raw) for raw in head.content or ()]
        text = "".join(part.refusal or part.text or "" for part in parts)
        heard = self._heard.get(head.id or "", "")
        cited = not heard and any(part.annotations for part in parts)
        return repair_text(text) == heard and not cited

    def _close_call(self, item: OpenItem, head: Item, kept: Raw) -> Iterator[Delta]:
        reported = "".join(item.said.get(0, ()))
        arguments = repair_text(head.arguments or "")
        if arguments.startswith(reported):
            yield from self._argue(item, arguments[len(reported) :])
        if rest := item.joiner.conclude():
            yield ArgumentsDelta(rest)
        members = self._reader.members(kept)
        for name in ("type", "call_id", "name", "arguments"):
            members.pop(name, None)
        kept_as_sent = members and item.index not in self._repaired
        yield InvocationClosed(Raw(encode_json(members)) if kept_as_sent else None)

    def _close_message(self, item: OpenItem, head: Item, kept: Raw) -> Iterator[Delta]:
        members = self._reader.members(kept)
        members.pop("content", None)
        parts = head.content or []
        before = self._heard.get(head.id or "", "")
        for number, raw in enumerate(parts):
            part = self._reader.read(PART, raw)
            reported = "".join((before if number == 0 else "", *item.said.get(number, ())))
            item.ended[number] = self._reader.members(raw)
            if number < (item.part or 0):
                continue
            yield from self._say_rest(item, number, part, reported)
            last = number == len(parts) - 1 and item.index not in self._repaired
            yield from self._close_part(item, members if last else None)
        yield from self._close_part(item)
        if head.id:
            said = (text for number in sorted(item.said) for text in item.said[number])
            self._heard[head.id] = before + "".join(said)

    def _say_rest(self, item: OpenItem, number: int, part: Part, reported: str) -> Iterator[Delta]:
        """What was not streamed of a part that is whole."""
        refused = part.type == "refusal"
        text = repair_text((part.refusal if refused else part.text) or "")
        if text.startswith(reported):
            yield from self._say(item, number, text[len(reported) :], refused=refused)
        for annotation in (part.annotations or [])[item.reported.get(number, 0) :]:
            yield from self._cite(item, number, annotation)

    def _close_reasoning(self, item: OpenItem, head: Item, kept: Raw) -> Iterator[Delta]:
        if item.place is None:
            yield ContentOpened("reasoning")
        parts = [
            *(head.summary or ()),
            *(self._reader.read(PART, raw) for raw in head.content or ()),
        ]
        whole = repair_text(_BETWEEN_SUMMARIES.join(part.text for part in parts if part.text))
        reported = "".join(item.said.get(0, ()))
        rest = item.joiner.join(whole[len(reported) :] if whole.startswith(reported) else "")
        if rest := rest + item.joiner.conclude():
            yield ReasoningDelta(rest)
        # Altered reasoning is refused, also where only its summary is.
        yield ContentClosed(None if item.index in self._repaired else kept)

    def _receive_image(self, head: Item, kept: Raw) -> ContentReceived:
        """A picture that the model made: its bytes are kept once, apart from the rest."""
        try:
            data = base64.b64decode(head.result or "", validate=True)
        except binascii.Error as error:
            raise self._reader.malformed(f"a picture is not in base64 ({error})") from error
        members = self._reader.members(kept)
        members.pop("result", None)
        mimetype = f"image/{repair_text(head.output_format or 'png')}"
        return ContentReceived(ImageContent(data, mimetype), Raw(encode_json(members)))
