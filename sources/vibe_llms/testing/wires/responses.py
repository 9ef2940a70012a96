"""OpenAI's Responses, on the server's side: replies, stored or not, and counts of tokens.

Source: the types of openai 3.54.0.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import NativeContent, ReasoningContent
from vibe_llms.testing.listening import HttpAnswer, ReceivedRequest
from vibe_llms.testing.wires.core import (
    AskedReply,
    Catalogue,
    RefusedRequest,
    ScriptedFailure,
    answer_json,
    convert,
    decode,
    encode_event,
    estimate_tokens,
    label,
    produce_invoker,
)
from vibe_llms.testing.wires.openai import (
    HEADERS,
    authorize,
    count_usage,
    name_error,
    read_parts,
    refuse,
)
from vibe_llms.testing.wires.responses_replies import (
    Events,
    begin,
    function_call,
    item_events,
    message,
    response,
)
from vibe_llms.testing.wires.responses_replies import reasoning as think

RESPONSES = "/v1/responses"
COUNT = "/v1/responses/input_tokens"
_ENCRYPTED = "reasoning.encrypted_content"
_KINDS: dict[object, type[UserCanister | AssistantCanister | SupervisorCanister]] = {
    "user": UserCanister,
    "assistant": AssistantCanister,
    "system": SupervisorCanister,
    "developer": SupervisorCanister,
}
_INCOMPLETE: dict[str, str] = {
    StopReason.LENGTH: "max_output_tokens",
    StopReason.REFUSED: "content_filter",
}


class _Tool(Struct):
    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Body(Struct):
    model: str
    input: str | list[dict[str, Any]] = ""
    instructions: str | None = None
    tools: list[_Tool] | None = None
    stream: bool | None = False
    store: bool | None = None
    previous_response_id: str | None = None
    include: list[str] | None = None


class ResponsesWire:
    """The interface with requests to `/v1/responses`."""

    name = "responses"

    def __init__(self) -> None:
        # Items of stored responses, each with all earlier ones.
        self._kept: dict[str, Sequence[Mapping[str, Any]]] = {}

    def claims(self, request: ReceivedRequest) -> bool:
        """Return True if the path is one of Responses."""
        path = urlsplit(request.path).path
        return path == RESPONSES or path.startswith(f"{RESPONSES}/")

    def authorize(self, request: ReceivedRequest, key: str) -> None:
        """Check the key in `authorization`."""
        authorize(request, key)

    def asks(self, request: ReceivedRequest) -> bool:
        """Return True if the request asks for a response."""
        return request.method == "POST" and urlsplit(request.path).path == RESPONSES

    def read(self, request: ReceivedRequest) -> AskedReply:
        """Return the conversation of a request, with its stored items."""
        body = decode(request)
        if not body.get("model"):
            raise RefusedRequest(
                "Missing required parameter: 'model'.", code="missing_required_parameter"
            )
        typed = convert(body, _Body)
        items = self._gather(typed)
        canisters: list[Canister] = []
        if typed.instructions:
            canisters.append(SupervisorCanister.from_text(typed.instructions))
        canisters += _read_items(items, typed.model)
        tools = [tool for tool in typed.tools or () if tool.type == "function"]
        return AskedReply(
            interface=self.name,
            model=typed.model,
            canisters=tuple(canisters),
            invokers=tuple(
                produce_invoker(tool.name, tool.description or "", tool.parameters or {})
                for tool in tools
            ),
            streaming=bool(typed.stream),
            body={**body, "input": items},
            label=label(request),
        )

    def narrate(self, asked: AskedReply, usage: Usage) -> _Narrator:
        """Return the narrator of a response, which is stored unless the request forbids it."""

        def keep(identity: str, output: Sequence[Mapping[str, Any]]) -> None:
            if asked.body.get("store") is not False:
                self._kept[identity] = [*asked.body["input"], *output]

        return _Narrator(asked, usage, keep)

    def answer(self, request: ReceivedRequest, catalogue: Catalogue) -> HttpAnswer:
        """Answer with a count of tokens."""
        path = urlsplit(request.path).path
        if request.method != "POST" or path != COUNT:
            raise RefusedRequest(f"Invalid URL ({request.method} {path})", status=404)
        asked = self.read(request)
        catalogue.require(asked.model)
        count = estimate_tokens(asked.canisters, asked.invokers)
        counted = {"object": "response.input_tokens", "input_tokens": count}
        return answer_json(counted, headers=HEADERS)

    def refuse(self, failure: ScriptedFailure) -> HttpAnswer:
        """Return an error object."""
        return refuse(failure)

    def _gather(self, body: _Body) -> Sequence[Mapping[str, Any]]:
        items: list[Mapping[str, Any]] = []
        if (before := body.previous_response_id) is not None:
            if before not in self._kept:
                raise RefusedRequest(
                    f"Previous response with id '{before}' not found.",
                    status=404,
                    code="previous_response_not_found",
                )
            items += self._kept[before]
        if isinstance(body.input, str):
            items += [{"role": "user", "content": body.input}] if body.input else []
        else:
            items += body.input
        if not items:
            raise RefusedRequest(
                "Missing required parameter: 'input'.", code="missing_required_parameter"
            )
        return items


class _Narrator:
    headers: Mapping[str, str] = {"content-type": "text/event-stream; charset=utf-8", **HEADERS}

    def __init__(self, asked: AskedReply, usage: Usage, keep: Any) -> None:
        self._asked = asked
        self._usage = count_usage(usage, prompt="input", reply="output")
        self._keep = keep
        self._head = {"id": f"resp_{asked.label}", "model": asked.model}
        self._output: list[dict[str, Any]] = []
        self._number = 0

    def begin(self) -> Iterable[bytes]:
        """Return the empty response."""
        return self._send(begin(**self._head))

    def say(self, chunks: Sequence[str], *, reasoning: bool) -> Iterable[bytes]:
        """Return a message of one part, or reasoning with a summary."""
        text = "".join(chunks)
        if not reasoning:
            return self._add("msg_", message(text), chunks)
        asked = _ENCRYPTED in (self._asked.body.get("include") or ())
        encrypted = encrypt(self._asked.model, text) if asked else None
        return self._add("rs_", think(text, encrypted=encrypted), chunks)

    def call(self, name: str, pieces: Sequence[str]) -> Iterable[bytes]:
        """Return a call of a function."""
        call = self._asked.name_call("call_", len(self._output))
        return self._add("fc_", function_call(name, "".join(pieces), call), pieces)

    def fail(self, failure: ScriptedFailure) -> Iterable[bytes]:
        """Return a failed response."""
        if failure.error == "malformed":
            return [b'event: response.completed\ndata: {"type":"response.completed","resp\n\n']
        _, error = name_error(failure)
        reported = {"code": error["code"] or "server_error", "message": failure.message}
        return self._send(
            [{"type": "response.failed", "response": self._respond("failed", reported)}]
        )

    def end(self, reason: str) -> Iterable[bytes]:
        """Return the end of the response."""
        whole = self.whole(reason)
        return self._send([{"type": f"response.{whole['status']}", "response": whole}])

    def whole(self, reason: str) -> Any:
        """Return the response."""
        self._keep(self._head["id"], self._output)
        if (why := _INCOMPLETE.get(reason)) is None:
            return {**self._respond("completed"), "usage": self._usage}
        details = {"incomplete_details": {"reason": why}, "usage": self._usage}
        return {**self._respond("incomplete"), **details}

    def _add(self, prefix: str, item: dict[str, Any], pieces: Sequence[str]) -> Iterable[bytes]:
        index = len(self._output)
        named = {**item, "id": self._asked.name_call(prefix, index)}
        self._output.append(named)
        return self._send(item_events(index, named, pieces))

    def _send(self, events: Events) -> Iterable[bytes]:
        for event in events:
            yield encode_event({**event, "sequence_number": self._number})
            self._number += 1

    def _respond(self, status: str, error: object = None) -> dict[str, Any]:
        more = {"usage": None, "error": error}
        return response(*self._output, status=status, **self._head, **more)


def encrypt(model: str, reasoning: str) -> str:
    """Return a stand-in for encrypted reasoning, which only its model can use."""
    return base64.b64encode(hashlib.sha256(f"{model}\n{reasoning}".encode()).digest()).decode()


def _read_items(items: Sequence[Mapping[str, Any]], model: str) -> Iterable[Canister]:
    calls: dict[str, str] = {}
    waiting: dict[str, None] = {}
    for index, item in enumerate(items):
        where = f"input[{index}]"
        match item.get("type", "message"):
            case "message":
                yield _read_message(item, where)
            case "function_call":
                call = InvocationCanister(
                    name=str(item.get("name", "")),
                    arguments=str(item.get("arguments", "")),
                    call=str(item.get("call_id", "")),
                )
                calls[call.call] = call.identity
                waiting[call.call] = None
                yield call
            case "function_call_output":
                name = str(item.get("call_id", ""))
                if name not in waiting:
                    raise RefusedRequest(
                        f"No tool call found for function call output with call_id {name}."
                    )
                del waiting[name]
                contents = read_parts(item.get("output"), f"{where}.output")
                yield ResultCanister(contents=contents, invocation=calls[name])
            case "reasoning":
                yield _read_reasoning(item, items[index + 1 :], model)
            case str(kind):
                yield AssistantCanister(contents=(NativeContent(label=kind),))
            case _:
                raise RefusedRequest(f"Invalid type for '{where}.type': expected a string.")
    if waiting:
        raise RefusedRequest(f"No tool output found for function call {next(iter(waiting))}.")


def _read_message(item: Mapping[str, Any], where: str) -> Canister:
    role = item.get("role")
    if role not in _KINDS:
        raise RefusedRequest(
            f"Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', "
            "and 'user'.",
            code="invalid_value",
        )
    return _KINDS[role](contents=read_parts(item.get("content"), f"{where}.content"))


def _read_reasoning(
    item: Mapping[str, Any], following: Sequence[Mapping[str, Any]], model: str
) -> AssistantCanister:
    identity = str(item.get("id", ""))
    follows = following[0].get("type", "message") if following else ""
    if follows in ("", "function_call_output") or (
        follows == "message" and following[0].get("role") != "assistant"
    ):
        raise RefusedRequest(
            f"Item '{identity}' of type 'reasoning' was provided without its required following "
            "item."
        )
    text = "".join(str(part.get("text", "")) for part in item.get("summary") or ())
    kept = item.get("encrypted_content")
    if kept is not None and kept != encrypt(model, text):
        raise RefusedRequest(
            f"The encrypted content for item {identity} could not be verified.",
            code="invalid_encrypted_content",
        )
    return AssistantCanister(contents=(ReasoningContent(text),))
