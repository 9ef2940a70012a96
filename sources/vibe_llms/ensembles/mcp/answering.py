"""Answers a server's requests for user input, for a model's reply and for working folders.

Each is offered to the server only if the session and the row allow it. Both protocol versions use
the same functions: up to 2025-11-25 the server sends its own request; from 2026-07-28 on its result
states what it needs, and the package calls again with the answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import AnswerInvalid, ContentUnsupported, VibeLlmsError
from vibe_llms.base.redaction import redact
from vibe_llms.conversations.hosts import EnsembleHost
from vibe_llms.ensembles.mcp.contents import assimilate_block
from vibe_llms.ensembles.mcp.settings import McpSettings
from vibe_llms.invocation.asking import ask
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.invocation.limits import SharedLimits
from vibe_llms.invocation.questions import (
    ElicitationAnswer,
    ElicitationRequest,
    Elicitor,
    read_fields,
)
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    StopReason,
    UserCanister,
)
from vibe_llms.messages.contents import repair_text
from vibe_llms.messages.controls import Controls

if TYPE_CHECKING:
    from mcp_types import (
        CreateMessageRequestParams,
        CreateMessageResult,
        ElicitRequestParams,
        ElicitResult,
        ErrorData,
        ListRootsResult,
    )

_Message: TypeAlias = UserCanister | AssistantCanister
_LOGGER = get_logger("vibe_llms.ensembles.mcp")
#: JSON-RPC code for invalid requests, and MCP code for requests that the user declines.
_INVALID_PARAMS, _REFUSED = -32602, -1


class Answerer:
    """The answers to one server's requests; time limits pause while the user is asked."""

    def __init__(
        self, ensemble: str, settings: McpSettings, host: EnsembleHost, limits: SharedLimits
    ) -> None:
        self._ensemble = ensemble
        self._settings = settings
        self._host = host
        self._limits = limits
        #: Conversation and elicitor of each running call; None is the elicitor of the session.
        self._callers: dict[object, tuple[str, Elicitor | None]] = {}

    @contextmanager
    def serve(self, context: InvocationContext) -> Iterator[None]:
        """Send the server's questions to the user of this call during the block."""
        mark = object()
        self._callers[mark] = (context.conversation, context.ask)
        try:
            yield
        finally:
            del self._callers[mark]

    def callbacks(self) -> dict[str, Any]:
        """Return the callbacks of the official client for the requests that are allowed here."""
        given: dict[str, Any] = {}
        if self._host.elicitor is not None:
            given["elicitation_callback"] = self.elicit
        if self._settings.sampling_model and self._host.ask_model is not None:
            given["sampling_callback"] = self.sample
        if self._settings.roots:
            given["list_roots_callback"] = self.list_roots
        return given

    async def ask(self, request: ElicitationRequest) -> ElicitationAnswer:
        """Return the user's answer with the values of a form checked, or raise `AnswerInvalid`."""
        elicitor = self._find_elicitor()
        with self._limits.paused():
            answer = await ask(elicitor, request)
        if answer.action != "accept" or request.url:
            return ElicitationAnswer(answer.action)
        return ElicitationAnswer("accept", request.check(answer.values))

    def _find_elicitor(self) -> Elicitor:
        """Choose whom to ask: a server does not say which call its question belongs to."""
        callers = [*self._callers.values()]
        asking = [one for _, one in callers if one is not None]
        if asking and len({conversation for conversation, _ in callers}) > 1:
            raise AnswerInvalid(
                "the server cannot ask: several conversations call it, and one of them is a run"
            )
        elicitor = asking[-1] if asking else self._host.elicitor
        assert elicitor is not None
        return elicitor

    async def elicit(self, _: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Let the user fill in a form or open a URL."""
        from mcp_types import ElicitResult

        message = repair_text(params.message)
        try:
            if params.mode == "url":
                request = ElicitationRequest(
                    ensemble=self._ensemble, message=message, url=_check_address(params.url)
                )
            else:
                fields = read_fields(params.requested_schema)
                request = ElicitationRequest(
                    ensemble=self._ensemble, message=message, fields=fields
                )
            answer = await self.ask(request)
        except AnswerInvalid as error:
            return _refuse(str(error), _INVALID_PARAMS)
        # The protocol does not allow values in answers about a URL.
        values = dict(answer.values) if answer.action == "accept" and not request.url else None
        return ElicitResult(action=answer.action, content=values)

    async def list_roots(self, _: Any) -> ListRootsResult:
        """Return the row's working folders as file URLs."""
        from mcp_types import ListRootsResult, Root

        roots = [Root.model_validate(_describe_folder(root)) for root in self._settings.roots]
        return ListRootsResult(roots=roots)

    async def sample(
        self, _: Any, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        """Ask the model of the row if the request is approved."""
        from mcp_types import CreateMessageResult, TextContent

        assert self._host.ask_model is not None
        address = self._settings.sampling_model
        if params.tools:
            return _refuse("tools are not supported in sampling requests", _INVALID_PARAMS)
        try:
            canisters = _assimilate_messages(params.messages)
            controls = Controls(
                output_tokens=min(params.max_tokens, self._settings.sampling_tokens),
                temperature=params.temperature,
                stop=tuple(params.stop_sequences) if params.stop_sequences else None,
            )
            supervisor = repair_text(params.system_prompt or "")
            with self._limits.paused():
                refusal = await self._admit(address, supervisor, canisters)
            if refusal:
                return _refuse(refusal)
            turn = await self._host.ask_model(address, canisters, supervisor, controls)
        except VibeLlmsError as error:
            _LOGGER.warning("the server %s could not ask a model: %s", self._ensemble, error)
            return _refuse(f"the model did not answer: {redact(str(error))}")
        cut = turn.stop_reason == StopReason.LENGTH
        return CreateMessageResult(
            role="assistant",
            content=TextContent(type="text", text=turn.text),
            model=address,
            stop_reason="maxTokens" if cut else "endTurn",
        )

    async def _admit(self, address: str, supervisor: str, canisters: Sequence[_Message]) -> str:
        """Ask for approval, showing all messages; return why it was denied, or an empty string."""
        said = [{_role(one): [_describe(content) for content in one.contents]} for one in canisters]
        shown = {"model": address, "system": supervisor, "messages": said}
        invoker = Invoker(
            name=f"{self._ensemble}/sampling",
            description="Ask a model for the server.",
            arguments_schema={"type": "object"},
            invoke=_invoke_nothing,
            ensemble=self._ensemble,
            approval=self._settings.sampling_approval,
        )
        invocation = InvocationCanister(
            name=invoker.name, arguments=msgspec.json.encode(shown).decode()
        )
        if not await self._host.admit(invocation, invoker):
            return ""
        return (
            "using the model was denied, or there is no user to ask; allow it with "
            f'[ensembles.{self._ensemble}] sampling-approval = "allow"'
        )


def _role(canister: _Message) -> str:
    return "user" if isinstance(canister, UserCanister) else "assistant"


async def _invoke_nothing(_: str, __: InvocationContext) -> InvocationOutput:
    raise NotImplementedError("it is not a tool; it represents a request to a model")


def _assimilate_messages(messages: Sequence[Any]) -> list[_Message]:
    """Convert the server's messages for the model; the last one must be the user's."""
    canisters: list[_Message] = []
    for message in messages:
        blocks = message.content if isinstance(message.content, list) else [message.content]
        if any(block.type not in ("text", "image", "audio") for block in blocks):
            raise ContentUnsupported("only text, images and audio can be sent to the model")
        contents = tuple(content for block in blocks for content in assimilate_block(block))
        kind = UserCanister if message.role == "user" else AssistantCanister
        canisters.append(kind(contents))
    if not canisters or not isinstance(canisters[-1], UserCanister):
        raise ContentUnsupported("the last message must be the user's")
    return canisters


def _describe_folder(root: str) -> dict[str, str]:
    folder = Path(root).expanduser().absolute()
    return {"uri": folder.as_uri(), "name": folder.name}


def _describe(content: Any) -> str:
    return getattr(content, "text", "") or f"[{content.mimetype}, {len(content.data):,} bytes]"


def _check_address(url: str) -> str:
    if not url.lower().startswith(("https://", "http://")):
        raise AnswerInvalid("only http and https URLs can be opened")
    return url


def _refuse(reason: str, code: int = _REFUSED) -> ErrorData:
    from mcp_types import ErrorData

    return ErrorData(code=code, message=reason)
