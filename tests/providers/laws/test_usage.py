"""Usage in classes that do not overlap, the same streamed and whole, with every interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes import bedrock_replies, shout
from tests.fakes.backends import Interface
from tests.fakes.interfaces import EVERY, HttpInterface, every_interface, every_vendor
from tests.fakes.llamacpp import tokenize
from vibe_llms.messages.canisters import Usage, UserCanister
from vibe_llms.providers.anthropic import streams as anthropic_streams
from vibe_llms.providers.bedrock import readings as bedrock_readings
from vibe_llms.providers.gemini import streams as gemini_streams
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.llamacpp import streams as llamacpp_streams
from vibe_llms.providers.ollama import streams as ollama_streams
from vibe_llms.providers.openai.chat_completions import chunks as chat_chunks
from vibe_llms.providers.openai.responses import streams as response_streams
from vibe_llms.testing import Part, ScriptedReply
from vibe_llms.testing.wires import (
    anthropic_replies,
    chat_completions_replies,
    gemini_replies,
    ollama_replies,
    responses_replies,
)

HELLO = [UserCanister.from_text("Hi")]
#: The tokens of the prompt that asks for a reply of the fake engine.
PROMPT = len(tokenize("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"))
SCRIPTED = ScriptedReply(parts=(Part(text="Hello."),), usage=Usage(1, 2, 3, 4, 5))
#: A reply of each interface with the tokens that its server reports: what went in and came out
#: in all, and what that is in our classes.
REPLIES: Mapping[str, tuple[Any, int, int, Usage]] = {
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
    "bedrock": (bedrock_replies.text_reply("Hello."), 140, 9, Usage(20, 90, 30, 9, 0)),
    "gemini": (
        [
            gemini_replies.chunk(gemini_replies.text("Hello.")),
            {
                **gemini_replies.chunk(finish="STOP"),
                "usageMetadata": {
                    **gemini_replies.usage(5, prompt=50, cached=30, thoughts=4),
                    "toolUsePromptTokenCount": 7,
                },
            },
        ],
        50 + 7,
        9,
        Usage(27, 30, 0, 5, 4),
    ),
    "shout": (shout.text_reply("Hello."), 3, 1, Usage(3, output_tokens=1)),
    "llamacpp": (EVERY["llamacpp"].texts("Hello."), PROMPT, 6, Usage(PROMPT, 0, 0, 6, 0)),
    "scripted": (SCRIPTED, 6, 9, Usage(1, 2, 3, 4, 5)),
    "contract": (SCRIPTED, 6, 9, Usage(1, 2, 3, 4, 5)),
}
USUAL = {"azure": "openai", "azure-chat": "openai-chat", "azure-anthropic": "anthropic"}
USUAL |= {"vertex": "gemini", "vertex-anthropic": "anthropic"}
MODULES = (
    *(anthropic_streams, response_streams, chat_chunks, ollama_streams, llamacpp_streams),
    *(bedrock_readings, gemini_streams),
)


async def check_usage(interface: Interface) -> None:
    """What is reported of a reply is what its server counted, each token once."""
    said, read, written, expected = REPLIES[USUAL.get(interface.name, interface.name)]
    for streaming in (True, False):
        reply = said
        if isinstance(interface, HttpInterface) and not streaming:
            reply = interface.whole(said)
        with interface.play(reply) as backend:
            model = await interface.produce_model(backend)
            heard = await model.converse(HELLO, context=TurnContext(streaming=streaming))
            await model.client.close()
        usage = heard[-1].ending.usage
        assert usage == expected, streaming
        assert usage.input_tokens == read, streaming
        assert usage.output_tokens + usage.reasoning_tokens == written, streaming
        assert usage.total_tokens == read + written, streaming


@every_interface
async def test_each_token_is_counted_once_streamed_and_whole(interface: Interface) -> None:
    await check_usage(interface)


@every_vendor
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
