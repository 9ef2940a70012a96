"""The package of OpenAI, by Chat Completions and Responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from interfaces import KEY, MODEL, OPENAI_URL, PICTURE_URL, Program, Streamed
from openai import OpenAI
from pydantic import BaseModel

_TOOL = {
    "name": "get_weather",
    "description": "Return the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Weather(BaseModel):
    """The weather somewhere."""

    city: str
    degrees: int


class OpenAIClient(Program):
    """The client; a history of Responses is sent back as it came."""

    dialects = ("chat", "responses")
    client = OpenAI(api_key=KEY, base_url=OPENAI_URL, max_retries=0)

    def answer(self, prompt: str) -> str:
        """Return the reply, in one piece."""
        return self._reply([{"role": "user", "content": prompt}])

    def _reply(self, history: list[Any]) -> str:
        """Return the reply to a history, which is continued."""
        if self.dialect == "responses":
            response = self.client.responses.create(model=MODEL, input=history, store=False)
            history += response.output
            return response.output_text
        completion = self.client.chat.completions.create(model=MODEL, messages=history)
        history.append(message := completion.choices[0].message)
        return message.content or ""

    def stream(self, prompt: str) -> Streamed:
        """Return the reply as it is streamed."""
        chunks, reasoning = [], ""
        given = [{"role": "user", "content": prompt}]
        if self.dialect == "responses":
            with self.client.responses.stream(model=MODEL, input=given) as events:
                for event in events:
                    if event.type == "response.output_text.delta":
                        chunks.append(event.delta)
                    elif event.type == "response.reasoning_text.delta":
                        reasoning += event.delta
                assert events.get_final_response().output_text == "".join(chunks)
            return Streamed(chunks, reasoning)
        with self.client.chat.completions.stream(model=MODEL, messages=given) as events:
            for event in events:
                if event.type == "content.delta":
                    chunks.append(event.delta)
                elif event.type == "chunk" and event.chunk.choices:
                    delta = event.chunk.choices[0].delta
                    reasoning += getattr(delta, "reasoning_content", None) or ""
        return Streamed(chunks, reasoning)

    def call_tool(self, prompt: str) -> tuple[str, Sequence[str]]:
        """Offer `get_weather`; return the reply and the cities asked for."""
        history: list[Any] = [{"role": "user", "content": prompt}]
        if self.dialect == "responses":
            tools = [{"type": "function", **_TOOL}]
            response = self.client.responses.create(model=MODEL, input=history, tools=tools)
            history += response.output
            calls = [one for one in response.output if one.type == "function_call"]
            history += [
                {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
                for call in calls
            ]
            cities = [json.loads(call.arguments)["city"] for call in calls]
            response = self.client.responses.create(model=MODEL, input=history, tools=tools)
            return response.output_text, cities
        options = {"model": MODEL, "tools": [{"type": "function", "function": _TOOL}]}
        completion = self.client.chat.completions.create(messages=history, **options)
        history.append(message := completion.choices[0].message)
        history += [
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
            for call in message.tool_calls
        ]
        cities = [json.loads(call.function.arguments)["city"] for call in message.tool_calls]
        completion = self.client.chat.completions.create(messages=history, **options)
        return completion.choices[0].message.content, cities

    def structure(self, prompt: str) -> Mapping[str, Any]:
        """Return the reply as an object that fits `SCHEMA`."""
        given = [{"role": "user", "content": prompt}]
        if self.dialect == "responses":
            response = self.client.responses.parse(model=MODEL, input=given, text_format=Weather)
            return response.output_parsed.model_dump()
        completion = self.client.chat.completions.parse(
            model=MODEL, messages=given, response_format=Weather, max_tokens=100
        )
        return completion.choices[0].message.parsed.model_dump()

    def look(self, prompt: str) -> str:
        """Send a picture with the prompt; return the reply."""
        if self.dialect == "responses":
            content: list[Any] = [
                {"type": "input_text", "text": prompt},
                {"type": "input_image", "image_url": PICTURE_URL},
            ]
        else:
            content = [
                {"type": "text", "text": prompt},
                {"type": "image_url", "image_url": {"url": PICTURE_URL}},
            ]
        return self._reply([{"role": "user", "content": content}])

    def converse(self, prompts: Sequence[str]) -> Sequence[str]:
        """Hold one conversation; return the replies."""
        history: list[Any] = []
        replies = []
        for prompt in prompts:
            history.append({"role": "user", "content": prompt})
            replies.append(self._reply(history))
        return replies

    def cancel(self, prompt: str) -> str:
        """Leave a reply that never ends as soon as there is some text; return that."""
        given = [{"role": "user", "content": prompt}]
        if self.dialect == "responses":
            with self.client.responses.create(model=MODEL, input=given, stream=True) as events:
                for event in events:
                    if event.type == "response.output_text.delta":
                        return event.delta
            return ""
        with self.client.chat.completions.create(
            model=MODEL, messages=given, stream=True
        ) as chunks:
            for chunk in chunks:
                if chunk.choices and chunk.choices[0].delta.content:
                    return chunk.choices[0].delta.content
        return ""


PROGRAM = OpenAIClient
