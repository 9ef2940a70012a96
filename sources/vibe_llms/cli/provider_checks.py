"""`providers check`: tiny requests that show what a provider's model can do."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias

import click
import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import (
    ConfigurationError,
    CredentialMissing,
    CredentialRefused,
    ModelNotFound,
    ModelUnavailable,
    ProviderError,
    ProviderUnreachable,
    VibeLlmsError,
)
from vibe_llms.base.redaction import quote
from vibe_llms.cli.failures import explain, status_of
from vibe_llms.cli.progress import Waiting
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.running import bound_import
from vibe_llms.cli.terminal import note, write_json, write_row
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ReplyCanister,
    StopReason,
    Usage,
    UserCanister,
    usage_of,
)
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, MessageProgressEvent
from vibe_llms.opening import open_session
from vibe_llms.providers.interfaces import Model, TurnContext, as_inquiring
from vibe_llms.providers.local_servers import choose_chat_model
from vibe_llms.providers.provider_pool import ProviderStatus
from vibe_llms.session.core import Session

State: TypeAlias = Literal["works", "fails", "skipped"]
_ABILITIES = ("key", "model", "streaming", "tools", "images", "structured output", "usage")
#: Abilities without which a model is of no use: they decide the exit status.
_NEEDED = ("key", "model", "streaming")
_STATES: dict[State, str] = {"works": "works", "fails": "does not work", "skipped": "not tried"}
#: Most tokens of a reply; models that reason write their reasoning first.
_TOKENS = 32
_REASONING_TOKENS = 256
_REQUESTS = 4
#: Bytes of a reply that are shown.
_QUOTED = 100
_SCHEMA = {
    "title": "sum",
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}


class AbilityCheck(Struct, frozen=True):
    """One line of the report: an ability, its state, and why."""

    name: str
    state: State
    text: str = ""


class _Reply(Struct, frozen=True):
    """A reply, and the number of pieces in which it arrived."""

    canisters: Sequence[ReplyCanister]
    pieces: int

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.canisters if isinstance(one, AssistantCanister))

    @property
    def usage(self) -> Usage:
        return usage_of(self.canisters)

    @property
    def cut(self) -> bool:
        return any(
            one.ending is not None and one.ending.reason == StopReason.LENGTH
            for one in self.canisters
        )


class _Checker:
    """Makes the requests; `failure` is the error of a needed ability, `usage` the sum of all."""

    def __init__(self, session: Session, row: ProviderStatus, named: str | None) -> None:
        self._session = session
        self._provider = row.name
        self._default = row.default_model
        self._keyless = row.credential == "none"
        self._named = named
        self.model: Model | None = None
        self.usage = Usage()
        self.failure: VibeLlmsError | None = None

    async def run(self) -> AsyncGenerator[AbilityCheck, None]:
        """Yield one check for each ability, in order."""
        try:
            model = self.model = await self._choose()
            first = await self._ask(model, "Count from 1 to 5.")
        except VibeLlmsError as error:
            self.failure = error
            for check in _explain_failure(error):
                yield check
            return
        if self._keyless:
            yield AbilityCheck("key", "skipped", "this row needs none")
        else:
            yield AbilityCheck("key", "works")
        yield AbilityCheck("model", "works", f"{model.provider}/{model.name}")
        yield AbilityCheck("streaming", "works", f"a reply in {first.pieces} pieces")
        yield await self._try("tools", self._check_tools, model)
        yield await self._try("images", self._check_images, model)
        yield await self._try("structured output", self._check_schema, model)
        yield _check_usage(first.usage)

    async def _choose(self) -> Model:
        if self._named is not None:
            begins = self._named.startswith((f"{self._provider}/", f"{self._provider}:"))
            address = self._named if begins else f"{self._provider}/{self._named}"
            return await self._session.access_model(address)
        if self._default:
            return await self._session.access_model(f"{self._provider}/{self._default}")
        try:
            name = choose_chat_model(await self._session.survey_models(self._provider))
        except ProviderError as error:
            if isinstance(error, CredentialRefused | ProviderUnreachable):
                raise
            raise ModelNotFound(
                f"the server does not list its models ({explain(error)}); name one with -m"
            ) from error
        if not name:
            raise ModelNotFound("the server lists no model that can chat; name one with -m")
        return await self._session.access_model(f"{self._provider}/{name}")

    async def _try(
        self, name: str, check: Callable[[Model], Awaitable[tuple[State, str]]], model: Model
    ) -> AbilityCheck:
        """Return the result of a check; an error of the provider means that it does not work."""
        try:
            state, text = await check(model)
        except VibeLlmsError as error:
            return AbilityCheck(name, "fails", explain(error))
        return AbilityCheck(name, state, text)

    async def _check_tools(self, model: Model) -> tuple[State, str]:
        if model.attributes.tools != "native":
            return "skipped", (
                "the model is known to have no tools of its own; a contract in the text takes "
                "their place (tools.mode)"
            )

        def report(number: int) -> str:
            """Report a number."""
            return str(number)

        invoker = Invoker.from_function(report)
        reply = await self._ask(
            model, "Report the number 7 with the tool.", [invoker], tool_choice="any"
        )
        calls = [one for one in reply.canisters if isinstance(one, InvocationCanister)]
        if not calls:
            return _without(reply, "calling the tool")
        if calls[0].name != "report" or (calls[0].parsed or {}).get("number") != 7:
            told = _quote(f"{calls[0].name} {calls[0].arguments}")
            return "fails", f"the model called the tool wrongly: {told}; try another model"
        return "works", "the model called a tool"

    async def _check_images(self, model: Model) -> tuple[State, str]:
        if not model.attributes.accept("image", "image/png"):
            return "skipped", (
                "the model is not known to accept images; if it does, list them under `accepts` "
                f"of its attributes in [providers.{model.provider}.models]"
            )
        prompt = UserCanister(
            contents=(
                ImageContent(data=_draw_red(), mimetype="image/png"),
                TextualContent("Which color is this image? Answer with one word."),
            )
        )
        reply = await self._ask(model, prompt)
        if "red" not in reply.text.lower():
            return _without(reply, "naming the color of a red image")
        return "works", "the model named the color of an image"

    async def _check_schema(self, model: Model) -> tuple[State, str]:
        if not model.attributes.takes("response-schema"):
            return "skipped", "the model does not take a schema; outputs are asked for in words"
        reply = await self._ask(model, "What is the sum of 2 and 3?", response_schema=_SCHEMA)
        try:
            answer = msgspec.json.decode(reply.text, type=dict[str, Any])
        except (ValueError, RecursionError):
            return _without(reply, "the JSON that the schema asks for")
        if [*answer] != ["sum"] or type(answer["sum"]) is not int:
            return _without(reply, "the JSON that the schema asks for")
        return "works", "the reply follows a schema"

    async def _ask(
        self,
        model: Model,
        prompt: UserCanister | str,
        invokers: Sequence[Invoker] = (),
        **wanted: Any,
    ) -> _Reply:
        pieces = 0

        def count(event: Event) -> None:
            nonlocal pieces
            pieces += isinstance(event, MessageProgressEvent)

        if isinstance(prompt, str):
            prompt = UserCanister.from_text(prompt)
        controls = _choose_controls(model, wanted)
        if (inquiring := as_inquiring(model)) is not None:
            await inquiring.inquire([prompt], controls)
        model.check([prompt], controls)
        context = TurnContext(event_handler=count, fresh=frozenset({prompt.identity}))
        reply = _Reply(await model.converse([prompt], invokers, controls, context), pieces)
        self.usage += reply.usage
        return reply


async def check_provider(provider: str, named: str | None, *, yes: bool, as_json: bool) -> int:
    """Check a provider and report what works; return 0 if its key, model and streaming work."""
    checks: list[AbilityCheck] = []
    waiting = Waiting(enabled=not as_json)
    async with open_session(import_guard=bound_import) as session:
        status = {one.name: one for one in session.survey_providers()}.get(provider)
        if status is None:
            # It explains which provider may be meant.
            await session.survey_models(provider)
            raise ModelNotFound(f"provider {provider!r} not found; see: vibe-llms providers")
        if status.problem:
            raise ConfigurationError(status.problem)
        told = named or status.default_model or "the first model that it lists"
        about = (
            f"Checking {provider} ({told}) sends up to {_REQUESTS} requests with replies of at "
            f"most {_TOKENS} tokens, or {_REASONING_TOKENS} if the model reasons."
        )
        agreed = confirm(
            "Send them?",
            yes=yes,
            about=[about],
            remedy="use --yes to send the requests",
        )
        if not agreed:
            raise click.Abort
        checker = _Checker(session, status, named)
        running = checker.run()
        try:
            for ability in _ABILITIES:
                waiting.show(f"checking {ability}")
                checks.append(await anext(running))
                waiting.clear()
                if not as_json:
                    _print(checks[-1])
        finally:
            waiting.clear()
            await running.aclose()
    usage, model = checker.usage, checker.model
    if as_json:
        report = {
            "provider": provider,
            "model": f"{model.provider}/{model.name}" if model is not None else None,
            "checks": msgspec.to_builtins(checks),
            "usage": msgspec.to_builtins(usage),
        }
        write_json(json.dumps(report))
    else:
        note(f"used {usage.total_tokens} tokens")
    return 0 if checker.failure is None else status_of(checker.failure) or 1


def _print(check: AbilityCheck) -> None:
    text = f"{_STATES[check.state]}: {check.text}" if check.text else _STATES[check.state]
    write_row(check.name, text, cells=18)


def _explain_failure(error: VibeLlmsError) -> list[AbilityCheck]:
    """Return the checks if the first request failed: its error decides which ability it is of."""
    match error:
        case CredentialMissing() | CredentialRefused():
            failed = "key"
        case ModelNotFound() | ModelUnavailable():
            failed = "model"
        case _:
            failed = "streaming"
    checks = []
    for name in _ABILITIES:
        if name == failed:
            checks.append(AbilityCheck(name, "fails", explain(error)))
        elif name == "key" and isinstance(error, ModelUnavailable):
            # The server took the key before it looked for the model.
            checks.append(AbilityCheck(name, "works"))
        else:
            checks.append(AbilityCheck(name, "skipped", f"it depends on {failed}"))
    return checks


def _check_usage(usage: Usage) -> AbilityCheck:
    written = usage.total_tokens - usage.input_tokens
    if usage.input_tokens and written:
        return AbilityCheck("usage", "works", f"{usage.input_tokens} tokens in, {written} out")
    which = " that the model read" if written else ""
    text = f"the server did not count the tokens{which}; costs, budgets and limits are estimated"
    return AbilityCheck("usage", "fails", text)


def _without(reply: _Reply, wanted: str) -> tuple[State, str]:
    """Explain a reply that lacks something."""
    if reply.cut:
        return "skipped", f"the reply was cut off at its limit before {wanted}"
    if not reply.text.strip():
        return "fails", f"the reply is empty instead of {wanted}; try another model"
    return "fails", f"the model answered {_quote(reply.text)} instead of {wanted}"


def _choose_controls(model: Model, wanted: dict[str, Any]) -> Controls:
    """Return the wanted controls that the model is known to take, and short replies."""
    attributes = model.attributes
    tokens = _REASONING_TOKENS if attributes.reasoning else _TOKENS
    chosen: dict[str, Any] = {"response_schema": wanted.get("response_schema")}
    if _fits(model, "output-tokens", tokens):
        chosen["output_tokens"] = tokens
    choice = wanted.get("tool_choice")
    if choice and attributes.surely_takes("tool-choice") and _fits(model, "tool-choice", choice):
        chosen["tool_choice"] = choice
    efforts = [one for one in ("none", "minimal", "low") if _fits(model, "effort", one)]
    if attributes.reasoning and attributes.surely_takes("effort") and efforts:
        chosen["effort"] = efforts[0]
    return Controls(**chosen)


def _fits(model: Model, control: str, value: object) -> bool:
    """Return True if a model takes a value of a control, as far as is known."""
    controls = model.attributes.controls
    if controls is None:
        return True
    return control in controls and controls[control].refusal(value) is None


def _quote(text: str) -> str:
    return quote(text.strip().encode("utf-8", "replace"), _QUOTED)


def _draw_red() -> bytes:
    """Return a red square of 64 by 64 pixels as PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    rows = (b"\0" + b"\xff\0\0" * 64) * 64
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
