"""Recorded streams of both interfaces, however they are cut into chunks, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.fakes.openai import complete
from tests.fakes.openai_clients import NAMES, assimilate, load, read_events, strip
from vibe_llms.messages.canisters import InvocationCanister, ReplyCanister
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.messages.contents import ReasoningContent, repair_text
from vibe_llms.providers.openai.chat_completions import streams as chat_streams
from vibe_llms.providers.openai.responses import streams as response_streams
from vibe_llms.providers.wire import EventSplitter
from vibe_llms.testing import check_events


def read_officially(name: str) -> list[Any]:
    """What the official package reads in a stream, as plain data."""
    raw = load(name)
    return _read_chat(raw) if name.startswith("chat/") else _read_response(raw)


def _decode(raw: bytes) -> list[Any]:
    from openai._streaming import SSEDecoder

    found = []
    for event in SSEDecoder().iter_bytes(iter([raw])):
        if event.data.startswith("[DONE]"):
            break
        found.append(event.json())
    return found


def _read_chat(raw: bytes) -> list[Any]:
    from openai._models import construct_type
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletionChunk

    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    usage: dict[str, Any] | None = None
    for event in _decode(raw):
        chunk: Any = construct_type(type_=ChatCompletionChunk, value=event)
        state.handle_chunk(chunk)
        usage = event["usage"] or usage
    choice: Any = state.current_completion_snapshot.choices[0]
    said = choice.message.model_dump(warnings=False)
    thought = said.get("reasoning_content") or said.get("reasoning") or ""
    text = (said.get("content") or "") + (said.get("refusal") or "")
    calls = [
        (call["id"], call["function"]["name"], repair_text(call["function"]["arguments"]) or "{}")
        for call in said.get("tool_calls") or ()
    ]
    if choice.finish_reason == "length":
        calls = calls[:-1]
    tokens = None
    if usage is not None:
        read = usage["prompt_tokens_details"]["cached_tokens"]
        written = usage["prompt_tokens_details"]["cache_write_tokens"]
        thinking = usage["completion_tokens_details"]["reasoning_tokens"]
        tokens = (
            usage["prompt_tokens"] - read - written,
            read,
            written,
            usage["completion_tokens"] - thinking,
            thinking,
        )
    return [repair_text(thought), repair_text(text), calls, choice.finish_reason, tokens]


def _read_response(raw: bytes) -> list[Any]:
    from openai._models import construct_type
    from openai.types.responses import ResponseStreamEvent

    events: list[Any] = [
        construct_type(type_=ResponseStreamEvent, value=event) for event in _decode(raw)
    ]
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    text, thought, calls = "", [], []
    for item in last.response.output:
        match item.type:
            case "message":
                for part in item.content:
                    text += part.text if part.type == "output_text" else part.refusal
            case "reasoning":
                thought += [part.text for part in [*item.summary, *(item.content or [])]]
            case "function_call" if item.status == "completed":
                calls.append((item.call_id, item.name, repair_text(item.arguments)))
    told = last.response.incomplete_details
    reason = told.reason if told else last.response.status
    usage = last.response.usage
    read = usage.input_tokens_details.cached_tokens
    written = usage.input_tokens_details.cache_write_tokens
    thinking = usage.output_tokens_details.reasoning_tokens
    tokens = (
        usage.input_tokens - read - written,
        read,
        written,
        usage.output_tokens - thinking,
        thinking,
    )
    return ["\n\n".join(thought), repair_text(text), calls, reason, tokens]


def read_canisters(canisters: Sequence[ReplyCanister]) -> list[Any]:
    """A reply of ours as plain data."""
    text, thought, calls = "", "", []
    for canister in canisters:
        if isinstance(canister, InvocationCanister):
            calls.append((canister.call, canister.name, canister.arguments))
            continue
        text += canister.text
        thought += "".join(
            content.text for content in canister.contents if isinstance(content, ReasoningContent)
        )
    ending = canisters[-1].ending
    assert ending is not None
    usage = ending.usage
    tokens = None
    if usage is not None:
        tokens = (
            usage.uncached_input_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
            usage.output_tokens,
            usage.reasoning_tokens,
        )
    return [thought, text, calls, ending.native_reason, tokens]


def check_splits(name: str, cuts: Sequence[int]) -> None:
    """However a stream is cut in two, what is read is what the official package reads."""
    raw, interface = load(name), name.partition("/")[0]
    expected = read_officially(name)
    whole = strip(assimilate(interface, [raw])[0])
    for cut in cuts:
        canisters, events = assimilate(interface, [raw[:cut], raw[cut:]])
        assert strip(canisters) == whole, cut
        assert read_canisters(canisters) == expected, cut
        check_events(events, turn=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_split_at_any_byte_gives_what_the_official_package_reads(name: str) -> None:
    check_splits(name, range(len(load(name)) + 1))


@pytest.mark.parametrize("size", [1, 3, 64])
@pytest.mark.parametrize("name", NAMES)
def test_a_stream_in_small_chunks_gives_the_same_canisters(name: str, size: int) -> None:
    raw, interface = load(name), name.partition("/")[0]
    chunks = [raw[start : start + size] for start in range(0, len(raw), size)]
    canisters, events = assimilate(interface, chunks)
    assert strip(canisters) == strip(assimilate(interface, [raw])[0])
    check_events(events, turn=False)


@pytest.mark.parametrize("interface", ["chat", "responses"])
def test_a_splitter_that_decodes_chunk_by_chunk_would_be_found_out(
    interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Careless(EventSplitter):
        def feed(self, chunk: bytes) -> Sequence[bytes]:
            return super().feed(chunk.decode("utf-8", "replace").encode())

    for module in (chat_streams, response_streams):
        monkeypatch.setattr(module, "EventSplitter", Careless)
    name = f"{interface}/unicode"
    with pytest.raises(AssertionError):
        check_splits(name, range(len(load(name))))


@pytest.mark.parametrize("name", NAMES)
def test_an_unstreamed_reply_gives_the_canisters_of_the_streamed_one(name: str) -> None:
    interface = name.partition("/")[0]
    events = read_events(name)
    whole = complete(events) if interface == "chat" else events[-1]["response"]
    canisters, told = assimilate(interface, [json.dumps(whole).encode()], whole=True)
    assert strip(canisters) == strip(assimilate(interface, [load(name)])[0])
    check_events(told, turn=False)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_read_can_be_stored_and_restored(name: str) -> None:
    canisters, _ = assimilate(name.partition("/")[0], [load(name)])
    for canister in canisters:
        line = encode_canister(canister)
        assert decode_canister(line) == canister
        json.loads(line.decode())
