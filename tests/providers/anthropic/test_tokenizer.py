"""Tokens, counted by the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.fakes.anthropic import FakeAnthropic, answer_json, failure
from tests.fakes.clients import produce_model
from vibe_llms.base.exceptions import ContentNotLoaded, ProviderOverloaded, ReplyMalformed
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, SupervisorCanister, UserCanister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import TokenCount

SAID: Sequence[Canister] = (SupervisorCanister.from_text("Be brief."), UserCanister.from_text("Hi"))


def add(a: int) -> int:
    """Add."""
    return a


async def test_the_server_counts_what_it_would_be_sent(fake_anthropic: FakeAnthropic) -> None:
    fake_anthropic.count = 1234
    model = await produce_model(fake_anthropic.url, name="claude-fable-5")
    counted = await model.count_tokens(SAID, [Invoker.from_function(add)])
    assert counted == TokenCount(1234, estimated=False)
    (request,) = fake_anthropic.requests
    assert request.path == "/v1/messages/count_tokens"
    # What the endpoint does not take is not sent to it.
    assert sorted(request.json) == ["messages", "model", "system", "thinking", "tools"]
    assert fake_anthropic.refusals == []
    await model.client.close()


async def test_texts_are_loaded_for_the_count(fake_anthropic: FakeAnthropic) -> None:
    text = Reference.from_bytes(b"A long text.")
    said = [UserCanister((TextualContent(text),))]

    async def load(references: Sequence[Reference]) -> dict[str, bytes]:
        assert list(references) == [text]
        return {text.hash: b"A long text."}

    model = await produce_model(fake_anthropic.url)
    assert (await model.count_tokens(said, load=load)).tokens == 7
    assert b"A long text." in fake_anthropic.requests[0].body
    with pytest.raises(ContentNotLoaded):
        await model.count_tokens(said)
    await model.client.close()


async def test_a_count_leaves_no_trace_in_the_cache_of_a_conversation(
    fake_anthropic: FakeAnthropic,
) -> None:
    model = await produce_model(fake_anthropic.url)
    cache = model.produce_cache()
    await model.count_tokens(SAID)
    assert cache.history is None
    await model.client.close()


@pytest.mark.parametrize("count", ["7", None, 7.5, {"tokens": 7}, [7]])
async def test_a_count_that_is_none_is_malformed(fake_anthropic: FakeAnthropic, count: Any) -> None:
    fake_anthropic.count = count
    model = await produce_model(fake_anthropic.url)
    with pytest.raises(ReplyMalformed, match="the count of tokens is not in"):
        await model.count_tokens(SAID)
    await model.client.close()


async def test_an_answer_without_a_count_is_malformed(fake_anthropic: FakeAnthropic) -> None:
    fake_anthropic.count = answer_json([])
    model = await produce_model(fake_anthropic.url)
    with pytest.raises(ReplyMalformed):
        await model.count_tokens(SAID)
    await model.client.close()


async def test_a_server_that_does_not_count_says_why(fake_anthropic: FakeAnthropic) -> None:
    fake_anthropic.count = failure(529, "overloaded_error")
    model = await produce_model(fake_anthropic.url)
    with pytest.raises(ProviderOverloaded):
        await model.count_tokens(SAID)
    model.check(SAID, Controls())
    await model.client.close()
