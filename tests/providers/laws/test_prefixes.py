"""T18: what was sent of a conversation is sent again as it was, so that a server's cache holds it.

Caches know the beginning of a request: the tools, the instructions, then the messages. A request
therefore begins with the bytes of the one before. The marks of a cache are no part of them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from tests.fakes.backends import Interface
from tests.fakes.embedded import CONTRACT
from tests.fakes.interfaces import ANTHROPIC, every
from vibe_llms.invocation.invokers import Invoker
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
from vibe_llms.messages.contents import (
    Content,
    FileContent,
    ImageContent,
    Issuer,
    NativePayload,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import ignore_events
from vibe_llms.providers.contract.model import ContractModel
from vibe_llms.providers.interfaces import Model, TurnContext

#: Where a model is asked: the number of messages before its reply.
Points = list[int]

#: A scripted model has no wire, and the example plugin encodes each request anew.
every_caching = every(lambda one: one.caches and one is not CONTRACT)

PNG = b"\x89PNG\r\n\x1a\n"
#: Ends of JSON, which are not part of what a cache holds.
_CLOSERS = re.compile(rb'[\]}"]*\Z')
_MARK = re.compile(
    rb',"cache_control":\{"type":"ephemeral"\}|,\{"cachePoint":\{"type":"default"\}\}'
)


def weather(city: str) -> str:
    """Forecast."""
    return city


WEATHER = Invoker.from_function(weather)


class Drawing:
    """A conversation drawn by hypothesis, and the points at which its model is asked."""

    def __init__(self, data: st.DataObject, interface: Interface) -> None:
        self._data = data
        self._origin = Provenance(interface.module, interface.row, interface.model)
        # Other servers than Anthropic's never pause a reply.
        self._pauses = ["paused"] if interface is ANTHROPIC else []
        self._number = 0
        self.said: list[Canister] = []
        self.points: Points = []

    def draw(self) -> tuple[list[Canister], Points]:
        for _ in range(self._count(0, 2)):
            self.said.append(SupervisorCanister.from_text(self._text()))
        for _ in range(self._count(1, 5)):
            self._add_turn()
        return self.said, self.points

    def _add_turn(self) -> None:
        for _ in range(self._count(0, 1)):
            contents: tuple[Content, ...] = (TextualContent(self._text()),)
            self.said.append(DocumentCanister(contents, title=self._text()))
        if self._chance(8):
            self.said.append(SupervisorCanister.from_text(self._text()))
        self.said.append(UserCanister(self._contents()))
        for _ in range(self._count(1, 4)):
            if not self._add_round():
                return

    def _add_round(self) -> bool:
        """A reply, and the results of its calls; return True if the model is asked again."""
        self.points.append(len(self.said))
        self._number += 1
        reply = f"r{self._number}"
        own: dict[str, Any] = {"reply": reply, "provenance": self._origin}
        kinds = ["text", "calls", "calls", "cut", "lost", *self._pauses]
        kind = self._data.draw(st.sampled_from(kinds))
        if kind == "lost":
            # Nothing of the reply arrived.
            return False
        ending = {
            "text": Ending(StopReason.FINISHED),
            "calls": Ending(StopReason.INVOCATIONS),
            "cut": Ending(StopReason.INTERRUPTED, interrupted=True),
            "paused": Ending(StopReason.PAUSED),
        }[kind]
        thoughts = [self._thought(signed=kind != "cut")] if self._chance(3) else []
        texts = [TextualContent(self._text())] if kind != "calls" or self._chance(2) else []
        calls = [
            InvocationCanister(name="weather", arguments='{"city":"Ur"}', call=f"c{number}", **own)
            for number in range(self._count(1, 3) if kind == "calls" else 0)
        ]
        if kind == "cut" and thoughts and self._chance(2):
            texts = []
        spoken: tuple[Content, ...] = (*thoughts, *texts)
        parts: list[Any] = [AssistantCanister(spoken, **own)] if spoken else []
        parts += calls
        parts[-1] = msgspec.structs.replace(parts[-1], ending=ending)
        self.said += parts
        broken = calls and self._chance(6)
        for call in calls:
            if broken and self._chance(2):
                # The process ended before the result was stored.
                continue
            self.said.append(ResultCanister(self._contents(), invocation=call.identity))
        return kind == "paused" or (bool(calls) and not broken)

    def _contents(self) -> tuple[Content, ...]:
        contents: list[Content] = [TextualContent(self._text())]
        if self._chance(5):
            contents.append(ImageContent(PNG + self._text().encode(), "image/png"))
        if self._chance(8):
            contents.append(FileContent(self._text().encode(), "text/plain", "a.txt"))
        return tuple(contents)

    def _thought(self, *, signed: bool) -> ReasoningContent:
        origin = self._origin
        issuer = Issuer(origin.module, origin.row, origin.model)
        data = msgspec.Raw(msgspec.json.encode({"signature": f"s{self._number}"}))
        native = NativePayload(issuer, data) if signed else None
        return ReasoningContent(self._text(), native=native)

    def _text(self) -> str:
        self._number += 1
        return self._data.draw(st.sampled_from(["a", "é", '"', "}"])) + str(self._number)

    def _chance(self, of: int) -> bool:
        return self._count(1, of) == of

    def _count(self, least: int, most: int) -> int:
        return self._data.draw(st.integers(least, most))


def read_members(body: bytes) -> Sequence[Any]:
    """The tools, the instructions and the messages of a request, in the order of a cache."""
    members = json.loads(body)
    if "contents" in members:
        return [members.get("tools"), members.get("systemInstruction"), members["contents"]]
    messages = members["messages"] if "messages" in members else members["input"]
    for message in messages:
        # Servers read a text as an array with this part alone.
        if "input" not in members and "system" not in members and _is_text(message.get("content")):
            message["content"] = [{"type": "text", "text": message["content"]}]
    return [members.get("tools", members.get("toolConfig")), members.get("system"), messages]


def _is_text(content: object) -> bool:
    return isinstance(content, str)


def encode_kept(body: bytes) -> bytes:
    """What a cache holds of a request: all that can be continued, or what the last mark covers."""
    text = encode(read_members(body))
    marks = [found.start() for found in _MARK.finditer(text)]
    return _CLOSERS.sub(b"", _MARK.sub(b"", text[: marks[-1]] if marks else text))


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def find_breaks(bodies: Sequence[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the requests that do not begin as the one before, with both from where they differ."""
    for number, (before, after) in enumerate(pairwise(bodies), 1):
        kept, again = encode_kept(before), _MARK.sub(b"", encode(read_members(after)))
        if not again.startswith(kept):
            place = next(i for i in range(len(kept)) if again[i : i + 1] != kept[i : i + 1])
            yield number, kept[max(place - 60, 0) :], again[max(place - 60, 0) : place + 200]


async def preview(
    model: Model, said: Sequence[Canister], points: Points, *, cached: bool
) -> list[bytes]:
    """The bodies of the requests at these points, as one process sends them, or several."""
    cache = model.produce_cache() if cached else None
    bodies = []
    for point in points:
        context = TurnContext(cache=cache if cached else model.produce_cache())
        bodies.append(await model.preview(said[:point], (WEATHER,), Controls(), context))
    return bodies


async def check(interface: Interface, data: st.DataObject, *, contract: bool) -> None:
    said, points = Drawing(data, interface).draw()
    with interface.serve() as backend:
        model = own = await interface.produce_model(backend)
        if contract:
            model = ContractModel(own, ignore_events)
        bodies = await preview(model, said, points, cached=data.draw(st.booleans()))
        await own.client.close()
    assert not list(find_breaks(bodies))


#: Whether tools are called by the wire, or in words.
in_both_ways = pytest.mark.parametrize("contract", [False, True], ids=["native", "contract"])


@in_both_ways
@every_caching
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_request_begins_with_what_a_cache_holds_of_the_one_before(
    interface: Interface, contract: bool, data: st.DataObject
) -> None:
    asyncio.run(check(interface, data, contract=contract))


@every_caching
@settings(max_examples=10, deadline=None, phases=[Phase.generate], database=None)
@given(data=st.data())
def test_a_change_of_an_earlier_message_is_noticed(
    interface: Interface, data: st.DataObject
) -> None:
    said, points = Drawing(data, interface).draw()
    assume(len(points) > 1)

    async def send() -> list[bytes]:
        with interface.serve() as backend:
            model = await interface.produce_model(backend)
            bodies = await preview(model, said, points[:1], cached=False)
            place = next(i for i, one in enumerate(said) if isinstance(one, UserCanister))
            changed = [*said[:place], UserCanister.from_text("changed"), *said[place + 1 :]]
            bodies += await preview(model, changed, points[1:], cached=False)
            await model.client.close()
        return bodies

    assert [number for number, *_ in find_breaks(asyncio.run(send()))] == [1]
