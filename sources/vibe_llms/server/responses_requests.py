"""Requests of Responses, as the server reads them.

Source: the parameter types of openai 3.57.0, `types/responses/response_create_params.py`, and the
specification of Open Responses. Unknown members are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.configuration import ContextMode
from vibe_llms.messages.controls import Controls
from vibe_llms.server.chat_requests import JSON_ONLY, read_messages
from vibe_llms.server.context_orders import ContextOrder
from vibe_llms.server.failures import Rejected
from vibe_llms.server.files import NO_FILES, RequestFiles
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.reading import declare_tools, read_body
from vibe_llms.server.responses_items import Continued, ItemReader, survey_tools
from vibe_llms.server.responses_tools import ClientTools
from vibe_llms.server.schemas import check_size
from vibe_llms.server.turns import TurnOrder

#: Request members whose controls have a different name.
CONTROLS = {
    "top-p": "top_p",
    "output-tokens": "max_output_tokens",
    "effort": "reasoning.effort",
    "tool-choice": "tool_choice",
    "parallel-invocations": "parallel_tool_calls",
    "service-tier": "service_tier",
    "response-schema": "text.format",
}


class TextFormat(Struct):
    """Format of a reply."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema: dict[str, Any] | None = None


class TextOptions(Struct):
    """Format and verbosity of a reply."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(Struct):
    """Reasoning effort of a model."""

    effort: str | None = None


class ContextManager(Struct):
    """Compaction before a response, of at least this number of tokens; other types are left out."""

    type: str
    compact_threshold: Annotated[int, Meta(ge=1)] | None = None


class ResponseRequest(Struct):
    """The body of a request; `responses_items` and `responses_tools` read its items and tools."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    context_management: list[ContextManager] | None = None

    @property
    def stored(self) -> bool:
        """True if the response is stored and outlives the connection."""
        return self.store is not False

    @property
    def items(self) -> Sequence[Mapping[str, Any]]:
        """Input items."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return self.input or ()

    def read_tools(
        self, omissions: Omissions | None = None, most: int | None = None
    ) -> ClientTools:
        """Read the tools that the client runs; see `ClientTools.read`."""
        return ClientTools.read(self.tools, survey_tools(self.items), omissions, most)


_DECODER = msgspec.json.Decoder(ResponseRequest)


def read_request(body: bytes) -> ResponseRequest:
    """Read the request in a body; `Rejected` names the invalid member."""
    request = read_count(body)
    if not request.items:
        raise Rejected("input is required", param="input")
    if request.background and not request.stored:
        raise Rejected("a response in the background must be stored", param="store")
    return request


def read_count(body: bytes) -> ResponseRequest:
    """Read a request to count tokens, which may have no input."""
    request = read_body(_DECODER, body)
    for name in ("conversation", "prompt"):
        if getattr(request, name) is not None:
            raise Rejected(
                f"{name} is not supported; continue a response with previous_response_id",
                param=name,
                code="unsupported_parameter",
            )
    return request


def read_order(
    request: ResponseRequest,
    model: str,
    omissions: Omissions,
    continued: Continued = Continued(),
    most_tools: int | None = None,
    files: RequestFiles = NO_FILES,
) -> TurnOrder:
    """Return the turn that a request asks for; add unsupported features to `omissions`.

    Raises `Rejected` if the request has more than `most_tools`.
    """
    form = request.text.format if request.text is not None else None
    schema = None
    if form is not None and form.type == "json_schema":
        if not form.schema:
            raise Rejected("a json_schema needs a schema", param="text.format.schema")
        check_size(form.schema, "text.format.schema")
        schema = {"title": form.name, **form.schema}
    for member in _survey_unsupported(request):
        omissions.add("member", member)
    tools = request.read_tools(omissions, most_tools)
    choice = tools.read_choice(request.tool_choice, omissions)
    offered = [
        tool.declaration
        for tool in tools.declared
        if choice.allowed is None or tool.offered in choice.allowed
    ]
    control = choice.control
    if request.tools and not offered and control is not None:
        # The tool that must be called was left out.
        if control == "any":
            omissions.add("tool_choice", "required")
        control = None
    try:
        read = [*ItemReader(request.items, continued, omissions).read()]
    except RecursionError:
        raise Rejected("the input is nested too deeply", param="input") from None
    return TurnOrder(
        model=model,
        said=read_messages(
            [message for _, message in read],
            continued.open_calls,
            [param for param, _ in read],
            files,
        ),
        tools=declare_tools(offered),
        controls=_read_controls(request, control, offers=bool(offered)),
        schema=schema,
        instruction=JSON_ONLY if form is not None and form.type == "json_object" else "",
        store=request.stored,
        context=_read_context(request, omissions),
        omissions=omissions,
    )


def _read_context(request: ResponseRequest, omissions: Omissions) -> ContextOrder:
    # In place of dropping the oldest items, the conversation is compacted.
    mode: ContextMode | None = "auto" if request.truncation == "auto" else None
    managers: list[ContextManager] = []
    for manager in request.context_management or ():
        if manager.type == "compaction":
            managers.append(manager)
        else:
            omissions.add("context_management", manager.type)
    thresholds = [one.compact_threshold for one in managers if one.compact_threshold is not None]
    return ContextOrder(
        mode=mode,
        compacts=bool(managers),
        threshold=min(thresholds, default=None),
        repeated=[request.instructions] if request.instructions else [],
    )


def _survey_unsupported(request: ResponseRequest) -> Iterator[str]:
    """Yield members of a request that OpenAI supports, but not this server."""
    if request.text is not None and request.text.verbosity not in (None, "medium"):
        yield "text.verbosity"
    if request.max_tool_calls is not None:
        yield "max_tool_calls"
    if request.top_logprobs:
        yield "top_logprobs"
    if "message.output_text.logprobs" in (request.include or ()):
        yield "include"


def _read_controls(request: ResponseRequest, tool_choice: str | None, *, offers: bool) -> Controls:
    return Controls(
        temperature=request.temperature,
        top_p=request.top_p,
        output_tokens=request.max_output_tokens,
        effort=request.reasoning.effort if request.reasoning is not None else None,
        tool_choice=tool_choice,
        parallel_invocations=request.parallel_tool_calls if offers else None,
        service_tier=request.service_tier,
    )
