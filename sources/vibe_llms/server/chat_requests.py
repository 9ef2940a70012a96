"""Requests of Chat Completions, as a server reads them.

Source: the parameter types of openai 3.54.0, `types/chat/completion_create_params.py`. Members that
have no meaning here are ignored, as are those of other servers.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from vibe_llms.controls import Controls
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    Location,
    TextualContent,
    repair_text,
)
from vibe_llms.providers.openai.chat_completions.chunks import CallPiece
from vibe_llms.server.failures import Rejected
from vibe_llms.server.reading import declare_tools, is_web_address, read_base64, read_body
from vibe_llms.server.schemas import check_size
from vibe_llms.server.turns import TurnOrder

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[^,;]*)*;base64,", re.ASCII)
JSON_ONLY = "Answer with a single JSON object and nothing else: no other text, no Markdown."
#: The words of OpenAI for our choices of a tool.
CHOICES = {"auto": "auto", "none": "none", "required": "any"}
#: The members of a request that are controls of another name.
CONTROLS = {
    "top-p": "top_p",
    "top-k": "top_k",
    "output-tokens": "max_completion_tokens",
    "effort": "reasoning_effort",
    "tool-choice": "tool_choice",
    "parallel-invocations": "parallel_tool_calls",
    "service-tier": "service_tier",
    "response-schema": "response_format",
}


class TextPart(Struct, tag_field="type", tag="text"):
    """Text."""

    text: str


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    """What the assistant said instead of an answer."""

    refusal: str


class ImageUrl(Struct):
    """Where an image is, or the image itself."""

    url: str


class ImagePart(Struct, tag_field="type", tag="image_url"):
    """An image."""

    image_url: ImageUrl


class InputAudio(Struct):
    """A sound."""

    data: str
    format: str


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    """A sound."""

    input_audio: InputAudio


class FileData(Struct):
    """A file; one that was uploaded is unknown here."""

    file_data: str | None = None
    filename: str | None = None


class FilePart(Struct, tag_field="type", tag="file"):
    """A file."""

    file: FileData


Part: TypeAlias = TextPart | RefusalPart | ImagePart | AudioPart | FilePart


class Message(Struct):
    """A message of any role."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None
    tool_call_id: str | None = None


class Declaration(Struct):
    """A function that the client offers."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class DeclaredTool(Struct):
    """A tool that the client offers."""

    function: Declaration
    type: Literal["function"] = "function"


class NamedFunction(Struct):
    """A function by its name."""

    name: str


class NamedTool(Struct):
    """A tool by its name."""

    function: NamedFunction


class JsonSchema(Struct):
    """The form of a reply."""

    name: str
    schema: dict[str, Any] | None = None


class ResponseFormat(Struct):
    """The form of a reply."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Struct):
    """What a stream contains besides."""

    include_usage: bool | None = None


class ChatRequest(Struct):
    """The body of a request; with `stages`, which is ours, the reply shows what tools do."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    tools: list[DeclaredTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    reasoning_effort: str | None = None
    service_tier: str | None = None
    n: int | None = None
    modalities: list[str] | None = None
    stages: bool | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether the last chunk holds the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


_DECODER = msgspec.json.Decoder(ChatRequest)


def read_request(body: bytes) -> ChatRequest:
    """The request in a body; `Rejected` names the member that is wrong."""
    request = read_body(_DECODER, body)
    check_request(request)
    return request


def check_request(request: ChatRequest) -> None:
    """Raise for what no model here can do."""
    if request.n is not None and request.n != 1:
        raise Rejected("there is one choice only", param="n", code="unsupported_value")
    if "audio" in (request.modalities or ()):
        raise Rejected("replies are text", param="modalities", code="unsupported_value")


def read_order(
    request: ChatRequest,
    said: Sequence[Canister] | None = None,
    states: Mapping[str, Sequence[Canister]] = {},
) -> TurnOrder:
    """What a request asks for; `said` are its messages, if they were read otherwise."""
    form = request.response_format
    schema = form.json_schema if form is not None and form.type == "json_schema" else None
    if form is not None and form.type == "json_schema" and (schema is None or not schema.schema):
        raise Rejected("a json_schema needs a schema", param="response_format.json_schema")
    if schema is not None:
        check_size(schema.schema or {}, "response_format.json_schema.schema")
    return TurnOrder(
        model=request.model,
        said=read_messages(request.messages) if said is None else said,
        states=states,
        tools=declare_tools(
            (tool.function.name, tool.function.description, tool.function.parameters)
            for tool in request.tools or ()
        ),
        controls=_read_controls(request),
        schema=None if schema is None else {"title": schema.name, **(schema.schema or {})},
        instruction=JSON_ONLY if form is not None and form.type == "json_object" else "",
        store=request.store is not False,
    )


def read_messages(
    messages: Sequence[Message], open_calls: Mapping[str, str] = {}
) -> Sequence[Canister]:
    """Messages as canisters; a result names its call by the identity that the call has here.

    `open_calls` are the identities of calls before these messages, by the client's names for them.
    """
    calls = dict(open_calls)
    return [
        canister
        for index, message in enumerate(messages)
        for canister in read_message(message, calls, f"messages[{index}]")
    ]


def read_message(message: Message, calls: dict[str, str], param: str) -> Sequence[Canister]:
    """A message as canisters; `calls` are the identities of calls so far, and grow by its own."""
    contents = _read_contents(message, f"{param}.content")
    match message.role:
        case "system" | "developer":
            return (SupervisorCanister(contents),)
        case "user":
            return (UserCanister(contents),)
        case "assistant":
            made = [_read_call(piece, param) for piece in message.tool_calls or ()]
            calls.update((call.call, call.identity) for call in made)
            return [*([AssistantCanister(contents)] if contents else []), *made]
        case "tool":
            if message.tool_call_id not in calls:
                raise Rejected(
                    f"there is no call {message.tool_call_id!r} before its result",
                    param=f"{param}.tool_call_id",
                )
            return (ResultCanister(contents, invocation=calls[message.tool_call_id]),)


def _read_contents(message: Message, param: str) -> tuple[Content, ...]:
    if message.content is None or isinstance(message.content, str):
        text = message.content or message.refusal or ""
        return (TextualContent(repair_text(text)),) if text else ()
    return tuple(_read_part(part, param) for part in message.content)


def _read_part(part: Part, param: str) -> Content:
    match part:
        case TextPart(text=text) | RefusalPart(refusal=text):
            return TextualContent(repair_text(text))
        case ImagePart(image_url=ImageUrl(url=url)):
            if is_web_address(url):
                # The provider reads it; nothing is fetched here.
                return ImageContent(Location(repair_text(url)))
            data, mimetype = read_data_url(url, param)
            return ImageContent(data, mimetype)
        case AudioPart(input_audio=InputAudio(data=encoded, format=kind)):
            return AudioContent(read_base64(encoded, param), f"audio/{kind}")
        case FilePart(file=FileData(file_data=str(encoded), filename=name)):
            data, mimetype = read_data_url(encoded, param)
            return FileContent(data, mimetype, repair_text(name or ""))
        case FilePart():
            raise Rejected("a file needs file_data; no files are uploaded here", param=param)


def read_data_url(url: str, param: str) -> tuple[bytes, str]:
    """The data in an address, and its type."""
    found = _DATA_URL.match(url)
    if found is None:
        raise Rejected(
            "an address must begin with http://, https:// or data:TYPE;base64,", param=param
        )
    return read_base64(url[found.end() :], param), found[1] or ""


def write_data_url(data: bytes, mimetype: str) -> str:
    """An address that holds data, as `read_data_url` reads it."""
    return f"data:{mimetype};base64,{base64.b64encode(data).decode()}"


def _read_call(piece: CallPiece, param: str) -> InvocationCanister:
    if piece.function is None or not piece.function.name or not piece.id:
        raise Rejected("a call needs an id and a function", param=f"{param}.tool_calls")
    return InvocationCanister(
        name=repair_text(piece.function.name),
        arguments=repair_text(piece.function.arguments or "{}"),
        call=repair_text(piece.id),
    )


def _read_controls(request: ChatRequest) -> Controls:
    choice = request.tool_choice
    stop = request.stop
    return Controls(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        output_tokens=request.max_completion_tokens or request.max_tokens,
        stop=((stop,) if isinstance(stop, str) else tuple(stop)) if stop else None,
        seed=request.seed,
        effort=request.reasoning_effort,
        tool_choice=(
            choice.function.name if isinstance(choice, NamedTool) else CHOICES.get(choice or "")
        ),
        parallel_invocations=request.parallel_tool_calls if request.tools else None,
        service_tier=request.service_tier,
    )
