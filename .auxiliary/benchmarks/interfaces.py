"""The interfaces that are measured: the row that speaks one, and its official package."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import botocore.session
import ollama
import openai
from google import genai
from measure import KEY


@dataclass(frozen=True)
class Interface:
    """`stream` is the interface of the official package, given a request.

    `settings` are what the row needs besides an address and a key.
    """

    name: str
    package: str
    row: str
    model: str
    produce_package: Callable[[str], AbstractAsyncContextManager[Any]]
    stream: Callable[[Any, Mapping[str, Any]], AsyncIterator[Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.name.capitalize()

    def configure(self, url: str) -> dict[str, Any]:
        """A configuration whose row leads to a server."""
        return {"providers": {self.row: {"base-url": url, **self.settings}}}


async def _stream_anthropic(client: Any, request: Mapping[str, Any]) -> AsyncIterator[Any]:
    messages = request.get("messages", [])
    stream = await client.messages.create(model="m", max_tokens=9, messages=messages, stream=True)
    async for event in stream:
        yield event


async def _stream_chat(client: Any, request: Mapping[str, Any]) -> AsyncIterator[Any]:
    messages = request.get("messages", [])
    stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
    async for event in stream:
        yield event


async def _stream_response(client: Any, request: Mapping[str, Any]) -> AsyncIterator[Any]:
    items = request.get("input", [])
    async for event in await client.responses.create(model="m", input=items, stream=True):
        yield event


async def _stream_lines(client: Any, request: Mapping[str, Any]) -> AsyncIterator[Any]:
    messages = request.get("messages", [])
    async for line in await client.chat(model="m", messages=messages, stream=True):
        yield line


async def _stream_gemini(client: Any, request: Mapping[str, Any]) -> AsyncIterator[Any]:
    contents = request.get("contents") or "hi"
    async for chunk in await client.models.generate_content_stream(model="m", contents=contents):
        yield chunk


async def _stream_converse(client: Any, _: Mapping[str, Any]) -> AsyncIterator[Any]:
    said = [{"role": "user", "content": [{"text": "hi"}]}]
    for event in client.converse_stream(modelId="m", messages=said)["stream"]:
        yield event


def _produce_anthropic(url: str) -> Any:
    return anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0)


def _produce_openai(url: str) -> Any:
    return openai.AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0)


def _produce_ollama(url: str) -> Any:
    return ollama.AsyncClient(host=url)


@asynccontextmanager
async def _produce_gemini(url: str) -> AsyncIterator[Any]:
    async with genai.Client(api_key=KEY, http_options={"base_url": url}).aio as client:
        yield client


@asynccontextmanager
async def _produce_bedrock(url: str) -> AsyncIterator[Any]:
    """Botocore's client, which is not asynchronous; boto3's is the same."""
    yield botocore.session.Session().create_client(
        "bedrock-runtime",
        region_name=_REGION,
        endpoint_url=url,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key=KEY,
    )


_REGION = "us-east-1"
ANTHROPIC = Interface(
    "anthropic",
    "anthropic",
    "anthropic",
    "claude-sonnet-5-5",
    _produce_anthropic,
    _stream_anthropic,
)
CHAT = Interface("chat", "openai", "openai-chat", "gpt-5.5", _produce_openai, _stream_chat)
RESPONSES = Interface(
    "responses", "openai", "openai", "gpt-6.1-sol", _produce_openai, _stream_response
)
OLLAMA = Interface("ollama", "ollama", "ollama", "qwen3:8b", _produce_ollama, _stream_lines)
GEMINI = Interface(
    "gemini", "google-genai", "gemini", "gemini-3.8-flash", _produce_gemini, _stream_gemini
)
BEDROCK = Interface(
    "bedrock",
    "botocore",
    "bedrock",
    "global.anthropic.claude-opus-5",
    _produce_bedrock,
    _stream_converse,
    {"region": _REGION},
)
AZURE_CHAT = Interface(
    "azure-chat", "openai", "azure-chat", "gpt-5.5", _produce_openai, _stream_chat
)
AZURE = Interface("azure", "openai", "azure", "gpt-6.1-sol", _produce_openai, _stream_response)
INTERFACES = (ANTHROPIC, CHAT, RESPONSES, OLLAMA, GEMINI)
#: All whose streams differ.
STREAMED = (*INTERFACES, BEDROCK, AZURE_CHAT, AZURE)
