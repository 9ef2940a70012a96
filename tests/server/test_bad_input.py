"""What a bad request gets in each dialect: its own error, the right status, and nothing stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec import Struct

from tests.server.conftest import Served, serving
from vibe_llms.base.exceptions import (
    ConversationNotFound,
    ModelNotFound,
    ModelUnavailable,
)
from vibe_llms.messages.canisters import role_of
from vibe_llms.messages.controls import Controls
from vibe_llms.server import chat_requests, messages_requests, responses_requests
from vibe_llms.server.failures import describe_failure

SCRIPTS = {
    "call": (
        '[[replies]]\nwhen = "x"\n[[replies.parts]]\ntext = "Let me look."\n'
        '[[replies.parts]]\ninvocation = "look_up"\narguments = {city = "Rome"}\n'
        '[[replies]]\nwhen = ".*"\n[[replies.parts]]\ntext = "It is warm."\n'
    ),
    "once": (
        '[[replies]]\n[[replies.parts]]\ntext = "Well."\n'
        '[[replies]]\n[[replies.parts]]\nerror = "overloaded"\nretry-after-seconds = 7\n'
    ),
    "limited": (
        '[[replies]]\nwhen = ".*"\n[[replies.parts]]\nerror = "rate-limited"\n'
        "retry-after-seconds = 7\n"
    ),
    "long": f'[[replies]]\nwhen = ".*"\n[[replies.parts]]\ntext = "{"word " * 1000}"\n',
    "down": '[[replies]]\nwhen = ".*"\n[[replies.parts]]\nerror = "unreachable"\n',
}


class Speech(Struct, frozen=True):
    """How a dialect writes requests and reads replies; `says` are its messages."""

    path: str
    more: Mapping[str, Any] = {}

    def write(self, model: str, said: list[tuple[str, Any]], **options: Any) -> Any:
        """A request with messages: text, a call of the assistant, a result, or parts."""
        raise NotImplementedError

    def read_text(self, body: Any) -> str:
        """The text of a reply."""
        raise NotImplementedError

    def read_error(self, body: Any) -> str:
        """The words of an error, whose form is checked."""
        assert {*body} == {"error"}
        assert {*body["error"]} == {"message", "type", "param", "code"}
        return str(body["error"]["message"])


class Chat(Speech, frozen=True):
    """Chat Completions."""

    def write(self, model: str, said: list[tuple[str, Any]], **options: Any) -> Any:
        messages: list[Any] = []
        for kind, what in said:
            match kind:
                case "call":
                    called = {"name": "look_up", "arguments": "{}"}
                    call = {"id": what, "type": "function", "function": called}
                    messages.append({"role": "assistant", "tool_calls": [call]})
                case "result":
                    messages.append({"role": "tool", "tool_call_id": what, "content": "20"})
                case "image":
                    part = {"type": "image_url", "image_url": {"url": what}}
                    messages.append({"role": "user", "content": [part]})
                case _:
                    messages.append({"role": kind, "content": what})
        function: Any = {"name": options.pop("tool", "look_up"), "parameters": {"type": "object"}}
        tools = [{"type": "function", "function": function}]
        return {"model": model, "messages": messages, "tools": tools, **options}

    def read_text(self, body: Any) -> str:
        return str(body["choices"][0]["message"]["content"])


class Responses(Speech, frozen=True):
    """Responses."""

    def write(self, model: str, said: list[tuple[str, Any]], **options: Any) -> Any:
        items: list[Any] = []
        for kind, what in said:
            match kind:
                case "call":
                    call = {"type": "function_call", "call_id": what, "name": "look_up"}
                    items.append({**call, "arguments": "{}"})
                case "result":
                    result = {"type": "function_call_output", "call_id": what, "output": "20"}
                    items.append(result)
                case "image":
                    part = {"type": "input_image", "image_url": what, "detail": "auto"}
                    items.append({"role": "user", "content": [part]})
                case _:
                    items.append({"role": kind, "content": what})
        name = options.pop("tool", "look_up")
        tools = [{"type": "function", "name": name, "parameters": {"type": "object"}}]
        return {"model": model, "input": items, "tools": tools, **options}

    def read_text(self, body: Any) -> str:
        return str(body["output"][-1]["content"][0]["text"])


class Messages(Speech, frozen=True):
    """Anthropic's Messages."""

    def write(self, model: str, said: list[tuple[str, Any]], **options: Any) -> Any:
        messages: list[Any] = []
        for kind, what in said:
            match kind:
                case "call":
                    call = {"type": "tool_use", "id": what, "name": "look_up", "input": {}}
                    messages.append({"role": "assistant", "content": [call]})
                case "result":
                    result = {"type": "tool_result", "tool_use_id": what, "content": "20"}
                    messages.append({"role": "user", "content": [result]})
                case "image":
                    image = {"type": "image", "source": {"type": "url", "url": what}}
                    messages.append({"role": "user", "content": [image]})
                case _:
                    messages.append({"role": kind, "content": what})
        tools = [{"name": options.pop("tool", "look_up"), "input_schema": {"type": "object"}}]
        body = {"model": model, "max_tokens": 100, "messages": messages, "tools": tools}
        return {**body, **options}

    def read_text(self, body: Any) -> str:
        return str(body["content"][-1]["text"])

    def read_error(self, body: Any) -> str:
        assert {*body} == {"type", "error", "request_id"}
        assert body["type"] == "error"
        return str(body["error"]["message"])


SPEECHES: Mapping[str, Speech] = {
    "chat": Chat("/v1/chat/completions"),
    "responses": Responses("/v1/responses"),
    "messages": Messages("/v1/messages"),
}
HELLO: tuple[str, Any] = ("user", "Hello")


@pytest.fixture(params=SPEECHES)
def speech(request: pytest.FixtureRequest) -> Speech:
    """Each dialect."""
    return SPEECHES[request.param]


def configure(home: Path, **tables: Any) -> Any:
    """Tables with scripts as models."""
    home.mkdir(exist_ok=True)
    for name, script in SCRIPTS.items():
        (home / f"{name}.toml").write_text(script)
    scripts = {name: str(home / f"{name}.toml") for name in SCRIPTS}
    rows = {"scripted": {"scripts": scripts}}
    return {"providers": rows, "stream": {"retries": 0}, **tables}


async def stored(served: Served) -> list[list[str]]:
    """The roles of the messages of all stored conversations, and no run besides those."""
    async with served.session() as session:
        found = await session.survey_conversations(superseded=True)
        kept = [(await session.archive.restore(one.identity)).canisters for one in found]
        known = {one.identity for one in found}
        assert {one.conversation for one in await session.survey_runs()} <= known
    return [[role_of(one) for one in canisters] for canisters in kept]


async def refuse(
    client: httpx2.AsyncClient, speech: Speech, status: int, body: Any, **options: Any
) -> str:
    """The words of an error with this status."""
    content = {"content": body} if isinstance(body, bytes) else {"json": body}
    response = await client.post(speech.path, **content, **options)
    assert response.status_code == status, response.text
    return speech.read_error(response.json())


async def test_what_is_malformed_is_refused(home: Path, speech: Speech) -> None:
    async with serving(home, **configure(home)) as served, served.http() as client:
        for body in (b"{", b"[]", b"{}", b'{"model": 1}', b"\xff", b"[" * 100_000):
            assert await refuse(client, speech, 400, body)
        unanswered = [HELLO, ("call", "a")]
        answered = [*unanswered, ("result", "a")]
        for said in (
            [],
            [("result", "a")],
            [HELLO, ("result", "a")],
            [*unanswered, HELLO],
            [*unanswered, ("result", "b")],
            # A call that has a result already.
            [*answered, ("result", "a")],
            [*answered, ("assistant", "Well."), ("result", "a")],
            [*answered, ("assistant", "Well."), HELLO, ("result", "a")],
            [*answered, ("call", "b"), ("result", "a")],
        ):
            assert await refuse(client, speech, 400, speech.write("scripted/call", said)), said
        assert await stored(served) == []
        assert len(served.log) == 15
        assert not any("Hello" in line for line in served.log)


async def test_a_key_that_is_missing_or_wrong_and_an_unknown_model_are_refused(
    home: Path, speech: Speech
) -> None:
    async with serving(home, **configure(home)) as served, served.http() as client:
        body = speech.write("scripted/call", [HELLO])
        for key in ("vl-", served.key()[:-1]):
            await refuse(client, speech, 401, body, headers={"authorization": f"Bearer {key}"})
        del client.headers["authorization"]
        await refuse(client, speech, 401, body)
        client.headers["api-key"] = served.key()
        for model in ("none", "none/such", "scripted//etc/hosts.toml", "scripted/none"):
            await refuse(client, speech, 404, speech.write(model, [HELLO]))
        assert await stored(served) == []


async def test_a_body_that_is_too_long_is_refused(home: Path, speech: Speech) -> None:
    tables = configure(home, server={"body-bytes": 100})
    async with serving(home, **tables) as served, served.http() as client:
        await refuse(client, speech, 413, speech.write("scripted/call", [("user", "x" * 101)]))
        assert await stored(served) == []


@pytest.mark.parametrize("stream", [True, False])
async def test_an_upstream_that_is_down_leaves_nothing(
    home: Path, speech: Speech, stream: bool
) -> None:
    if stream and speech is SPEECHES["responses"]:
        # It has begun by then: the failure is its last event, and the response is kept.
        return
    async with serving(home, **configure(home)) as served, served.http() as client:
        body = speech.write("scripted/down", [HELLO], stream=stream)
        await refuse(client, speech, 502, body)
        assert await stored(served) == []


async def test_a_prompt_that_fails_is_not_left_in_a_conversation_that_goes_on(
    home: Path, speech: Speech
) -> None:
    async with serving(home, **configure(home)) as served, served.http() as client:
        first = await client.post(speech.path, json=speech.write("scripted/once", [HELLO]))
        said = [HELLO, ("assistant", speech.read_text(first.json())), ("user", "And?")]
        before = await stored(served)
        if speech is SPEECHES["responses"]:
            options = {"previous_response_id": first.json()["id"]}
            body = speech.write("scripted/once", [("user", "And?")], **options)
        else:
            body = speech.write("scripted/once", said)
        response = await client.post(speech.path, json=body)
        assert response.status_code == 502
        assert response.headers["retry-after"] == "7"
        assert before == await stored(served) == [["user", "assistant"]]
        # The conversation goes on from where it was.
        body["model"] = "scripted/call"
        assert (await client.post(speech.path, json=body)).status_code == 200
        assert await stored(served) == [["user", "assistant", "user", "assistant"]]


async def test_a_budget_that_is_too_small_leaves_nothing(home: Path, speech: Speech) -> None:
    tables = configure(home, budgets={"tokens": 10, "period": "day"})
    async with serving(home, **tables) as served, served.http() as client:
        await refuse(client, speech, 429, speech.write("scripted/call", [HELLO]))
        assert await stored(served) == []


async def test_a_budget_that_is_spent_says_when_it_begins_again(home: Path, speech: Speech) -> None:
    tables = configure(home, budgets={"tokens": 4000, "period": "day"})
    async with serving(home, **tables) as served, served.http() as client:
        body = speech.write("scripted/long", [HELLO])
        while (first := await client.post(speech.path, json=body)).status_code == 200:
            pass
        kept = await stored(served)
        again = await client.post(speech.path, json=body, headers={"idempotency-key": "a"})
        for refused in (first, again):
            assert refused.status_code == 429
            assert 0 < int(refused.headers["retry-after"]) <= 86400
        assert kept == await stored(served) != []


@pytest.mark.parametrize("key", [{}, {"idempotency-key": "a"}])
async def test_a_limit_of_the_provider_says_how_long_to_wait(
    home: Path, speech: Speech, key: Mapping[str, str]
) -> None:
    async with serving(home, **configure(home)) as served, served.http() as client:
        body = speech.write("scripted/limited", [HELLO])
        response = await client.post(speech.path, json=body, headers=key)
        assert (response.status_code, response.headers["retry-after"]) == (429, "7")
        assert await stored(served) == []


@pytest.mark.parametrize(
    ("row", "status", "secret"),
    [
        ({"model": "scripted/none"}, 503, "none"),
        ({"model": "scripted/call", "ensembles": ["tools"]}, 503, "no/such"),
        ({"model": "anthropic/claude-x"}, 502, ""),
        ({"model": "scripted/call", "prompt": "$input in $language"}, 404, ""),
    ],
)
async def test_what_an_agent_lacks_is_said_to_the_operator_and_no_failure_of_the_server(
    home: Path, speech: Speech, row: Any, status: int, secret: str
) -> None:
    tools = {"module": "vibe_llms.ensembles.mcp", "command": ["/no/such"], "required": True}
    tables = configure(home, agents={"clerk": row}, ensembles={"tools": tools})
    async with serving(home, **tables) as served, served.http() as client:
        words = await refuse(client, speech, status, speech.write("clerk", [HELLO]))
        order = {"model": "clerk", "prompt": "Hello"}
        if status != 502:
            assert (await client.post("/api/runs", json=order)).status_code == status
        if secret:
            assert secret not in words
            assert any(secret in line for line in served.log)
        assert "vibe-llms" not in words
        assert await stored(served) == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ConversationNotFound("no conversation named 'x'; see: vibe-llms list"),
            "no conversation named 'x'",
        ),
        (ModelNotFound("no key; set A_KEY or run: vibe-llms keys set my-row"), "no key"),
        (ModelNotFound("which model of 'a'? See: vibe-llms models"), "which model of 'a'?"),
        (ModelNotFound("no 'a'; did you mean 'b'? See: vibe-llms x"), "no 'a'; did you mean 'b'?"),
        (ModelUnavailable("gone (list: vibe-llms models A; right?)", provider="a"), "a: gone"),
        (ModelNotFound("vibe-llms has no model (of 'x')"), "vibe-llms has no model (of 'x')"),
    ],
)
def test_clients_are_not_told_to_use_the_command(error: Exception, message: str) -> None:
    assert describe_failure(error).message == message


async def test_a_control_that_is_refused_has_the_name_that_the_client_used(
    home: Path, speech: Speech
) -> None:
    choices = {
        "/v1/chat/completions": {"type": "function", "function": {"name": "nope"}},
        "/v1/responses": {"type": "function", "name": "nope"},
        "/v1/messages": {"type": "tool", "name": "nope"},
    }
    async with serving(home, **configure(home)) as served, served.http() as client:
        options = {"tool_choice": choices[speech.path], "store": False}
        body = speech.write("scripted/call", [HELLO], **options)
        response = await client.post(speech.path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert "tool_choice" in (error["param"] if "param" in error else error["message"])
    assert "tool-choice" not in response.text


@pytest.mark.parametrize(
    ("controls", "request_type"),
    [
        (chat_requests.CONTROLS, chat_requests.ChatRequest),
        (messages_requests.CONTROLS, messages_requests.MessageRequest),
        (responses_requests.CONTROLS, responses_requests.ResponseRequest),
    ],
)
def test_members_for_controls_are_there(
    controls: Mapping[str, str], request_type: type[Struct]
) -> None:
    assert controls.keys() <= {*Controls.__struct_encode_fields__}
    members = {member.partition(".")[0] for member in controls.values()}
    assert members <= {*request_type.__struct_fields__}


async def test_two_tools_of_one_name_are_refused_in_words_for_clients(
    home: Path, speech: Speech
) -> None:
    async with serving(home, **configure(home)) as served, served.http() as client:
        body = speech.write("scripted/call", [HELLO])
        body["tools"] *= 2
        words = await refuse(client, speech, 400, body)
    assert "two tools are called 'look_up'" in words
    assert "Invoker" not in words


def nest(depth: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": nest(depth - 1)}} if depth else {}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"p{number}": True for number in range(2000)}},
        {"type": [number if number % 2 else str(number) for number in range(3000)]},
        nest(100),
    ],
)
async def test_a_schema_that_takes_long_to_check_is_refused(
    home: Path, speech: Speech, schema: Mapping[str, Any]
) -> None:
    named = {"type": "json_schema", "name": "n", "schema": schema}
    forms: Mapping[str, tuple[str, Any]] = {
        "/v1/chat/completions": ("response_format", {"type": "json_schema", "json_schema": named}),
        "/v1/responses": ("text", {"format": named}),
        "/v1/messages": ("output_config", {"format": named}),
    }
    member, form = forms[speech.path]
    async with serving(home, **configure(home)) as served, served.http() as client:
        body = speech.write("scripted/call", [HELLO], **{member: form})
        response = await client.post(speech.path, json=body)
        assert response.status_code == 400, response.text
        assert "too large" in speech.read_error(response.json())
        assert f"{member}." in response.text
        order = await client.post("/api/runs", json={"prompt": "Hello", "output": schema})
        assert (order.status_code, order.json()["error"]["param"]) == (400, "output")


async def test_a_tool_with_the_name_of_one_of_the_agents_is_refused(
    home: Path, speech: Speech
) -> None:
    agents = {"clerk": {"model": "scripted/call", "ensembles": ["clock"]}}
    rows = {"clock": {"module": "tests.server.clock"}}
    tables = configure(home, agents=agents, ensembles=rows)
    async with serving(home, **tables) as served, served.http() as client:
        for name in ("clock__tell", "now"):
            body = speech.write("clerk", [HELLO], tool=name)
            await refuse(client, speech, 400, body)
        assert await stored(served) == []


async def test_a_tool_with_the_name_that_one_of_the_agents_has_elsewhere_is_accepted(
    home: Path, speech: Speech
) -> None:
    agents = {"clerk": {"model": "scripted/demo", "ensembles": ["memory"]}}
    async with serving(home, **configure(home, agents=agents)) as served, served.http() as client:
        body = speech.write("clerk", [HELLO], tool="search_memory")
        response = await client.post(speech.path, json=body)
        assert response.status_code == 200, response.text


_BAD_ADDRESSES = [
    *("file:///etc/passwd", "ftp://example.org/a.png", "/etc/passwd", "http://"),
    *("http://127.0.0.1/a.png", "https://[::1]/a.png", "http://localhost/a.png"),
    *("http://192.0.66.3/a.png", "http://192.0.66.2:99999/a.png", "http://[x/a.png"),
    # Another program finds another host in these.
    *(f"http://10.0.0.1{mark}@192.0.66.2/a.png" for mark in ("\\", "\t", " ", "", ":a")),
    *(
        "http://192.0.66.2\\.evil/a.png",
        "http://192.0.66.2/a\x7f.png",
        "http://192.0.66.2/\xa0",
    ),
]


async def test_an_address_that_is_not_allowed_is_refused(home: Path, speech: Speech) -> None:
    hosts = {"media-hosts": ["192.0.66.2", "127.0.0.1", "localhost", "::1"]}
    tables = configure(home, server=hosts)
    async with serving(home, **tables) as served, served.http() as client:
        for url in _BAD_ADDRESSES:
            await refuse(client, speech, 400, speech.write("scripted/call", [("image", url)]))
            assert await stored(served) == [], url
        allowed = speech.write("scripted/call", [("image", "https://192.0.66.2/a.png")])
        assert (await client.post(speech.path, json=allowed)).status_code == 200


@pytest.mark.parametrize(
    ("model", "rows", "secret"),
    [
        (
            "openai/gpt-5",
            {"openai": {"base-url": "http://127.0.0.1:9/v1", "credential": "none"}},
            "127.0.0.1:9",
        ),
        ("anthropic/claude-x", {}, "ANTHROPIC_API_KEY"),
    ],
)
async def test_what_is_wrong_with_a_provider_is_said_to_the_operator_alone(
    home: Path, speech: Speech, model: str, rows: Any, secret: str
) -> None:
    tables = {"providers": rows, "stream": {"retries": 0}, "agents": {"clerk": {"model": model}}}
    async with serving(home, **tables) as served, served.http() as client:
        body = speech.write("clerk", [HELLO], store=False)
        words = await refuse(client, speech, 502, body)
        assert any(secret in line for line in served.log)
        begun = await client.post("/api/runs", json={"model": "clerk", "prompt": "Hello"})
        said = [begun.text]
        if begun.status_code == 201:
            path = f"/api/runs/{begun.json()['id']}"
            for one in (f"{path}/events", path, "/api/runs"):
                said.append((await client.get(one)).text)
                assert words in said[-1]
    for text in (words, *said):
        assert secret not in text
        assert "config" not in text
