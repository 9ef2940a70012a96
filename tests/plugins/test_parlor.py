"""A provider for a service of its own ways keeps the contract, and its errors are understood."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.plugins import parlor
from vibe_llms.base.exceptions import (
    ContextOverflow,
    CredentialRefused,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    ReplyCut,
    ReplyMalformed,
)
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ReplyCanister,
    UserCanister,
)
from vibe_llms.messages.events import Event, MessageCompletedEvent
from vibe_llms.providers import TurnContext
from vibe_llms.testing import check_provider
from vibe_llms.testing.limits import Bench
from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest

KEY = "key-of-the-parlor"
END = {"kind": "end", "why": "done", "spent": [3, 2]}


def piece(slot: int, text: str = "", name: str = "", identity: str = "") -> dict[str, Any]:
    return {"kind": "tool", "slot": slot, "text": text, "name": name, "id": identity}


def text(words: str) -> dict[str, Any]:
    return {"kind": "text", "text": words}


#: Two calls whose pieces are mixed.
MIXED = [piece(0, name="alpha", identity="a"), piece(1, name="greek__beta", identity="b")]
MIXED += [piece(1, "{"), piece(0, "{"), piece(0, "}"), piece(1, "}")]


class Parlor(Listener):
    """Says hello, calls tools, or answers what it was made with."""

    def __init__(self, events: Sequence[Any] = (), answer: HttpAnswer | None = None) -> None:
        super().__init__()
        self.events, self.answer = events, answer

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if request.headers.get("x-parlor-key") != KEY:
            return fault(401, "key", "who are you?")
        if request.path == "/models":
            return HttpAnswer(chunks=[b'{"small": 100, "large": 1000}'])
        if self.answer is not None:
            return self.answer
        lines = request.json["lines"]
        events = self.events or [text("Hel"), text("lo"), END]
        if lines[-1].get("text", "").startswith("Call alpha") and request.json["tools"]:
            events = [*MIXED, {**END, "why": "tools"}]
        return stream(events)


def stream(events: Sequence[Any]) -> HttpAnswer:
    chunks = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return HttpAnswer(headers={"content-type": "text/event-stream"}, chunks=chunks)


def fault(status: int, sort: str, reason: str) -> HttpAnswer:
    body = json.dumps({"fault": {"sort": sort, "reason": reason}}).encode()
    return HttpAnswer(status, chunks=[body])


async def converse(
    server: Parlor, events: list[Event] | None = None, streaming: bool = True
) -> Sequence[ReplyCanister]:
    """The reply of the server to a greeting."""
    heard = [] if events is None else events
    with server:
        bench = Bench(parlor.ParlorProvider, "parlor", {"base-url": server.url}, KEY)
        async with bench.open() as (_, client):
            model = await client.access_model("small")
            context = TurnContext(event_handler=heard.append, streaming=streaming)
            return await model.converse([UserCanister.from_text("Hi")], context=context)


async def test_it_keeps_the_contract_of_providers() -> None:
    with Parlor() as server:
        settings = {"base-url": server.url}
        await check_provider(parlor.ParlorProvider, "small", settings=settings, key=KEY, calls=True)


@pytest.mark.parametrize(
    ("sort", "kind"),
    [
        ("key", CredentialRefused),
        ("busy", ProviderOverloaded),
        ("long", ContextOverflow),
        ("broke", PaymentRequired),
    ],
)
async def test_its_errors_are_understood_in_bodies_and_in_streams(
    sort: str, kind: type[ProviderError]
) -> None:
    said = {"kind": "fault", "fault": {"sort": sort, "reason": "the words of the service"}}
    for server in (
        Parlor(answer=fault(400, sort, "the words of the service")),
        Parlor([text("Hel"), said]),
    ):
        with pytest.raises(kind, match="the words of the service"):
            await converse(server)


@pytest.mark.parametrize("streaming", [True, False])
async def test_calls_end_where_text_begins_or_the_reply_ends(streaming: bool) -> None:
    after = [piece(0, '{"a"', "alpha"), text(""), piece(0, ":1}"), text("so"), END]
    first, second = await converse(Parlor(after), streaming=streaming)
    assert isinstance(first, InvocationCanister)
    assert (first.name, first.arguments) == ("alpha", '{"a":1}')
    assert isinstance(second, AssistantCanister)
    assert second.text == "so"
    events: list[Event] = []
    reply = await converse(Parlor([text("I call"), *MIXED, END]), events)
    assert [getattr(one, "name", "") for one in reply] == ["", "alpha", "greek__beta"]
    completed = [event for event in events if isinstance(event, MessageCompletedEvent)]
    assert len(completed) == 3


async def test_a_call_that_does_not_come_whole_does_not_run() -> None:
    (reply,) = await converse(Parlor([piece(0, '{"a"', "alpha"), {**END, "why": "full"}]))
    assert isinstance(reply, AssistantCanister)
    assert reply.ending is not None
    assert (reply.ending.reason, reply.ending.severed) == ("length", ("alpha",))
    said = [text("Hel"), piece(0), {**END, "why": "full"}]
    (reply,) = await converse(Parlor(said))
    assert isinstance(reply, AssistantCanister)
    assert reply.text == "Hel"
    with pytest.raises(ReplyCut):
        await converse(Parlor([piece(0, '{"a":1}', "alpha")]))
    late = Parlor([piece(0, "{}", "alpha"), text("so"), piece(0, '{"b":2}'), END])
    with pytest.raises(ReplyMalformed, match="more arguments came for the call of 'alpha'"):
        await converse(late)
