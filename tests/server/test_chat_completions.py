"""Chat Completions as the official client sees them, from a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import openai
import pytest

from tests.server.conftest import Served, serving
from vibe_llms.messages.canisters import ResultCanister, role_of

Messages = list[Any]


async def converse(client: openai.AsyncOpenAI, messages: Messages, **options: Any) -> str:
    """One turn; the messages grow by the reply."""
    reply = await client.chat.completions.create(
        model="scripted/demo", messages=messages, **options
    )
    text = str(reply.choices[0].message.content)
    messages.append({"role": "assistant", "content": text})
    return text


async def stream(client: openai.AsyncOpenAI, messages: Messages, **options: Any) -> str:
    """One streamed turn; the messages grow by the reply."""
    chunks = await client.chat.completions.create(
        model="scripted/demo", messages=messages, stream=True, **options
    )
    text = ""
    async for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
    messages.append({"role": "assistant", "content": text})
    return text


@pytest.mark.parametrize("hold", [converse, stream])
async def test_a_client_holds_a_conversation_which_is_stored_as_one(
    served: Served, hold: Any
) -> None:
    messages: Messages = [{"role": "system", "content": "Be brief."}]
    async with served.openai() as client:
        for prompt in ("Hello", "What can you do?", "Thanks"):
            messages.append({"role": "user", "content": prompt})
            await hold(client, messages)
    async with served.session() as session:
        (summary,) = await session.survey_conversations()
        stored = (await session.archive.restore(summary.identity)).canisters
    assert summary.opening == "Hello"
    assert [role_of(canister) for canister in stored] == [
        *("supervisor", "user", "assistant", "user", "assistant", "user", "assistant")
    ]
    said = [message["content"] for message in messages[1:]]
    assert [getattr(one, "text", None) for one in stored[1:]] == said


async def test_a_stream_has_the_form_that_clients_expect(served: Served) -> None:
    async with served.openai() as client:
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="scripted/demo",
                messages=[{"role": "user", "content": "Hello"}],
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons[-1] == "stop"
    assert {*reasons[:-1]} == {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look something up.",
            "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
        },
    }
]
CALLING = """
[[replies]]
parts = [{ text = "Let me look." }, { invocation = "look_up", arguments = { what = "sky" } }]

[[replies]]
parts = [{ text = "It is blue." }]
"""


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_client_runs_its_own_tools(home: Path, streaming: bool) -> None:
    home.mkdir(exist_ok=True)
    (home / "calling.toml").write_text(CALLING)
    rows = {"scripted": {"scripts": {"calling": "calling.toml"}}}
    messages: Messages = [{"role": "user", "content": "What colour is the sky?"}]
    options: Any = {"model": "scripted/calling", "tools": TOOLS, "messages": messages}
    async with serving(home, providers=rows) as served, served.openai() as client:
        if streaming:
            async with client.chat.completions.stream(**options) as events:
                reply = await events.get_final_completion()
        else:
            reply = await client.chat.completions.create(**options)
        choice = reply.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me look."
        (call,) = choice.message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("look_up", '{"what":"sky"}')
        messages.append(choice.message.to_dict(exclude_none=True))
        with pytest.raises(openai.BadRequestError, match="followed by its result"):
            await client.chat.completions.create(**options)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "blue"})
        last = await client.chat.completions.create(**options)
        assert last.choices[0].message.content == "It is blue."
        async with served.session() as session:
            (summary,) = await session.survey_conversations()
            stored = (await session.archive.restore(summary.identity)).canisters
    assert [role_of(one) for one in stored] == [
        *("user", "assistant", "invocation", "result", "assistant")
    ]
    _, _, made, result, _ = stored
    assert isinstance(result, ResultCanister)
    assert result.invocation == made.identity


async def test_an_earlier_place_of_a_history_is_continued_in_a_fork(served: Served) -> None:
    messages: Messages = [{"role": "user", "content": "Hello"}]
    async with served.openai() as client:
        await converse(client, messages)
        for prompt in ("One", "Two"):
            await converse(client, [*messages, {"role": "user", "content": prompt}])
    async with served.session() as session:
        newest, first = await session.survey_conversations()
    assert newest.forked_from is not None
    assert newest.forked_from.conversation == first.identity


async def test_a_history_that_is_not_ours_begins_a_conversation(served: Served) -> None:
    messages: Messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "I never said this."},
        {"role": "user", "content": "Go on."},
    ]
    async with served.openai() as client:
        await converse(client, messages)
    async with served.session() as session:
        (summary,) = await session.survey_conversations()
    assert summary.messages == 4


async def test_an_agent_with_other_instructions_goes_on_in_the_same_conversation(
    home: Path,
) -> None:
    messages: Messages = []
    for name, supervisor in (("ada", "Write code."), ("bob", "Write tests.")):
        agents = {"coder": {"model": "scripted/demo", "supervisor": supervisor}}
        async with (
            serving(home, keys=False, agents=agents) as served,
            served.openai(name) as client,
        ):
            for prompt in ("Hello", "Again"):
                messages.append({"role": "user", "content": prompt})
                reply = await client.chat.completions.create(model="coder", messages=messages)
                text = str(reply.choices[0].message.content)
                messages.append({"role": "assistant", "content": text})
    async with serving(home, keys=False) as served, served.http() as http:
        (listed,) = (await http.get("/api/conversations")).json()["conversations"]
        stored = (await http.get(f"/api/conversations/{listed['id']}")).json()["messages"]
    turn = ["user", "assistant"]
    assert [one["role"] for one in stored] == [
        *("supervisor", *turn, *turn, "supervisor", *turn, *turn)
    ]


async def test_an_agent_is_a_model(home: Path) -> None:
    row = {"model": "scripted/demo", "supervisor": "You are a coder."}
    async with serving(home, agents={"coder": row}) as served, served.openai() as client:
        assert "coder" in [model.id async for model in client.models.list()]
        messages: Messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
        ]
        await client.chat.completions.create(model="coder", messages=messages)
        async with served.session() as session:
            (summary,) = await session.survey_conversations()
            stored = (await session.archive.restore(summary.identity)).canisters
            texts = await session.archive.load_all(
                [one.contents[0].data for one in stored[:2]]  # type: ignore[union-attr,misc]
            )
    assert [*texts.values()] == [b"You are a coder.", b"Be brief."]


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_upstream_that_fails_is_an_error_and_leaves_no_conversation(
    home: Path, streaming: bool
) -> None:
    home.mkdir(exist_ok=True)
    (home / "down.toml").write_text('[[replies]]\nparts = [{ error = "unreachable" }]\n')
    rows = {"scripted": {"scripts": {"down": "down.toml"}, "retries": 0}}
    async with serving(home, providers=rows) as served, served.openai() as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(
                model="scripted/down",
                messages=[{"role": "user", "content": "Hello"}],
                stream=streaming,
            )
        assert caught.value.status_code == 502
        async with served.session() as session:
            assert await session.survey_conversations() == []


SHAPED = """
[[replies]]
when = "shape|JSON"
parts = [{ reasoning = "Let me see." }, { text = '{"city": "Rome"}' }]
"""


@pytest.mark.parametrize("streaming", [True, False])
async def test_reasoning_usage_and_the_form_of_a_reply_are_as_asked(
    home: Path, streaming: bool
) -> None:
    home.mkdir(exist_ok=True)
    (home / "shaped.toml").write_text(SHAPED)
    rows = {"scripted": {"scripts": {"shaped": "shaped.toml"}}}
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    body: Any = {
        "model": "scripted/shaped",
        "messages": [{"role": "user", "content": "Which shape?"}],
        "response_format": form,
        "stream": streaming,
        "stream_options": {"include_usage": True} if streaming else None,
    }
    async with serving(home, providers=rows) as served, served.http() as client:
        reply = await client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert "reasoning_content" in reply.text
        assert "Let " in reply.text
        assert '"usage":{"prompt_tokens"' in reply.text
        async with served.session() as session:
            (summary,) = await session.survey_conversations()
            stored = (await session.archive.restore(summary.identity)).canisters
            told: Any = stored[0].contents[0]
            text = (await session.load(told.data)).decode()
        # A script takes no schema, so the model is told of it.
        assert [role_of(one) for one in stored] == ["supervisor", "user", "assistant"]
        assert "city" in text
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "place"}}
        refused = await client.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (
            400,
            "response_format.json_schema",
        )


CUSTOM = """
[[replies]]
parts = [
  { text = "I patch." },
  { invocation = "patch", arguments = { input = "*** Begin" } },
  { invocation = "look_up", arguments = { what = "sky" } },
]

[[replies]]
parts = [{ text = "Done." }]
"""


@pytest.mark.parametrize("member", ["input", "patch"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_tool_whose_input_is_text_is_called_with_text(
    home: Path, streaming: bool, member: str
) -> None:
    home.mkdir(exist_ok=True)
    (home / "custom.toml").write_text(CUSTOM.replace("input =", f"{member} ="))
    rows = {"scripted": {"scripts": {"custom": "custom.toml"}}}
    tools = [{"type": "custom", "custom": {"name": "patch", "description": "Patch."}}, *TOOLS]
    said: Messages = [{"role": "user", "content": "Patch it."}]
    options: Any = {"model": "scripted/custom", "tools": tools, "messages": said}
    async with serving(home, providers=rows) as served, served.openai() as client:
        if streaming:
            chunks = [
                chunk
                async for chunk in await client.chat.completions.create(**options, stream=True)
            ]
            pieces = [
                piece.to_dict()
                for chunk in chunks
                for choice in chunk.choices
                for piece in choice.delta.tool_calls or ()
            ]
            calls: Any = [one for one in pieces if "id" in one]
            assert [one["index"] for one in calls] == [0, 1]
            for piece in pieces:
                if "id" not in piece:
                    function = calls[piece["index"]]["function"]
                    function["arguments"] += cast("Any", piece["function"])["arguments"]
        else:
            reply = await client.chat.completions.create(**options)
            calls = [call.to_dict() for call in reply.choices[0].message.tool_calls or ()]
        assert [one["type"] for one in calls] == ["custom", "function"]
        assert calls[0]["custom"] == {"name": "patch", "input": "*** Begin"}
        said.append({"role": "assistant", "content": "I patch.", "tool_calls": calls})
        said += [{"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in calls]
        await client.chat.completions.create(**options)
        async with served.session() as session:
            lengths = [one.messages for one in await session.survey_conversations()]
    if member == "input":
        # It is the same conversation.
        assert lengths == [7]


async def test_allowed_tools_are_the_only_ones_that_are_offered(home: Path) -> None:
    script = '[[replies]]\nparts = [{ text = "Yes." }]\n'
    home.mkdir(exist_ok=True)
    (home / "script.toml").write_text(script)
    rows = {"scripted": {"scripts": {"script": "script.toml"}}}
    other = {"type": "function", "function": {"name": "other"}}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "other"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    body: Any = {
        "model": "scripted/script",
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [*TOOLS, other],
    }
    async with serving(home, providers=rows) as served, served.http() as client:
        path = "/v1/chat/completions"
        taken = await client.post(path, json={**body, "tool_choice": choice})
        unknown = {"type": "function", "function": {"name": "missing"}}
        refused = await client.post(path, json={**body, "tool_choice": unknown})
    assert taken.status_code == 200
    assert refused.status_code == 400


@pytest.mark.parametrize(
    ("change", "param"),
    [({"n": 2}, "n"), ({"n": 0}, "n"), ({"max_tokens": 0}, "max_tokens"), ({"stop": 5}, "stop")],
)
async def test_a_request_that_cannot_be_fulfilled_says_what_is_wrong(
    served: Served, change: dict[str, Any], param: str
) -> None:
    said = [{"role": "user", "content": "Hello"}]
    body = {"model": "scripted/demo", "messages": said, **change}
    async with served.http() as client:
        reply = await client.post("/v1/chat/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
