"""Usage in classes that do not overlap, the same streamed and whole, with every interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes.interfaces import Interface, Player, every_interface
from tests.fakes.strict import Events
from vibe_llms.messages.canisters import Usage, UserCanister
from vibe_llms.providers.anthropic import streams as anthropic_streams
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.ollama import streams as ollama_streams
from vibe_llms.providers.openai.chat_completions import chunks as chat_chunks
from vibe_llms.providers.openai.responses import streams as response_streams
from vibe_llms.testing.wires import (
    anthropic_replies,
    chat_completions_replies,
    ollama_replies,
    responses_replies,
)

HELLO = [UserCanister.from_text("Hi")]
#: A reply of each interface with the tokens that its server reports: what went in and came out
#: in all, and what that is in our classes.
REPLIES: Mapping[str, tuple[Events, int, int, Usage]] = {
    "anthropic": (
        anthropic_replies.reply(
            anthropic_replies.text_block(0, "Hello."),
            usage={"output_tokens": 42, "output_tokens_details": {"thinking_tokens": 12}},
        ),
        20 + 100 + 900,
        42,
        Usage(20, 900, 100, 30, 12),
    ),
    "openai": (
        responses_replies.response_reply(responses_replies.message("Hello.")),
        50,
        9,
        Usage(15, 30, 5, 5, 4),
    ),
    "openai-chat": (chat_completions_replies.chat_reply("Hello."), 20, 9, Usage(5, 12, 3, 5, 4)),
    "ollama": (
        [
            ollama_replies.line("Hello."),
            ollama_replies.end(prompt_eval_count=50, prompt_eval_cached_count=30, eval_count=7),
        ],
        50,
        7,
        Usage(20, 30, 0, 7, 0),
    ),
}
MODULES = (anthropic_streams, response_streams, chat_chunks, ollama_streams)


async def check_usage(interface: Interface) -> None:
    """What is reported of a reply is what its server counted, each token once."""
    events, read, written, expected = REPLIES[interface.row]
    for streaming in (True, False):
        answer = interface.stream(events) if streaming else interface.whole(events)
        with Player([answer]) as server:
            model = await interface.produce_model(server.url)
            reply = await model.converse(HELLO, context=TurnContext(streaming=streaming))
            await model.client.close()
        usage = reply[-1].ending.usage
        assert usage == expected, streaming
        assert usage.input_tokens == read, streaming
        assert usage.output_tokens + usage.reasoning_tokens == written, streaming
        assert usage.total_tokens == read + written, streaming


@every_interface
async def test_each_token_is_counted_once_streamed_and_whole(interface: Interface) -> None:
    await check_usage(interface)


@every_interface
async def test_a_cache_that_is_counted_twice_would_be_detected(
    interface: Interface, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count_twice(**tokens: Any) -> Usage:
        read = tokens.get("cache_read_tokens", 0)
        twice = tokens["uncached_input_tokens"] + read
        return Usage(**{**tokens, "uncached_input_tokens": twice})

    for module in MODULES:
        monkeypatch.setattr(module, "Usage", count_twice)
    with pytest.raises(AssertionError):
        await check_usage(interface)
