"""The key of a conversation, by which OpenAI finds the machine that has cached its beginning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.openai import FakeOpenAI
from tests.fakes.openai_clients import INTERFACES, MODELS, produce_openai_model
from vibe_llms import open_session
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.openai.model import OpenaiSettings, name_conversation
from vibe_llms.storage.archive import DirectoryArchive

HI = [UserCanister.from_text("Hi")]
ROWS = {"chat": "openai-chat", "responses": "openai"}
OPENAI = "https://api.openai.com/v1"


async def preview(interface: str, url: str = OPENAI, **options: Any) -> dict[str, Any]:
    extras = options.pop("extras", {})
    context = options.pop("context", TurnContext(conversation="c", root="r"))
    model = await produce_openai_model(interface, url, **options)
    controls = Controls(extras={interface: extras} if extras else {})
    members: dict[str, Any] = json.loads(await model.preview(HI, (), controls, context))
    return members


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(
    ("url", "name", "sent"),
    [
        (OPENAI, "gpt-5.5", True),
        (OPENAI, "o3", True),
        ("https://eu.api.openai.com/v1", "gpt-5.5", True),
        ("https://we.openai.azure.com/openai/v1", "gpt-5.5", True),
        ("https://we.openai.azure.com/openai/v1", "Kimi-K2.5", False),
        ("https://api.groq.com/openai/v1", "openai/gpt-oss-120b", False),
        ("https://api.groq.com/openai/v1", "gpt-5.5", False),
        ("https://api.openai.com.example/v1", "gpt-5.5", False),
        ("http://127.0.0.1:8000/v1", "gpt-5.5", False),
    ],
)
async def test_the_key_is_sent_to_servers_that_take_it(
    interface: str, url: str, name: str, sent: bool
) -> None:
    members = await preview(interface, url, name=name)
    assert ("prompt_cache_key" in members) == sent


@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_row_decides_for_its_server(interface: str) -> None:
    assert "prompt_cache_key" not in await preview(interface, cache_key=False)
    other = await preview(interface, "http://127.0.0.1:9/v1", name="qwen3", cache_key=True)
    assert other["prompt_cache_key"] == name_conversation("r")
    for wrong in ("no address", "http://[::1"):
        assert OpenaiSettings(base_url=wrong).takes_cache_key(by_model=True) is False


@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_key_in_the_extras_replaces_it(interface: str) -> None:
    members = await preview(interface, extras={"prompt_cache_key": "mine"})
    assert members["prompt_cache_key"] == "mine"


@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_request_without_a_conversation_has_no_key(interface: str) -> None:
    assert "prompt_cache_key" not in await preview(interface, context=TurnContext())
    members = await preview(interface, context=TurnContext(conversation="c"))
    assert members["prompt_cache_key"] == name_conversation("c")


def test_a_key_tells_nothing_and_is_short_enough() -> None:
    key = name_conversation("0192-name-of-a-user" * 20)
    assert len(key) <= 64
    assert key.isalnum()
    assert "name" not in key
    assert key != name_conversation("other")


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "archived"])
async def test_forks_share_the_key_of_their_root(
    interface: str, kept: bool, tmp_path: Path
) -> None:
    with FakeOpenAI() as server:
        row = {"base-url": server.url, "retries": 0, "cache-key": True}
        async with open_session(
            configuration={"providers": {ROWS[interface]: row}},
            archive=DirectoryArchive(tmp_path) if kept else None,
            keys={ROWS[interface]: server.key},
        ) as session:
            address = f"{ROWS[interface]}/{MODELS[interface]}"
            root = await session.begin(address)
            await root.converse("Hi")
            fork = await root.fork()
            await fork.converse("Hi")
            grandchild = await fork.fork(name="a name")
            await grandchild.converse("Hi")
            again = await grandchild.undo()
            await again.converse("Hi")
            if kept:
                restored = await session.resume(again.identity)
                await restored.converse("Hi")
            other = await session.begin(address)
            await other.converse("Hi")
        assert not server.refusals
        *keys, last = [request.json["prompt_cache_key"] for request in server.requests]
    assert set(keys) == {name_conversation(root.identity)}
    assert last == name_conversation(other.identity)
