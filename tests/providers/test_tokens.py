"""Every tokenizer asks the provider where it counts, else it estimates and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.testing.test_server import ROWS
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import ContextOverflow
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister, UserCanister
from vibe_llms.messages.contents import TextualContent
from vibe_llms.opening import open_session
from vibe_llms.providers.interfaces import TokenCount
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing import fake_server

LIMIT = 2_000
WORDS = "The sky is blue, they say. " * 500
COUNTS = ("anthropic", "responses", "gemini")


@pytest.mark.parametrize("interface", ROWS)
async def test_an_estimate_says_what_it_is(interface: str, tmp_path: Path) -> None:
    async with (
        fake_server(["Hi"]) as server,
        open_session(home=tmp_path, configuration=server.configuration, keys=server.keys) as s,
    ):
        model = await s.access_model(ROWS[interface])
        count = await model.count_tokens([UserCanister.from_text(WORDS)])
    assert count.estimated is (interface not in COUNTS)
    assert 3_000 < count.tokens < 6_000
    asked = [received.request.path.rpartition("/")[2] for received in server.received]
    expected = {
        "anthropic": ["count_tokens"],
        "responses": ["input_tokens"],
        "gemini": ["gemini-3.8-flash:countTokens"],
    }
    assert asked == expected.get(interface, [])


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("interface", ROWS)
async def test_what_is_surely_too_long_is_not_sent(
    interface: str, streaming: bool, tmp_path: Path
) -> None:
    row, _, name = ROWS[interface].partition("/")
    async with fake_server(["Hi"]) as server:
        configuration = server.configuration
        configuration["providers"][row]["models"] = {name: {"context-tokens": LIMIT}}
        async with open_session(home=tmp_path, configuration=configuration, keys=server.keys) as s:
            conversation = await s.begin(ROWS[interface])
            with pytest.raises(ContextOverflow) as caught:
                await conversation.converse(WORDS, streaming=streaming)
            assert caught.value.limit == LIMIT
            assert (caught.value.tokens or 0) > LIMIT
            assert conversation.canisters == ()
            # The conversation goes on as if it had not been.
            assert (await conversation.converse("Hello?", streaming=streaming)).text == "Hi"
    sent = [
        one.request for one in server.received if not one.request.path.lower().endswith("tokens")
    ]
    assert b"Hello?" in sent[-1].body
    assert not any(b"they say" in request.body for request in sent)


async def test_a_context_that_varies_from_server_to_server_refuses_nothing(tmp_path: Path) -> None:
    async with fake_server(["Hi"]) as server:
        configuration = server.configuration
        attributes = {"context-tokens": LIMIT}
        configuration["providers"]["groq"]["models"] = {"qwen/qwen3-32b": attributes}
        async with open_session(home=tmp_path, configuration=configuration, keys=server.keys) as s:
            conversation = await s.begin("groq/qwen/qwen3-32b")
            assert (await conversation.converse(WORDS)).text == "Hi"


async def test_texts_in_the_archive_and_calls_count_too(tmp_path: Path) -> None:
    call = InvocationCanister(name="f", arguments='{"a": 1, "b": 2}')
    archive = DirectoryArchive(tmp_path, StorageSettings(durability="fast"))
    async with (
        fake_server(["Hi"]) as server,
        open_session(archive=archive, configuration=server.configuration, keys=server.keys) as s,
    ):
        reference = await archive.put(b"some words that are kept")
        said: list[Any] = [
            UserCanister((TextualContent(reference),)),
            call,
            ResultCanister((TextualContent("done"),), invocation=call.identity),
        ]
        model = await s.access_model("openai-chat/gpt-5.5")
        count = await model.count_tokens(said, load=archive.load_all)
    # Five words, a call of four letters and numbers and some signs, one word.
    assert 10 <= count.at_least <= 25
    assert count.tokens >= count.at_least


def test_a_count_that_was_asked_for_is_no_estimate() -> None:
    assert TokenCount(5, estimated=False) == TokenCount(5, estimated=False, at_least=0)
