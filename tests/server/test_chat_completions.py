"""Chat Completions as the official client sees them, from a real server."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.server.conftest import Served
from vibe_llms.messages.canisters import role_of

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
    assert [one.text for one in stored[1:] if hasattr(one, "text")] == said


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
