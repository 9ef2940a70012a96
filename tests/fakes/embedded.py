"""The interfaces that answer in this process: a fake engine, and scripts, also by the contract."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from tests.fakes import llamacpp_clients
from tests.fakes.backends import Interface, produce_row
from tests.fakes.llamacpp import (
    END,
    TOOLS,
    Broken,
    FakeLlama,
    FakePackage,
    call_text,
    write_model,
)
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    ReplyCanister,
    ResultCanister,
    SupervisorCanister,
)
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import EventHandler, ignore_events
from vibe_llms.providers.contract.model import ContractModel
from vibe_llms.providers.deltas import Delta
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.registry import register
from vibe_llms.providers.scripted.client import ScriptedClient, ScriptedModel, ScriptedProvider
from vibe_llms.testing import Part, ScriptedReply

#: The template of a model that takes no history but a sound one.
STRICT = (
    "{%- set seen = namespace(before='assistant', waiting=0) %}{%- for m in messages %}"
    "{%- if m.role == 'system' and loop.first %}"
    "{%- elif m.role == 'tool' and seen.waiting %}"
    "{%- set seen.waiting = seen.waiting - 1 %}{%- set seen.before = 'tool' %}"
    "{%- elif m.role == seen.before or seen.waiting or m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('the role ' + m.role + ' is not expected here') }}"
    "{%- else %}{%- set seen.before = m.role %}"
    "{%- set seen.waiting = (m.tool_calls or []) | length %}{%- endif %}{%- endfor %}"
) + TOOLS


class LlamacppBackend:
    """The fake engine, and a file of a model with a strict template."""

    key = ""
    refusals: Sequence[str] = ()

    def __init__(self, replies: Sequence[Any] = ()) -> None:
        self.package = FakePackage()
        self.replies = replies
        self._stack = ExitStack()

    @property
    def replies(self) -> Sequence[Any]:
        return self.package.replies

    @replies.setter
    def replies(self, replies: Sequence[Any]) -> None:
        self.package.replies = list(replies)

    @property
    def requests(self) -> list[str]:
        """The prompts that were read."""
        return self.package.prompts

    @property
    def left(self) -> int:
        """How many replies ended before their end."""
        return self.package.left

    def __enter__(self) -> Self:
        patch = self._stack.enter_context(pytest.MonkeyPatch.context())
        patch.setitem(sys.modules, "llama_cpp", self.package)
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        write_model(self.folder / LLAMACPP.model, STRICT, context=100_000)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def settled(self) -> None:
        """Nothing stays open but the model, until its client is closed."""


def _tokens(text: str) -> list[int]:
    return FakeLlama.split(text.encode("utf-8", "surrogatepass"), special=True)


def _llamacpp_thoughts(thought: str, text: str, arguments: str) -> list[int]:
    call = call_text("speak", arguments)
    return [*_tokens(f"<think>\n{thought}\n</think>\n\n{text}\n{call}"), END]


class EmbeddedInterface(Interface):
    """An interface without a server."""

    backend: Callable[[Sequence[Any]], Any]

    def play(self, *replies: Any) -> Any:
        return self.backend(replies)

    serve = play

    def count_left(self, backend: Any) -> int:
        left: int = backend.left
        return left


class LlamacppInterface(EmbeddedInterface):
    """llama.cpp: one thread, and no server."""

    backend = LlamacppBackend

    def cut(self, reply: Any, part: float) -> Any:
        return Broken(reply[: int(part * (len(reply) - 1))])

    def stall(self, reply: Any, part: float) -> Any:
        return Broken(reply[: int(max(part, 0) * (len(reply) - 1))], None)

    async def produce_model(self, backend: Any, **options: Any) -> Any:
        path = backend.folder / options.pop("name", self.model)
        return await llamacpp_clients.produce_model(path, **options)

    def sent(self, backend: Any) -> list[bytes]:
        return [prompt.encode() for prompt in backend.requests]

    def configure(self, backend: Any, **settings: Any) -> dict[str, Any]:
        row = produce_row(models_folder=str(backend.folder), **settings)
        return {"providers": {self.row: row}}


LLAMACPP = LlamacppInterface(
    row="llamacpp",
    model="model.gguf",
    module="vibe_llms.providers.llamacpp",
    texts=lambda *chunks: [*_tokens("".join(chunks)), END],
    tools=lambda *calls: [*_tokens("\n".join(call_text(*call) for call in calls)), END],
    thoughts=_llamacpp_thoughts,
    failures={"broken": lambda **_: 1},
    sees=False,
)


class ScriptedBackend:
    """Scripted replies, one after the other; a history of more than `limit` bytes overflows, of
    which each content has some in addition to its text.
    """

    key = ""
    limit = sys.maxsize

    def __init__(self, replies: Sequence[ScriptedReply] = ()) -> None:
        self.refusals: list[str] = []
        self.replies = list(replies)
        self.requests: list[Mapping[str, Any]] = []
        self.left = 0

    def __call__(self, canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
        size = sum(len(encode_canister(one)) + 600 * len(one.contents) for one in canisters)
        if size > self.limit:
            return ScriptedReply(parts=(Part(error="context-overflow"),))
        return self.replies.pop(0) if self.replies else ScriptedReply.from_chunks("Hello.")

    def __enter__(self) -> Self:
        _Client.backend = self
        return self

    def __exit__(self, *_: object) -> None:
        _Client.backend = None

    async def settled(self) -> None:
        """Nothing of a script stays open."""


class _Client(ScriptedClient):
    backend: ScriptedBackend | None = None

    async def access_model(self, name: str) -> ScriptedModel:
        if name != SCRIPTED.model or self.backend is None:
            return await super().access_model(name)
        model = _Model(self, name, self.backend, recording=True)
        model.requests = self.backend.requests
        return model


class _Model(ScriptedModel):
    """Counts the replies that were left before their end."""

    async def _play(self, reply: ScriptedReply, streaming: bool) -> AsyncIterator[Delta]:
        backend: Any = self._script
        whole = False
        try:
            async for delta in super()._play(reply, streaming):
                yield delta
            whole = True
        finally:
            backend.left += not whole


class _Provider(ScriptedProvider):
    def produce_client(self) -> ScriptedClient:
        return _Client(self.name, self.event_handler, stream=self.stream, scripts=self.scripts)


register("scripted", _Provider)


def _break(reply: ScriptedReply, part: float, end: Part) -> ScriptedReply:
    """The beginning of a reply, and how it goes on."""
    steps: list[Part] = []
    for one in reply.parts:
        texts = one.text if isinstance(one.text, tuple) else ()
        steps += [Part(text=(text,)) for text in texts] or [one]
    return ScriptedReply(parts=(*steps[: int(part * len(steps))], end))


class ScriptedInterface(EmbeddedInterface):
    """The scripted provider."""

    backend = ScriptedBackend

    def cut(self, reply: Any, part: float) -> Any:
        return _break(reply, part, Part(cut=True))

    def stall(self, reply: Any, part: float) -> Any:
        return _break(reply, max(part, 0), Part(stall=True))

    async def produce_model(self, backend: Any, **options: Any) -> Any:
        handler: EventHandler = options.pop("event_handler", ignore_events)
        stream: StreamSettings = options.pop("stream", StreamSettings(retries=0))
        name = options.pop("name", self.model)
        return await _Client(self.row, handler, stream=stream, scripts={}).access_model(name)

    def sent(self, backend: Any) -> list[bytes]:
        return [encode_json(request) for request in backend.requests]

    def configure(self, backend: Any, **settings: Any) -> dict[str, Any]:
        return {"providers": {self.row: produce_row(module=__name__, **settings)}}


def _fault(error: str) -> Any:
    def produce(**_: Any) -> ScriptedReply:
        return ScriptedReply(parts=(Part(error=error, retry_after_seconds=0.0),))

    return produce


def _scripted_tools(*calls: tuple[str, str]) -> ScriptedReply:
    parts = (Part(invocation=name, arguments=arguments) for name, arguments in calls)
    return ScriptedReply(parts=tuple(parts))


def _scripted_thoughts(thought: str, text: str, arguments: str) -> ScriptedReply:
    call = Part(invocation="speak", arguments=arguments)
    return ScriptedReply(parts=(Part(reasoning=thought), Part(text=(text,)), call))


SCRIPTED = ScriptedInterface(
    row="scripted",
    model="law",
    module="vibe_llms.providers.scripted",
    texts=ScriptedReply.from_chunks,
    tools=_scripted_tools,
    thoughts=_scripted_thoughts,
    failures={
        "limited": _fault("rate-limited"),
        "overloaded": _fault("overloaded"),
        "refused": _fault("refused"),
        "unauthorized": _fault("credential-refused"),
    },
    checks=False,
    caches=False,
)


class ContractBackend(ScriptedBackend):
    """Refuses what a model without tools cannot be sent."""

    def __call__(self, canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
        calls = any(isinstance(one, InvocationCanister | ResultCanister) for one in canisters)
        instructions = (one.text for one in canisters if isinstance(one, SupervisorCanister))
        offered = any("one per line" in text for text in instructions)
        if invokers or (offered and calls):
            self.refusals.append("a call that is not in words")
        return super().__call__(canisters, invokers)


@dataclass(frozen=True, kw_only=True, eq=False)
class ContractInterface(ScriptedInterface):
    """Scripts that call tools by the contract, in words."""

    backend = ContractBackend

    @property
    def name(self) -> str:
        return "contract"

    async def produce_model(self, backend: Any, **options: Any) -> Any:
        handler = options.get("event_handler", ignore_events)
        return Contracted(await super().produce_model(backend, **options), handler)

    def configure(self, backend: Any, **settings: Any) -> dict[str, Any]:
        return {**super().configure(backend, **settings), "tools": {"mode": "contract"}}


def peek() -> str:
    """Look behind something."""
    return "nothing"


class Contracted(ContractModel):
    """Always under the contract: where no tools are given it offers one of its own."""

    tools = (Invoker.from_function(peek),)

    def __init__(self, model: Any, event_handler: EventHandler) -> None:
        super().__init__(model, event_handler)
        self.client: Any = model.client

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        return await super().converse(canisters, invokers or self.tools, controls, context)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        return await super().preview(canisters, invokers or self.tools, controls, context)


def _say_call(name: str, arguments: str) -> str:
    return f'{{"type":"tool_call","name":"{name}","arguments":{arguments}}}'


def _contract_tools(*calls: tuple[str, str]) -> ScriptedReply:
    text = "\n".join(_say_call(*call) for call in calls)
    return ScriptedReply.from_chunks(text[:50], text[50:])


def _contract_thoughts(thought: str, text: str, arguments: str) -> ScriptedReply:
    said = json.dumps({"type": "final", "content": text})
    words = Part(text=(f"{said}\n{_say_call('speak', arguments)}",))
    return ScriptedReply(parts=(Part(reasoning=thought), words))


CONTRACT = ContractInterface(
    **{
        **{name: getattr(SCRIPTED, name) for name in SCRIPTED.__dataclass_fields__},
        "tools": _contract_tools,
        "thoughts": _contract_thoughts,
    }
)
