"""The Agents SDK of OpenAI."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from interfaces import KEY, MODEL, OPENAI_URL, PICTURE_URL, AsyncProgram, Streamed
from openai import AsyncOpenAI
from pydantic import BaseModel

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)

set_tracing_disabled(True)


class Weather(BaseModel):
    """The weather somewhere."""

    city: str
    degrees: int


class OpenAIAgents(AsyncProgram):
    """An agent with one model."""

    dialects = ("chat", "responses")

    def produce_agent(self, **options: Any) -> Agent[Any]:
        """Make an agent whose client belongs to this event loop."""
        client = AsyncOpenAI(api_key=KEY, base_url=OPENAI_URL)
        model: Model = OpenAIChatCompletionsModel(MODEL, client)
        if self.dialect == "responses":
            model = OpenAIResponsesModel(MODEL, client)
        return Agent(name="Assistant", instructions="Be brief.", model=model, **options)

    async def _answer(self, prompt: str) -> str:
        return str((await Runner.run(self.produce_agent(), prompt)).final_output)

    async def _stream(self, prompt: str) -> Streamed:
        chunks, reasoning = [], ""
        result = Runner.run_streamed(self.produce_agent(), prompt)
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                kind = event.data.type
                if kind == "response.output_text.delta":
                    chunks.append(event.data.delta)
                elif "reasoning" in kind and kind.endswith(".delta"):
                    reasoning += event.data.delta
        assert result.final_output == "".join(chunks)
        return Streamed(chunks, reasoning)

    async def _call_tool(self, prompt: str) -> tuple[str, Sequence[str]]:
        cities: list[str] = []

        @function_tool
        def get_weather(city: str) -> str:
            """Return the weather."""
            cities.append(city)
            return "sunny"

        result = await Runner.run(self.produce_agent(tools=[get_weather]), prompt)
        return str(result.final_output), cities

    async def _structure(self, prompt: str) -> Mapping[str, Any]:
        result = await Runner.run(self.produce_agent(output_type=Weather), prompt)
        return json.loads(result.final_output.model_dump_json())

    async def _look(self, prompt: str) -> str:
        content = [
            {"type": "input_text", "text": prompt},
            {"type": "input_image", "image_url": PICTURE_URL, "detail": "auto"},
        ]
        given = [{"role": "user", "content": content}]
        return str((await Runner.run(self.produce_agent(), given)).final_output)

    async def _converse(self, prompts: Sequence[str]) -> Sequence[str]:
        agent, session = self.produce_agent(), SQLiteSession("one")
        return [
            str((await Runner.run(agent, prompt, session=session)).final_output)
            for prompt in prompts
        ]

    async def _cancel(self, prompt: str) -> str:
        result, said = Runner.run_streamed(self.produce_agent(), prompt), ""
        async for event in result.stream_events():
            raw = event.data if event.type == "raw_response_event" else None
            if raw and raw.type == "response.output_text.delta" and not said:
                said = raw.delta
                result.cancel()
        return said


PROGRAM = OpenAIAgents
