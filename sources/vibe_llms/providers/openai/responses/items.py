"""Items of a streamed reply, passed on one after the other in any order of their events.

An item is read from its `done` event, since earlier events may be partial. The part of it that was
not streamed is taken from there too, so an unstreamed reply takes the same path without deltas.
Servers may omit events: `places.py` finds the item of an event, and items without an end of their
own end with the reply.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Raw

from vibe_llms.base.exceptions import ReplyCut
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
from vibe_llms.providers.openai.responses.places import ReplyItem, ReplyPlaces, SaidPart, text_of
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.repairs import is_object, repair

_BETWEEN_SUMMARIES = "\n\n"


class ItemQueue:
    """Queue that turns events of items into deltas of one item after the other.

    Some servers give one place to several items and send a message twice; its identity then
    decides. They also add an empty message to calls, which is passed on only if the reply has no
    other content. `open` is the item that is being received. `called` is True after a function
    call, `refused` after a refusal.
    """

    def __init__(self, reader: Reader, name_of: Callable[[str], str]) -> None:
        self._reader = reader
        self._name_of = name_of
        self.open: ReplyItem | None = None
        self.called = False
        self.refused = False
        self._places = ReplyPlaces(reader)
        # Items not passed on yet, in the order in which they began.
        self._queue: deque[ReplyItem] = deque()
        # Text passed on of complete messages, by their identities.
        self._heard: dict[str, str] = {}
        self._blank: tuple[ReplyItem, Item, Raw] | None = None
        self._spoke = False
        # Indices of items whose text was changed, since lone surrogates cannot be kept.
        self._repaired: set[int] = set()

    def note_repair(self, index: object, item: object) -> None:
        """Record whether the text of an item had to be repaired."""
        if isinstance(index, int) and repair(item) != item:
            self._repaired.add(index)

    def accept(self, event: ItemEvent, data: bytes = b"") -> Iterator[Delta]:
        """Yield the deltas of an event, and keep it if its item is not the open one."""
        item = self._places.find(event, data)
        if item is not None:
            yield from self._deliver(item, event)
        yield from self._advance()

    def accept_rest(self, output: Sequence[Raw]) -> Iterator[Delta]:
        """Yield the parts of the whole response that were not streamed."""
        heads = [self._reader.read(ITEM, raw) for raw in output]
        for raw, head, item in zip(output, heads, self._places.match(heads), strict=True):
            if not item.closed:
                item.done = True
                yield from self._deliver(item, ItemDone(raw))
            elif item.kind == "message":
                yield from self._say_more(item, head)
        yield from self._advance()

    def conclude(self, *, cut: bool) -> Iterator[Delta]:
        """End the reply, and all open items.

        With `cut`, the received part of an item is kept; of a call, only its beginning. Raise
        `ReplyCut` if the arguments of a call did not arrive in a complete reply.
        """
        while self._queue:
            item = self._queue[0]
            if item.kind == "function_call" and cut and len(self._queue) == 1:
                return
            item.over = True
            yield from self._advance()
        if self._blank is not None and not self._spoke:
            yield from self._close_message(*self._blank)

    def _deliver(self, item: ReplyItem, event: ItemEvent) -> Iterator[Delta]:
        if item.number >= self._places.taken:
            self._places.taken = item.number + 1
            self._queue.append(item)
        if item is self.open:
            yield from self._grow(item, event)
        else:
            item.waiting.append(event)

    def _advance(self) -> Iterator[Delta]:
        """Yield the waiting deltas, up to the first item that is not whole."""
        while self._queue:
            item = self.open = self._queue[0]
            waiting, item.waiting = item.waiting, []
            for event in waiting:
                yield from self._grow(item, event)
            if item.over and not item.closed:
                yield from self._finish(item)
            if not item.closed:
                return
            self._queue.popleft()
            self.open = None

    def _grow(self, item: ReplyItem, event: ItemEvent) -> Iterator[Delta]:
        match event:
            case TextGrown(delta, _, index):
                yield from self._say(item, index, delta or "")
            case RefusalGrown(delta, _, index):
                yield from self._say(item, index, delta or "", refused=True)
            case SummaryGrown(delta, _, index):
                yield from self._think(item, ("summary", index), delta or "")
            case ThoughtGrown(delta, _, index):
                yield from self._think(item, ("content", index), delta or "")
            case ArgumentsGrown(delta):
                yield from self._argue(item, delta or "")
            case TextDone(text, _, index):
                yield from self._fill(item, index, text or "")
            case RefusalDone(text, _, index):
                yield from self._fill(item, index, text or "", refused=True)
            case SummaryDone(text, _, index):
                yield from self._fill_thought(item, ("summary", index), text or "")
            case ThoughtDone(text, _, index):
                yield from self._fill_thought(item, ("content", index), text or "")
            case ArgumentsDone(arguments, name):
                yield from self._state_call(item, name, "", arguments)
                if item.done:
                    yield from self._close_call(item)
            case AnnotationAdded(annotation):
                if item.part is not None:
                    yield from self._cite(item.part, annotation)
            case PartAdded() | SummaryAdded():
                item.announced = True
            case PartDone(raw, _, index):
                yield from self._end_part(item, index, raw)
            case ItemAdded(raw):
                item.begun = head = self._reader.read(ITEM, raw)
                if item.kind == "function_call":
                    yield from self._open_call(item, head.name, head.call_id)
            case ItemDone(raw):
                kept = self._reader.keep(raw)
                yield from self._close(item, self._reader.read(ITEM, kept), kept)

    def _say(
        self, item: ReplyItem, index: int | None, text: str, *, refused: bool = False
    ) -> Iterator[Delta]:
        part = item.part
        if part is None or (item.between and (index is None or index != part.index)):
            part = yield from self._begin_part(item, index)
        elif index is not None:
            # Some servers count up the index with each token. Without an event between, it is the
            # same part.
            part.index = index
        self.refused = self.refused or refused
        if text := item.joiner.join(text):
            part.pieces.append(text)
            yield TextDelta(text)

    def _begin_part(self, item: ReplyItem, index: int | None) -> Generator[Delta, None, SaidPart]:
        yield from self._close_part(item)
        item.part = part = SaidPart(len(item.parts) if index is None else index)
        item.parts.append(part)
        item.announced = item.sealed = False
        yield ContentOpened("text")
        return part

    def _fill(
        self, item: ReplyItem, index: int | None, text: str, *, refused: bool = False
    ) -> Iterator[Delta]:
        """Yield the rest of a complete part that was not streamed."""
        part, text = item.part, repair_text(text)
        if part is not None and index not in (None, part.index):
            known = [one for one in item.parts if one.index == index]
            part = known[-1] if known else (part if not item.between else None)
        elif item.announced and index is None:
            part = None
        if part is not None and part is not item.part:
            return
        reported = part.text if part is not None else ""
        if not item.parts or part is item.parts[0]:
            reported = self._recall(item) + reported
        rest = text[len(reported) :] if text.startswith(reported) else ""
        if rest:
            if part is None and item.part is not None:
                item.announced = True
            yield from self._say(item, index if part is None else part.index, rest, refused=refused)
        item.sealed = True

    def _end_part(self, item: ReplyItem, index: int | None, raw: Raw) -> Iterator[Delta]:
        if bytes(raw) == b"null":
            item.sealed = True
            return
        head = self._reader.read(PART, raw)
        if item.kind == "reasoning":
            yield from self._fill_thought(item, ("content", index), head.text or "")
            return
        yield from self._fill(item, index, text_of(head), refused=head.type == "refusal")
        if item.part is not None and item.part.text == repair_text(text_of(head)):
            item.part.members = self._reader.members(raw)

    def _think(self, item: ReplyItem, place: tuple[str, int | None], text: str) -> Iterator[Delta]:
        if item.place is None:
            yield ContentOpened("reasoning")
        elif item.place[0] != place[0] or (
            item.between and (place[1] is None or item.place != place)
        ):
            text = _BETWEEN_SUMMARIES + text
            item.begins = len(item.thoughts)
        item.place = place
        item.announced = item.sealed = False
        if text := item.joiner.join(text):
            item.thoughts.append(text)
            yield ReasoningDelta(text)

    def _fill_thought(
        self, item: ReplyItem, place: tuple[str, int | None], text: str
    ) -> Iterator[Delta]:
        """Yield the rest of a complete part of reasoning that was not streamed."""
        text = repair_text(text)
        same = item.place is not None and item.place[0] == place[0]
        reported = "".join(item.thoughts[item.begins :]).removeprefix(_BETWEEN_SUMMARIES)
        if same and not item.announced and text.startswith(reported):
            if rest := text[len(reported) :]:
                sealed, item.sealed = item.sealed, False
                yield from self._think(item, place, rest)
                item.sealed = sealed
        elif text and (
            item.place is None or (item.between and item.place != place and text != reported)
        ):
            yield from self._think(item, place, text)
        item.sealed = True

    def _open_call(self, item: ReplyItem, name: str | None, call: str | None) -> Iterator[Delta]:
        item.name = item.name or repair_text(name or "")
        item.call = item.call or repair_text(call or "")
        if item.name and not item.opened:
            item.opened = self.called = self._spoke = True
            yield InvocationOpened(self._name_of(item.name), item.call)
            for text in item.arguments:
                yield ArgumentsDelta(text)

    def _argue(self, item: ReplyItem, text: str) -> Iterator[Delta]:
        if text := item.joiner.join(text):
            item.arguments.append(text)
            if item.opened:
                yield ArgumentsDelta(text)

    def _state_call(
        self, item: ReplyItem, name: str | None, call: str | None, arguments: str | None
    ) -> Iterator[Delta]:
        """Yield the part of a complete call that was not streamed."""
        yield from self._open_call(item, name, call)
        item.stated = item.stated or arguments is not None
        reported, whole = "".join(item.arguments), repair_text(arguments or "")
        if whole.startswith(reported):
            yield from self._argue(item, whole[len(reported) :])

    def _cite(self, part: SaidPart, annotation: Raw) -> Iterator[Delta]:
        part.cited += 1
        if (citation := read_citation(self._reader.keep(annotation))) is not None:
            yield CitationDelta(citation)

    def _close_part(
        self, item: ReplyItem, whole: Mapping[str, Raw] | None = None
    ) -> Iterator[Delta]:
        """Close the open part of a message; `whole` has the message's members if it ends too.

        The identity of a message is known only at its end.
        """
        part = item.part
        if part is None:
            return
        if rest := item.joiner.conclude():
            part.pieces.append(rest)
            yield TextDelta(rest)
        item.part = None
        native = None
        if part.members is not None:
            members = {k: v for k, v in part.members.items() if k not in ("text", "refusal")}
            payload: dict[str, Any] = {"place": item.number, "part": members}
            if whole is not None:
                payload["item"] = whole
            native = Raw(encode_json(payload))
        yield ContentClosed(native)

    def _finish(self, item: ReplyItem) -> Iterator[Delta]:
        """Close an item that the server did not end."""
        begun = item.begun or Item()
        match item.kind:
            case "message":
                self._spoke = self._spoke or bool(item.parts)
                parts = [self._reader.read(PART, raw) for raw in begun.content or ()]
                if text := "".join(map(text_of, parts)):
                    yield from self._fill(item, None, text)
                yield from self._close_part(item)
            case "reasoning":
                if item.place is not None:
                    yield ContentClosed()
            case "function_call":
                yield from self._close_call(item, last=True)
        item.closed = True

    def _close(self, item: ReplyItem, head: Item, kept: Raw) -> Iterator[Delta]:
        self._spoke = self._spoke or item.kind not in ("message", "reasoning")
        item.closed = True
        match item.kind:
            case "message" if self._is_blank(item, head):
                self._blank = (item, head, kept)
            case "message":
                self._spoke = True
                yield from self._close_message(item, head, kept)
            case "reasoning":
                yield from self._close_reasoning(item, head, kept)
            case "function_call":
                item.kept = kept
                yield from self._state_call(item, head.name, head.call_id, head.arguments)
                yield from self._close_call(item)
            case "image_generation_call" if head.result:
                yield self._receive_image(head, kept)
            case label:
                yield ContentReceived(NativeContent(label=label), kept)

    def _recall(self, item: ReplyItem) -> str:
        """Return the text passed on earlier of a message that is sent in two items."""
        return next((self._heard[one] for one in item.identities if one in self._heard), "")

    def _is_blank(self, item: ReplyItem, head: Item) -> bool:
        """Return True if a message is empty, or repeats text that was passed on."""
        if item.parts:
            return False
        parts = [self._reader.read(PART, raw) for raw in head.content or ()]
        text = "".join(map(text_of, parts))
        heard = self._recall(item)
        cited = not heard and any(part.annotations for part in parts)
        return repair_text(text) == heard and not cited

    def _close_call(self, item: ReplyItem, *, last: bool = False) -> Iterator[Delta]:
        """Close the call if its arguments have come; `last` is True if no more events follow."""
        if last and not item.arguments and item.begun is not None:
            yield from self._argue(item, item.begun.arguments or "")
        if rest := item.joiner.conclude():
            item.arguments.append(rest)
            if item.opened:
                yield ArgumentsDelta(rest)
        text = "".join(item.arguments)
        whole = bool(text) if item.kept is not None else is_object(text)
        if not whole and not (last and item.stated and not text):
            if last:
                raise ReplyCut(
                    f"the arguments of the call of {item.name!r} did not arrive",
                    provider=self._reader.provider,
                )
            item.closed = False
            return
        if not item.opened:
            raise self._reader.malformed("a call without a tool name")
        members = self._reader.members(item.kept) if item.kept is not None else {}
        for name in ("type", "call_id", "name", "arguments"):
            members.pop(name, None)
        kept_as_sent = members and item.index not in self._repaired
        item.closed = True
        yield InvocationClosed(Raw(encode_json(members)) if kept_as_sent else None)

    def _close_message(self, item: ReplyItem, head: Item, kept: Raw) -> Iterator[Delta]:
        members = self._reader.members(kept)
        members.pop("content", None)
        raws = head.content or []
        parts = [self._reader.read(PART, raw) for raw in raws]
        before = self._recall(item)
        if not item.begins_like(parts, before):
            yield from self._say_more(item, head)
        else:
            for number, (raw, part) in enumerate(zip(raws, parts, strict=True)):
                if number < len(item.parts) - 1:
                    continue
                if number == len(item.parts):
                    item.announced = True
                    yield from self._begin_part(item, number)
                yield from self._say_rest(item, part, before if number == 0 else "")
                assert item.part is not None
                item.part.members = self._reader.members(raw)
                last = number == len(parts) - 1 and item.index not in self._repaired
                yield from self._close_part(item, members if last else None)
        yield from self._close_part(item)
        said = before + item.text
        self._heard.update(dict.fromkeys(item.identities, said))

    def _say_rest(self, item: ReplyItem, part: ItemPart, before: str) -> Iterator[Delta]:
        """Yield the text and sources of a complete part that were not streamed."""
        assert item.part is not None
        refused = part.type == "refusal"
        reported, text = before + item.part.text, repair_text(text_of(part))
        if text.startswith(reported):
            rest = text[len(reported) :]
            yield from self._say(item, item.part.index, rest, refused=refused)
        for annotation in (part.annotations or [])[item.part.cited :]:
            yield from self._cite(item.part, annotation)

    def _say_more(self, item: ReplyItem, head: Item) -> Iterator[Delta]:
        """Yield the unstreamed rest of a message whose parts differ from those streamed."""
        parts = [self._reader.read(PART, raw) for raw in head.content or ()]
        text = repair_text("".join(map(text_of, parts)))
        reported = self._recall(item) or item.text
        if len(reported) < len(text) and text.startswith(reported):
            rest = text[len(reported) :]
            refused = any(part.type == "refusal" for part in parts)
            index = item.part.index if item.part is not None else None
            yield from self._say(item, index, rest, refused=refused)
            self._spoke = True
            if item.closed:
                yield from self._close_part(item)

    def _close_reasoning(self, item: ReplyItem, head: Item, kept: Raw) -> Iterator[Delta]:
        if item.place is None:
            yield ContentOpened("reasoning")
        parts = [
            *(head.summary or ()),
            *(self._reader.read(PART, raw) for raw in head.content or ()),
        ]
        whole = repair_text(_BETWEEN_SUMMARIES.join(part.text for part in parts if part.text))
        reported = "".join(item.thoughts)
        rest = item.joiner.join(whole[len(reported) :] if whole.startswith(reported) else "")
        if rest := rest + item.joiner.conclude():
            yield ReasoningDelta(rest)
        # Altered reasoning is refused, even if only its summary is altered.
        yield ContentClosed(None if item.index in self._repaired else kept)

    def _receive_image(self, head: Item, kept: Raw) -> ContentReceived:
        """Return a picture that the model made, with its bytes stored only once."""
        try:
            data = base64.b64decode(head.result or "", validate=True)
        except binascii.Error as error:
            raise self._reader.malformed(f"an image is not valid base64 ({error})") from error
        members = self._reader.members(kept)
        members.pop("result", None)
        mimetype = f"image/{repair_text(head.output_format or 'png')}"
        return ContentReceived(ImageContent(data, mimetype), Raw(encode_json(members)))
