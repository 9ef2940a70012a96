"""The fake server: what the official packages and this library understand of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import ollama
import openai
import pytest
from google.genai import errors as google_errors

from tests.testing.official import (
    ASKS,
    QUESTION,
    ask_anthropic,
    ask_chat,
    ask_ollama,
    make_anthropic,
    make_ollama,
    make_openai,
)
from vibe_llms.base.exceptions import ProviderError, ReplyCut, ReplyMalformed, ReplyTimeout
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    Usage,
    UserCanister,
)
from vibe_llms.messages.events import Event
from vibe_llms.opening import open_session
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.scripted.scripts import FAULTS
from vibe_llms.testing import (
    FakeServer,
    Part,
    Script,
    ScriptedReply,
    check_events,
    fake_server,
)

ROWS = {
    "anthropic": "anthropic/claude-sonnet-5-5",
    "responses": "openai/gpt-6.1-sol",
    "chat-completions": "openai-chat/gpt-5.5",
    "ollama": "ollama/qwen3:8b",
    "gemini": "gemini/gemini-3.8-flash",
}
CALLS = ({"city": "Oslo"}, {"city": "Rome", "deep": [1, {"a": None}]})
EVERYTHING = ScriptedReply(
    parts=(
        Part(reasoning=("I shall ", "look: é\u2028")),
        Part(text="One moment. \n"),
        *(Part(invocation="weather", arguments=dict(call)) for call in CALLS),
    ),
    usage=Usage(100, 20, 3, 40, 5),
)


@pytest.mark.parametrize("chunk_bytes", [None, 7])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("interface", ASKS)
def test_the_packages_understand_a_reply(
    interface: str, streaming: bool, chunk_bytes: int | None
) -> None:
    reply = ScriptedReply(parts=EVERYTHING.parts, usage=EVERYTHING.usage, chunk_bytes=chunk_bytes)
    with fake_server(reply) as server:
        understood = ASKS[interface](server, streaming=streaming)
    assert understood.text == "One moment. \n"
    assert understood.calls == [("weather", call) for call in CALLS]
    if (interface, streaming) != ("chat-completions", True):
        # The accumulator of the package does not know this extension of others.
        assert understood.reasoning == "I shall look: é\u2028"
    cached = 0 if interface == "ollama" else 20
    assert understood.usage == (123, cached, 45)
    assert server.refusals == []
    (received,) = server.received
    assert (received.interface, received.streaming) == (interface, streaming)
    assert [invoker.name for invoker in received.invokers] == ["weather"]
    assert received.canisters[0].contents == UserCanister.from_text(QUESTION).contents
    if interface != "gemini":
        # Gemini's is in the address.
        assert received.body["model"] == received.model


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("interface", ASKS)
def test_the_packages_see_why_a_reply_ended(interface: str, streaming: bool) -> None:
    native = {
        StopReason.FINISHED: ("end_turn", "completed", "stop", "stop", "STOP"),
        StopReason.LENGTH: ("max_tokens", "incomplete", "length", "length", "MAX_TOKENS"),
        StopReason.REFUSED: ("refusal", "incomplete", "content_filter", "stop", "SAFETY"),
        StopReason.PAUSED: ("pause_turn", "completed", "stop", "stop", "STOP"),
    }
    for reason, names in native.items():
        if (
            interface == "chat-completions"
            and streaming
            and names[2] in ("length", "content_filter")
        ):
            # Its accumulator raises instead.
            continue
        with fake_server(ScriptedReply(parts=(Part(text="a"),), stop_reason=reason)) as server:
            understood = ASKS[interface](server, streaming=streaming)
        assert understood.reason == dict(zip(ASKS, names, strict=True))[interface]


async def add(a: int) -> int:
    """Add one."""
    return a + 1


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("interface", ROWS)
async def test_a_session_is_answered_with_everything(
    interface: str, streaming: bool, tmp_path: Path
) -> None:
    calls = tuple(Part(invocation="add", arguments={"a": number}) for number in (1, 2))
    script = Script(
        (
            ScriptedReply(parts=(Part(reasoning="Hm."), Part(text="So. "), *calls)),
            ScriptedReply(parts=(Part(text="Two and three."),), usage=Usage(500, 0, 0, 4, 0)),
        )
    )
    events: list[Event] = []
    async with (
        fake_server(script) as server,
        open_session(
            home=tmp_path, configuration=server.configuration, keys=server.keys
        ) as session,
    ):
        conversation = await session.begin(
            ROWS[interface], supervisor="Be brief.", invokers=[add], event_handler=events.append
        )
        turn = await conversation.converse("Add.", streaming=streaming)
    assert turn.text == "Two and three."
    assert [c.name for c in turn.canisters if isinstance(c, InvocationCanister)] == ["add", "add"]
    check_events(events)
    assert server.refusals == []
    last = server.received[-1]
    roles = [type(canister).__name__ for canister in last.canisters]
    assert roles[:2] == ["SupervisorCanister", "UserCanister"]
    assert roles[-4:] == ["InvocationCanister"] * 2 + ["ResultCanister"] * 2
    texts = [c.text for c in last.canisters if isinstance(c, ResultCanister)]
    assert texts == ["2", "3"]


@pytest.mark.parametrize("interface", ROWS)
async def test_streamed_and_whole_replies_count_the_same(interface: str, tmp_path: Path) -> None:
    async with (
        fake_server(Script((EVERYTHING, EVERYTHING))) as server,
        open_session(
            home=tmp_path, configuration=server.configuration, keys=server.keys
        ) as session,
    ):
        model = await session.access_model(ROWS[interface])
        replies = []
        for streaming in (True, False):
            context = TurnContext(streaming=streaming)
            replies.append(await model.converse([UserCanister.from_text("Hi")], context=context))
    usage, again = (reply[-1].ending.usage for reply in replies if reply[-1].ending)
    assert usage == again
    assert usage is not None
    assert usage.input_tokens == 123
    assert usage.output_tokens + usage.reasoning_tokens == 45
    if interface == "gemini":
        # It does not report what is written to a cache.
        assert usage == Usage(103, 20, 0, 40, 5)
    elif interface != "ollama":
        assert usage == Usage(100, 20, 3, 40, 5)


# Errors.

STATUSES = [400, 401, 402, 403, 404, 408, 409, 412, 413, 422, 429, 499, 500, 501, 503, 504, 529]
NAMES: dict[str, tuple[type[Exception], type[Exception]]] = {
    "refused": (anthropic.BadRequestError, openai.BadRequestError),
    "context-overflow": (anthropic.BadRequestError, openai.BadRequestError),
    "too-large": (anthropic.ContentTooLargeError, openai.APIStatusError),
    "credential-refused": (anthropic.AuthenticationError, openai.AuthenticationError),
    "payment-required": (anthropic.PaymentRequiredError, openai.RateLimitError),
    "model-unavailable": (anthropic.NotFoundError, openai.NotFoundError),
    "rate-limited": (anthropic.RateLimitError, openai.RateLimitError),
    "overloaded": (anthropic.OverloadedError, openai.InternalServerError),
    "unreachable": (anthropic.APIConnectionError, openai.APIConnectionError),
}


def fault(name: str, **more: Any) -> ScriptedReply:
    return ScriptedReply(parts=(Part(error=name, message="so it goes", **more),))


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("interface", ASKS)
@pytest.mark.parametrize("name", NAMES)
def test_an_error_is_that_of_the_package(name: str, interface: str, streaming: bool) -> None:
    reply = fault(name, retry_after_seconds=7)
    with fake_server(reply) as server, pytest.raises(Exception) as caught:
        ASKS[interface](server, streaming=streaming)
    error: Any = caught.value
    kind = NAMES[name][0 if interface == "anthropic" else 1]
    if interface == "ollama":
        if name == "unreachable":
            assert isinstance(error, ConnectionError | httpx.TransportError)
        else:
            assert isinstance(error, ollama.ResponseError)
            assert "so it goes" in error.error
            assert error.status_code >= 400
        return
    if interface == "gemini":
        if name == "unreachable":
            assert isinstance(error, httpx2.TransportError)
        else:
            assert isinstance(error, google_errors.APIError)
            assert "so it goes" in str(error)
            assert ("retryDelay" in str(error.details)) == (name != "unreachable")
        return
    assert type(caught.value) is kind
    if name != "unreachable":
        assert "so it goes" in str(error)
        assert error.response.headers["retry-after"] == "7"
    assert server.refusals == []


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_reaches_the_packages(status: int) -> None:
    with fake_server(Script((fault("refused", status=status),) * 3)) as server:
        for ask in (ask_anthropic, ask_chat):
            with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as caught:
                ask(server, streaming=False)
            raised: Any = caught.value
            assert raised.status_code == status
            body = raised.body
            assert body.get("error", body)["message"] == "so it goes"
        with pytest.raises(ollama.ResponseError) as refused:
            ask_ollama(server, streaming=False)
        assert refused.value.status_code == status


@pytest.mark.parametrize("interface", ROWS)
@pytest.mark.parametrize("name", FAULTS)
async def test_an_error_is_the_same_one_in_a_session(
    name: str, interface: str, tmp_path: Path
) -> None:
    async with (
        fake_server(fault(name)) as server,
        open_session(home=tmp_path, configuration=with_no_retries(server), keys=server.keys) as s,
    ):
        conversation = await s.begin(ROWS[interface])
        with pytest.raises(ProviderError) as caught:
            await conversation.converse("Hello?")
    assert type(caught.value) is FAULTS[name]


def with_no_retries(server: FakeServer, **stream: Any) -> dict[str, Any]:
    return {**server.configuration, "stream": {"retries": 0, **stream}}


@pytest.mark.parametrize("interface", ROWS)
@pytest.mark.parametrize("name", ["overloaded", "rate-limited", "malformed", "unreachable"])
async def test_an_error_in_the_middle_of_a_stream_keeps_what_had_come(
    name: str, interface: str, tmp_path: Path
) -> None:
    reply = ScriptedReply(
        parts=(Part(text=("Half ", "a sen")), Part(error=name, message="so it goes"))
    )
    async with (
        fake_server(reply) as server,
        open_session(home=tmp_path, configuration=with_no_retries(server), keys=server.keys) as s,
    ):
        conversation = await s.begin(ROWS[interface])
        with pytest.raises(ProviderError) as caught:
            await conversation.converse("Hello?")
    if name in ("malformed", "unreachable"):
        assert type(caught.value) in (ReplyMalformed, ReplyCut)
    else:
        assert "so it goes" in str(caught.value)
    partial = conversation.canisters[-1]
    assert getattr(partial, "text", "") == "Half a sen"


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("cut", ["close", "reset", "clean", True])
@pytest.mark.parametrize("interface", ROWS)
async def test_a_cut_is_seen(interface: str, cut: Any, streaming: bool, tmp_path: Path) -> None:
    reply = ScriptedReply(parts=(Part(text=("Half ", "a sen")), Part(cut=cut)))
    async with (
        fake_server(reply) as server,
        open_session(home=tmp_path, configuration=with_no_retries(server), keys=server.keys) as s,
    ):
        conversation = await s.begin(ROWS[interface])
        with pytest.raises((ReplyCut, ReplyMalformed)):
            await conversation.converse("Hello?", streaming=streaming)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("words", ["Half ", ""])
@pytest.mark.parametrize("interface", ROWS)
async def test_a_stall_is_seen(interface: str, words: str, streaming: bool, tmp_path: Path) -> None:
    said = (Part(text=words),) if words else ()
    limits = {"idle-seconds": 0.3, "first-byte-seconds": 0.3, "reply-seconds": 5.0}
    row = ROWS[interface].partition("/")[0]
    async with fake_server(ScriptedReply(parts=(*said, Part(stall=True)))) as server:
        configuration = server.configuration
        configuration["providers"][row] |= {**limits, "retries": 0, "reply-seconds": 0.6}
        async with open_session(home=tmp_path, configuration=configuration, keys=server.keys) as s:
            conversation = await s.begin(ROWS[interface])
            with pytest.raises(ReplyTimeout):
                await conversation.converse("Hello?", streaming=streaming)


@pytest.mark.parametrize("interface", ASKS)
def test_a_fault_before_anything_was_said_leaves_the_connection(interface: str) -> None:
    with (
        fake_server(ScriptedReply(parts=(Part(cut=True),))) as server,
        pytest.raises(
            (
                openai.APIConnectionError,
                anthropic.APIConnectionError,
                OSError,
                httpx.TransportError,
                httpx2.TransportError,
            )
        ),
    ):
        ASKS[interface](server, streaming=True)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_delay_is_waited(streaming: bool) -> None:
    parts = (Part(text="a"), Part(delay_seconds=0.2), Part(text="b"), Part(delay_seconds=0.1))
    with fake_server(ScriptedReply(parts=parts, chunk_bytes=50)) as server:
        begin = time.monotonic()
        assert ask_chat(server, streaming=streaming).text == "ab"
        assert time.monotonic() - begin >= 0.29


# Scripts, models, keys, paths.


def test_a_list_of_chunks_answers_everything() -> None:
    with fake_server(["Hel", "lo"]) as server:
        assert [ask(server, streaming=True).text for ask in ASKS.values()] == ["Hello"] * 5


def test_a_script_is_played_through_and_then_it_says_so() -> None:
    script = Script(
        (
            ScriptedReply.from_chunks("1"),
            ScriptedReply(parts=(Part(text="!"),), when="^again"),
            ScriptedReply.from_chunks("2"),
        )
    )
    with fake_server(script) as server:
        again: Any = [{"role": "user", "content": "Again!"}]
        texts = [
            ask_chat(server, streaming=False, **options).text
            for options in ({}, {"messages": again}, {}, {"messages": again})
        ]
        assert texts == ["1", "!", "2", "!"]
        with pytest.raises(openai.BadRequestError, match="no reply to request 3"):
            ask_chat(server, streaming=False)
        assert len(server.refusals) == 1


def test_a_function_sees_the_conversation_and_the_tools() -> None:
    def answer(canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
        return ScriptedReply.from_chunks(f"{len(canisters)} {invokers[0].name}")

    with fake_server(answer) as server:
        assert [ask(server, streaming=False).text for ask in ASKS.values()] == ["1 weather"] * 5


def test_what_a_function_raises_is_raised_at_the_end() -> None:
    def fail(canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
        raise LookupError("a bug in the test")

    with (
        pytest.raises(LookupError, match="a bug in the test"),
        fake_server(fail) as server,
        pytest.raises(openai.APIConnectionError),
    ):
        ask_chat(server, streaming=False)
    # What the test itself raises comes first.
    with pytest.raises(openai.APIConnectionError), fake_server(fail) as server:
        ask_chat(server, streaming=False)


def test_each_model_may_have_a_script_of_its_own() -> None:
    with fake_server({"gpt-5.5": ["big"], "mini": ["small"]}) as server:
        assert ask_chat(server, streaming=False).text == "big"
        assert ask_chat(server, streaming=False, model="mini").text == "small"
        with pytest.raises(openai.NotFoundError) as unknown:
            ask_chat(server, streaming=False, model="other")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(anthropic.NotFoundError) as absent:
            ask_anthropic(server, streaming=False)
        assert absent.value.type == "not_found_error"
        with pytest.raises(ollama.ResponseError, match="not found") as missing:
            ask_ollama(server, streaming=False)
        assert missing.value.status_code == 404
        with make_openai(server) as client:
            assert [model.id for model in client.models.list()] == ["gpt-5.5", "mini"]
    with (
        fake_server({"gpt-5.5": ["big"]}, models=("gpt-5.5", "idle")) as server,
        pytest.raises(openai.BadRequestError, match="no script for the model 'idle'"),
    ):
        ask_chat(server, streaming=False, model="idle")


def test_a_wrong_key_is_refused_as_each_provider_does() -> None:
    with fake_server(["Hi"], key="sk-right") as server:
        with (
            make_anthropic(server, api_key="sk-wrong") as claude,
            pytest.raises(anthropic.AuthenticationError) as refused,
        ):
            claude.models.list()
        assert refused.value.type == "authentication_error"
        with (
            make_openai(server, api_key="sk-wrong") as gpt,
            pytest.raises(openai.AuthenticationError) as denied,
        ):
            gpt.models.list()
        assert denied.value.code == "invalid_api_key"
        with (
            make_ollama(server, headers={"authorization": "Bearer sk-wrong"}) as local,
            pytest.raises(ollama.ResponseError) as turned_away,
        ):
            local.list()
        assert turned_away.value.status_code == 401
        for path, headers in (
            ("/v1/messages", {"anthropic-version": "2026-10-21"}),
            ("/v1/responses", {}),
            ("/v1/chat/completions", {}),
        ):
            answer = httpx2.post(server.url + path, headers=headers, content=b"{}")
            assert (answer.status_code, "key" in answer.json()["error"]["message"]) == (401, True)
        bare = httpx2.post(f"{server.url}/v1/messages", headers={"x-api-key": "sk-right"})
        assert (bare.status_code, "anthropic-version" in bare.text) == (400, True)


def test_a_path_that_there_is_not_is_refused_as_each_provider_does() -> None:
    with fake_server(["Hi"]) as server:
        bearer = {"authorization": f"Bearer {server.key}"}
        version = {**bearer, "anthropic-version": "2026-10-21"}
        answers = [
            httpx2.post(server.url + path, headers=headers, content=b"{}")
            for path, headers in (
                ("/v1/nothing", version),
                ("/v1/responses/x", bearer),
                ("/v1/nothing", bearer),
                ("/nothing", bearer),
                ("/api/nothing", {}),
            )
        ]
    assert [answer.status_code for answer in answers] == [404] * 5
    assert answers[0].json()["error"]["type"] == "not_found_error"
    for answer in answers[1:4]:
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert answers[4].text == "404 page not found"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/messages", {"anthropic-version": "2026-10-21"}),
        ("/v1/responses", {}),
        ("/v1/chat/completions", {}),
        ("/api/chat", {}),
    ],
)
@pytest.mark.parametrize("body", [b"{", b"[]", b'"a"', b'{"model":5}', b'{"model":"m"}', b"{}"])
def test_an_invalid_body_is_refused(path: str, headers: dict[str, str], body: bytes) -> None:
    with fake_server(["Hi"]) as server:
        given = {**headers, "authorization": f"Bearer {server.key}"}
        answer = httpx2.post(server.url + path, headers=given, content=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error if isinstance(error, str) else error["message"]
    assert len(server.refusals) == 1


@pytest.mark.parametrize(
    ("interface", "streaming"),
    [("anthropic", False), ("ollama", False), ("ollama", True)],
)
def test_nonsense_that_an_interface_cannot_carry_is_reported(
    interface: str, streaming: bool
) -> None:
    reply = ScriptedReply(parts=(Part(invocation="weather", arguments='{"city": '),))
    with fake_server(reply) as server, pytest.raises(Exception, match="not a JSON object"):
        ASKS[interface](server, streaming=streaming)
    assert len(server.refusals) == 1


@pytest.mark.parametrize("interface", ["anthropic", "responses", "chat-completions"])
async def test_nonsense_reaches_the_program_where_it_can(interface: str, tmp_path: Path) -> None:
    nonsense = ScriptedReply(parts=(Part(invocation="add", arguments='{"a": '),))
    script = Script((nonsense, ScriptedReply.from_chunks("Sorry.")))
    async with (
        fake_server(script) as server,
        open_session(home=tmp_path, configuration=server.configuration, keys=server.keys) as s,
    ):
        conversation = await s.begin(ROWS[interface], invokers=[add])
        assert (await conversation.converse("Add.")).text == "Sorry."
    (result,) = (c for c in conversation.canisters if isinstance(c, ResultCanister))
    assert result.failed
    assert server.refusals == []


async def test_a_tool_of_an_ensemble_is_called_by_its_canonical_name(tmp_path: Path) -> None:
    reply = ScriptedReply(parts=(Part(invocation="sums/add", arguments={"a": 1}),))
    script = Script((reply, ScriptedReply.from_chunks("2")) * len(ROWS))
    async with (
        fake_server(script) as server,
        open_session(home=tmp_path, configuration=server.configuration, keys=server.keys) as s,
    ):
        for model in ROWS.values():
            tool = Invoker.from_function(add, name="sums/add")
            conversation = await s.begin(model, invokers=[tool])
            await conversation.converse("Add.")
            (call,) = (c for c in conversation.canisters if isinstance(c, InvocationCanister))
            assert call.name == "sums/add"


# From other programs.


def test_another_program_is_led_here_by_the_environment(tmp_path: Path) -> None:
    code = (
        "import anthropic, openai, ollama\n"
        "said = [{'role': 'user', 'content': 'Hi'}]\n"
        "print(anthropic.Anthropic().messages.create(model='m', max_tokens=9, messages=said)"
        ".content[0].text)\n"
        "print(openai.OpenAI().responses.create(model='m', input='Hi').output_text)\n"
        "print(ollama.chat('m', said).message.content)\n"
    )
    with fake_server(["Hello."]) as server:
        environment = {**os.environ, **server.environment}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == ["Hello."] * 3
        for model in ROWS.values():
            command = [sys.executable, "-m", "vibe_llms", "chat", "-n", "-m", model, "Hi"]
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            assert (done.stdout, done.returncode) == ("Hello.\n", 0), done.stderr
    assert server.refusals == []


def test_a_server_that_does_not_record_answers_and_keeps_nothing() -> None:
    with fake_server(["Hi"], recording=False) as server:
        for _ in range(3):
            assert ask_ollama(server, streaming=True).text == "Hi"
    assert (server.received, server.requests, server.heads) == ([], [], [])
