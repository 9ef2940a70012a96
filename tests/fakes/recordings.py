"""Recorded streams, what the official packages read in them, and what we do.

Both readings are plain data, so that they can be compared: the blocks in order, and the ending.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tests.fakes import bedrock_replies
from tests.fakes.anthropic import accumulate
from tests.fakes.bedrock import describe
from tests.fakes.server import End
from vibe_llms.base.exceptions import ReplyCut
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    Provenance,
    ReplyCanister,
    StopReason,
    Usage,
)
from vibe_llms.messages.contents import (
    ImageContent,
    NativeContent,
    NativePayload,
    ReasoningContent,
    TextualContent,
    repair_text,
)
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.anthropic.streams import AnthropicAssimilator
from vibe_llms.providers.bedrock.streams import BedrockAssimilator
from vibe_llms.providers.gemini.streams import GeminiAssimilator
from vibe_llms.providers.ollama.streams import OllamaAssimilator
from vibe_llms.providers.openai.chat_completions.streams import ChatCompletionsAssimilator
from vibe_llms.providers.openai.responses.streams import ResponsesAssimilator
from vibe_llms.providers.round_trip import Assimilator
from vibe_llms.providers.transport import Incoming, Outgoing
from vibe_llms.testing.wires.chat_completions_replies import complete
from vibe_llms.testing.wires.gemini_replies import gather as gather_chunks
from vibe_llms.testing.wires.ollama_replies import gather

DATA = Path(__file__).parent.parent / "data"


class Recordings:
    """The recorded streams of one interface."""

    row: str
    module: str
    model: str
    folder: str
    suffix = "sse"
    kind = "text/event-stream"
    assimilator: Callable[[str, Callable[[str], str]], Assimilator]

    def __init__(self) -> None:
        files = (DATA / self.folder).glob(f"*.{self.suffix}")
        self.names = tuple(sorted(path.stem for path in files))
        self.provenance = Provenance(self.module, self.row, self.model)
        self.load = cache(self._load)
        self.whole = cache(self._whole)
        self.notices = cache(self._notices)

    def _load(self, name: str) -> bytes:
        return (DATA / self.folder / f"{name}.{self.suffix}").read_bytes()

    def _whole(self, name: str) -> tuple[tuple[ReplyCanister, ...], list[Any]]:
        """The canisters of a stream, and the same without what may differ."""
        canisters, _ = self.assimilate([self.load(name)])
        return canisters, strip(canisters)

    def _notices(self, name: str) -> list[str]:
        """The notices of a stream, such as what a content filter flagged."""
        return find_notices(self.assimilate([self.load(name)])[1])

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of a stream, by a reader of our own that wants all of it at once."""
        text = self.load(name).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        found = []
        for block in text.split("\n\n"):
            data = [line[5:].lstrip(" ") for line in block.split("\n") if line.startswith("data:")]
            if data and data != ["[DONE]"]:
                found.append(json.loads("\n".join(data)))
        return found

    def body(self, name: str) -> dict[str, Any]:
        """The reply that the server gives where it is not asked to stream."""
        raise NotImplementedError

    def ends(self, name: str) -> tuple[int, int]:
        """The bytes with which a reply is whole: if the body ends cleanly, and in any case."""
        raw = self.load(name)
        # The CR of the last CRLF ends the line already.
        end = len(raw) - raw.endswith(b"\r\n")
        # The last event may lack its end, unless the connection broke.
        return len(raw.rstrip(b"\r\n")), end

    def produce_assimilator(self) -> Assimilator:
        """A translator that leaves names as they are."""
        return type(self).assimilator(self.row, lambda name: name)

    def assimilate(
        self, chunks: Iterable[bytes], *, whole: bool = False
    ) -> tuple[tuple[ReplyCanister, ...], list[Event]]:
        """The canisters and the events of a stream in chunks, or of a whole body."""
        events: list[Event] = []
        assimilator = self.produce_assimilator()
        accumulator = Accumulator(self.provenance, events.append)
        with accumulator:
            for chunk in chunks:
                for delta in assimilator.assimilate(chunk) if whole else assimilator.feed(chunk):
                    accumulator.accept(delta)
            if not whole:
                for delta in assimilator.conclude():
                    accumulator.accept(delta)
        return accumulator.canisters, events

    def read_officially(self, name: str) -> list[Any]:
        """What the official package reads in a stream."""
        raise NotImplementedError

    def read_canisters(self, canisters: Sequence[ReplyCanister]) -> list[Any]:
        """The same of a reply of ours."""
        raise NotImplementedError


class AnthropicRecordings(Recordings):
    """Streams of Anthropic's Messages."""

    row, folder, model = "anthropic", "anthropic", "claude-opus-5"
    module = "vibe_llms.providers.anthropic"
    assimilator = AnthropicAssimilator
    #: Stop reasons that mean that the last block was cut.
    _CUTTING = ("max_tokens", "refusal")

    def body(self, name: str) -> dict[str, Any]:
        return accumulate(self.events(name))

    def ends(self, name: str) -> tuple[int, int]:
        # A stop reason is an end too, unless the connection broke.
        raw = self.load(name)
        _, end = super().ends(name)
        named = raw.index(b"message_delta")
        reason = max(raw.find(b'"message_delta"', named), named)
        # One recording has a line `id` behind the data of each event.
        breaks = (raw.find(one, reason) for one in (b"\r\n\r", b"\rid\r", b"\r\r", b"\n\n"))
        return min(place for place in breaks if place > 0), end

    def read_officially(self, name: str) -> list[Any]:
        return self.read_message(self.body(name))

    def read_message(self, message: Mapping[str, Any]) -> list[Any]:
        """A message of the official package's."""
        blocks: list[Any] = []
        for item in message["content"]:
            match item["type"]:
                case "text" if item["text"] or item.get("citations"):
                    blocks.append(("text", repair_text(item["text"]), item.get("citations") or []))
                case "text":
                    pass
                case "thinking":
                    blocks.append(("thinking", repair_text(item["thinking"]), item["signature"]))
                case "tool_use":
                    extra = {k: v for k, v in item.items() if k in ("caller", "toolset_name")}
                    blocks.append(("call", item["id"], item["name"], item["input"], extra))
                case _:
                    blocks.append(("native", item))
        severed: tuple[str, ...] = ()
        if message["stop_reason"] in self._CUTTING and blocks and blocks[-1][0] == "call":
            severed = (blocks.pop()[2],)
        usage = message["usage"]
        thought = (usage.get("output_tokens_details") or {}).get("thinking_tokens", 0)
        tokens = Usage(
            usage["input_tokens"],
            usage["cache_read_input_tokens"],
            usage["cache_creation_input_tokens"],
            usage["output_tokens"] - thought,
            thought,
        )
        details = message.get("stop_details") or {}
        said = ": ".join(details[one] for one in ("category", "explanation") if details.get(one))
        detail = said or message["stop_sequence"] or ""
        return [message["id"], blocks, message["stop_reason"], severed, detail, tokens]

    def read_canisters(self, canisters: Sequence[ReplyCanister]) -> list[Any]:
        blocks: list[Any] = []
        for canister in canisters:
            if isinstance(canister, InvocationCanister):
                native = decode(canister.native)
                blocks.append(("call", canister.call, canister.name, canister.parsed, native))
                continue
            for content in canister.contents:
                native = decode(content.native)
                match content:
                    case TextualContent(text=text):
                        blocks.append(("text", text, native.get("citations", [])))
                    case ReasoningContent(text=text) if "type" not in native:
                        blocks.append(("thinking", text, native["signature"]))
                    case ReasoningContent() | NativeContent():
                        blocks.append(("native", native))
        provenance, ending = canisters[-1].provenance, canisters[-1].ending
        assert provenance is not None
        assert ending is not None
        reason = ending.native_reason
        return [provenance.response, blocks, reason, ending.severed, ending.detail, ending.usage]


class OpenAIRecordings(Recordings):
    """Streams of OpenAI's: text, thoughts and calls are compared each for themselves."""

    def decode_officially(self, name: str) -> list[Any]:
        """The events by the decoder of the package."""
        from openai._streaming import SSEDecoder

        found = []
        for event in SSEDecoder().iter_bytes(iter([self.load(name)])):
            if event.data.startswith("[DONE]"):
                break
            found.append(event.json())
        return found

    def read_usage(self, usage: Any, prompt: str, reply: str) -> Usage | None:
        """The tokens that a server reports, in our classes."""
        if usage is None:
            return None
        details = usage[f"{prompt}_tokens_details"]
        read, written = details["cached_tokens"], details["cache_write_tokens"]
        thought = usage[f"{reply}_tokens_details"]["reasoning_tokens"]
        fresh = usage[f"{prompt}_tokens"] - read - written
        return Usage(fresh, read, written, usage[f"{reply}_tokens"] - thought, thought)

    def read_canisters(self, canisters: Sequence[ReplyCanister]) -> list[Any]:
        text, thought, calls = "", "", []
        for canister in canisters:
            if isinstance(canister, InvocationCanister):
                calls.append((canister.call, canister.name, canister.arguments))
                continue
            text += canister.text
            thought += "".join(
                content.text
                for content in canister.contents
                if isinstance(content, ReasoningContent)
            )
        ending = canisters[-1].ending
        assert ending is not None
        return [thought, text, calls, ending.native_reason, ending.usage]


class ChatRecordings(OpenAIRecordings):
    """Streams of Chat Completions."""

    row, folder, model = "chat", "openai/chat", "gpt-5.5"
    module = "vibe_llms.providers.openai.chat_completions"
    assimilator = ChatCompletionsAssimilator

    def body(self, name: str) -> dict[str, Any]:
        return complete(self.events(name))

    def ends(self, name: str) -> tuple[int, int]:
        raw = self.load(name)
        _, end = super().ends(name)
        break_ = b"\r\n\r" if b"\r\n" in raw else b"\n\n"
        reason = raw.index(b'"finish_reason":"')
        return raw.index(break_, reason), end

    def read_officially(self, name: str) -> list[Any]:
        from openai._models import construct_type
        from openai.lib.streaming.chat import ChatCompletionStreamState
        from openai.types.chat import ChatCompletionChunk

        state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
        usage: dict[str, Any] | None = None
        for event in self.decode_officially(name):
            chunk: Any = construct_type(type_=ChatCompletionChunk, value=event)
            state.handle_chunk(chunk)
            usage = event.get("usage") or usage
        choice: Any = state.current_completion_snapshot.choices[0]
        said = choice.message.model_dump(warnings=False)
        thought = said.get("reasoning_content") or said.get("reasoning") or ""
        text = (said.get("content") or "") + (said.get("refusal") or "")
        made = [(call["id"], call["function"]) for call in said.get("tool_calls") or ()]
        calls = [
            (call, function["name"], repair_text(function["arguments"])) for call, function in made
        ]
        if choice.finish_reason == "length":
            calls = calls[:-1]
        tokens = self.read_usage(usage, "prompt", "completion")
        return [repair_text(thought), repair_text(text), calls, choice.finish_reason, tokens]


class ResponsesRecordings(OpenAIRecordings):
    """Streams of Responses."""

    row, folder, model = "responses", "openai/responses", "gpt-6.1-sol"
    module = "vibe_llms.providers.openai.responses"
    assimilator = ResponsesAssimilator

    def body(self, name: str) -> dict[str, Any]:
        whole: dict[str, Any] = self.events(name)[-1]["response"]
        return whole

    def read_officially(self, name: str) -> list[Any]:
        from openai._models import construct_type
        from openai.types.responses import ResponseStreamEvent

        events: list[Any] = [
            construct_type(type_=ResponseStreamEvent, value=event)
            for event in self.decode_officially(name)
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
        reported = last.response.incomplete_details
        reason = reported.reason if reported else last.response.status
        tokens = self.read_usage(last.response.usage.model_dump(), "input", "output")
        return ["\n\n".join(thought), repair_text(text), calls, reason, tokens]


class OllamaRecordings(Recordings):
    """Streams of Ollama's."""

    row, folder, model = "ollama", "ollama", "qwen3:8b"
    module = "vibe_llms.providers.ollama"
    suffix, kind = "ndjson", "application/x-ndjson"
    assimilator = OllamaAssimilator

    def events(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.load(name).decode().split("\n") if line.strip()]

    def body(self, name: str) -> dict[str, Any]:
        return gather(self.events(name))

    def ends(self, name: str) -> tuple[int, int]:
        # The last line may lack its end, unless the connection broke.
        raw = self.load(name)
        return len(raw.rstrip(b"\r\n")), len(raw) + (not raw.endswith(b"\n"))

    def read_officially(self, name: str) -> list[Any]:
        return self.read_lines(self.events(name))

    def read_lines(self, lines: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Lines as the official package reads them; its decoder keeps no identity of a call."""
        from ollama import ChatResponse

        blocks: list[Any] = []
        ending: Any = None
        for line in lines:
            response = ChatResponse(**line)
            message = response.message
            for kind, text in (("thinking", message.thinking), ("text", message.content)):
                if text and blocks and blocks[-1][0] == kind:
                    blocks[-1] = (kind, blocks[-1][1] + text)
                elif text:
                    blocks.append((kind, text))
            for call in message.tool_calls or ():
                blocks.append(("call", call.function.name, dict(call.function.arguments)))
            if response.done:
                tokens = (response.prompt_eval_count or 0, response.eval_count or 0)
                ending = (response.done_reason or "", tokens)
        return [blocks, ending]

    def read_canisters(self, canisters: Sequence[ReplyCanister]) -> list[Any]:
        blocks: list[Any] = []
        for canister in canisters:
            if isinstance(canister, InvocationCanister):
                blocks.append(("call", canister.name, canister.parsed))
                continue
            for content in canister.contents:
                match content:
                    case TextualContent(text=text):
                        blocks.append(("text", text))
                    case ReasoningContent(text=text):
                        blocks.append(("thinking", text))
        ending = canisters[-1].ending
        assert ending is not None
        assert ending.usage is not None
        tokens = (ending.usage.input_tokens, ending.usage.output_tokens)
        return [blocks, (ending.native_reason, tokens)]


class BedrockRecordings(Recordings):
    """Streams of Bedrock's ConverseStream."""

    row, folder, model = "bedrock", "bedrock", "global.anthropic.claude-opus-5"
    module = "vibe_llms.providers.bedrock"
    suffix, kind = "eventstream", "application/vnd.amazon.eventstream"
    assimilator = BedrockAssimilator

    def _messages(self, name: str) -> list[Any]:
        """The messages of a stream, by the reader of `botocore`."""
        from botocore.eventstream import EventStreamBuffer

        buffer = EventStreamBuffer()
        buffer.add_data(self.load(name))
        return list(buffer)

    def events(self, name: str) -> list[dict[str, Any]]:
        found = []
        for message in self._messages(name):
            body = json.loads(message.payload or b"{}")
            body.pop("p", None)
            found.append({message.headers[":event-type"]: body})
        return found

    def body(self, name: str) -> dict[str, Any]:
        return bedrock_replies.accumulate(self.events(name))

    def ends(self, name: str) -> tuple[int, int]:
        # The usage follows the end of the message, which is enough if the body ends cleanly.
        raw = self.load(name)
        last = self._messages(name)[-1].prelude.total_length
        return len(raw) - last, len(raw)

    def starts(self, name: str) -> list[int]:
        """The places at which the messages of a stream begin."""
        sizes = (message.prelude.total_length for message in self._messages(name))
        return [0, *itertools.accumulate(sizes)][:-1]

    def read_officially(self, name: str) -> list[Any]:
        from botocore.eventstream import EventStream
        from botocore.parsers import ResponseParserFactory

        class Raw:
            def stream(_self) -> list[bytes]:  # noqa: N805
                return [self.load(name)]

        official = describe("ConverseStream").output_shape.members["stream"]
        parser = ResponseParserFactory().create_parser("rest-json")._event_stream_parser
        blocks: dict[int, list[Any]] = {}
        ending: dict[str, Any] = {}
        for event in EventStream(Raw(), official, parser, "ConverseStream"):
            match event:
                case {"contentBlockStart": {"contentBlockIndex": index, "start": start}}:
                    if "toolUse" in start:
                        tool = start["toolUse"]
                        blocks[index] = ["call", tool["toolUseId"], tool["name"], ""]
                        if "type" in tool:
                            blocks[index] = ["native"]
                    else:
                        blocks[index] = ["native"]
                case {"contentBlockDelta": {"contentBlockIndex": index, "delta": step}}:
                    self._grow(blocks, index, step)
                case {"messageStop": {"stopReason": reason}}:
                    ending["reason"] = reason
                case {"metadata": {"usage": usage}}:
                    ending["tokens"] = (
                        usage["inputTokens"],
                        usage["cacheReadInputTokens"],
                        usage["cacheWriteInputTokens"],
                        usage["outputTokens"],
                    )
        said = [one for _, one in sorted(blocks.items())]
        if ending["reason"] == "max_tokens" and said and said[-1][0] == "call":
            said.pop()
        for one in said:
            if one[0] == "call":
                one[3] = json.loads(one[3] or "{}")
        return [said, ending["reason"], ending["tokens"]]

    def _grow(self, blocks: dict[int, list[Any]], index: int, step: Mapping[str, Any]) -> None:
        match step:
            case {"text": text}:
                blocks.setdefault(index, ["text", "", 0])[1] += text
            case {"citation": _}:
                blocks.setdefault(index, ["text", "", 0])[2] += 1
            case {"toolUse": {"input": piece}} if blocks[index][0] == "call":
                blocks[index][3] += piece
            case {"reasoningContent": {"text": text}}:
                blocks.setdefault(index, ["thinking", "", ""])[1] += text
            case {"reasoningContent": {"signature": signature}}:
                blocks.setdefault(index, ["thinking", "", ""])[2] += signature
            case {"reasoningContent": {"redactedContent": data}}:
                blocks.setdefault(index, ["redacted", b""])[1] += data

    def read_canisters(self, canisters: Sequence[ReplyCanister]) -> list[Any]:
        blocks: list[Any] = []
        for canister in canisters:
            if isinstance(canister, InvocationCanister):
                blocks.append(["call", canister.call, canister.name, canister.parsed])
                continue
            for content in canister.contents:
                native = decode(content.native)
                match content:
                    case TextualContent(text=text):
                        blocks.append(["text", text, len(native.get("citations", []))])
                    case ReasoningContent() if "redactedContent" in native:
                        blocks.append(["redacted", base64.b64decode(native["redactedContent"])])
                    case ReasoningContent(text=text):
                        blocks.append(["thinking", text, native["signature"]])
                    case NativeContent():
                        blocks.append(["native"])
        ending = canisters[-1].ending
        assert ending is not None
        usage = ending.usage
        assert usage is not None
        tokens = (
            usage.uncached_input_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
            usage.output_tokens,
        )
        return [blocks, ending.native_reason, tokens]


class GeminiRecordings(Recordings):
    """Streams of Gemini's."""

    row, folder, model = "gemini", "gemini", "gemini-3.8-flash"
    module = "vibe_llms.providers.gemini"
    assimilator = GeminiAssimilator

    def body(self, name: str) -> dict[str, Any]:
        return gather_chunks(self.events(name))

    def ends(self, name: str) -> tuple[int, int]:
        # A finish reason is an end too, unless the connection broke before the usage.
        raw = self.load(name)
        clean, end = super().ends(name)
        reason = raw.find(b'"finishReason"')
        break_ = b"\r\n\r" if b"\r\n" in raw else b"\n\n"
        return (raw.index(break_, reason) if reason > 0 else clean), end

    def read_officially(self, name: str) -> list[Any]:
        from google.genai.models import _GenerateContentResponse_from_mldev
        from google.genai.types import GenerateContentResponse

        blocks: list[Any] = []
        ending: list[Any] = ["", None]
        for event in self.events(name):
            # A newer server sends kinds of parts that the package does not know.
            known = json.loads(json.dumps(event), object_hook=_drop_unknown)
            converted = _GenerateContentResponse_from_mldev(known)
            # Its decoder refuses lone surrogates, so others stand for them meanwhile.
            written = json.dumps(converted, ensure_ascii=False).translate(_STAND_INS)
            response = GenerateContentResponse.model_validate_json(written)
            if response.usage_metadata is not None:
                ending[1] = _read_gemini_usage(response.usage_metadata)
            if response.prompt_feedback is not None and response.prompt_feedback.block_reason:
                ending[0] = response.prompt_feedback.block_reason.value
            for candidate in response.candidates or ():
                for part in (candidate.content.parts if candidate.content else None) or ():
                    _append_part(blocks, part.model_dump(mode="json", exclude_none=True))
                if candidate.finish_reason is not None:
                    ending[0] = candidate.finish_reason.value
        for block in blocks:
            if isinstance(block, list):
                block[1] = repair_text(block[1])
        return [blocks, *ending]

    def read_canisters(self, canisters: Sequence[ReplyCanister]) -> list[Any]:
        blocks: list[Any] = []
        for canister in canisters:
            if isinstance(canister, InvocationCanister):
                signature = decode(canister.native).get("thoughtSignature", "")
                made = (canister.call, canister.name, canister.parsed)
                blocks.append(("call", *made, signature))
                continue
            for content in canister.contents:
                native = decode(content.native)
                match content:
                    case TextualContent(text=text):
                        blocks.append(["text", text, _signatures_of(native)])
                    case ReasoningContent(text=text):
                        blocks.append(["thought", text, _signatures_of(native)])
                    case ImageContent(data=data, mimetype=mimetype):
                        signature = native.get("thoughtSignature", "")
                        blocks.append(("media", mimetype, data, signature))
                    case NativeContent(label=label) if not label.endswith("Metadata"):
                        blocks.append(("native", label, native.get("thoughtSignature", "")))
        ending = canisters[-1].ending
        assert ending is not None
        return [blocks, ending.native_reason, ending.usage]


_STAND_INS = {code: chr(0xF0000 + code) for code in range(0xD800, 0xE000)}
_SURROGATES = {0xF0000 + code: chr(code) for code in _STAND_INS}


def _drop_unknown(value: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if name != "hologram"}


def _signatures_of(native: Mapping[str, Any]) -> list[str]:
    return [signature for _, _, signature in native.get("signatures", ())]


def _read_gemini_usage(usage: Any) -> Usage:
    cached = usage.cached_content_token_count or 0
    return Usage(
        (usage.prompt_token_count or 0) - cached,
        cached,
        0,
        usage.candidates_token_count or 0,
        usage.thoughts_token_count or 0,
    )


def _append_part(blocks: list[Any], part: Mapping[str, Any]) -> None:
    """A part as the official package reads it."""
    signature = _encode_signature(part.get("thought_signature", ""))
    match part:
        case {"text": text}:
            kind = "thought" if part.get("thought") else "text"
            if not text and not signature:
                return
            if not blocks or blocks[-1][0] != kind:
                blocks.append([kind, "", []])
            blocks[-1][1] += text.translate(_SURROGATES)
            blocks[-1][2] += [signature] if signature else []
        case {"function_call": call}:
            arguments = json.dumps(call.get("args", {}), ensure_ascii=False)
            parsed = json.loads(repair_text(arguments.translate(_SURROGATES)))
            made = (call.get("id", ""), call["name"], parsed)
            blocks.append(("call", *made, signature))
        case {"inline_data": blob}:
            data = base64.urlsafe_b64decode(blob["data"])
            blocks.append(("media", blob["mime_type"], data, signature))
        case _:
            kinds = [name for name in part if name not in ("thought", "thought_signature")]
            label = (
                re.sub("_(.)", lambda found: found[1].upper(), kinds[0]) if kinds else "hologram"
            )
            blocks.append(("native", label, signature))


def _encode_signature(text: str) -> str:
    """Base64 as it was sent: the package writes the alphabet of addresses."""
    return text.translate(str.maketrans("-_", "+/"))


ANTHROPIC, CHAT = AnthropicRecordings(), ChatRecordings()
RESPONSES, OLLAMA = ResponsesRecordings(), OllamaRecordings()
BEDROCK = BedrockRecordings()
GEMINI = GeminiRecordings()


class ReplayTransport:
    """Plays a stream back without a socket: in pieces of a size, and only so many bytes of it."""

    def __init__(
        self, raw: bytes, size: int, *, cut: int | None = None, end: End = "clean", kind: str = ""
    ) -> None:
        self.raw, self.size, self.cut, self.end = raw, size, cut, end
        self.kind = kind or "text/event-stream"

    def prepare(self) -> None:
        pass

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> AsyncIterator[Incoming]:
        async for _ in body:
            pass
        yield Incoming(200, {"content-type": self.kind}, self._play())

    async def close(self) -> None:
        pass

    async def _play(self) -> AsyncIterator[bytes]:
        raw = self.raw[: self.cut]
        for start in range(0, len(raw), self.size):
            yield raw[start : start + self.size]
        if self.end != "clean":
            raise ReplyCut("connection lost during the reply", provider="anthropic")


def places(raw: bytes, step: int) -> list[int]:
    """Where a stream is cut: at every `step`-th byte, and wherever that tears a character.

    At its beginning and its end there are more places.
    """
    torn = (
        at for at in range(1, len(raw)) if raw[at - 1] > 127 or {*raw[at - 1 : at + 1]} & {10, 13}
    )
    ends = (*range(8), *range(len(raw), max(len(raw) - 60, 0), -min(step, 4)))
    return sorted({*ends, *range(8, len(raw), step), *torn})


def decode(native: NativePayload | None) -> dict[str, Any]:
    """What a payload holds."""
    members: dict[str, Any] = json.loads(bytes(native.data)) if native else {}
    return members


def strip(canisters: Iterable[ReplyCanister], *, parsed: bool = False) -> list[Any]:
    """Canisters without what may differ between two of the same reply: identities and times.

    Native payloads count as they are read. With `parsed` the arguments do so too.
    """
    stripped: list[Any] = []
    for canister in canisters:
        where = (canister.reply != "", canister.provenance, canister.ending)
        if isinstance(canister, AssistantCanister):
            contents = [
                (msgspec.structs.replace(content, native=None), decode(content.native))
                for content in canister.contents
            ]
            stripped.append((contents, *where))
        else:
            arguments = canister.parsed if parsed else canister.arguments
            native = decode(canister.native)
            stripped.append((canister.name, canister.call, arguments, native, *where))
    return stripped


def find_notices(events: Iterable[Event]) -> list[str]:
    """The texts of the notices among events."""
    return [event.notice.text for event in events if isinstance(event, NoticeEvent)]


def is_cut(canister: ReplyCanister) -> bool:
    """Whether a canister is marked as what arrived of a reply that was cut."""
    ending = canister.ending
    return ending is not None and ending.interrupted and ending.reason == StopReason.FAILED
