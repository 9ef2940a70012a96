"""litellm as a client, by all three interfaces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import litellm
from interfaces import (
    KEY,
    MODEL,
    OPENAI_URL,
    PICTURE_URL,
    SCHEMA,
    URL,
    AsyncProgram,
    Streamed,
)

litellm.telemetry = False
# It asks models that it does not know for the whole reply, and pretends to stream.
litellm.register_model(
    {MODEL: {"litellm_provider": "openai", "mode": "chat", "supports_native_streaming": True}}
)
_NAMES = {
    "chat": ("openai/", OPENAI_URL),
    "responses": ("openai/responses/", OPENAI_URL),
    "messages": ("anthropic/", URL),
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class LiteLLM(AsyncProgram):
    """`acompletion`."""

    dialects = tuple(_NAMES)

    async def _ask(self, messages: Sequence[Any], **options: Any) -> Any:
        prefix, url = _NAMES[self.dialect]
        return await litellm.acompletion(
            model=prefix + MODEL, api_base=url, api_key=KEY, messages=[*messages], **options
        )

    async def _answer(self, prompt: str) -> str:
        reply = await self._ask([{"role": "user", "content": prompt}])
        return str(reply.choices[0].message.content)

    async def _stream(self, prompt: str) -> Streamed:
        chunks, reasoning = [], ""
        stream = await self._ask([{"role": "user", "content": prompt}], stream=True)
        async for chunk in stream:
            delta = chunk.choices[0].delta
            reasoning += getattr(delta, "reasoning_content", None) or ""
            if delta.content:
                chunks.append(delta.content)
        return Streamed(chunks, reasoning)

    async def _call_tool(self, prompt: str) -> tuple[str, Sequence[str]]:
        messages: list[Any] = [{"role": "user", "content": prompt}]
        first = (await self._ask(messages, tools=[_TOOL])).choices[0].message
        messages.append(first)
        cities = []
        for call in first.tool_calls:
            cities.append(json.loads(call.function.arguments)["city"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
        second = await self._ask(messages, tools=[_TOOL])
        return str(second.choices[0].message.content), cities

    async def _structure(self, prompt: str) -> Mapping[str, Any]:
        form = {"name": "weather", "schema": SCHEMA, "strict": True}
        reply = await self._ask(
            [{"role": "user", "content": prompt}],
            response_format={"type": "json_schema", "json_schema": form},
        )
        return dict(json.loads(reply.choices[0].message.content))

    async def _look(self, prompt: str) -> str:
        content = [
            {"type": "text", "text": prompt},
            {"type": "image_url", "image_url": {"url": PICTURE_URL}},
        ]
        reply = await self._ask([{"role": "user", "content": content}])
        return str(reply.choices[0].message.content)

    async def _converse(self, prompts: Sequence[str]) -> Sequence[str]:
        messages: list[Any] = []
        replies = []
        for prompt in prompts:
            messages.append({"role": "user", "content": prompt})
            message = (await self._ask(messages)).choices[0].message
            messages.append(message)
            replies.append(str(message.content))
        return replies

    async def _cancel(self, prompt: str) -> str:
        stream = await self._ask([{"role": "user", "content": prompt}], stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                await stream.aclose()
                return str(chunk.choices[0].delta.content)
        return ""


PROGRAM = LiteLLM
