"""What all wire formats share: a request as canisters, a scripted reply as the bytes of an answer.

A `Wire` reads requests and refuses them as its server does. A `Narrator` writes one reply in its
server's format, as a stream or as one object. `play` walks through the
parts of a scripted reply and is the same for all.
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

from vibe_llms.exceptions import ScriptInvalid
from vibe_llms.invocation.invokers import InvocationContext, Invoker, describe
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import Canister, InvocationCanister, Usage
from vibe_llms.messages.contents import ReasoningContent, TextualContent
from vibe_llms.providers.scripted.scripts import Part, ScriptedReply
from vibe_llms.testing.listening import BEHIND, Answer, Request

T = TypeVar("T")

_WORDS = re.compile(r"[^\W\d_]+|\d{1,3}|[^\w\s]|_")
_MESSAGE_TOKENS = 4
_PIECE = re.compile(r".{1,12}", re.DOTALL)


class Refusal(Exception):
    """The real server would not accept the request.

    `error` is one of the script's errors, `code` the provider's own name for it where that is
    another than usual, or `None` where there is none.
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
        self.failure = Failure(error, message, status, code)


class Failure(Struct, frozen=True):
    """An error as a script or a refusal has it; each wire says it in its own form."""

    error: str
    message: str
    status: int | None = None
    code: str | None = ""
    retry_after: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The header with the advice when to come back, if there is any."""
        return {} if self.retry_after is None else {"retry-after": f"{self.retry_after:g}"}


class Asked(Struct, frozen=True, kw_only=True):
    """A request for a reply: what it says, in our own terms.

    `body` is the decoded body, `label` an identity for what is made of it.
    """

    interface: str
    model: str
    canisters: Sequence[Canister]
    invokers: Sequence[Invoker]
    streaming: bool
    body: Mapping[str, Any]
    label: str

    def name_call(self, prefix: str, index: int) -> str:
        """An identity for the call of this index."""
        return f"{prefix}{self.label}{index:02}"

    def name_tool(self, name: str) -> str:
        """The name on the wire of a tool that a script calls, `ensemble/tool` say."""
        flat = name.replace("/", "__")
        return flat if any(invoker.name == flat for invoker in self.invokers) else name


class Catalogue(Protocol):
    """The models that a server has."""

    @property
    def models(self) -> Sequence[str]:
        """Their names; those that are listed."""
        ...

    def require(self, model: str) -> None:
        """Raise a `Refusal` where there is no such model."""
        ...


class Wire(Protocol):
    """One interface of a provider."""

    name: str

    def claims(self, request: Request) -> bool:
        """Whether a request is meant for this interface, also where its path is wrong."""
        ...

    def authorize(self, request: Request, key: str) -> None:
        """Raise a `Refusal` where the key is missing or wrong."""
        ...

    def asks(self, request: Request) -> bool:
        """Whether a request wants a reply of a model; other requests are answered by `answer`."""
        ...

    def read(self, request: Request) -> Asked:
        """What a request asks; a `Refusal` where the real server would not take it."""
        ...

    def narrate(self, asked: Asked, usage: Usage) -> Narrator:
        """The narrator of the reply to a request."""
        ...

    def answer(self, request: Request, catalogue: Catalogue) -> Answer:
        """The answer to a request for something else: a list of models, a count of tokens."""
        ...

    def refuse(self, failure: Failure) -> Answer:
        """An error, with the status and the body that the provider gives it."""
        ...


class Narrator(Protocol):
    """One reply in the words of one interface. The bytes are parts of a stream."""

    #: The headers of a stream.
    headers: Mapping[str, str]

    def begin(self) -> Iterable[bytes]:
        """What comes before the first word."""
        ...

    def say(self, chunks: Sequence[str], *, reasoning: bool) -> Iterable[bytes]:
        """Text or reasoning."""
        ...

    def call(self, name: str, pieces: Sequence[str]) -> Iterable[bytes]:
        """A tool call, its arguments in pieces of JSON."""
        ...

    def fail(self, failure: Failure) -> Iterable[bytes]:
        """An error in the middle of the reply."""
        ...

    def end(self, reason: str) -> Iterable[bytes]:
        """What comes after the last word."""
        ...

    def whole(self, reason: str) -> Any:
        """The whole reply, as it is sent without streaming."""
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
        """All waits at once, for what is not streamed."""
        return sum(self.waits.values())

    def produce_answer(self, narrator: Narrator, size: int | None, **ending: Any) -> Answer:
        """The stream, its bytes in chunks of a size if there is one."""
        if len(self.chunks) in self.waits:
            # A wait at the end needs a chunk after it.
            self.chunks.append(b"")
        steps = self if size is None else self._split(size)
        return Answer(200, dict(narrator.headers), steps.chunks, waits=steps.waits, **ending)

    def _split(self, size: int) -> _Steps:
        """The same bytes in chunks of one size, without regard to events."""
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


def play(wire: Wire, asked: Asked, reply: ScriptedReply, usage: Usage) -> Answer:
    """The answer that a scripted reply becomes."""
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
                # Nothing was said: not even the headers come.
                before: dict[str, Any] = {"stall": -1}
                if not part.stall:
                    before = {"drop": "reset" if part.cut == "reset" else "close"}
                return Answer(delay=steps.delay, **before)
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


def _halve(narrator: Narrator, reason: str, part: Part, delay: float) -> Answer:
    """The first half of an unstreamed reply."""
    body = msgspec.json.encode(narrator.whole(reason))
    headers = {**narrator.headers, "content-type": "application/json"}
    return Answer(200, headers, [body[: len(body) // 2]], delay=delay, **_ending_of(part))


def _fail(narrator: Narrator, part: Part, steps: _Steps, size: int | None) -> Answer:
    """An error in the middle of a stream."""
    if part.error == "unreachable":
        return steps.produce_answer(narrator, size, cut=BEHIND, end="reset")
    steps.chunks += narrator.fail(read_failure(part))
    return steps.produce_answer(narrator, size)


def _refuse(wire: Wire, part: Part, delay: float) -> Answer:
    """An error in place of a reply."""
    failure = read_failure(part)
    if part.error == "unreachable":
        return Answer(drop="close", delay=delay)
    if part.error == "malformed":
        page = f"<html>{failure.message}</html>".encode()
        return Answer(200, {"content-type": "text/html"}, [page], delay=delay)
    answer = wire.refuse(failure)
    answer.headers.update(failure.headers)
    answer.delay = delay
    return answer


def _ending_of(part: Part) -> dict[str, Any]:
    if part.stall:
        return {"stall": BEHIND}
    return {"cut": BEHIND, "end": part.cut if isinstance(part.cut, str) else "close"}


def _narrate(narrator: Narrator, part: Part, asked: Asked) -> Iterable[bytes]:
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


def read_failure(part: Part) -> Failure:
    """The error of a part of a script."""
    return Failure(
        part.error or "", part.message, part.status, retry_after=part.retry_after_seconds
    )


def _chunks(text: str | tuple[str, ...]) -> Sequence[str]:
    """The chunks of a list that are not empty; a text word by word."""
    chunks = re.findall(r"\s*\S+\s*|\s+", text) if isinstance(text, str) else text
    return [chunk for chunk in chunks if chunk]


def answer_json(
    body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Answer:
    """A whole body with its length."""
    data = msgspec.json.encode(body)
    reported = {"content-type": "application/json", "content-length": str(len(data))}
    return Answer(status, {**(headers or {}), **reported}, [data])


def encode_event(event: Mapping[str, Any], *, named: bool = True) -> bytes:
    """One server-sent event; its name is its type."""
    name = f"event: {event['type']}\n".encode() if named else b""
    return name + b"data: " + msgspec.json.encode(event) + b"\n\n"


def decode(request: Request) -> dict[str, Any]:
    """The body of a request; a `Refusal` where it is no JSON object."""
    try:
        return msgspec.json.decode(request.body, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        raise Refusal(f"The request body is not valid JSON: {error}") from error


def convert(value: Any, kind: type[T]) -> T:
    """A part of a request as the struct that it should be; a `Refusal` says what is wrong."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Refusal(str(error).replace("$.", "").replace("$", "the body")) from error


def label(request: Request) -> str:
    """Letters and digits that identify a request by its messages."""
    return hashlib.sha256(request.body).hexdigest()[:20]


def decode_bytes(text: str, place: str) -> bytes:
    """Base64, as strictly as servers read it."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(f"{place}: invalid base64 data") from error
    if not data:
        raise Refusal(f"{place}: the data is empty")
    return data


def produce_invoker(name: str, description: str, schema: Mapping[str, Any]) -> Invoker:
    """A tool that a request offers. It can be looked at; it runs where the request came from."""

    async def invoke(_: str, __: InvocationContext) -> InvocationOutput:
        raise ScriptInvalid(f"{name!r} runs in the program under test, not in the fake server")

    return Invoker(name=name, description=description, arguments_schema=dict(schema), invoke=invoke)


def parse_arguments(pieces: Sequence[str]) -> dict[str, Any]:
    """The arguments of a call as an object; a `Refusal` where a script holds something else."""
    text = "".join(pieces) or "{}"
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except ValueError as error:
        raise Refusal(
            f"the script calls with {text!r}, which is no JSON object: this interface cannot "
            "carry it here, as real servers cannot"
        ) from error


def estimate_tokens(canisters: Iterable[Canister], invokers: Iterable[Invoker]) -> int:
    """About how many tokens a model would read: words, numbers and signs, and some around them."""
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
    """About the tokens of a text."""
    return len(_WORDS.findall(text))
