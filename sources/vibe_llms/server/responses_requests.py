"""Requests of Responses, as a server reads them.

Source: the parameter types of openai 3.54.0, `types/responses/response_create_params.py`, and the
specification of Open Responses. Members that have no meaning here are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from vibe_llms.controls import Controls
from vibe_llms.providers.openai.chat_completions.chunks import CallPiece, Function
from vibe_llms.server.chat_requests import (
    CHOICES,
    JSON_ONLY,
    FileData,
    FilePart,
    ImagePart,
    ImageUrl,
    Message,
    Part,
    RefusalPart,
    TextPart,
    read_messages,
)
from vibe_llms.server.failures import Rejected
from vibe_llms.server.reading import declare_tools, read_body
from vibe_llms.server.schemas import check_size
from vibe_llms.server.turns import TurnOrder

#: The members of a request that are controls of another name.
CONTROLS = {
    "top-p": "top_p",
    "output-tokens": "max_output_tokens",
    "effort": "reasoning.effort",
    "tool-choice": "tool_choice",
    "parallel-invocations": "parallel_tool_calls",
    "service-tier": "service_tier",
    "response-schema": "text.format",
}


class InputText(Struct, tag_field="type", tag="input_text"):
    """Text of the user."""

    text: str


class OutputText(Struct, tag_field="type", tag="output_text"):
    """Text of the assistant."""

    text: str


class Refusal(Struct, tag_field="type", tag="refusal"):
    """What the assistant said instead of an answer."""

    refusal: str


class InputImage(Struct, tag_field="type", tag="input_image"):
    """An image, or where it is."""

    image_url: str | None = None


class InputFile(Struct, tag_field="type", tag="input_file"):
    """A file; one that was uploaded is unknown here."""

    file_data: str | None = None
    filename: str | None = None


InputPart: TypeAlias = InputText | OutputText | Refusal | InputImage | InputFile


class InputItem(Struct):
    """An item of the input, of any type; a message if it names none."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: str | list[InputPart] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[InputPart] = ""


class DeclaredTool(Struct):
    """A tool that the client offers."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class NamedTool(Struct):
    """A tool by its name."""

    type: str
    name: str = ""


class TextFormat(Struct):
    """The form of a reply."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema: dict[str, Any] | None = None


class TextOptions(Struct):
    """How a reply is written."""

    format: TextFormat | None = None


class ReasoningOptions(Struct):
    """How much a model thinks."""

    effort: str | None = None


class ResponseRequest(Struct):
    """The body of a request."""

    model: str | None = None
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Raw | None = None
    prompt: Raw | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    tools: list[DeclaredTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None

    @property
    def stored(self) -> bool:
        """Whether it is kept, and goes on without the connection."""
        return self.store is not False

    @property
    def items(self) -> Sequence[InputItem]:
        """The input as items."""
        if isinstance(self.input, str):
            return [InputItem(content=self.input)]
        return self.input or ()


_DECODER = msgspec.json.Decoder(ResponseRequest)


def read_request(body: bytes) -> ResponseRequest:
    """The request in a body; `Rejected` names the member that is wrong."""
    request = read_count(body)
    if not request.items:
        raise Rejected("there is nothing to answer: give an input", param="input")
    if request.background and not request.stored:
        raise Rejected("a response in the background is stored", param="store")
    return request


def read_count(body: bytes) -> ResponseRequest:
    """The request whose tokens are counted; it may be without an input."""
    request = read_body(_DECODER, body)
    for name in ("conversation", "prompt"):
        value = getattr(request, name)
        if value is not None and bytes(value) != b"null":
            raise Rejected(
                f"{name} is not known here; continue a response with previous_response_id",
                param=name,
                code="unsupported_parameter",
            )
    return request


def read_order(
    request: ResponseRequest, model: str, open_calls: Mapping[str, str] = {}
) -> TurnOrder:
    """What a request asks of a model; `open_calls` are those of the response that it continues."""
    for tool in request.tools or ():
        if tool.type != "function":
            raise Rejected(
                f"tools of the type {tool.type!r} do not run here; declare functions",
                param="tools",
                code="unsupported_value",
            )
    form = request.text.format if request.text is not None else None
    schema = None
    if form is not None and form.type == "json_schema":
        if not form.schema:
            raise Rejected("a json_schema needs a schema", param="text.format.schema")
        check_size(form.schema, "text.format.schema")
        schema = {"title": form.name, **form.schema}
    messages = [
        message for item in request.items if (message := _read_item(item, "input")) is not None
    ]
    return TurnOrder(
        model=model,
        said=read_messages(messages, open_calls),
        tools=declare_tools(
            (tool.name, tool.description, tool.parameters) for tool in request.tools or ()
        ),
        controls=_read_controls(request),
        schema=schema,
        instruction=JSON_ONLY if form is not None and form.type == "json_object" else "",
        store=request.stored,
    )


def _read_item(item: InputItem, param: str) -> Message | None:
    match item.type:
        case "message":
            return Message(role=item.role, content=_read_content(item.content, param))
        case "function_call":
            call = CallPiece(id=item.call_id, function=Function(item.name, item.arguments))
            return Message(role="assistant", tool_calls=[call])
        case "function_call_output":
            content = _read_content(item.output, param)
            return Message(role="tool", content=content, tool_call_id=item.call_id)
        case "reasoning":
            # Only the model that thought it can read it.
            return None
        case kind if kind.startswith("x:"):
            return None
    raise Rejected(
        f"items of the type {item.type!r} are not known here", param=param, code="unsupported_value"
    )


def _read_content(content: str | list[InputPart] | None, param: str) -> str | list[Part] | None:
    if content is None or isinstance(content, str):
        return content
    return [_read_part(part, param) for part in content]


def _read_part(part: InputPart, param: str) -> Part:
    match part:
        case InputText(text) | OutputText(text):
            return TextPart(text)
        case Refusal(refusal):
            return RefusalPart(refusal)
        case InputImage(image_url=str(url)):
            return ImagePart(ImageUrl(url))
        case InputFile(file_data, filename):
            return FilePart(FileData(file_data, filename))
    raise Rejected("an image needs image_url; no files are uploaded here", param=param)


def _read_controls(request: ResponseRequest) -> Controls:
    choice = request.tool_choice
    return Controls(
        temperature=request.temperature,
        top_p=request.top_p,
        output_tokens=request.max_output_tokens,
        effort=request.reasoning.effort if request.reasoning is not None else None,
        tool_choice=(choice.name if isinstance(choice, NamedTool) else CHOICES.get(choice or "")),
        parallel_invocations=request.parallel_tool_calls if request.tools else None,
        service_tier=request.service_tier,
    )
