"""What the fake server of Ollama takes, lists and refuses, in the words of the real one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import ollama
import pytest

from tests.testing.official import make_ollama
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
)
from vibe_llms.messages.contents import ImageContent, ReasoningContent, TextualContent
from vibe_llms.opening import open_session
from vibe_llms.testing import FakeServer, fake_server

HI = {"role": "user", "content": "Hi"}


def send(server: FakeServer, messages: Sequence[Any], **more: Any) -> Any:
    return httpx2.post(
        f"{server.url}/api/chat", json={"model": "m", "stream": False, "messages": messages, **more}
    )


def test_a_conversation_is_read() -> None:
    def call(name: str, identity: str = "") -> dict[str, Any]:
        return {"id": identity, "function": {"name": name, "arguments": {"a": 1}}}

    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look:", "images": ["aGk="]},
        {"role": "assistant", "thinking": "Hm.", "content": "So."},
        {"role": "assistant", "tool_calls": [call("one"), call("two")]},
        {"role": "tool", "content": "1", "tool_name": "one"},
        {"role": "tool", "content": "2", "tool_name": "two"},
        {"role": "assistant", "tool_calls": [call("three", "x"), call("four", "y")]},
        {"role": "tool", "content": "4", "tool_call_id": "y"},
        {"role": "tool", "content": "3", "tool_call_id": "x"},
    ]
    with fake_server(["Hi"]) as server:
        assert send(server, messages).json()["message"]["content"] == "Hi"
        system, asked, said, *rest = server.received[0].canisters
    assert isinstance(system, SupervisorCanister)
    assert asked.contents == (TextualContent("Look:"), ImageContent(b"hi"))
    assert isinstance(said, AssistantCanister)
    assert said.contents == (ReasoningContent("Hm."), TextualContent("So."))
    names = {c.identity: c.name for c in rest if isinstance(c, InvocationCanister)}
    results = [(names[c.invocation], c.text) for c in rest if isinstance(c, ResultCanister)]
    assert results == [("one", "1"), ("two", "2"), ("four", "4"), ("three", "3")]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "robot", "content": "a"}], "invalid role: robot"),
        ([{**HI, "images": ["?"]}], "invalid base64"),
        ([{**HI, "images": [""]}], "empty"),
        ([{**HI, "content": 5}], "Expected `str`"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}],
         "Expected `object`"),
        ([], "loads no models"),
    ],
)  # fmt: skip
def test_what_the_real_server_would_not_take_is_refused(
    messages: Sequence[Any], words: str
) -> None:
    with fake_server(["Hi"]) as server:
        answer = send(server, messages)
        assert answer.status_code == 400
        assert words in answer.json()["error"]
        assert len(server.refusals) == 1
        assert "model is required" in send(server, [HI], model="").json()["error"]


def test_the_package_gets_the_models() -> None:
    with fake_server(["Hi"], models=("qwen3:8b",)) as server, make_ollama(server) as client:
        assert [model.model for model in client.list().models] == ["qwen3:8b"]
        shown = client.show("qwen3:8b")
        assert "tools" in (shown.capabilities or ())
        with pytest.raises(ollama.ResponseError):
            client.show("other")
        embedded = client.embed("qwen3:8b", ["sky", "sea", "sky"], dimensions=40)
        one, two, three = embedded.embeddings
        assert (len(one), one == three, one == two) == (40, True, False)
        assert sum(number * number for number in one) == pytest.approx(1)
        assert len(client.embed("qwen3:8b", "sky").embeddings[0]) == 64
        with pytest.raises(ollama.ResponseError):
            client.embed("other", "sky")
    assert server.refusals == []


def test_the_server_says_that_it_runs_and_which_version_it_is() -> None:
    with fake_server(["Hi"]) as server:
        assert httpx2.get(f"{server.url}/api/version").json() == {"version": "0.33.3"}
        assert httpx2.get(server.url).text == "Ollama is running"
        assert httpx2.head(server.url).status_code == 200


async def test_a_session_lists_and_embeds(tmp_path: Path) -> None:
    async with (
        fake_server(["Hi"]) as server,
        open_session(
            home=tmp_path, configuration=server.configuration, keys=server.keys
        ) as session,
    ):
        names = {model.name for model in await session.survey_models()}
        assert {"claude-sonnet-5-5", "gpt-5.5", "qwen3:8b"} <= names
        (model, *_) = await session.survey_models("ollama")
        embedded = await model.client.embed(model.name, ["sky"])  # type: ignore[attr-defined]
        assert len(embedded.vectors[0]) == 64
