"""LangChain's `ChatAnthropic`, and its `ChatOpenAI` by both interfaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from interfaces import (
    KEY,
    MODEL,
    OPENAI_URL,
    PICTURE_BASE64,
    SCHEMA,
    URL,
    AsyncProgram,
    Streamed,
)
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


class LangChain(AsyncProgram):
    """A chat model."""

    dialects = ("messages", "chat", "responses")

    @property
    def model(self) -> BaseChatModel:
        """The model of this dialect."""
        if self.dialect == "messages":
            return ChatAnthropic(model=MODEL, base_url=URL, api_key=KEY, max_retries=0)
        return ChatOpenAI(
            model=MODEL,
            base_url=OPENAI_URL,
            api_key=KEY,
            max_retries=0,
            use_responses_api=self.dialect == "responses",
            output_version="responses/v1" if self.dialect == "responses" else None,
        )

    async def _answer(self, prompt: str) -> str:
        return (await self.model.ainvoke(prompt)).text

    async def _stream(self, prompt: str) -> Streamed:
        chunks, reasoning = [], ""
        async for chunk in self.model.astream(prompt):
            if chunk.text:
                chunks.append(chunk.text)
            for block in chunk.content_blocks:
                if block["type"] == "reasoning":
                    reasoning += block.get("reasoning", "")
        return Streamed(chunks, reasoning)

    async def _call_tool(self, prompt: str) -> tuple[str, Sequence[str]]:
        cities = []

        @tool
        def get_weather(city: str) -> str:
            """Return the weather."""
            cities.append(city)
            return "sunny"

        model = self.model.bind_tools([get_weather])
        messages: list[BaseMessage] = [HumanMessage(prompt)]
        messages.append(first := await model.ainvoke(messages))
        for call in first.tool_calls:
            result = get_weather.invoke(call)
            assert isinstance(result, ToolMessage)
            messages.append(result)
        return (await model.ainvoke(messages)).text, cities

    async def _structure(self, prompt: str) -> Mapping[str, Any]:
        methods = ("function_calling", "json_schema")
        replies = [
            await self.model.with_structured_output(dict(SCHEMA), method=method).ainvoke(prompt)
            for method in methods
        ]
        assert replies[0] == replies[1]
        return replies[0]

    async def _look(self, prompt: str) -> str:
        picture = {"type": "image", "base64": PICTURE_BASE64, "mime_type": "image/png"}
        message = HumanMessage([{"type": "text", "text": prompt}, picture])
        return (await self.model.ainvoke([message])).text

    async def _converse(self, prompts: Sequence[str]) -> Sequence[str]:
        messages: list[BaseMessage] = []
        replies = []
        for prompt in prompts:
            messages.append(HumanMessage(prompt))
            messages.append(reply := await self.model.ainvoke(messages))
            replies.append(reply.text)
        return replies

    async def _cancel(self, prompt: str) -> str:
        stream = self.model.astream(prompt)
        async for chunk in stream:
            if chunk.text:
                await stream.aclose()
                return chunk.text
        return ""


PROGRAM = LangChain
