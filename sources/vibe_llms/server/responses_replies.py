"""Responses, as the server writes them: the object, its items, and the events of a stream.

Source: `types/responses/response.py` and `response_stream_event.py` of openai 3.57.0, and the
specification of Open Responses. Items and events whose type starts with `x:` are extensions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    Turn,
    Usage,
)
from vibe_llms.messages.contents import ReasoningContent, TextualContent, text_of
from vibe_llms.runs.events import (
    AnswerRequested,
    ApprovalRequested,
    CallEnded,
    CallProgress,
    MessageCompleted,
    MessageDelta,
    MessageFailed,
    MessageStarted,
    RunContinued,
    RunEvent,
)
from vibe_llms.runs.interfaces import CallApproval, RunQuestion, RunStatus
from vibe_llms.server.custom_tools import INPUT
from vibe_llms.server.failures import ClientFailure
from vibe_llms.server.responses_identities import produce_item_identity
from vibe_llms.server.responses_requests import ResponseRequest
from vibe_llms.server.responses_tools import ClientTool, ClientTools

Item: TypeAlias = Mapping[str, Any]

PREFIX = "resp_"
#: Event numbers per cursor: first its own, then from `_BEGINNING` those that start an item. The end
#: of reasoning (5) and the start of the next item (2) must fit after `_BEGINNING`.
_NUMBERS = 16
_BEGINNING = 8
_STATUSES = {
    RunStatus.QUEUED: "queued",
    RunStatus.RUNNING: "in_progress",
    RunStatus.WAITING: "in_progress",
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}
_INCOMPLETE: Mapping[str, str] = {
    StopReason.LENGTH: "max_output_tokens",
    StopReason.REFUSED: "content_filter",
    StopReason.LIMIT: "max_tool_calls",
}
#: Prefixes of item identities, by kind of the item.
_PREFIXES = {"text": "msg", "reasoning": "rs"}
_LAST_EVENTS = {"completed": "response.completed", "failed": "response.failed"}


class ResponseState(Struct, frozen=True, kw_only=True):
    """State of a response, besides its request."""

    identity: str
    model: str
    created: datetime
    status: RunStatus = RunStatus.RUNNING
    ended: datetime | None = None
    turn: Turn[None] | None = None
    approvals: Sequence[CallApproval] = ()
    hidden: Collection[str] = ()
    questions: Sequence[RunQuestion] = ()
    kind: str = ""
    failure: ClientFailure | None = None
    compaction: Item | None = None


def describe_response(
    request: ResponseRequest, tools: ClientTools, state: ResponseState
) -> dict[str, Any]:
    """Return the response object."""
    turn, status = state.turn, _STATUSES[state.status]
    reason = None
    if turn is not None and state.status is RunStatus.COMPLETED:
        reason = _INCOMPLETE.get(turn.stop_reason)
        status = status if reason is None else "incomplete"
    done = turn is not None and state.status.ended
    failure = state.failure
    error = failure and {
        # Clients know few codes, so our code is the type.
        "code": "rate_limit_exceeded" if failure.status == 429 else "server_error",
        "message": failure.message,
        "type": state.kind or failure.code or failure.type,
    }
    effort = request.reasoning.effort if request.reasoning is not None else None
    return {
        "id": PREFIX + state.identity,
        "object": "response",
        "created_at": int(state.created.timestamp()),
        "completed_at": None if state.ended is None else int(state.ended.timestamp()),
        "status": status,
        "background": bool(request.background),
        "error": error,
        "incomplete_details": None if reason is None else {"reason": reason},
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": state.model,
        "output": [*describe_output(tools, state, stored=request.stored)],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": None if effort is None else {"effort": effort, "summary": None},
        "store": request.stored,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": _describe_format(request)},
        "tool_choice": request.tool_choice or "auto",
        "tools": [_describe_tool(one) for one in request.tools or ()],
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "truncation": request.truncation or "disabled",
        "usage": describe_usage(turn.usage) if turn is not None and done else None,
        "metadata": request.metadata or {},
        "service_tier": request.service_tier or "default",
        "safety_identifier": None,
        "prompt_cache_key": None,
    }


def describe_input(request: ResponseRequest, identity: str) -> Sequence[Item]:
    """Return the items of the input, each with an identity of its own."""
    items: list[Item] = []
    for number, one in enumerate(request.items):
        kind = one.get("type") or "message"
        item = {"status": "completed", **one}
        if kind == "message":
            content, role = one.get("content") or "", one.get("role", "user")
            if isinstance(content, str):
                said = role == "assistant"
                part = _describe_text(content) if said else {"type": "input_text", "text": content}
                content = [part]
            item |= {"role": role, "content": content}
        items.append({**item, "type": kind, "id": f"item_{identity}_{number}"})
    return items


def _describe_tool(tool: Mapping[str, Any]) -> Item:
    """Return a tool as declared, with the members that clients expect of functions."""
    if tool.get("type", "function") != "function" or "function" in tool:
        return tool
    return {"type": "function", "description": None, "parameters": None, **tool, "strict": False}


def _describe_format(request: ResponseRequest) -> Item:
    form = request.text.format if request.text is not None else None
    if form is None or form.type != "json_schema":
        return {"type": "text" if form is None else form.type}
    return {
        "type": "json_schema",
        "name": form.name,
        "description": None,
        # As in the types of the specification.
        "schema": None,
        "strict": False,
    }


def describe_usage(usage: Usage) -> Item:
    """Return the tokens of a response."""
    output = usage.output_tokens + usage.reasoning_tokens
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + output,
    }


def describe_output(tools: ClientTools, state: ResponseState, *, stored: bool) -> Iterator[Item]:
    """Yield the items of a response; those of a stored response can be referenced."""
    if state.compaction is not None:
        yield state.compaction
    canisters = () if state.turn is None else state.turn.canisters
    run = state.identity if stored else ""
    unanswered = "incomplete" if state.status.ended else "in_progress"
    results = {one.invocation: one for one in canisters if isinstance(one, ResultCanister)}
    for canister in canisters:
        match canister:
            case AssistantCanister():
                yield from _describe_parts(canister, run)
            case InvocationCanister(name=name) if name in tools:
                yield describe_call(
                    tools[name], run, canister.identity, canister.arguments or "{}", "completed"
                )
            case InvocationCanister():
                result = results.get(canister.identity)
                shown = canister.name not in state.hidden
                yield describe_stage(canister, result, shown=shown, unanswered=unanswered)
    for approval in state.approvals:
        if approval.allowed is None:
            yield describe_approval(approval.invocation, approval.name, approval.reason)
    for question in state.questions:
        if question.answer is None:
            yield describe_question(question.identity, question.invocation, question.name)


def _describe_parts(canister: AssistantCanister, run: str) -> Iterator[Item]:
    """Yield the text and reasoning items of a message, in order."""
    texts: list[tuple[str, str]] = []
    for content in canister.contents:
        match content:
            case TextualContent(text=text) | ReasoningContent(text=text) if text:
                kind = "reasoning" if isinstance(content, ReasoningContent) else "text"
                if texts and texts[-1][0] == kind:
                    text = texts.pop()[1] + text
                texts.append((kind, text))
    ending = canister.ending
    status = "incomplete" if ending is not None and ending.interrupted else "completed"
    for place, (kind, text) in enumerate(texts):
        identity = produce_item_identity(_PREFIXES[kind], run, canister.identity, place)
        yield describe_part(identity, kind, text, status)


def describe_part(identity: str, kind: str, text: str, status: str) -> Item:
    """Return an item for text or reasoning of the assistant.

    Reasoning is also its own summary, because most clients show the summary.
    """
    if kind == "reasoning":
        return {
            "type": "reasoning",
            "id": identity,
            "status": status,
            "summary": [{"type": "summary_text", "text": text}] if text else [],
            "content": [{"type": "reasoning_text", "text": text}] if text else [],
        }
    part = _describe_text(text)
    return {
        "type": "message",
        "id": identity,
        "role": "assistant",
        "status": status,
        "content": [part] if text else [],
    }


def _describe_text(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def describe_call(tool: ClientTool, run: str, identity: str, arguments: str, status: str) -> Item:
    """Return the item of a call that the client must answer."""
    item = produce_item_identity(tool.prefix, run, identity)
    return tool.describe_call(item, identity, arguments, status)


def describe_stage(
    call: InvocationCanister,
    result: ResultCanister | None,
    *,
    shown: bool = True,
    unanswered: str = "in_progress",
) -> Item:
    """Return the item of a server-side call, without arguments and result unless `shown`.

    `unanswered` is the status of a call without a result.
    """
    failed = result is not None and result.failed
    status = unanswered if result is None else "failed" if failed else "completed"
    return {
        "type": "x:tool_call",
        "id": f"x_{call.identity}",
        "name": call.name,
        "arguments": call.arguments or "{}" if shown else None,
        "status": status,
        "output": text_of(result.contents) if result is not None and shown else None,
    }


def describe_question(question: str, call: str, name: str) -> Item:
    """Return the item of a question to the user, which is answered at `/api/runs/ID/answer`."""
    return {
        "type": "x:question",
        "id": f"xq_{question}",
        "question": question,
        "invocation": call,
        "name": name,
    }


def describe_approval(invocation: str, name: str, reason: str) -> Item:
    """Return the item of a call that waits for the user's decision."""
    return {
        "type": "x:approval_request",
        "id": f"xa_{invocation}",
        "invocation": invocation,
        "name": name,
        "reason": reason,
    }


class _OpenItem:
    """An item that is being written."""

    def __init__(self, index: int, message: str, kind: str, identity: str) -> None:
        self.index, self.message, self.kind, self.identity = index, message, kind, identity
        self.text: list[str] = []

    def describe(self, status: str) -> Item:
        """Return the item with the text so far."""
        return describe_part(self.identity, self.kind, "".join(self.text), status)


class _OpenCall(_OpenItem):
    """A call of a client's tool that is being written."""

    def __init__(self, index: int, message: str, run: str, tool: ClientTool) -> None:
        super().__init__(index, message, tool.kind, "")
        self._run, self.tool = run, tool
        self.identity = self.describe("in_progress")["id"]

    def describe(self, status: str) -> Item:
        """Return the item with the arguments so far."""
        return describe_call(self.tool, self._run, self.message, "".join(self.text), status)


class _OpenStage(_OpenItem):
    """A call of a server-side tool that is being written."""

    def __init__(self, index: int, message: str, name: str, *, shown: bool) -> None:
        super().__init__(index, message, "stage", "")
        self._name, self._shown = name, shown

    def describe(self, status: str) -> Item:
        """Return the item with the arguments so far."""
        stage = InvocationCanister(
            name=self._name, arguments="".join(self.text), identity=self.message
        )
        return describe_stage(stage, None, shown=self._shown)


class StreamWriter:
    """Writer of the events of a run as those of a response.

    The output depends only on the events, so it is the same live and later. The number of an event
    is the run's cursor times 16, plus its place there. Events up to and including the number
    `after` are left out, even within a delta.
    """

    def __init__(
        self,
        tools: ClientTools,
        after: int = -1,
        *,
        run: str = "",
        hidden: Collection[str] = (),
        first: int = 0,
    ) -> None:
        """Create a writer for a client with these tools; `hidden` are names of server-side tools.

        `run` is the run of a stored response. `first` is the index of the first item.
        """
        self._tools = tools
        self._run = run
        self._hidden = hidden
        self._after = after
        #: Number of items, of which those before the first event are already written.
        self._items = first
        self._open: _OpenItem | None = None
        self._places: dict[str, int] = {}
        self._stages: dict[str, tuple[int, Item]] = {}
        self._number = 0

    def begin(self, response: Item, item: Item | None = None) -> bytes:
        """Return the first events, and those of an item that is complete."""
        written = self._write("response.created", response=response)
        written += self._write("response.in_progress", response=response)
        if item is not None:
            written += self._write("response.output_item.added", output_index=0, item=item)
            written += self._write("response.output_item.done", output_index=0, item=item)
        return written

    def end(self, cursor: int, response: Item) -> bytes:
        """Return the last events."""
        self._number = cursor * _NUMBERS
        kind = _LAST_EVENTS.get(response["status"], "response.incomplete")
        written = self._close("incomplete")
        for call in [*self._stages]:
            written += self._end_stage(call, "incomplete")
        return written + self._write(kind, response=response)

    def write(self, cursor: int, event: RunEvent) -> bytes:
        """Return the events for a run event; empty if Responses has no equivalent."""
        self._number = cursor * _NUMBERS
        match event:
            case MessageStarted(message=message, role="invocation", name=name):
                index = self._items
                begun = (
                    _OpenCall(index, message, self._run, self._tools[name])
                    if name in self._tools
                    else _OpenStage(index, message, name, shown=name not in self._hidden)
                )
                return self._close("completed") + self._begin_item(begun)
            case MessageDelta():
                return self._write_delta(cursor, event)
            case MessageCompleted():
                return self._close("completed")
            case MessageFailed():
                return self._close("incomplete")
            case RunContinued(message=message):
                # Without `message`, the open message was complete, as the next events report.
                closed = self._close("incomplete") if message else b""
                return closed + self._write("x:response.continued", message=message or None)
            case CallProgress(invocation=call, text=text, done=done, total=total) if (
                call in self._stages
            ):
                index, item = self._stages[call]
                if item["name"] in self._hidden:
                    return b""
                place = {"item_id": item["id"], "output_index": index}
                return self._write(
                    "x:response.tool_call.progress", **place, text=text, done=done, total=total
                )
            case CallEnded(invocation=call, failed=failed) if call in self._stages:
                return self._end_stage(call, "failed" if failed else "completed")
            case ApprovalRequested(invocation=call, name=name, reason=reason):
                item = describe_approval(call, name, reason)
                return self._write("x:response.approval_requested", item=item)
            case AnswerRequested(question=question, invocation=call, name=name):
                item = describe_question(question, call, name)
                return self._write("x:response.answer_requested", item=item)
        return b""

    def _end_stage(self, call: str, status: str) -> bytes:
        index, item = self._stages.pop(call)
        return self._write(
            "response.output_item.done", output_index=index, item={**item, "status": status}
        )

    def _write_delta(self, cursor: int, event: MessageDelta) -> bytes:
        start = cursor - len(event.text)
        written = b""
        item = self._open
        kind = event.kind
        if kind != "arguments" and (
            item is None or (item.message, item.kind) != (event.message, kind)
        ):
            # Numbered after the previous event, because a delta may be divided anywhere.
            self._number = start * _NUMBERS + _BEGINNING
            number = self._places.get(event.message, 0)
            self._places[event.message] = number + 1
            identity = produce_item_identity(_PREFIXES[kind], self._run, event.message, number)
            begun = _OpenItem(self._items, event.message, kind, identity)
            written = self._close("completed") + self._begin_item(begun)
        item = self._open
        if item is None:
            return written
        item.text.append(event.text)
        self._number = cursor * _NUMBERS
        seen = max(self._after // _NUMBERS - start, 0) if self._after >= 0 else 0
        delta = event.text[seen:]
        place = {"item_id": item.identity, "output_index": item.index}
        match item.kind:
            case "text":
                return written + self._write(
                    "response.output_text.delta",
                    **place,
                    content_index=0,
                    delta=delta,
                    logprobs=[],
                )
            case "reasoning":
                return written + self._write(
                    "response.reasoning_summary_text.delta", **place, summary_index=0, delta=delta
                )
            case "function":
                return written + self._write(
                    "response.function_call_arguments.delta", **place, delta=delta
                )
        # The others are JSON, which is converted once complete.
        return written

    def _begin_item(self, item: _OpenItem) -> bytes:
        self._open = item
        self._items += 1
        described = item.describe("in_progress")
        written = self._write("response.output_item.added", output_index=item.index, item=described)
        place = {"item_id": described["id"], "output_index": item.index}
        match item.kind:
            case "text":
                written += self._write(
                    "response.content_part.added", **place, content_index=0, part=_describe_text("")
                )
            case "reasoning":
                written += self._write(
                    "response.reasoning_summary_part.added",
                    **place,
                    summary_index=0,
                    part={"type": "summary_text", "text": ""},
                )
        return written

    def _close(self, status: str) -> bytes:
        item, self._open = self._open, None
        if item is None:
            return b""
        text, described = "".join(item.text), item.describe(status)
        if item.kind == "stage":
            # The item is done when it has a result.
            self._stages[item.message] = item.index, described
            return b""
        place = {"item_id": described["id"], "output_index": item.index}
        return self._finish_item(item, described, place, text) + self._write(
            "response.output_item.done", output_index=item.index, item=described
        )

    def _finish_item(self, item: _OpenItem, described: Item, place: Item, text: str) -> bytes:
        """Return the events before `output_item.done`."""
        write = self._write
        match item.kind:
            case "text":
                part = _describe_text(text)
                return write(
                    "response.output_text.done", **place, content_index=0, text=text, logprobs=[]
                ) + write("response.content_part.done", **place, content_index=0, part=part)
            case "reasoning":
                return self._finish_reasoning(place, text)
            case "function":
                assert isinstance(item, _OpenCall)
                return write(
                    "response.function_call_arguments.done",
                    **place,
                    name=item.tool.name,
                    arguments=text,
                )
            case "custom":
                said = described[INPUT]
                delta = "response.custom_tool_call_input.delta"
                return (write(delta, **place, delta=said) if said else b"") + write(
                    "response.custom_tool_call_input.done", **place, input=said
                )
        return b""

    def _finish_reasoning(self, place: Item, text: str) -> bytes:
        # Clients show either the summary or the text. Only one of them may be streamed in pieces,
        # because a client that resumes gives a single number, and has seen all events up to it.
        write, part = self._write, {"type": "summary_text", "text": text}
        return b"".join(
            (
                write("response.reasoning_summary_text.done", **place, summary_index=0, text=text),
                write("response.reasoning_summary_part.done", **place, summary_index=0, part=part),
                write("response.reasoning_text.delta", **place, content_index=0, delta=text),
                write("response.reasoning_text.done", **place, content_index=0, text=text),
            )
        )

    def _write(self, kind: str, **members: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        if number <= self._after:
            return b""
        data = msgspec.json.encode({"type": kind, "sequence_number": number, **members})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
