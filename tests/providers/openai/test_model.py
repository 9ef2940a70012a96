"""Round trips over sockets: state, counts, waits, cancels, retries, refusals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.fakes.openai import CHAT, FakeOpenAI, failure, stream
from tests.fakes.openai_clients import MODELS, STREAM, produce_openai_model
from tests.fakes.server import HttpAnswer
from vibe_llms import open_session
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import (
    ProviderOverloaded,
    ReplyCut,
    ReplyMalformed,
    RequestRefused,
    VibeLlmsError,
)
from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    StopReason,
    UserCanister,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, MessageFailedEvent, MessageProgressEvent
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.testing import check_events
from vibe_llms.testing.wires.chat_completions_replies import (
    chat_reply,
    chunk,
    text_chunks,
)
from vibe_llms.testing.wires.responses_replies import (
    function_call,
    message,
    reasoning,
    refusal,
    response_reply,
)

INTERFACES = ["chat", "responses"]
ROWS = {"chat": "openai-chat", "responses": "openai"}
HI = [UserCanister.from_text("Hi")]


def configure(server: FakeOpenAI, interface: str, **settings: Any) -> dict[str, Any]:
    row = {"base-url": server.url, "retries": 0, **settings}
    return {"providers": {ROWS[interface]: row}}


def address(interface: str) -> str:
    return f"{ROWS[interface]}/{MODELS[interface]}"


async def test_the_server_keeps_the_conversation_where_it_is_asked_to(
    fake_openai: FakeOpenAI,
) -> None:
    def weather(city: str) -> str:
        return "fine"

    def reply(number: int, *items: Any) -> Any:
        return response_reply(*items, id=f"resp_{number}")

    fake_openai.replies = [
        reply(1, reasoning("Hm."), function_call("weather", '{"city":"Paris"}')),
        reply(2, message("Mild.")),
        reply(3, message("Still.")),
        reply(4, message("Again.")),
    ]
    reported: list[Event] = []
    configuration = configure(fake_openai, "responses", state="server")
    async with open_session(
        configuration=configuration, keys={"openai": fake_openai.key}, event_handler=reported.append
    ) as session:
        conversation = await session.begin(
            address("responses"), supervisor="Be brief.", invokers=[weather]
        )
        await conversation.converse("Weather?")
        await conversation.converse("And now?")
        bodies = [request.json for request in fake_openai.requests]
        assert [body.get("previous_response_id") for body in bodies] == [None, "resp_1", "resp_2"]
        assert [item["type"] for item in bodies[1]["input"]] == ["function_call_output"]
        assert [item["role"] for item in bodies[2]["input"]] == ["user"]
        assert all(body["store"] is True and "include" not in body for body in bodies)
        # What the server has forgotten is sent again, whole, and nothing shows it.
        fake_openai.responses.clear()
        assert (await conversation.converse("Once more?")).text == "Again."
        last = fake_openai.requests[-1].json
        assert "previous_response_id" not in last
        assert len(last["input"]) == 9
    assert not any(isinstance(event, MessageFailedEvent) for event in reported)
    assert len(fake_openai.refusals) == 1
    assert "resp_3" in fake_openai.refusals[0]


GONE = "previous_response_not_found"
FORGOTTEN = failure(404, "invalid_request_error", code=GONE)
#: An error in the midst of a stream, after text was shown.
LATE = [*response_reply(message("Half"))[:-2], {"type": "error", "code": GONE, "message": "m"}]


@pytest.mark.parametrize(
    ("answers", "requests", "shown"),
    [
        ([FORGOTTEN, FORGOTTEN], 2, ""),
        ([failure(404, "invalid_request_error", code="other")], 1, ""),
        ([stream(LATE)], 1, "Half"),
    ],
)
async def test_a_history_is_sent_whole_only_once_and_before_anything_was_seen(
    fake_openai: FakeOpenAI, answers: list[HttpAnswer], requests: int, shown: str
) -> None:
    reported: list[Event] = []
    fake_openai.replies = [response_reply(message("Hello."))]
    configuration = configure(fake_openai, "responses", state="server", retries=2)
    async with open_session(configuration=configuration, keys={"openai": fake_openai.key}) as one:
        conversation = await one.begin(address("responses"), event_handler=reported.append)
        await conversation.converse("Hi")
        reported.clear()
        fake_openai.replies = list(answers)
        with pytest.raises(RequestRefused):
            await conversation.converse("And now?")
    assert len(fake_openai.requests) == 1 + requests
    texts = [event.chunk.text for event in reported if isinstance(event, MessageProgressEvent)]
    assert "".join(texts) == shown
    check_events(reported)


async def test_tokens_are_counted_by_the_endpoint_or_estimated(fake_openai: FakeOpenAI) -> None:
    model = await produce_openai_model("responses", fake_openai.url)
    fake_openai.count = 11
    count = await model.count_tokens(HI)
    assert (count.tokens, count.estimated) == (11, False)
    fake_openai.count = "many"
    with pytest.raises(ReplyMalformed, match="count of tokens"):
        await model.count_tokens(HI)
    await model.client.close()
    other = await produce_openai_model("chat", fake_openai.url)
    guess = await other.count_tokens([UserCanister.from_text("x" * 4000)])
    assert guess.estimated
    assert 1000 <= guess.tokens < 1050
    assert len(fake_openai.requests) == 2
    assert fake_openai.refusals == []


@pytest.mark.parametrize("interface", INTERFACES)
async def test_the_official_client_is_answered_by_the_strict_server(
    interface: str, fake_openai: FakeOpenAI
) -> None:
    async with openai.AsyncOpenAI(api_key=fake_openai.key, base_url=fake_openai.url) as client:
        if interface == "chat":
            chat = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hi"}]
            )
            assert chat.choices[0].message.content == "Hello."
        else:
            reply = await client.responses.create(
                model="m",
                input=[{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
            )
            assert reply.output_text == "Hello."


async def test_refusals_are_reported(fake_openai: FakeOpenAI) -> None:
    replies = {
        "chat": [
            chat_reply(text_chunks("I can't.", member="refusal")),
            chat_reply(finish="content_filter"),
        ],
        "responses": [response_reply(refusal("I can't."))],
    }
    for interface in INTERFACES:
        model = await produce_openai_model(interface, fake_openai.url)
        for reply in replies[interface]:
            fake_openai.replies = [reply]
            (said,) = await model.converse(HI)
            assert said.ending is not None
            assert said.ending.reason == StopReason.REFUSED
            history: list[Canister] = [*HI, said, *HI]
            await model.converse(history)
        await model.client.close()
    assert fake_openai.refusals == []


def parts(*calls: Any) -> list[dict[str, Any]]:
    return [chunk({"tool_calls": [call]}) for call in calls]


def piece(name: str | None, arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"function": function, **more}


#: How servers send calls, each with the names and arguments that are meant.
FORMS: dict[str, tuple[list[dict[str, Any]], list[tuple[str, str]]]] = {
    "all with one index": (
        parts(piece("f", '{"a":1}', index=0, id="x"), piece("g", '{"b":2}', index=0, id="y")),
        [("f", '{"a":1}'), ("g", '{"b":2}')],
    ),
    "without an index": (
        parts(piece("f", '{"a":', id="x"), piece(None, "1}"), piece("g", "{}", id="y")),
        [("f", '{"a":1}'), ("g", "{}")],
    ),
    "with one identity": (
        parts(piece("f", '{"a":1}', index=0, id="x"), piece("f", '{"a":2}', index=1, id="x")),
        [("f", '{"a":1}'), ("f", '{"a":2}')],
    ),
    "without identities": (
        parts(piece("f", '{"a":1}', index=0), piece("f", '{"a":2}', index=1)),
        [("f", '{"a":1}'), ("f", '{"a":2}')],
    ),
    "with the name in every piece": (
        parts(
            piece("f", "", index=0, id="x"),
            piece("f", '{"a":', index=0, id="x"),
            piece("f", "1}", index=0, id="x"),
        ),
        [("f", '{"a":1}')],
    ),
    "with the whole call twice": (
        parts(piece("f", '{"a":1}', index=0, id="x"), piece("f", '{"a":1}', index=0, id="x")),
        [("f", '{"a":1}')],
    ),
    "with an object and a number": (
        parts(piece("f", {"a": 1}, index=0, id=7)),
        [("f", '{"a":1}')],
    ),
    "without arguments": (
        parts(piece("f", "", index=0, id="x"), piece("g", "", index=1, id="y")),
        [("f", ""), ("g", "")],
    ),
    "announced before their arguments": (
        parts(
            piece("f", "", index=0, id="x"),
            piece("g", "", index=1, id="y"),
            piece(None, '{"a":1}', index=0),
            piece(None, '{"b":2}', index=1),
        ),
        [("f", '{"a":1}'), ("g", '{"b":2}')],
    ),
}


@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
@pytest.mark.parametrize("form", FORMS)
async def test_calls_are_read_in_the_forms_of_different_servers(
    form: str, finish: str, fake_openai: FakeOpenAI
) -> None:
    events, meant = FORMS[form]
    fake_openai.replies = [stream(chat_reply(events, finish=finish), done=finish == "stop")]
    model = await produce_openai_model("chat", fake_openai.url)
    reply = await model.converse(HI)
    calls = [one for one in reply if isinstance(one, InvocationCanister)]
    assert [(call.name, call.arguments) for call in calls] == meant
    assert reply[-1].ending is not None
    assert reply[-1].ending.reason == StopReason.INVOCATIONS
    # What they said goes back with identities of its own.
    await model.converse([*HI, *reply])
    assert fake_openai.refusals == []
    await model.client.close()


async def test_a_done_without_a_finish_reason_ends_only_what_is_whole(
    fake_openai: FakeOpenAI,
) -> None:
    model = await produce_openai_model("chat", fake_openai.url)
    fake_openai.replies = [stream(chat_reply("Hello")[:-2])]
    (said,) = await model.converse(HI)
    assert said.ending is not None
    assert said.ending.reason == StopReason.FINISHED
    half = parts(piece("f", '{"a":', index=0, id="x"))
    fake_openai.replies = [stream(half)]
    with pytest.raises(ReplyCut):
        await model.converse(HI)
    await model.client.close()


async def test_what_gemini_signs_goes_back_to_it(fake_openai: FakeOpenAI) -> None:
    extra = {"google": {"thought_signature": "SIG"}}
    events = parts(piece("f", "{}", index=0, id="x", extra_content=extra))
    fake_openai.replies = [chat_reply(events, finish="tool_calls")]
    model = await produce_openai_model("chat", fake_openai.url, name="gemini-3-pro")
    reply = await model.converse(HI)
    from vibe_llms.messages.controls import Controls

    body = (await model.preview([*HI, *reply], (), Controls(), TurnContext())).decode()
    assert re.search(r'"extra_content":\{"google":\{"thought_signature":"SIG"\}\}', body)
    other = await produce_openai_model("chat", fake_openai.url)
    assert "SIG" not in (await other.preview([*HI, *reply], (), Controls(), TurnContext())).decode()
    await model.client.close()


async def test_a_bad_request_that_is_answered_as_an_inner_error_is_reported(
    fake_openai: FakeOpenAI,
) -> None:
    model = await produce_openai_model("chat", fake_openai.url, stream=STREAM)
    fake_openai.replies = [
        failure(500, "invalid_request_error", "template error"),
        HttpAnswer(500, {"content-type": "text/plain"}, [b"segfault"]),
    ]
    with pytest.raises(RequestRefused, match="template error"):
        await model.converse(HI)
    with pytest.raises(ProviderOverloaded, match="segfault"):
        await model.converse(HI)
    assert fake_openai.requests[0].path == CHAT
    await model.client.close()


@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_limit_that_ends_too_late_is_an_error_at_once(
    interface: str, fake_openai: FakeOpenAI
) -> None:
    limit = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6h0m0s"}
    answers = [
        failure(429, "tokens", headers=limit),
        failure(429, "insufficient_quota", "no", "insufficient_quota"),
    ]
    model = await produce_openai_model(interface, fake_openai.url, stream=StreamSettings(retries=2))
    for number, answer in enumerate(answers):
        fake_openai.replies = [answer]
        with pytest.raises(VibeLlmsError):
            await model.converse(HI)
        assert len(fake_openai.requests) == number + 1
    await model.client.close()


@pytest.mark.parametrize("interface", [*ROWS])
async def test_under_a_budget_all_is_sent_and_the_reply_is_limited(
    fake_openai: FakeOpenAI, home: Path, interface: str
) -> None:
    chat = interface != "responses"
    fake_openai.replies = [
        chat_reply("Mild.") if chat else response_reply(message("Mild."), id=f"resp_{number}")
        for number in range(2)
    ]
    settings = {} if chat else {"state": "server"}
    configuration = {
        **configure(fake_openai, interface, **settings),
        "budgets": {"tokens": 100_000, "period": "total"},
    }
    keys = {ROWS[interface]: fake_openai.key}
    async with open_session(configuration=configuration, keys=keys) as session:
        conversation = await session.begin(address(interface))
        for _ in range(2):
            await conversation.converse("Weather?", controls=Controls(output_tokens=999))
    bodies = [request.json for request in fake_openai.requests]
    assert len(bodies) == 2
    for body in bodies:
        assert "previous_response_id" not in body
        assert 999 in (body.get("max_output_tokens"), body.get("max_completion_tokens"))
    assert len(bodies[1]["messages" if chat else "input"]) == 3
