"""pydantic-ai, with its models of OpenAI and Anthropic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anthropic import AsyncAnthropic
from interfaces import KEY, MODEL, OPENAI_URL, PICTURE, URL, AsyncProgram, Streamed
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    BinaryContent,
    NativeOutput,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(BaseModel):
    """The weather somewhere."""

    city: str
    degrees: int


class PydanticAI(AsyncProgram):
    """An agent with one model."""

    dialects = ("chat", "responses", "messages")

    @property
    def model(self) -> Model:
        """The model of this dialect; clients belong to one event loop."""
        if self.dialect == "messages":
            client = AsyncAnthropic(api_key=KEY, base_url=URL)
            return AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=client))
        provider = OpenAIProvider(openai_client=AsyncOpenAI(api_key=KEY, base_url=OPENAI_URL))
        if self.dialect == "responses":
            return OpenAIResponsesModel(MODEL, provider=provider)
        return OpenAIChatModel(MODEL, provider=provider)

    async def _answer(self, prompt: str) -> str:
        return (await Agent(self.model).run(prompt)).output

    async def _stream(self, prompt: str) -> Streamed:
        chunks, reasoning = [], ""
        agent = Agent(self.model)
        async with agent.iter(prompt) as run:
            async for node in run:
                if not Agent.is_model_request_node(node):
                    continue
                async with node.stream(run.ctx) as events:
                    async for event in events:
                        match event:
                            case PartStartEvent(part=TextPart(content=text)) if text:
                                chunks.append(text)
                            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                                chunks.append(text)
                            case PartStartEvent(part=ThinkingPart(content=text)):
                                reasoning += text
                            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)):
                                reasoning += text or ""
        return Streamed(chunks, reasoning)

    async def _call_tool(self, prompt: str) -> tuple[str, Sequence[str]]:
        agent, cities = Agent(self.model), []

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """Return the weather."""
            cities.append(city)
            return "sunny"

        return (await agent.run(prompt)).output, cities

    async def _structure(self, prompt: str) -> Mapping[str, Any]:
        # By a tool, which is the default, and by the schema of the reply. The latter is for those
        # models of Anthropic that the program knows.
        replies = [await Agent(self.model, output_type=Weather).run(prompt)]
        if self.dialect != "messages":
            replies.append(await Agent(self.model, output_type=NativeOutput(Weather)).run(prompt))
        outputs = [reply.output.model_dump() for reply in replies]
        assert all(output == outputs[0] for output in outputs)
        return outputs[0]

    async def _look(self, prompt: str) -> str:
        picture = BinaryContent(PICTURE, media_type="image/png")
        return (await Agent(self.model).run([prompt, picture])).output

    async def _converse(self, prompts: Sequence[str]) -> Sequence[str]:
        agent, history, replies = Agent(self.model), None, []
        for prompt in prompts:
            result = await agent.run(prompt, message_history=history)
            history = result.all_messages()
            replies.append(result.output)
        return replies

    async def _cancel(self, prompt: str) -> str:
        async with Agent(self.model).run_stream(prompt) as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                return text
        return ""


PROGRAM = PydanticAI
