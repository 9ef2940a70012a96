"""The package of Anthropic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anthropic import Anthropic, beta_tool
from interfaces import KEY, MODEL, PICTURE_BASE64, URL, Program, Streamed
from pydantic import BaseModel

#: A budget of thinking, which the model does not have.
_THINKING = {"type": "enabled", "budget_tokens": 1024}


class Weather(BaseModel):
    """The weather somewhere."""

    city: str
    degrees: int


class AnthropicClient(Program):
    """The client, which asks for thinking."""

    dialects = ("messages",)
    client = Anthropic(api_key=KEY, base_url=URL, max_retries=0)

    def _create(self, history: list[Any]) -> str:
        """Return the reply to a history, which is continued."""
        message = self.client.messages.create(
            model=MODEL, messages=history, max_tokens=2048, thinking=_THINKING
        )
        history.append({"role": "assistant", "content": message.content})
        return "".join(block.text for block in message.content if block.type == "text")

    def answer(self, prompt: str) -> str:
        """Return the reply, in one piece."""
        return self._create([{"role": "user", "content": prompt}])

    def stream(self, prompt: str) -> Streamed:
        """Return the reply as it is streamed."""
        chunks, reasoning = [], ""
        with self.client.messages.stream(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=2048,
            thinking=_THINKING,
        ) as events:
            for event in events:
                if event.type == "text":
                    chunks.append(event.text)
                elif event.type == "thinking":
                    reasoning += event.thinking
            assert events.get_final_text() == "".join(chunks)
        return Streamed(chunks, reasoning)

    def call_tool(self, prompt: str) -> tuple[str, Sequence[str]]:
        """Let the package call the tool; return the reply and the cities asked for."""
        cities = []

        @beta_tool
        def get_weather(city: str) -> str:
            """Return the weather."""
            cities.append(city)
            return "sunny"

        runner = self.client.beta.messages.tool_runner(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=2048,
            tools=[get_weather],
        )
        message = runner.until_done()
        return "".join(block.text for block in message.content if block.type == "text"), cities

    def structure(self, prompt: str) -> Mapping[str, Any]:
        """Return the reply as an object that fits `SCHEMA`."""
        message = self.client.messages.parse(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=2048,
            output_format=Weather,
        )
        return message.parsed_output.model_dump()

    def look(self, prompt: str) -> str:
        """Send a picture with the prompt; return the reply."""
        source = {"type": "base64", "media_type": "image/png", "data": PICTURE_BASE64}
        content = [{"type": "image", "source": source}, {"type": "text", "text": prompt}]
        return self._create([{"role": "user", "content": content}])

    def converse(self, prompts: Sequence[str]) -> Sequence[str]:
        """Hold one conversation; return the replies."""
        history: list[Any] = []
        replies = []
        for prompt in prompts:
            history.append({"role": "user", "content": prompt})
            replies.append(self._create(history))
        return replies

    def cancel(self, prompt: str) -> str:
        """Leave a reply that never ends as soon as there is some text; return that."""
        with self.client.messages.stream(
            model=MODEL, messages=[{"role": "user", "content": prompt}], max_tokens=2048
        ) as stream:
            for text in stream.text_stream:
                return text
        return ""


PROGRAM = AnthropicClient
