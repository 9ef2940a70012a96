"""Shared parts of all wire formats: requests as canisters, scripted replies as answers.

A `Wire` reads requests and refuses them as its server does. A `Narrator` writes one reply in its
server's format, as a stream or as one object. `play` goes through the parts of a scripted reply,
for all formats.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import ScriptInvalid
from vibe_llms.invocation.invokers import InvocationContext, Invoker, describe
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import Canister, InvocationCanister, Usage
from vibe_llms.messages.contents import ReasoningContent, TextualContent
from vibe_llms.providers.scripted.scripts import Part, ScriptedReply
from vibe_llms.testing.listening import BEHIND, HttpAnswer, ReceivedRequest

T = TypeVar("T")

_WORDS = re.compile(r"[^\W\d_]+|\d{1,3}|[^\w\s]|_")
_MESSAGE_TOKENS = 4
_PIECE = re.compile(r".{1,12}", re.DOTALL)


class RefusedRequest(Exception):
    """The real server would refuse the request.

    `error` is one of the script's errors. `code` is the provider's own code if it differs from the
    usual one, or None for no code.
    """

    def __init__(
        self,
        message: str,
        *,
        error: str = "refused",
        status: int | None = None,
        code: str | None = "",
    ) -> None:
        super().__init__(message)
        self.failure = ScriptedFailure(error, message, status, code)


class ScriptedFailure(Struct, frozen=True):
    """An error of a script or a refusal, independent of the wire format."""

    error: str
    message: str
    status: int | None = None
    code: str | None = ""
    retry_after: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The header with the seconds to wait, if any."""
        return {} if self.retry_after is None else {"retry-after": f"{self.retry_after:g}"}


class AskedReply(Struct, frozen=True, kw_only=True):
    """A request for a reply, in our own terms.

    `body` is the decoded body; `label` is a name from which ids in the reply are made.
    """

    interface: str
    model: str
    canisters: Sequence[Canister]
    invokers: Sequence[Invoker]
    streaming: bool
    body: Mapping[str, Any]
    label: str

    def name_call(self, prefix: str, index: int) -> str:
        """Return an id for the call of this index."""
        return f"{prefix}{self.label}{index:02}"

    def name_tool(self, name: str) -> str:
        """Return the wire name of a tool that a script names, such as `ensemble/tool`."""
        flat = name.replace("/", "__")
        return flat if any(invoker.name == flat for invoker in self.invokers) else name


class Catalogue(Protocol):
    """The models of a server."""

    @property
    def models(self) -> Sequence[str]:
        """Names of the listed models."""
        ...

    def require(self, model: str) -> None:
        """Raise `Refusal` if the server does not have the model."""
        ...


class Wire(Protocol):
    """One interface of a provider."""

    name: str

    def claims(self, request: ReceivedRequest) -> bool:
        """Return True if a request is meant for this interface, even if its path is wrong."""
        ...

    def authorize(self, request: ReceivedRequest, key: str) -> None:
        """Raise `Refusal` if the key is missing or wrong."""
        ...

    def asks(self, request: ReceivedRequest) -> bool:
        """Return True if a request asks for a model's reply; `answer` serves other requests."""
        ...

    def read(self, request: ReceivedRequest) -> AskedReply:
        """Read a request; raise `Refusal` if the real server would refuse it."""
        ...

    def narrate(self, asked: AskedReply, usage: Usage) -> Narrator:
        """Return the narrator of the reply to a request."""
        ...

    def answer(self, request: ReceivedRequest, catalogue: Catalogue) -> HttpAnswer:
        """Return the answer to another request, such as for a list of models."""
        ...

    def refuse(self, failure: ScriptedFailure) -> HttpAnswer:
        """Return an error with the provider's status and body."""
        ...


class Narrator(Protocol):
    """Writer of one reply in the format of an interface; it returns parts of a stream."""

    #: Headers of a stream.
    headers: Mapping[str, str]

    def begin(self) -> Iterable[bytes]:
        """Return the start of the reply."""
        ...

    def say(self, chunks: Sequence[str], *, reasoning: bool) -> Iterable[bytes]:
        """Return text or reasoning."""
        ...

    def call(self, name: str, pieces: Sequence[str]) -> Iterable[bytes]:
        """Return a tool call, with its arguments in pieces of JSON."""
        ...

    def fail(self, failure: ScriptedFailure) -> Iterable[bytes]:
        """Return an error in the middle of the reply."""
        ...

    def end(self, reason: str) -> Iterable[bytes]:
        """Return the end of the reply."""
        ...

    def whole(self, reason: str) -> Any:
        """Return the whole reply, as it is sent without streaming."""
        ...


class _Steps:
    """The chunks of an answer, and the waits between them."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.waits: dict[int, float] = {}

    def wait(self, seconds: float) -> None:
        index = len(self.chunks)
        self.waits[index] = self.waits.get(index, 0.0) + seconds

    @property
    def delay(self) -> float:
        """Sum of all waits, for an answer that is not streamed."""
        return sum(self.waits.values())

    def produce_answer(self, narrator: Narrator, size: int | None, **ending: Any) -> HttpAnswer:
        """Return the stream, its bytes in chunks of the size if there is one."""
        if len(self.chunks) in self.waits:
            # A wait at the end needs a chunk after it.
            self.chunks.append(b"")
        steps = self if size is None else self._split(size)
        return HttpAnswer(200, dict(narrator.headers), steps.chunks, waits=steps.waits, **ending)

    def _split(self, size: int) -> _Steps:
        """Return the same bytes in chunks of one size, regardless of events."""
        split = _Steps()
        held = b""
        for index, chunk in enumerate([*self.chunks, b""]):
            if index in self.waits or index == len(self.chunks):
                split.chunks += [held] if held else []
                held = b""
            if index in self.waits:
                split.wait(self.waits[index])
            held += chunk
            while len(held) >= size:
                split.chunks.append(held[:size])
                held = held[size:]
        return split


def play(wire: Wire, asked: AskedReply, reply: ScriptedReply, usage: Usage) -> HttpAnswer:
    """Return the answer for a scripted reply."""
    narrator, streaming = wire.narrate(asked, usage), asked.streaming
    steps = _Steps()
    begun = False
    for part in reply.parts:
        if part.delay_seconds:
            steps.wait(part.delay_seconds)
        if part.error is not None:
            if begun and streaming:
                return _fail(narrator, part, steps, reply.chunk_bytes)
            return _refuse(wire, part, steps.delay)
        if part.cut or part.stall:
            if streaming and begun:
                return steps.produce_answer(narrator, reply.chunk_bytes, **_ending_of(part))
            if not begun:
                # No content was sent, so the headers are omitted too.
                before: dict[str, Any] = {"stall": -1}
                if not part.stall:
                    before = {"drop": "reset" if part.cut == "reset" else "close"}
                return HttpAnswer(delay=steps.delay, **before)
            return _halve(narrator, reply.reason, part, steps.delay)
        if _speaks(part):
            if not begun:
                steps.chunks += narrator.begin()
            begun = True
            steps.chunks += _narrate(narrator, part, asked)
    if not streaming:
        answer = answer_json(narrator.whole(reply.reason), headers=narrator.headers)
        answer.delay = steps.delay
        return answer
    if not begun:
        steps.chunks += narrator.begin()
    steps.chunks += narrator.end(reply.reason)
    return steps.produce_answer(narrator, reply.chunk_bytes)


def _halve(narrator: Narrator, reason: str, part: Part, delay: float) -> HttpAnswer:
    """Return the first half of an unstreamed reply."""
    body = msgspec.json.encode(narrator.whole(reason))
    headers = {**narrator.headers, "content-type": "application/json"}
    return HttpAnswer(200, headers, [body[: len(body) // 2]], delay=delay, **_ending_of(part))


def _fail(narrator: Narrator, part: Part, steps: _Steps, size: int | None) -> HttpAnswer:
    """Return an answer with an error in the middle of a stream."""
    if part.error == "unreachable":
        return steps.produce_answer(narrator, size, cut=BEHIND, end="reset")
    steps.chunks += narrator.fail(read_failure(part))
    return steps.produce_answer(narrator, size)


def _refuse(wire: Wire, part: Part, delay: float) -> HttpAnswer:
    """Return an error in place of a reply."""
    failure = read_failure(part)
    if part.error == "unreachable":
        return HttpAnswer(drop="close", delay=delay)
    if part.error == "malformed":
        page = f"<html>{failure.message}</html>".encode()
        return HttpAnswer(200, {"content-type": "text/html"}, [page], delay=delay)
    answer = wire.refuse(failure)
    answer.headers.update(failure.headers)
    answer.delay = delay
    return answer


def _ending_of(part: Part) -> dict[str, Any]:
    if part.stall:
        return {"stall": BEHIND}
    return {"cut": BEHIND, "end": part.cut if isinstance(part.cut, str) else "close"}


def _narrate(narrator: Narrator, part: Part, asked: AskedReply) -> Iterable[bytes]:
    if part.text is not None:
        yield from narrator.say(_chunks(part.text), reasoning=False)
    if part.reasoning is not None:
        yield from narrator.say(_chunks(part.reasoning), reasoning=True)
    if part.invocation is not None:
        arguments = part.arguments
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        yield from narrator.call(asked.name_tool(part.invocation), _PIECE.findall(arguments))


def _speaks(part: Part) -> bool:
    return not (part.text is None and part.reasoning is None and part.invocation is None)


def read_failure(part: Part) -> ScriptedFailure:
    """Return the error of a part of a script."""
    return ScriptedFailure(
        part.error or "", part.message, part.status, retry_after=part.retry_after_seconds
    )


def _chunks(text: str | tuple[str, ...]) -> Sequence[str]:
    """Return the nonempty chunks of a list, or the words of a text."""
    chunks = re.findall(r"\s*\S+\s*|\s+", text) if isinstance(text, str) else text
    return [chunk for chunk in chunks if chunk]


def answer_json(
    body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> HttpAnswer:
    """Return an answer with a whole body and its length."""
    data = msgspec.json.encode(body)
    reported = {"content-type": "application/json", "content-length": str(len(data))}
    return HttpAnswer(status, {**(headers or {}), **reported}, [data])


def encode_event(event: Mapping[str, Any], *, named: bool = True) -> bytes:
    """Return one server-sent event, named by its type."""
    name = f"event: {event['type']}\n".encode() if named else b""
    return name + b"data: " + msgspec.json.encode(event) + b"\n\n"


def decode(request: ReceivedRequest) -> dict[str, Any]:
    """Decode the body of a request; raise `Refusal` if it is not a JSON object."""
    try:
        return msgspec.json.decode(request.body, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise RefusedRequest(f"The request body is not valid JSON: {error}") from error


def convert(value: Any, kind: type[T]) -> T:
    """Convert a part of a request to a struct; raise `Refusal` if it does not fit."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RefusedRequest(str(error).replace("$.", "").replace("$", "the body")) from error


def label(request: ReceivedRequest) -> str:
    """Return letters and digits that identify a request by its body."""
    return hashlib.sha256(request.body).hexdigest()[:20]


def decode_bytes(text: str, place: str) -> bytes:
    """Decode base64 as strictly as servers do."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedRequest(f"{place}: invalid base64 data") from error
    if not data:
        raise RefusedRequest(f"{place}: the data is empty")
    return data


def produce_invoker(name: str, description: str, schema: Mapping[str, Any]) -> Invoker:
    """Return a tool of a request, which can be inspected but not run."""

    async def invoke(_: str, __: InvocationContext) -> InvocationOutput:
        raise ScriptInvalid(f"{name!r} runs in the program under test, not in the fake server")

    return Invoker(name=name, description=description, arguments_schema=dict(schema), invoke=invoke)


def parse_arguments(pieces: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a call as an object; raise `Refusal` for other JSON."""
    text = "".join(pieces) or "{}"
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except ValueError as error:
        raise RefusedRequest(
            f"the script calls with {text!r}, which is not a JSON object: this API cannot send it"
        ) from error


def estimate_tokens(canisters: Iterable[Canister], invokers: Iterable[Invoker]) -> int:
    """Return a rough count of the tokens of a conversation and its tools."""
    tokens = 0
    for canister in canisters:
        tokens += _MESSAGE_TOKENS
        if isinstance(canister, InvocationCanister):
            tokens += count_words(canister.name) + count_words(canister.arguments)
        for content in canister.contents:
            match content:
                case TextualContent(data=str(data)) | ReasoningContent(data=str(data)):
                    tokens += count_words(data)
                case _:
                    tokens += 256
    return tokens + sum(
        count_words(msgspec.json.encode(describe(invoker)).decode()) for invoker in invokers
    )


def count_words(text: str) -> int:
    """Return a rough count of the tokens of a text."""
    return len(_WORDS.findall(text))
