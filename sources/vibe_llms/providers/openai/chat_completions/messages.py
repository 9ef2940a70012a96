"""Converts canisters to pieces of Chat Completions, and pieces to the messages of a request.

Text is kept apart from other parts, because a message of text alone is sent as a plain string,
which every compatible server understands.

Source: the message types of openai 3.54.0, `types/chat/chat_completion_message_param.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    Location,
    MediaContent,
    NativeContent,
    NativePayload,
    ReasoningContent,
    TextualContent,
    Upload,
    repair_text,
)
from vibe_llms.messages.events import Notice
from vibe_llms.providers.conversions import Writer, head_document, nativize_arguments
from vibe_llms.providers.histories import BEGIN, CONTINUE, FAILED, Exchange
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.openai.chat_completions.reasoning_details import merge_details
from vibe_llms.providers.openai.contents import (
    SOUNDS,
    describe_left_out,
    encode_slot,
    is_textual,
    name_sent,
    unsupported,
)
from vibe_llms.providers.openai.controls import read_native
from vibe_llms.providers.openai.history import OpenAIHistory
from vibe_llms.providers.pieces import Block, Fragment, encode_json, interleave
from vibe_llms.providers.tool_names import nativize_name

MODULE = "vibe_llms.providers.openai.chat_completions"
#: Accepted forms of data other than bytes in the request, by kind of content.
PLACES: Mapping[str, tuple[str, ...]] = {"image": ("url",), "audio": (), "file": ("upload",)}
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])

#: Text as a JSON string, or another part of a message as a block.
Part: TypeAlias = bytes | Block


class ChatPiece(Struct, frozen=True):
    """An encoded canister: the parts of its message, or its call.

    `shown` holds the pictures and files of a result, which only a user message can contain.
    `reasoning`, `details` and `extra` are further members of the assistant's message.
    """

    role: Literal["user", "assistant", "system", "developer", "tool"]
    parts: tuple[Part, ...] = ()
    call: Block | None = None
    shown: tuple[Part, ...] = ()
    reasoning: Mapping[str, str] = {}
    details: tuple[Any, ...] = ()
    extra: Raw | None = None


class _Kept:
    """Members to send back with an assistant message."""

    def __init__(self) -> None:
        self.details: list[Any] = []
        self.extra: Raw | None = None


class _Work(Writer[ChatPiece, Part]):
    """Writer of one canister."""

    def write_reply(self, canister: AssistantCanister) -> ChatPiece:
        texts: list[str] = []
        reasoning: dict[str, str] = {}
        kept = _Kept()
        for content in canister.contents:
            match content:
                case TextualContent(data=data):
                    self.leave_out_additions(content)
                    texts.append(self.text(data))
                    self._take_kept(content.native, kept)
                case ReasoningContent():
                    self._nativize_reasoning(content, reasoning, texts)
                    self._take_kept(content.native, kept)
                case NativeContent(label=label):
                    self.leave_out(f"a block {label!r} that only its model understands")
                case _:
                    # The interface takes no pictures or sound in an assistant's message.
                    texts.append(self.describe(content))
        text = "".join(texts)
        parts = (encode_json(text),) if text.strip() else ()
        return ChatPiece(
            "assistant", parts, reasoning=reasoning, details=tuple(kept.details), extra=kept.extra
        )

    def _take_kept(self, native: NativePayload | None, kept: _Kept) -> None:
        """Collect the members to send back with the whole message."""
        members = self.read(native, _MEMBERS) or {}
        if "message" not in members:
            return
        message = _MEMBERS.decode(members["message"])
        if "reasoning_details" in message and self._replays is not False:
            kept.details += msgspec.json.decode(message["reasoning_details"])
        kept.extra = message.get("extra_content", kept.extra)

    @property
    def _replays(self) -> bool | None:
        return read_native(self.model).replays_reasoning

    def _nativize_reasoning(
        self, content: ReasoningContent, reasoning: dict[str, str], texts: list[str]
    ) -> None:
        native = content.native
        if native is None or not self.issued(native):
            self.leave_out("the reasoning of another model")
            return
        members = _MEMBERS.decode(native.data)
        if not self._replays or "member" not in members:
            # The interface has no member for it, and OpenAI's models do not need it.
            return
        member = msgspec.json.decode(members["member"], type=str)
        if member[:1] == "<":
            closing = member.replace("<", "</")
            texts.append(f"{member}{self.text(content.data)}{closing}\n\n")
            return
        if member == "reasoning_details":
            return
        reasoning[member] = reasoning.get(member, "") + self.text(content.data)

    def write_call(self, canister: InvocationCanister) -> ChatPiece:
        arguments = repair_text(canister.arguments.strip() or "{}")
        if canister.parsed is None:
            arguments = bytes(nativize_arguments(canister)).decode()
        function = {"name": nativize_name(canister.name), "arguments": arguments}
        extra = dict(self.members(canister))
        kept = _Kept()
        if extra.pop("message", None) is not None:
            self._take_kept(canister.native, kept)
        block = {"id": self.call, "type": "function", "function": function, **extra}
        return ChatPiece(
            "assistant", call=(encode_json(block),), details=tuple(kept.details), extra=kept.extra
        )

    def write_result(self, canister: ResultCanister) -> ChatPiece:
        parts = self.encode(canister.contents)
        texts = [part for part in parts if isinstance(part, bytes)]
        shown: tuple[Part, ...] = tuple(part for part in parts if not isinstance(part, bytes))
        if canister.failed:
            texts.insert(0, encode_json(FAILED))
        if shown:
            texts.append(encode_json(f"(Its other {len(shown)} results follow.)"))
            shown = (encode_json("(Returned by the tool:)"), *shown)
        before = encode_json({"role": "tool", "tool_call_id": self.call})[:-1]
        block = (before + b',"content":' + (join_texts(texts) or b'""') + b"}",)
        return ChatPiece("tool", (block,), shown=shown)

    def write_document(self, canister: DocumentCanister) -> ChatPiece:
        parts = self.encode(canister.contents)
        if not parts:
            return ChatPiece("user")
        heading = encode_json(head_document(canister) or "Document:")
        return ChatPiece("user", (heading, *parts))

    def frame(self, role: Literal["user", "system"], blocks: Sequence[Part]) -> ChatPiece:
        return ChatPiece(role, tuple(blocks))

    def encode_text(self, text: str) -> Part:
        return encode_json(text)

    def unsupported(self, content: MediaContent) -> str:
        return unsupported(content, self.model, PLACES)

    def encode_media(self, content: MediaContent) -> Part:
        instead: dict[str, Any] = {"type": "text", "text": describe_left_out(content)}
        match content:
            case ImageContent(data=Location(url)):
                image = {"url": repair_text(url)}
                return (encode_json({"type": "image_url", "image_url": image}),)
            case ImageContent():
                before = b'{"type":"image_url","image_url":{"url":'
                return encode_slot(content, before, b"}}", instead, self.origin, uri=True)
            case AudioContent():
                sound = encode_json(SOUNDS[content.mimetype])
                before = b'{"type":"input_audio","input_audio":{"format":' + sound + b',"data":'
                return encode_slot(content, before, b"}}", instead, self.origin)
            case FileContent(data=Upload(identity)):
                file = {"file_id": repair_text(identity)}
                return (encode_json({"type": "file", "file": file}),)
            case FileContent() if is_textual(content):
                before = b'{"type":"text","text":'
                return encode_slot(content, before, b"}", instead, self.origin)
            case _:
                head = encode_json({"filename": name_sent(content)})[:-1]
                before = b'{"type":"file","file":' + head + b',"file_data":'
                return encode_slot(content, before, b"}}", instead, self.origin, uri=True)


class ChatCompletionsHistory(OpenAIHistory[ChatPiece]):
    """The messages of one conversation for one model."""

    def __init__(self, model: Model) -> None:
        super().__init__(b'{"messages":[', model)
        native = read_native(model)
        self._midway = native.system_messages
        self._role = native.system_role

    def nativize(
        self, canister: Canister, texts: Mapping[str, bytes], call: str
    ) -> tuple[ChatPiece, Sequence[Notice]]:
        """Return the piece of a canister."""
        work = _Work(canister, self.model, MODULE, texts, call)
        return work.write(), work.notices

    def is_empty(self, piece: ChatPiece) -> bool:
        """Return True if the piece has nothing to send."""
        kept = piece.reasoning or piece.details or piece.extra is not None
        return not piece.parts and piece.call is None and not kept

    def frame(self, state: Exchange[ChatPiece], *, first: bool, last: bool) -> Iterator[Block]:
        """Yield the messages of an exchange, with roles merged and results after their calls."""
        if state.spoken:
            if first:
                yield frame_message("user", [encode_json(BEGIN)])
            yield self._frame_reply(state.spoken)
            first = False
        shown: list[Part] = []
        for call in state.calls:
            answer = state.answers.get(call)
            yield _interrupted(call) if answer is None else _block_of(answer)
            shown += answer.shown if answer is not None else ()
        runs = self._merge(state.others, shown, head=first)
        for role, parts in runs:
            yield frame_message(role, parts)
        heard = any(role == "user" for role, _ in runs)
        if heard or state.calls:
            return
        if last and (first or not runs):
            yield frame_message("user", [encode_json(CONTINUE)])
        elif first:
            # Only system text comes before the reply.
            yield frame_message("user", [encode_json(BEGIN)])

    def _merge(
        self, pieces: Iterable[ChatPiece], shown: Sequence[Part], *, head: bool
    ) -> list[tuple[str, list[Part]]]:
        """Merge neighbors of the same role; `head` is True for the first messages of all.

        System text in a place where it is not allowed is put in a user message.
        """
        runs: list[tuple[str, list[Part]]] = [("user", list(shown))] if shown else []
        for piece in pieces:
            role, parts = piece.role, list(piece.parts)
            if role == "system":
                alone = head and all(other == self._role for other, _ in runs)
                role, parts = (
                    (self._role, parts)
                    if alone or self._midway
                    else ("user", [b'"<system>"', *parts, b'"</system>"'])
                )
            if runs and runs[-1][0] == role:
                runs[-1][1].extend(parts)
            else:
                runs.append((role, parts))
        return runs

    def _frame_reply(self, spoken: Iterable[ChatPiece]) -> Block:
        texts: list[bytes] = []
        calls: list[Block] = []
        reasoning: dict[str, str] = {}
        details: list[Any] = []
        extra: Raw | None = None
        for piece in spoken:
            details += piece.details
            extra = extra if piece.extra is None else piece.extra
            texts += [part for part in piece.parts if isinstance(part, bytes)]
            if piece.call is not None:
                calls.append(piece.call)
            for member, text in piece.reasoning.items():
                reasoning[member] = reasoning.get(member, "") + text
        fragments: list[Fragment] = [b'{"role":"assistant","content":']
        # With calls, the interface takes null, or no member at all. The types of the server of
        # llama-cpp-python 0.3.36 refuse null, and most of its chat formats need the member.
        fragments.append(join_texts(texts) or b'""')
        if details:
            # `reasoning_details` contain the same text, and more.
            reasoning.pop("reasoning", None)
        more: dict[str, Any] = dict(reasoning)
        if details:
            more["reasoning_details"] = merge_details(details)
        if extra is not None:
            more["extra_content"] = extra
        if more:
            fragments.append(b"," + encode_json(more)[1:-1])
        if calls:
            fragments += [b',"tool_calls":[', *interleave(calls), b"]"]
        return (*fragments, b"}")


def frame_message(role: str, parts: Sequence[Part]) -> Block:
    """Return a message, with a plain string if it is text alone, else with an array of parts.

    Texts next to each other are one part, as in a plain string, so that the message keeps its
    beginning in a server's cache if an image is added to it.
    """
    start = b'{"role":"' + role.encode() + b'","content":'
    texts: list[bytes] = []
    blocks: list[Block] = []
    for part in parts:
        if isinstance(part, bytes):
            texts.append(part)
        else:
            blocks += [*_frame_texts(texts), part]
            texts = []
    if not blocks:
        return (start, join_texts(texts), b"}")
    return (start + b"[", *interleave([*blocks, *_frame_texts(texts)]), b"]}")


def _frame_texts(texts: Sequence[bytes]) -> list[Block]:
    return [(b'{"type":"text","text":' + join_texts(texts) + b"}",)] if texts else []


def join_texts(texts: Sequence[bytes]) -> bytes:
    r"""Join JSON strings, with an empty line between them.

    >>> join_texts([b'"a"', b'"b"'])
    b'"a\\n\\nb"'
    """
    if len(texts) < 2:
        return b"".join(texts)
    return b'"' + b"\\n\\n".join(text[1:-1] for text in texts) + b'"'


def _block_of(piece: ChatPiece) -> Block:
    (part,) = piece.parts
    return (part,) if isinstance(part, bytes) else part


def _interrupted(call: str) -> Block:
    message = {"role": "tool", "tool_call_id": call, "content": INTERRUPTED}
    return (encode_json(message),)
