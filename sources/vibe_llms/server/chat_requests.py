"""Requests of Chat Completions, as the server reads them.

Source: the parameter types of openai 3.57.0, `types/chat/completion_create_params.py`. Unknown
members are ignored; unsupported ones are named in X-Left-Out. Other forms are first rewritten to
these types, see `chat_history`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping, Sequence
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
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    Location,
    TextualContent,
    repair_text,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.openai.chat_completions.chunks import CallPiece, FunctionDelta
from vibe_llms.server.chat_history import rewrite_request
from vibe_llms.server.custom_tools import INPUT, SCHEMA, describe_format
from vibe_llms.server.failures import Rejected
from vibe_llms.server.files import NO_FILES, RequestFiles
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

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[^,;]*)*;base64,", re.ASCII)
JSON_ONLY = "Answer with a single JSON object and nothing else: no other text, no Markdown."
#: Our tool choices by those of OpenAI and of other servers.
_CHOICES = {"auto": "auto", "none": "none", "required": "any", "any": "any"}
#: Placeholder for the call identity that the deprecated `function_call` form lacks.
_LEGACY = "function_call"
#: Request members whose controls have a different name.
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
    """The assistant's refusal to answer."""

    refusal: str


class ImageUrl(Struct):
    """Address of an image, a data URL, or the id of an uploaded file."""

    url: str = ""
    file_id: str | None = None


class ImagePart(Struct, tag_field="type", tag="image_url"):
    """An image."""

    image_url: ImageUrl


class InputAudio(Struct):
    """Audio data in base64."""

    data: str
    format: str


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    """Audio input."""

    input_audio: InputAudio


class FileData(Struct):
    """Data of a file, or the id of an uploaded file."""

    file_data: str | None = None
    filename: str | None = None
    file_id: str | None = None


class FilePart(Struct, tag_field="type", tag="file"):
    """A file."""

    file: FileData


Part: TypeAlias = TextPart | RefusalPart | ImagePart | AudioPart | FilePart


class CustomInput(Struct):
    """A call of a tool whose input is text."""

    name: str
    input: str = ""


class ClientCall(CallPiece):
    """A call of one of the client's tools."""

    custom: CustomInput | None = None


class ChatMessage(Struct):
    """A message of any role; `function` and `function_call` are the deprecated form of tools."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    refusal: str | None = None
    tool_calls: list[ClientCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionDelta | None = None
    name: str | None = None


class Declaration(Struct):
    """A function that the client offers."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class CustomDeclaration(Struct):
    """A tool with text input that the client offers."""

    name: str
    description: str | None = None
    format: dict[str, Any] | None = None


class ChatTool(Struct):
    """A tool that the client offers or that OpenAI would run.

    Some clients write the members of a function without the `function` wrapper.
    """

    type: str = ""
    function: Declaration | None = None
    custom: CustomDeclaration | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    input_schema: dict[str, Any] | None = None


class NamedTool(Struct):
    """A tool by its name."""

    name: str


class AllowedTools(Struct):
    """The tools that may be called now, and the mode that may require a call."""

    tools: list[dict[str, Any]]
    mode: Literal["auto", "required"] = "auto"


class ChatToolChoice(Struct):
    """A restriction of the tools that the model may call, in any interface's form."""

    type: str = "function"
    function: NamedTool | None = None
    custom: NamedTool | None = None
    allowed_tools: AllowedTools | None = None
    name: str | None = None
    tools: list[dict[str, Any]] | None = None
    mode: Literal["auto", "required"] = "auto"


class JsonSchema(Struct):
    """JSON Schema of a reply."""

    name: str
    schema: dict[str, Any] | None = None


class ResponseFormat(Struct):
    """Format of a reply; other servers accept a `schema` with `json_object`."""

    type: str
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class ToolForms(Struct, frozen=True):
    """Format of the calls of a client's tools.

    `custom` are the names of tools with text input; with `legacy` there is a single
    `function_call`.
    """

    custom: Collection[str] = ()
    legacy: bool = False


class StreamOptions(Struct):
    """Optional contents of a stream."""

    include_usage: bool | None = None


class ChatRequest(Struct):
    """The body of a request; `stages` is an extension that shows the calls of tools."""

    model: str
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    tools: list[ChatTool] | None = None
    tool_choice: str | ChatToolChoice | None = None
    functions: list[Declaration] | None = None
    function_call: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
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
    audio: Any = None
    frequency_penalty: float | None = None
    logit_bias: Any = None
    logprobs: Any = None
    presence_penalty: float | None = None
    top_logprobs: int | None = None
    verbosity: str | None = None
    web_search_options: Any = None

    @property
    def includes_usage(self) -> bool:
        """True if the last chunk has the usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def __post_init__(self) -> None:
        # Some clients also send `functions`, for servers that predate `tools`.
        if self.tools:
            self.functions = self.function_call = None


#: Unsupported members; named in X-Left-Out if they have a value.
_LEFT_OUT = (
    *("audio", "frequency_penalty", "logit_bias", "logprobs", "presence_penalty", "top_logprobs"),
    *("verbosity", "web_search_options"),
)
_DECODER = msgspec.json.Decoder(ChatRequest)


def read_request(body: bytes) -> ChatRequest:
    """Read the request in a body; `Rejected` names the invalid member."""
    request = read_body(_DECODER, body, rewrite_request)
    check_request(request)
    return request


def check_request(request: ChatRequest) -> None:
    """Raise `Rejected` if `n` is not 1."""
    if request.n is not None and request.n != 1:
        raise Rejected(
            "n must be 1, because a turn has one reply; repeat the request for another",
            param="n",
            code="unsupported_value",
        )


def read_order(
    request: ChatRequest,
    omissions: Omissions,
    said: Sequence[Canister] | None = None,
    states: Mapping[str, Sequence[Canister]] = {},
    files: RequestFiles = NO_FILES,
) -> TurnOrder:
    """Return the turn that a request asks for; `said` replaces its messages if given.

    `files` are those that it refers to. Unsupported features are added to `omissions`.
    """
    for name in _LEFT_OUT:
        # An empty object also requests a search.
        if getattr(request, name) not in (None, False, 0):
            omissions.add("member", name)
    if "audio" in (request.modalities or ()):
        omissions.add("modality", "audio")
    tools, choice = _read_tools(request, omissions)
    return TurnOrder(
        model=request.model,
        said=read_messages(request.messages, files=files) if said is None else said,
        states=states,
        tools=tools,
        controls=_read_controls(request, choice),
        schema=(schema := _read_schema(request.response_format, omissions)),
        instruction=_instruct(request.response_format) if schema is None else "",
        store=request.store is not False,
        omissions=omissions,
    )


def _read_schema(form: ResponseFormat | None, omissions: Omissions) -> Mapping[str, Any] | None:
    param = "response_format.json_schema"
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        if form.schema:
            check_size(form.schema, "response_format.schema")
        return form.schema or None
    if form.type != "json_schema":
        omissions.add("response_format", form.type)
        return None
    given = form.json_schema
    if given is None or not given.schema:
        raise Rejected("a json_schema needs a schema", param=param)
    check_size(given.schema, f"{param}.schema")
    return {"title": given.name, **given.schema}


def _instruct(form: ResponseFormat | None) -> str:
    return JSON_ONLY if form is not None and form.type == "json_object" else ""


def read_forms(request: ChatRequest) -> ToolForms:
    """Return the format of the calls of a client's tools."""
    custom = {one.custom.name for one in request.tools or () if one.custom is not None}
    return ToolForms(custom, legacy=bool(request.functions))


def name_tool(tool: ChatTool) -> str | None:
    """Return the name of a client's own tool, or None for one that OpenAI would run."""
    match tool:
        case ChatTool(function=Declaration(name=name)):
            return name
        case ChatTool(custom=CustomDeclaration(name=name)):
            return name
        case ChatTool(type="function" | "custom") | ChatTool(input_schema=dict()):
            return tool.name or ""
        case ChatTool(type=""):
            return tool.name
    return None


def _read_tools(request: ChatRequest, omissions: Omissions) -> tuple[Sequence[Invoker], str | None]:
    """Return the client's own tools that may be called, and the tool choice control."""
    declared: list[tuple[str, str | None, Mapping[str, Any] | None]] = []
    for place, tool in enumerate(request.tools or ()):
        name = name_tool(tool)
        match tool:
            case _ if name is None:
                omissions.add("tool", tool.type or "unknown")
            case ChatTool(function=Declaration() as one):
                declared.append((name, one.description, one.parameters))
            case ChatTool(custom=CustomDeclaration() as one):
                grammar = describe_format(one.format, f"tools[{place}].custom")
                declared.append((name, (one.description or "") + grammar, SCHEMA))
            case _:
                declared.append((name, tool.description, tool.parameters or tool.input_schema))
    declared += [(one.name, one.description, one.parameters) for one in request.functions or ()]
    choice: str | ChatToolChoice | None = request.tool_choice
    if choice is None and request.function_call is not None:
        named = request.function_call
        choice = named if isinstance(named, str) else ChatToolChoice(function=named)
    if isinstance(choice, ChatToolChoice):
        allowed = choice.allowed_tools
        if allowed is None and choice.type == "allowed_tools":
            allowed = AllowedTools(choice.tools or [], choice.mode)
        if allowed is not None:
            names = {_name_allowed(one) for one in allowed.tools}
            declared = [one for one in declared if one[0] in names]
            choice = allowed.mode
    tools = declare_tools(declared)
    return tools, _read_choice(choice, {one.name for one in tools}, request, omissions)


def _read_choice(
    choice: str | ChatToolChoice | None,
    names: Collection[str],
    request: ChatRequest,
    omissions: Omissions,
) -> str | None:
    if isinstance(choice, ChatToolChoice):
        one = choice.function or choice.custom
        word = one.name if one is not None else choice.name or choice.type
        if word in names or word not in _CHOICES:
            known = {name_tool(tool) for tool in request.tools or ()}
            if word in known or word in names or None not in known:
                return word
            omissions.add("tool_choice", word)
            return None
        choice = word
    if choice is not None and choice not in _CHOICES:
        raise Rejected(
            f"tool_choice cannot be {choice!r}; use auto, none, required, or a tool",
            param="tool_choice",
        )
    control = None if choice is None else _CHOICES[choice]
    if control == "any" and not names and request.tools:
        # The required tool is not available.
        omissions.add("tool_choice", "required")
        return None
    return control


def _name_allowed(tool: Mapping[str, Any]) -> str:
    """Return the name of an allowed tool, in the form of either OpenAI interface."""
    one = tool.get("function") or tool.get("custom") or tool
    return str(one.get("name")) if isinstance(one, Mapping) else ""


def read_messages(
    messages: Sequence[ChatMessage],
    open_calls: Mapping[str, str] = {},
    params: Sequence[str] | None = None,
    files: RequestFiles = NO_FILES,
) -> Sequence[Canister]:
    """Convert messages to canisters; results refer to calls by our identities.

    `open_calls` maps the client's names of earlier calls to their identities here. `params` are the
    names of the messages in errors.
    """
    read = read_each(messages, open_calls, params, files)
    return order_results(canister for canisters in read for canister in canisters)


def read_each(
    messages: Sequence[ChatMessage],
    open_calls: Mapping[str, str] = {},
    params: Sequence[str] | None = None,
    files: RequestFiles = NO_FILES,
) -> Sequence[Sequence[Canister]]:
    """Return the canisters of each message, in order; see `read_messages`.

    Results are paired with calls across all messages. Unreadable images and files are refused after
    the last reply, and become text before it.
    """
    calls = OpenCalls(open_calls)
    params = params or [f"messages[{index}]" for index in range(len(messages))]
    last = find_last_reply(one.role for one in messages)
    replies = {
        index: read_message(message, calls, params[index], files, new=False)
        for index, message in enumerate(messages)
        if message.role == "assistant"
    }
    return [
        replies[index]
        if index in replies
        else read_message(message, calls, params[index], files, new=index > last)
        for index, message in enumerate(messages)
    ]


def read_message(
    message: ChatMessage, calls: OpenCalls, param: str, files: RequestFiles, *, new: bool
) -> Sequence[Canister]:
    """Convert a message to canisters; `calls` are the open calls, to which its own are added.

    In a message that is not `new`, unreadable parts become text.
    """
    contents = _read_contents(message, f"{param}.content", files, new=new)
    match message.role:
        case "system" | "developer":
            return (SupervisorCanister(contents),) if contents else ()
        case "user":
            return (UserCanister(contents),)
        case "assistant":
            made = [_read_call(piece, param) for piece in message.tool_calls or ()]
            for call in made:
                calls.add(call)
            if (legacy := message.function_call) is not None and not made:
                call = replace(_read_call(ClientCall(id=_LEGACY, function=legacy), param), call="")
                calls.add(call, _LEGACY)
                made = [call]
            return [*([AssistantCanister(contents)] if contents else []), *made]
        case "tool" | "function":
            name = _LEGACY if message.role == "function" else message.tool_call_id or None
            answered = calls.take(name and repair_text(name))
            if answered is None:
                raise Rejected(
                    f"call {name!r} not found for this result", param=f"{param}.tool_call_id"
                )
            return (ResultCanister(contents, invocation=answered),)


def _read_contents(
    message: ChatMessage, param: str, files: RequestFiles, *, new: bool
) -> tuple[Content, ...]:
    if message.content is None or isinstance(message.content, str):
        text = message.content or message.refusal or ""
        return (TextualContent(repair_text(text)),) if text else ()
    contents: list[Content] = []
    for part in message.content:
        try:
            contents.append(_read_part(part, param, files))
        except Rejected as refused:
            if new:
                raise
            kind = part.__struct_config__.tag
            contents.append(TextualContent(f"[{kind} that cannot be read: {refused}]"))
    return tuple(contents)


def _read_part(part: Part, param: str, files: RequestFiles) -> Content:
    match part:
        case TextPart(text=text) | RefusalPart(refusal=text):
            return TextualContent(repair_text(text))
        case ImagePart(image_url=ImageUrl(file_id=str(reference))):
            return files.read(reference, param, image=True)
        case ImagePart(image_url=ImageUrl(url=url)):
            if is_web_address(url):
                # The provider fetches it, not this server.
                return ImageContent(Location(repair_text(url)))
            data, mimetype = read_data_url(url, param)
            return ImageContent(data, mimetype)
        case AudioPart(input_audio=InputAudio(data=encoded, format=kind)):
            return AudioContent(read_base64(encoded, param), f"audio/{kind}")
        case FilePart(file=FileData(file_data=str(url), filename=name)) if is_web_address(url):
            location = Location(repair_text(url))
            return FileContent(location, "application/pdf", repair_text(name or ""))
        case FilePart(file=FileData(file_data=str(encoded), filename=name)):
            data, mimetype = read_data_url(encoded, param)
            return FileContent(data, mimetype, repair_text(name or ""))
        case FilePart(file=FileData(file_id=str(reference))):
            return files.read(reference, param)
        case FilePart():
            raise Rejected("a file needs file_data or file_id", param=param)


def read_data_url(url: str, param: str) -> tuple[bytes, str]:
    """Decode the data and media type in a data URL."""
    found = _DATA_URL.match(url)
    if found is None:
        raise Rejected(
            "an address must begin with http://, https:// or data:TYPE;base64,", param=param
        )
    return read_base64(url[found.end() :], param), found[1] or ""


def write_data_url(data: bytes, mimetype: str) -> str:
    """Encode data as a data URL."""
    return f"data:{mimetype};base64,{base64.b64encode(data).decode()}"


def _read_call(piece: ClientCall, param: str) -> InvocationCanister:
    function = piece.function
    if piece.custom is not None:
        arguments = msgspec.json.encode({INPUT: piece.custom.input}).decode()
        function = FunctionDelta(piece.custom.name, arguments)
    if function is None or not function.name or not piece.id:
        raise Rejected("a call needs an id and a function", param=f"{param}.tool_calls")
    return InvocationCanister(
        name=repair_text(function.name),
        arguments=repair_text(function.arguments or "{}"),
        call=repair_text(piece.id),
    )


def _read_controls(request: ChatRequest, choice: str | None) -> Controls:
    stop = request.stop
    offered = bool(request.tools or request.functions)
    return Controls(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        output_tokens=request.max_completion_tokens or request.max_tokens,
        stop=((stop,) if isinstance(stop, str) else tuple(stop)) if stop else None,
        seed=request.seed,
        effort=request.reasoning_effort,
        tool_choice=choice,
        # The deprecated `function_call` form has a single call.
        parallel_invocations=(
            False if request.functions else request.parallel_tool_calls if offered else None
        ),
        service_tier=request.service_tier,
    )
