"""Messages as Anthropic's official client sees them, from a real server."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.pictures import make_png
from tests.server.conftest import Served, serving
from tests.server.test_application import count_conversations
from vibe_llms.messages.canisters import ResultCanister, role_of

MESSAGES = "/v1/messages"
HELLO: dict[str, Any] = {
    "model": "scripted/demo",
    "max_tokens": 1000,
    "messages": [{"role": "user", "content": "Hello"}],
}
TOOLS: Any = [
    {
        "name": "look_up",
        "description": "Look something up.",
        "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
    }
]
CALLING = """
[[replies]]
parts = [
  { reasoning = "Look first." },
  { text = "Let me look." },
  { invocation = "look_up", arguments = { what = "sky" } },
  { invocation = "look_up", arguments = { what = "sea" } },
]

[[replies]]
parts = [{ text = "Both are blue." }]
"""


def scripted(home: Path, script: str) -> dict[str, Any]:
    home.mkdir(exist_ok=True)
    (home / "script.toml").write_text(script)
    return {"scripted": {"scripts": {"script": "script.toml"}, "retries": 0}}


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_holds_a_conversation_which_is_stored_as_one(
    served: Served, streaming: bool
) -> None:
    options: dict[str, Any] = {**HELLO, "messages": [], "system": "Be brief."}
    async with served.anthropic() as client:
        for prompt in ("Hello", "What can you do?", "Thanks"):
            options["messages"].append({"role": "user", "content": prompt})
            if streaming:
                async with client.messages.stream(**options) as stream:
                    reply = await stream.get_final_message()
            else:
                reply = await client.messages.create(**options)
            assert reply.stop_reason == "end_turn"
            assert reply.usage.output_tokens > 0
            assert reply.model == "scripted/demo"
            content = [block.to_dict() for block in reply.content]
            options["messages"].append({"role": "assistant", "content": content})
    async with served.session() as session:
        (summary,) = await session.survey_conversations()
        stored = (await session.archive.restore(summary.identity)).canisters
    assert [role_of(canister) for canister in stored] == [
        *("supervisor", "user", "assistant", "user", "assistant", "user", "assistant")
    ]


async def test_the_events_of_a_stream_are_in_the_order_that_clients_expect(home: Path) -> None:
    async with (
        serving(home, providers=scripted(home, CALLING)) as served,
        served.anthropic() as client,
    ):
        stream = await client.messages.create(
            **{**HELLO, "model": "scripted/script"}, tools=TOOLS, stream=True
        )
        events = [event async for event in stream]
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    opened = None
    indexes = []
    for event in events:
        match event.type:
            case "content_block_start":
                assert opened is None
                opened = event.index
                indexes.append(event.index)
            case "content_block_delta":
                assert event.index == opened
            case "content_block_stop":
                assert event.index == opened
                opened = None
    assert indexes == [0, 1, 2, 3]
    assert opened is None


@pytest.mark.parametrize("written", ["{", "[1]", '"sky"', ""])
async def test_a_call_that_is_not_an_object_leaves_the_reply_valid(
    home: Path, written: str
) -> None:
    script = f"[[replies]]\nparts = [{{invocation = 'look_up', arguments = '{written}'}}]"
    body = {**HELLO, "model": "scripted/script", "tools": TOOLS}
    async with serving(home, providers=scripted(home, script)) as served, served.http() as client:
        (call,) = (await client.post(MESSAGES, json=body)).json()["content"]
    assert (call["name"], call["input"]) == ("look_up", {})


@pytest.mark.parametrize("streaming", [True, False])
async def test_the_client_runs_its_own_tools(home: Path, streaming: bool) -> None:
    options: dict[str, Any] = {
        **HELLO,
        "model": "scripted/script",
        "tools": TOOLS,
        "messages": [*HELLO["messages"]],
    }
    async with (
        serving(home, providers=scripted(home, CALLING)) as served,
        served.anthropic() as client,
    ):
        if streaming:
            async with client.messages.stream(**options) as stream:
                reply = await stream.get_final_message()
        else:
            reply = await client.messages.create(**options)
        assert reply.stop_reason == "tool_use"
        content = [block.to_dict() for block in reply.content]
        assert [block["type"] for block in content] == ["thinking", "text", "tool_use", "tool_use"]
        assert content[1]["text"] == "Let me look."
        assert [block["input"] for block in content[2:]] == [{"what": "sky"}, {"what": "sea"}]
        options["messages"].append({"role": "assistant", "content": content})
        with pytest.raises(anthropic.BadRequestError, match="followed by its result"):
            await client.messages.create(**options)
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "blue"}
            for block in content[2:]
        ]
        results[1] |= {"is_error": True, "content": [{"type": "text", "text": "no sea"}]}
        options["messages"].append({"role": "user", "content": results})
        last = await client.messages.create(**options)
        assert last.content[0].to_dict()["text"] == "Both are blue."
        async with served.session() as session:
            (summary,) = await session.survey_conversations()
            stored = (await session.archive.restore(summary.identity)).canisters
    assert [role_of(one) for one in stored] == [
        *("user", "assistant", "invocation", "invocation", "result", "result", "assistant")
    ]
    found = [one for one in stored if isinstance(one, ResultCanister)]
    assert [one.failed for one in found] == [False, True]


@pytest.mark.parametrize(
    ("change", "status", "where"),
    [
        ({"model": "none"}, 404, "none"),
        ({"model": 1}, 400, "model"),
        ({"messages": []}, 400, "messages"),
        ({"max_tokens": None}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"tools": [{"name": "no name", "input_schema": {}}]}, 400, "tools"),
        ({"tool_choice": {"type": "tool"}}, 400, "tool_choice"),
        ({"messages": [{"role": "tool", "content": "a"}]}, 400, "messages[0].role"),
    ],
)
async def test_a_bad_request_gets_an_error_and_nothing_is_stored(
    served: Served, change: dict[str, Any], status: int, where: str
) -> None:
    async with served.http() as client:
        response = await client.post(MESSAGES, json={**HELLO, **change})
        malformed = await client.post(MESSAGES, content=b"{")
    body = response.json()
    assert response.status_code == status
    assert body["type"] == "error"
    assert body["error"]["type"] == {400: "invalid_request_error", 404: "not_found_error"}[status]
    assert where in body["error"]["message"]
    assert malformed.json()["error"]["type"] == "invalid_request_error"
    assert await count_conversations(served) == 0


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "tool_result", "tool_use_id": "a", "content": "b"}, "call 'a' not found"),
        ({"type": "tool_use", "id": "a", "name": "b", "input": {}}, "only the assistant"),
        ({"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}, "http"),
        (
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "?"},
            },
            "base64",
        ),
        ({"type": "document", "source": {"type": "file"}}, "file_id"),
        ({"type": "surprise"}, "surprise"),
    ],
)
async def test_a_block_that_means_nothing_here_is_refused(
    served: Served, block: dict[str, Any], words: str
) -> None:
    body = {**HELLO, "messages": [{"role": "user", "content": [block]}]}
    async with served.http() as client:
        for path in (MESSAGES, f"{MESSAGES}/count_tokens"):
            response = await client.post(path, json=body)
            assert response.status_code == 400
            assert words in response.json()["error"]["message"]
            assert "messages[" in response.json()["error"]["message"]
    assert await count_conversations(served) == 0


async def test_a_body_that_is_too_long_is_refused(home: Path) -> None:
    async with serving(home, server={"body-bytes": 50}) as served, served.http() as client:
        refused = await client.post(MESSAGES, json=HELLO)
    assert refused.status_code == 413
    assert refused.json()["error"]["type"] == "request_too_large"


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_upstream_that_fails_is_an_error_and_leaves_no_conversation(
    home: Path, streaming: bool
) -> None:
    script = '[[replies]]\nparts = [{ error = "unreachable" }]\n'
    async with (
        serving(home, providers=scripted(home, script)) as served,
        served.anthropic() as client,
    ):
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(**{**HELLO, "model": "scripted/script"}, stream=streaming)
        assert (caught.value.status_code, caught.value.type) == (502, "api_error")
        assert await count_conversations(served) == 0


async def test_a_failure_after_the_first_text_is_an_event(home: Path) -> None:
    script = '[[replies]]\nparts = [{ text = "Well" }, { error = "unreachable" }]\n'
    async with (
        serving(home, providers=scripted(home, script)) as served,
        served.anthropic() as client,
    ):
        stream = await client.messages.create(**{**HELLO, "model": "scripted/script"}, stream=True)
        with pytest.raises(anthropic.APIStatusError) as caught:
            async for _ in stream:
                pass
    assert caught.value.type == "api_error"


async def test_tokens_are_counted_without_storing_anything(served: Served) -> None:
    async with served.anthropic() as client:
        short = await client.messages.count_tokens(
            model="scripted/demo", messages=HELLO["messages"]
        )
        long = await client.messages.count_tokens(
            model="scripted/demo", messages=HELLO["messages"], system="Be brief. " * 50
        )
    assert 0 < short.input_tokens < long.input_tokens
    assert await count_conversations(served) == 0


async def test_blocks_of_all_kinds_reach_the_model(home: Path) -> None:
    pixel = base64.b64encode(make_png()).decode()
    blocks: list[Any] = [
        {"type": "text", "text": "Read this."},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": pixel}},
        {"type": "image", "source": {"type": "url", "url": "https://192.0.66.2/a.png"}},
        {"type": "document", "source": {"type": "text", "data": "a"}, "title": "A", "context": "c"},
        {"type": "document", "source": {"type": "content", "content": "b"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
        },
        {
            "type": "search_result",
            "source": "s",
            "title": "t",
            "content": [{"type": "text", "text": "u"}],
        },
        {"type": "thinking", "thinking": "hm", "signature": "s"},
    ]
    script = '[[replies]]\nparts = [{ text = "Read." }]\n'
    hosts = {"media-hosts": ["192.0.66.2"]}
    async with (
        serving(home, providers=scripted(home, script), server=hosts) as served,
        served.anthropic() as client,
    ):
        body = {**HELLO, "model": "scripted/script"}
        reply = await client.messages.create(
            **{**body, "messages": [{"role": "user", "content": blocks}]}
        )
        async with served.session() as session:
            (summary,) = await session.survey_conversations()
            user, _ = (await session.archive.restore(summary.identity)).canisters
    assert reply.content[0].to_dict()["text"] == "Read."
    assert [type(one).__name__ for one in user.contents] == [
        *("TextualContent", "ImageContent", "ImageContent", "TextualContent"),
        *("FileContent", "FileContent", "FileContent", "TextualContent"),
    ]


async def test_models_are_listed_for_anthropics_clients(served: Served) -> None:
    async with served.anthropic() as client:
        listed = [model async for model in client.models.list()]
        one = await client.models.retrieve("scripted/demo")
    assert "scripted/demo" in [model.id for model in listed]
    assert (one.type, one.display_name) == ("model", "scripted/demo")


async def test_a_stream_begins_with_the_tokens_that_the_model_reads(served: Served) -> None:
    counted = []
    async with served.anthropic() as client:
        for prompt in ("Hello", "Hello there. " * 100):
            said: Any = [{"role": "user", "content": prompt}]
            stream = await client.messages.create(**{**HELLO, "messages": said}, stream=True)
            first, *_ = [event async for event in stream]
            assert first.type == "message_start"
            counted.append(first.message.usage.input_tokens)
    assert 1 <= counted[0] < 100 < counted[1]


@pytest.mark.parametrize("streaming", [True, False])
async def test_thinking_is_shown_unless_the_client_omits_it(home: Path, streaming: bool) -> None:
    script = '[[replies]]\nparts = [{ reasoning = "Hm." }, { text = "Yes." }]\n'
    body = {**HELLO, "model": "scripted/script", "stream": streaming}
    async with serving(home, providers=scripted(home, script)) as served, served.http() as client:
        shown = await client.post(MESSAGES, json={**body, "thinking": {"type": "adaptive"}})
        thinking = {"type": "adaptive", "display": "omitted"}
        omitted = await client.post(MESSAGES, json={**body, "thinking": thinking})
    assert ("Hm." in shown.text, "Yes." in shown.text) == (True, True)
    assert ("Hm." in omitted.text, "Yes." in omitted.text) == (False, True)


async def test_the_tool_runner_of_the_official_client_works_without_threads(home: Path) -> None:
    looked = []

    @anthropic.beta_async_tool
    async def look_up(what: str) -> str:
        """Look something up."""
        looked.append(what)
        return "blue"

    async with (
        serving(home, providers=scripted(home, CALLING)) as served,
        served.anthropic() as client,
    ):
        runner = client.beta.messages.tool_runner(
            **{**HELLO, "model": "scripted/script"}, tools=[look_up]
        )
        last = await runner.until_done()
        async with served.session() as session:
            (summary,) = await session.survey_conversations()
        thread = client.beta.messages.thread(model="scripted/script", max_tokens=9)
        with pytest.raises(anthropic.BadRequestError, match="whole history") as caught:
            await thread.send(*HELLO["messages"])
    assert caught.value.error_code == "thread_unsupported_request"
    assert looked == ["sky", "sea"]
    assert last.content[0].to_dict()["text"] == "Both are blue."
    assert summary.messages == 7
