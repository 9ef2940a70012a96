"""Requests of Anthropic's Messages, as a server reads them.

Source: the parameter types of anthropic 2.12.0, `types/message_create_params.py`. Members that have
no meaning here are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    Content,
    FileContent,
    ImageContent,
    Location,
    TextualContent,
    repair_text,
)
from vibe_llms.server.failures import Rejected
from vibe_llms.server.reading import declare_tools, is_web_address, read_base64, read_body
from vibe_llms.server.schemas import check_size
from vibe_llms.server.turns import TurnOrder

#: The members of a request that are controls of another name.
CONTROLS = {
    "top-p": "top_p",
    "top-k": "top_k",
    "output-tokens": "max_tokens",
    "stop": "stop_sequences",
    "effort": "output_config.effort",
    "reasoning-tokens": "thinking.budget_tokens",
    "tool-choice": "tool_choice",
    "parallel-invocations": "tool_choice.disable_parallel_tool_use",
    "response-schema": "output_config.format",
}


class TextBlock(Struct, tag_field="type", tag="text"):
    """Text."""

    text: str


class DataSource(Struct, tag_field="type", tag="base64"):
    """Data in the request."""

    media_type: str
    data: str


class UrlSource(Struct, tag_field="type", tag="url"):
    """An address that the provider reads."""

    url: str


class TextSource(Struct, tag_field="type", tag="text"):
    """A text."""

    data: str


class ImageBlock(Struct, tag_field="type", tag="image"):
    """An image."""

    source: DataSource | UrlSource


class BlocksSource(Struct, tag_field="type", tag="content"):
    """Text and images."""

    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(Struct, tag_field="type", tag="document"):
    """A document."""

    source: DataSource | UrlSource | TextSource | BlocksSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Struct, tag_field="type", tag="search_result"):
    """What a search found."""

    source: str
    title: str
    content: list[TextBlock]


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """What a model thought: passed over, because only the model that signed it understands it."""


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking"):
    """What a model thought, encrypted."""


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """A call of one of the client's tools."""

    id: str
    name: str
    input: dict[str, Any]


SaidBlock: TypeAlias = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(Struct, tag_field="type", tag="tool_result"):
    """The result of a call."""

    tool_use_id: str
    content: str | list[SaidBlock] | None = None
    is_error: bool | None = None


Block: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)


class Message(Struct):
    """A message of any role."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Struct):
    """A tool that the client offers."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None


class ToolChoice(Struct):
    """Whether the model has to call a tool, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct):
    """How much the model thinks."""

    type: Literal["adaptive", "enabled", "between_tools", "disabled"]
    budget_tokens: int | None = None


class OutputFormat(Struct):
    """The form of a reply."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct):
    """How the model answers."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(Struct, kw_only=True):
    """The body of a request to count tokens."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessageRequest(CountRequest, kw_only=True):
    """The body of a request; `store` is ours: without it, nothing is stored."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    store: bool | None = None


_REQUEST = msgspec.json.Decoder(MessageRequest)
_COUNT = msgspec.json.Decoder(CountRequest)


def read_request(body: bytes) -> MessageRequest:
    """The request in a body; `Rejected` names the member that is wrong."""
    return read_body(_REQUEST, body)


def read_count(body: bytes) -> CountRequest:
    """The request to count tokens in a body."""
    return read_body(_COUNT, body)


def read_order(request: CountRequest) -> TurnOrder:
    """What a request asks for."""
    for tool in request.tools or ():
        if tool.type not in (None, "custom"):
            raise Rejected(f"the server has no tool of the type {tool.type!r}", param="tools")
    form = request.output_config and request.output_config.format
    if form:
        check_size(form.schema, "output_config.format.schema")
    return TurnOrder(
        model=request.model,
        said=[*_read_system(request.system), *read_messages(request.messages)],
        tools=declare_tools(
            (tool.name, tool.description, tool.input_schema) for tool in request.tools or ()
        ),
        controls=_read_controls(request),
        schema=form.schema if form else None,
        store=not isinstance(request, MessageRequest) or request.store is not False,
    )


def read_messages(messages: Sequence[Message]) -> Sequence[Canister]:
    """Messages as canisters; a result names its call by the identity that the call gets here."""
    said: list[Canister] = []
    calls: dict[str, str] = {}
    for index, message in enumerate(messages):
        param = f"messages[{index}].content"
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [TextBlock(blocks)] if blocks else []
        contents: list[Content] = []
        made: list[InvocationCanister] = []
        for block in blocks:
            match block:
                case ThinkingBlock() | RedactedThinkingBlock():
                    pass
                case ToolUseBlock():
                    call = _read_call(block)
                    calls[call.call] = call.identity
                    made.append(call)
                case ToolResultBlock():
                    if message.role != "user" or block.tool_use_id not in calls:
                        raise Rejected(
                            f"there is no call {block.tool_use_id!r} before its result",
                            param=param,
                        )
                    said += _say(message.role, contents)
                    contents = []
                    said.append(_read_result(block, calls[block.tool_use_id], param))
                case _:
                    contents += _read_contents(block, param)
        if made and message.role != "assistant":
            raise Rejected("only the assistant makes calls", param=param)
        said += [*_say(message.role, contents), *made]
    return said


def _say(role: str, contents: Sequence[Content]) -> Sequence[Canister]:
    if not contents:
        return ()
    match role:
        case "user":
            return (UserCanister(tuple(contents)),)
        case "system":
            return (SupervisorCanister(tuple(contents)),)
        case _:
            return (AssistantCanister(tuple(contents)),)


def _read_system(system: str | list[TextBlock] | None) -> Sequence[Canister]:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    text = repair_text("\n\n".join(text for text in texts if text))
    return (SupervisorCanister.from_text(text),) if text else ()


def _read_call(block: ToolUseBlock) -> InvocationCanister:
    return InvocationCanister(
        name=repair_text(block.name),
        arguments=repair_text(msgspec.json.encode(block.input).decode()),
        call=repair_text(block.id),
    )


def _read_result(block: ToolResultBlock, call: str, param: str) -> ResultCanister:
    said = block.content
    if isinstance(said, str):
        said = [TextBlock(said)] if said else []
    contents = [content for one in said or () for content in _read_contents(one, param)]
    return ResultCanister(tuple(contents), invocation=call, failed=bool(block.is_error))


def _read_contents(block: SaidBlock, param: str) -> Sequence[Content]:
    match block:
        case TextBlock(text=text):
            return (TextualContent(repair_text(text)),)
        case ImageBlock(source=DataSource(media_type=mimetype, data=encoded)):
            return (ImageContent(read_base64(encoded, param), mimetype),)
        case ImageBlock(source=UrlSource(url=url)):
            return (ImageContent(_read_location(url, param)),)
        case SearchResultBlock():
            text = "\n\n".join([block.title, block.source, *(one.text for one in block.content)])
            return (TextualContent(repair_text(text)),)
        case DocumentBlock(source=source, title=title, context=context):
            name = repair_text(title or "")
            about = [TextualContent(repair_text(context))] if context else []
            return (*about, *_read_document(source, name, param))
        case _:
            raise AssertionError(block)


def _read_document(
    source: DataSource | UrlSource | TextSource | BlocksSource, name: str, param: str
) -> Sequence[Content]:
    match source:
        case DataSource(media_type=mimetype, data=encoded):
            return (FileContent(read_base64(encoded, param), mimetype, name),)
        case UrlSource(url=url):
            return (FileContent(_read_location(url, param), "application/pdf", name),)
        case TextSource(data=text):
            return (FileContent(repair_text(text).encode(), "text/plain", name),)
        case BlocksSource(content=str(text)):
            return (FileContent(repair_text(text).encode(), "text/plain", name),)
        case BlocksSource(content=blocks):
            assert not isinstance(blocks, str)
            heading = [TextualContent(name)] if name else []
            return (*heading, *(one for block in blocks for one in _read_contents(block, param)))


def _read_location(url: str, param: str) -> Location:
    if not is_web_address(url):
        raise Rejected("an address must begin with http:// or https://", param=param)
    return Location(repair_text(url))


def _read_controls(request: CountRequest) -> Controls:
    choice, thinking = request.tool_choice, request.thinking
    parallel = None
    if request.tools and choice is not None and choice.disable_parallel_tool_use is not None:
        parallel = not choice.disable_parallel_tool_use
    named = None
    if choice is not None:
        named = choice.name if choice.type == "tool" else choice.type
        if choice.type == "tool" and not choice.name:
            raise Rejected("the choice of a tool needs its name", param="tool_choice")
    controls = Controls(
        effort=request.output_config.effort if request.output_config else None,
        reasoning_tokens=(
            thinking.budget_tokens if thinking is not None and thinking.type == "enabled" else None
        ),
        tool_choice=named,
        parallel_invocations=parallel,
    )
    if not isinstance(request, MessageRequest):
        return controls
    asked = Controls(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        output_tokens=request.max_tokens,
        stop=tuple(request.stop_sequences) if request.stop_sequences else None,
    )
    return asked.over(controls)
