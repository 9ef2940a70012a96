"""The official packages as clients of the fake server, all understood in the same terms."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anthropic
import ollama
import openai
from google import genai

from vibe_llms.testing import FakeServer

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
QUESTION = "What shall I wear?"


@dataclass
class Understood:
    """What a package makes of a reply; `usage` is input, of that read from a cache, and output."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    usage: tuple[int, int, int] = (0, 0, 0)
    reason: str | None = None


def make_anthropic(server: FakeServer, **options: Any) -> anthropic.Anthropic:
    """A client of the package anthropic."""
    given = {"api_key": server.key, "base_url": server.anthropic_url, "max_retries": 0, **options}
    return anthropic.Anthropic(**given)


def make_openai(server: FakeServer, **options: Any) -> openai.OpenAI:
    """A client of the package openai."""
    given = {"api_key": server.key, "base_url": server.openai_url, "max_retries": 0, **options}
    return openai.OpenAI(**given)


def make_ollama(server: FakeServer, **options: Any) -> ollama.Client:
    """A client of the package ollama."""
    return ollama.Client(host=server.ollama_url, timeout=20, **options)


def make_gemini(server: FakeServer, **options: Any) -> genai.Client:
    """A client of the package google-genai."""
    given = {"api_key": server.key, **options}
    return genai.Client(**given, http_options={"base_url": server.gemini_url, "timeout": 20_000})


def ask_anthropic(server: FakeServer, *, streaming: bool, **options: Any) -> Understood:
    """Messages, streamed by the package's own accumulator."""
    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    request: Any = {
        "model": "claude-sonnet-5-5",
        "max_tokens": 99,
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [tool],
        **options,
    }
    with make_anthropic(server) as client:
        if streaming:
            with client.messages.stream(**request) as stream:
                message: Any = stream.get_final_message()
        else:
            message = client.messages.create(**request)
    understood = Understood(reason=message.stop_reason)
    for block in message.content:
        match block.type:
            case "text":
                understood.text += block.text
            case "thinking":
                assert block.signature
                understood.reasoning += block.thinking
            case "tool_use":
                understood.calls.append((block.name, block.input))
    usage = message.usage
    whole = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    understood.usage = (whole, usage.cache_read_input_tokens, usage.output_tokens)
    return understood


def ask_responses(server: FakeServer, *, streaming: bool, **options: Any) -> Understood:
    """Responses."""
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}
    response: Any
    request: Any = {"model": "gpt-6.1-sol", "input": QUESTION, "tools": [tool], **options}
    with make_openai(server) as client:
        if streaming:
            reported, response = "", None
            events: Any = client.responses.create(**request, stream=True)
            for event in events:
                if event.type == "response.output_text.delta":
                    reported += event.delta
                elif event.type in ("response.completed", "response.incomplete"):
                    response = event.response
                elif event.type == "response.failed":
                    raise RuntimeError(event.response.error.message)
            assert reported == response.output_text
        else:
            response = client.responses.create(**request)
    understood = Understood(text=response.output_text, reason=response.status)
    for item in response.output:
        if item.type == "reasoning":
            understood.reasoning += "".join(part.text for part in item.summary)
        elif item.type == "function_call":
            understood.calls.append((item.name, json.loads(item.arguments)))
    usage = response.usage
    cached = usage.input_tokens_details.cached_tokens
    understood.usage = (usage.input_tokens, cached, usage.output_tokens)
    return understood


def ask_chat(server: FakeServer, *, streaming: bool, **options: Any) -> Understood:
    """Chat Completions."""
    function = {"name": "weather", "parameters": SCHEMA}
    request: Any = {
        "model": "gpt-5.5",
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [{"type": "function", "function": function}],
        **options,
    }
    with make_openai(server) as client:
        if not streaming:
            completion = client.chat.completions.create(**request)
            choice, usage = completion.choices[0], completion.usage
        else:
            request["stream_options"] = {"include_usage": True}
            with client.chat.completions.stream(**request) as stream:
                final: Any = stream.get_final_completion()
            choice, usage = final.choices[0], final.usage
    message: Any = choice.message
    return Understood(
        message.content or "",
        (message.model_extra or {}).get("reasoning_content") or "",
        [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()],
        (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens),
        choice.finish_reason,
    )


def ask_ollama(server: FakeServer, *, streaming: bool, **options: Any) -> Understood:
    """Ollama's chat."""
    function = {"name": "weather", "parameters": SCHEMA}
    request: Any = {
        "model": "qwen3:8b",
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [{"type": "function", "function": function}],
        **options,
    }
    understood = Understood()
    with make_ollama(server) as client:
        answer: Any = client.chat(**request, stream=streaming)
        for line in answer if streaming else [answer]:
            message = line.message
            understood.text += message.content or ""
            understood.reasoning += message.thinking or ""
            for call in message.tool_calls or ():
                understood.calls.append((call.function.name, dict(call.function.arguments)))
            understood.reason = line.done_reason
            understood.usage = (line.prompt_eval_count or 0, 0, line.eval_count or 0)
    return understood


def ask_gemini(server: FakeServer, *, streaming: bool, **options: Any) -> Understood:
    """Gemini's contents; the package has a method for each way."""
    function = {"name": "weather", "parameters_json_schema": SCHEMA}
    request: Any = {
        "model": "gemini-3.8-flash",
        "contents": QUESTION,
        "config": {"tools": [{"function_declarations": [function]}]},
        **options,
    }
    understood = Understood()
    with make_gemini(server) as client:
        if streaming:
            responses = list(client.models.generate_content_stream(**request))
        else:
            responses = [client.models.generate_content(**request)]
    for response in responses:
        for candidate in response.candidates or ():
            for part in (candidate.content.parts if candidate.content else None) or ():
                if part.function_call is not None:
                    made: Any = part.function_call
                    understood.calls.append((made.name, made.args))
                elif part.thought:
                    understood.reasoning += part.text or ""
                else:
                    understood.text += part.text or ""
            if candidate.finish_reason is not None:
                understood.reason = candidate.finish_reason.value
        usage: Any = response.usage_metadata
        written = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
        cached = usage.cached_content_token_count or 0
        understood.usage = (usage.prompt_token_count, cached, written)
    return understood


Ask = Callable[..., Understood]
ASKS: dict[str, Ask] = {
    "anthropic": ask_anthropic,
    "responses": ask_responses,
    "chat-completions": ask_chat,
    "ollama": ask_ollama,
    "gemini": ask_gemini,
}
