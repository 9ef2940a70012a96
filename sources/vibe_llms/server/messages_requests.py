"""Requests of Anthropic's Messages, as the server reads them.

Source: the parameter types of anthropic 2.14.0, `types/beta/message_create_params.py`. Unknown
members are ignored; unsupported ones are named in X-Left-Out. Other forms are first rewritten to
these types, see `messages_history`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from vibe_llms.invocation.invokers import Invoker
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
from vibe_llms.messages.controls import Controls
from vibe_llms.server.failures import Rejected
from vibe_llms.server.files import NO_FILES, RequestFiles
from vibe_llms.server.messages_context import (
    CompactionBlock,
    CompactionConfig,
    ContextManagement,
    read_context,
)
from vibe_llms.server.messages_history import rewrite_request
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.pairing import OpenCalls, order_results
from vibe_llms.server.reading import (
    declare_tools,
    find_last_reply,
    is_web_address,
    read_base64,
    read_body,
)
from vibe_llms.server.schemas import check_size
from vibe_llms.server.turns import TurnOrder

#: Request members whose controls have a different name.
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
    """Data in the request, in base64."""

    media_type: str
    data: str


class UrlSource(Struct, tag_field="type", tag="url"):
    """An address that the provider fetches."""

    url: str


class TextSource(Struct, tag_field="type", tag="text"):
    """Plain text."""

    data: str


class FileSource(Struct, tag_field="type", tag="file"):
    """An uploaded file."""

    file_id: str


class ImageBlock(Struct, tag_field="type", tag="image"):
    """An image."""

    source: DataSource | UrlSource | FileSource


class BlocksSource(Struct, tag_field="type", tag="content"):
    """Text and images of a document."""

    content: str | list[TextBlock | ImageBlock]


class DocumentBlock(Struct, tag_field="type", tag="document"):
    """A document."""

    source: DataSource | UrlSource | TextSource | BlocksSource | FileSource
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Struct, tag_field="type", tag="search_result"):
    """One search result."""

    source: str
    title: str
    content: list[TextBlock]


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """Thoughts, which are ignored, because only the model that signed them can read them."""

    thinking: str | None = None


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking"):
    """Encrypted thoughts of a model, which are ignored."""


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
    | CompactionBlock
)


class FunctionTool(Struct):
    """A function in OpenAI's form."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Struct):
    """A tool that the client offers or that Anthropic would run; `function` is OpenAI's form."""

    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    function: FunctionTool | None = None


class ToolChoice(Struct):
    """The tool choice: a mode, or a tool that the model must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct):
    """Thinking settings; `display` controls how the reply shows the thoughts."""

    type: str
    budget_tokens: Annotated[int, Meta(ge=0)] | None = None
    display: str | None = None


class OutputFormat(Struct):
    """JSON Schema of a reply."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct):
    """Effort and format of the reply."""

    effort: str | None = None
    format: OutputFormat | None = None
    task_budget: Any = None


class AnthropicMessage(Struct):
    """A message of any role."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]
    output_config: OutputConfig | None = None


class Thread(Struct):
    """A conversation kept by Anthropic, to which requests only add messages."""

    type: str
    previous_message_id: str | None = None


class CountRequest(Struct, kw_only=True):
    """The body of a request to count tokens."""

    model: str
    messages: Annotated[list[AnthropicMessage], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    mcp_servers: Any = None
    context_management: ContextManagement | None = None
    compaction: CompactionConfig | None = None


class MessageRequest(CountRequest, kw_only=True):
    """The body of a request; `store` is an extension: nothing is stored if it is false."""

    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    service_tier: str | None = None
    store: bool | None = None
    thread: Thread | None = None
    container: Any = None
    fallbacks: Any = None
    speed: str | None = None
    inference_geo: str | None = None


#: Unsupported members; named in X-Left-Out if they have a value.
_LEFT_OUT = (*("container", "fallbacks", "inference_geo", "mcp_servers", "speed"),)
#: Values of these members that match the default behavior.
_DEFAULTS = {"speed": "standard"}
#: Start of a system block with billing data for Anthropic.
_BILLING = "x-anthropic-billing-header"
_REQUEST = msgspec.json.Decoder(MessageRequest)
_COUNT = msgspec.json.Decoder(CountRequest)


def read_request(body: bytes, omissions: Omissions) -> MessageRequest:
    """Read the request in a body; `Rejected` names the invalid member.

    Unknown blocks of the history are added to the `omissions`.
    """
    request = read_body(_REQUEST, body, partial(rewrite_request, omissions=omissions))
    if request.thread is not None:
        raise Rejected(
            "threads are not supported; send the whole history without thread",
            param="thread",
            code="thread_unsupported_request",
        )
    return request


def read_count(body: bytes, omissions: Omissions) -> CountRequest:
    """Read the request to count tokens in a body; see `read_request`."""
    return read_body(_COUNT, body, partial(rewrite_request, omissions=omissions))


def read_order(
    request: CountRequest,
    omissions: Omissions,
    files: RequestFiles = NO_FILES,
    compacted: Sequence[Canister] = (),
) -> TurnOrder:
    """Return the turn that a request asks for; add unsupported features to `omissions`.

    `files` are those that the request refers to. The messages of a compaction precede others.
    """
    form = request.output_format or (request.output_config and request.output_config.format)
    if form:
        check_size(form.schema, "output_config.format.schema")
    for name in _LEFT_OUT:
        if (given := getattr(request, name, None)) and given != _DEFAULTS.get(name):
            omissions.add("member", name)
    if request.output_config is not None and request.output_config.task_budget:
        omissions.add("member", "output_config.task_budget")
    tools = _read_tools(request.tools or (), omissions)
    system = _read_system(request.system)
    # The endpoint that counts tokens accepts `compaction` and ignores it.
    compaction = request.compaction if isinstance(request, MessageRequest) else None
    texts = [one.text for one in system]
    return TurnOrder(
        model=request.model,
        said=[*system, *compacted, *read_messages(request.messages, files)],
        context=read_context(request.context_management, compaction, texts, omissions),
        tools=tools,
        controls=_read_controls(request, {tool.name for tool in tools}, omissions),
        schema=form.schema if form else None,
        store=not isinstance(request, MessageRequest) or request.store is not False,
        omissions=omissions,
    )


def _read_tools(tools: Sequence[Tool], omissions: Omissions) -> Sequence[Invoker]:
    """Return the client's own tools; those that Anthropic runs or defines are left out."""
    declared: list[tuple[str, str | None, dict[str, Any] | None]] = []
    for tool in tools:
        if tool.function is not None:
            one = tool.function
            declared.append((one.name, one.description, one.parameters))
        elif tool.type in (None, "custom", "function") or tool.input_schema is not None:
            declared.append((tool.name or "", tool.description, tool.input_schema))
        else:
            omissions.add("tool", tool.type)
    return declare_tools(declared)


def read_messages(
    messages: Sequence[AnthropicMessage], files: RequestFiles = NO_FILES
) -> Sequence[Canister]:
    """Convert messages to canisters; results refer to calls by our identities.

    Results are paired with calls by name across all messages. Unreadable images and files are
    refused after the last reply, and become text before it.
    """
    said: list[Canister] = []
    calls = OpenCalls()
    made = {
        id(block): _read_call(block)
        for message in messages
        if not isinstance(message.content, str)
        for block in message.content
        if isinstance(block, ToolUseBlock)
    }
    for call in made.values():
        calls.add(call)
    last = find_last_reply(one.role for one in messages)
    for index, message in enumerate(messages):
        param = f"messages[{index}].content"
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [TextBlock(blocks)] if blocks else []
        contents: list[Content] = []
        own: list[InvocationCanister] = []
        for block in blocks:
            match block:
                case ThinkingBlock() | RedactedThinkingBlock() | CompactionBlock():
                    pass
                case ToolUseBlock():
                    own.append(made[id(block)])
                case ToolResultBlock():
                    answered = calls.take(repair_text(block.tool_use_id))
                    if message.role != "user" or answered is None:
                        raise Rejected(
                            f"call {block.tool_use_id!r} not found for this result", param=param
                        )
                    said += _produce_message(message.role, contents)
                    contents = []
                    said.append(_read_result(block, answered, param, files, new=index > last))
                case _:
                    contents += _read_contents(block, param, files, new=index > last)
        if own and message.role != "assistant":
            raise Rejected("only the assistant can make calls", param=param)
        said += [*_produce_message(message.role, contents), *own]
    return order_results(said)


def _produce_message(role: str, contents: Sequence[Content]) -> Sequence[Canister]:
    if not contents:
        return ()
    match role:
        case "user":
            return (UserCanister(tuple(contents)),)
        case "system":
            return (SupervisorCanister(tuple(contents)),)
        case _:
            return (AssistantCanister(tuple(contents)),)


def _read_system(system: str | list[TextBlock] | None) -> Sequence[SupervisorCanister]:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    # Anthropic's coding agent puts billing data there, which differs between requests.
    kept = [text for text in texts if text and not text.startswith(_BILLING)]
    text = repair_text("\n\n".join(kept))
    return (SupervisorCanister.from_text(text),) if text else ()


def _read_call(block: ToolUseBlock) -> InvocationCanister:
    return InvocationCanister(
        name=repair_text(block.name),
        arguments=repair_text(msgspec.json.encode(block.input).decode()),
        call=repair_text(block.id),
    )


def _read_result(
    block: ToolResultBlock, call: str, param: str, files: RequestFiles, *, new: bool
) -> ResultCanister:
    said = block.content
    if isinstance(said, str):
        said = [TextBlock(said)] if said else []
    read = (_read_contents(one, param, files, new=new) for one in said or ())
    contents = tuple(content for one in read for content in one)
    return ResultCanister(contents, invocation=call, failed=bool(block.is_error))


def _read_contents(
    block: SaidBlock, param: str, files: RequestFiles, *, new: bool
) -> Sequence[Content]:
    """Return the contents of a block; unreadable ones in a history become text."""
    try:
        return _read_block(block, param, files)
    except Rejected as refused:
        if new:
            raise
        kind = block.__struct_config__.tag
        return (TextualContent(f"[{kind} that cannot be read: {refused}]"),)


def _read_block(block: SaidBlock, param: str, files: RequestFiles) -> Sequence[Content]:
    match block:
        case TextBlock(text=text):
            return (TextualContent(repair_text(text)),)
        case ImageBlock(source=DataSource(media_type=mimetype, data=encoded)):
            return (ImageContent(read_base64(encoded, param), mimetype),)
        case ImageBlock(source=UrlSource(url=url)):
            return (ImageContent(_read_location(url, param)),)
        case ImageBlock(source=FileSource(file_id=reference)):
            return (files.read(reference, param, image=True),)
        case SearchResultBlock():
            text = "\n\n".join([block.title, block.source, *(one.text for one in block.content)])
            return (TextualContent(repair_text(text)),)
        case DocumentBlock(source=source, title=title, context=context):
            name = repair_text(title or "")
            about = [TextualContent(repair_text(context))] if context else []
            return (*about, *_read_document(source, name, param, files))
        case _:
            raise AssertionError(block)


def _read_document(
    source: DataSource | UrlSource | TextSource | BlocksSource | FileSource,
    name: str,
    param: str,
    files: RequestFiles,
) -> Sequence[Content]:
    match source:
        case DataSource(media_type=mimetype, data=encoded):
            return (FileContent(read_base64(encoded, param), mimetype, name),)
        case FileSource(file_id=reference):
            content = files.read(reference, param)
            if name and isinstance(content, FileContent):
                content = replace(content, name=name)
            return (content,)
        case UrlSource(url=url):
            return (FileContent(_read_location(url, param), "application/pdf", name),)
        case TextSource(data=text):
            return (FileContent(repair_text(text).encode(), "text/plain", name),)
        case BlocksSource(content=str(text)):
            return (FileContent(repair_text(text).encode(), "text/plain", name),)
        case BlocksSource(content=blocks):
            assert not isinstance(blocks, str)
            heading = [TextualContent(name)] if name else []
            return (
                *heading,
                *(one for block in blocks for one in _read_block(block, param, files)),
            )


def _read_location(url: str, param: str) -> Location:
    if not is_web_address(url):
        raise Rejected("an address must begin with http:// or https://", param=param)
    return Location(repair_text(url))


def _read_controls(request: CountRequest, tools: Collection[str], omissions: Omissions) -> Controls:
    choice, thinking = request.tool_choice, request.thinking
    parallel = None
    if tools and choice is not None and choice.disable_parallel_tool_use is not None:
        parallel = not choice.disable_parallel_tool_use
    named = None
    if choice is not None:
        named = choice.name if choice.type == "tool" else choice.type
        if choice.type == "tool" and not choice.name:
            raise Rejected("a tool_choice of a tool needs its name", param="tool_choice")
        left_out = {tool.name for tool in request.tools or ()}.difference(tools)
        if named in left_out or (choice.type == "any" and left_out and not tools):
            # The required tool is not available.
            omissions.add("tool_choice", named or "")
            named = None
    budget = None
    if thinking is not None:
        # Anthropic's coding agent sends a budget of 0 with adaptive thinking.
        budget = {"enabled": thinking.budget_tokens, "disabled": 0}.get(thinking.type)
    # A message may change the effort of those that follow.
    configs = [request.output_config, *(one.output_config for one in request.messages)]
    efforts = [one.effort for one in configs if one is not None and one.effort is not None]
    controls = Controls(
        effort=efforts[-1] if efforts else None,
        reasoning_tokens=budget,
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
        # With "auto", each provider uses its own default.
        service_tier=None if request.service_tier == "auto" else request.service_tier,
    )
    return asked.over(controls)
