"""Model of llama.cpp: its requests, and the reply that its thread sends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from vibe_llms.base.exceptions import ConfigurationError, ControlInvalid, ModelNotFound
from vibe_llms.base.files import read_file
from vibe_llms.invocation.invokers import Invoker, name_tools
from vibe_llms.messages.canisters import Canister, ReplyCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.attributes import ModelAttributes, ModelsIntegrator, settle_controls
from vibe_llms.providers.conversions import check_contents, load_words
from vibe_llms.providers.interfaces import Loader, TokenCount, TurnContext, refuse_loading
from vibe_llms.providers.llamacpp.controls import Generation, nativize_controls, produce_generation
from vibe_llms.providers.llamacpp.engines import Engine
from vibe_llms.providers.llamacpp.files import Facts
from vibe_llms.providers.llamacpp.generation import GenerationTask, Signal, SystemNotice
from vibe_llms.providers.llamacpp.history import LlamacppHistory
from vibe_llms.providers.llamacpp.messages import MODULE, unsupported
from vibe_llms.providers.llamacpp.package import (
    LlamaModel,
    access_format,
    check_package,
    load_model,
)
from vibe_llms.providers.llamacpp.settings import CONTEXT_TOKENS, LlamacppSettings
from vibe_llms.providers.llamacpp.templates import Template
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.requests import HistoryCache, apply_controls, offer_tools, send_notice
from vibe_llms.providers.row_models import RowClient, RowModel
from vibe_llms.providers.spending import access_spending, reserve_output
from vibe_llms.providers.tool_names import assimilate_names, nativize_name
from vibe_llms.providers.tool_schemas import LLAMACPP, fit_tools
from vibe_llms.providers.watch import Watch

_TOOL_USE = "tool_use"
_MEMINFO_BYTES = 64 * 1024


class LlamacppConnection(RowClient, Protocol):
    """Part of the client that a model uses."""

    @property
    def settings(self) -> LlamacppSettings:
        """Keys of the row."""
        ...

    @property
    def integrator(self) -> ModelsIntegrator:
        """Source of model attributes."""
        ...

    async def access_engine(self, path: Path, produce: Callable[[], LlamaModel]) -> Engine:
        """Return the engine of a file's model, which `produce` loads on its thread."""
        ...


class LlamacppModel(RowModel[LlamacppConnection]):
    """Model in a file, described by the facts in its head."""

    module = MODULE
    caps_output = True

    def __init__(
        self,
        client: LlamacppConnection,
        name: str,
        path: Path,
        facts: Facts,
        own_template: str = "",
    ) -> None:
        super().__init__(client, name)
        self.path = path
        self.facts = facts
        wanted = client.settings.context_tokens
        self.context_tokens = choose_context(wanted, facts, _measure_free_bytes(path))
        self._own_template = own_template
        template = self._choose_template(bool(facts.templates.get(_TOOL_USE)))
        reported = dict(template.attributes) if template is not None else {"tools": "contract"}
        reported |= {"context-tokens": self.context_tokens, "title": facts.title}
        self.attributes: ModelAttributes = client.integrator.integrate(name, further=reported)

    def produce_cache(self) -> HistoryCache[LlamacppHistory]:
        """Return an empty cache of the history's pieces."""
        return HistoryCache()

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for unsupported input or missing files or packages, before anything is stored."""
        check_package(self.provider)
        if not os.path.isfile(self.path):
            raise ModelNotFound(
                f"the file of {self.provider}/{self.name} no longer exists: {self.path}"
            )
        self._check_template()
        for canister in canisters:
            self._check_canister(canister)
        settled, _ = settle_controls(controls, Controls(), self.attributes, self.name)
        members = nativize_controls(settled, self)
        produce_generation(members, controls.extras.get(self.provider, {}), self)

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """Make one round trip; see `vibe_llms.providers.interfaces.Model`.

        Load the model if necessary, and wait for its earlier replies. Raise `ContextOverflow`, with
        both sizes, before anything is generated.
        """
        stream = self.client.stream
        task = await self._produce_task(canisters, invokers, controls, context)
        if (spending := access_spending()) is not None:
            tokens = await (await self.access_engine()).ask(task.measure)
            controls = await reserve_output(spending, self, tokens, controls, context)
            task = await self._produce_task(canisters, invokers, controls, context)

        async def play(watch: Watch, accumulator: Accumulator) -> None:
            accumulator.may_stop_at_once = bool(controls.stop or context.default_controls.stop)
            # Only `reply-seconds` limits the wait for earlier replies.
            watch.expect("reply-seconds")
            engine = await self.access_engine()
            async with aclosing(engine.do(task.perform)) as batches:
                async for batch in batches:
                    watch.rest()
                    for item in batch:
                        if isinstance(item, SystemNotice):
                            send_notice(self, context, item.text)
                        elif not isinstance(item, Signal):
                            accumulator.accept(item)
                            if context.throttle is not None:
                                # Within a batch too, so that a slow reader can hold it back.
                                await context.throttle()
                    if not context.streaming:
                        watch.expect("reply-seconds")
                    elif accumulator.visible:
                        watch.expect("idle-seconds", stream.idle_seconds)
                    else:
                        watch.expect("first-byte-seconds", stream.first_byte_seconds)

        return await self.attempt(play, context)

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """Count exactly the tokens that the model would read; load it if necessary."""
        context = TurnContext(load=load)
        task = await self._produce_task(canisters, invokers, Controls(), context)
        engine = await self.access_engine()
        return TokenCount(await engine.ask(task.measure), estimated=False)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        """Return the template's input and the generation options; nothing is loaded."""
        task = await self._produce_task(canisters, invokers, controls, context)
        body: dict[str, Any] = {"model": self.name, "messages": task.messages}
        if task.tools:
            body["tools"] = task.tools
        return encode_json({**body, **msgspec.to_builtins(task.generation)})

    async def access_engine(self) -> Engine:
        """Return the engine of this model."""
        load = partial(
            load_model,
            self.provider,
            self.name,
            self.path,
            self.client.settings,
            self.context_tokens,
        )
        return await self.client.access_engine(self.path, load)

    def _check_canister(self, canister: Canister) -> None:
        check_contents(canister, self, unsupported)

    async def _produce_task(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> GenerationTask:
        settings = self.client.settings
        self._check_template()
        generation = self._nativize_controls(controls, context)
        cache: HistoryCache[LlamacppHistory] = (
            context.cache if isinstance(context.cache, HistoryCache) else HistoryCache()
        )
        history = await cache.extend(
            canisters,
            context,
            lambda: LlamacppHistory(self),
            self._check_canister,
            load_words,
        )
        offered = await cache.fit_tools(
            offer_tools(self, invokers, generation.tool_choice, context),
            lambda new: fit_tools(self, new, LLAMACPP, context),
        )
        names = assimilate_names(offered)
        return GenerationTask(
            provider=self.provider,
            messages=history.messages(),
            tools=[nativize_invoker(one) for one in offered],
            generation=self._nativize_choice(generation, names),
            template=lambda: self._resolve_template(bool(offered)),
            name_of=lambda name: names.get(name, name),
            seed=settings.seed,
            reuse=settings.reuse_prompt,
            streaming=context.streaming,
        )

    def _nativize_controls(self, controls: Controls, context: TurnContext) -> Generation:
        members, extras = apply_controls(
            self, controls, context, lambda settled: nativize_controls(settled, self)
        )
        return produce_generation(members, extras, self)

    def _nativize_choice(self, generation: Generation, names: Mapping[str, str]) -> Generation:
        """Replace the chosen tool's name by the name that the model sees."""
        choice = generation.tool_choice
        if choice in ("auto", "any", "none"):
            return generation
        native = nativize_name(choice)
        if native not in names:
            raise ControlInvalid(
                f"tool {choice!r} cannot be required; {name_tools(sorted(names.values()))}",
                control="tool-choice",
                model=self.name,
            )
        return msgspec.structs.replace(generation, tool_choice=native)

    def _choose_template(self, tools: bool) -> Template | None:
        """Choose the template; a named format has no text until `_resolve_template`."""
        settings, templates = self.client.settings, self.facts.templates
        if settings.chat_format is not None:
            return Template("", self.facts.thinks)
        text = self._own_template or (templates.get(_TOOL_USE) if tools else None)
        text = text or templates.get("default")
        return Template(text, self.facts.thinks) if text else None

    def _resolve_template(self, tools: bool) -> Template:
        if (name := self.client.settings.chat_format) is not None:
            return Template(access_format(self.provider, name), self.facts.thinks)
        template = self._choose_template(tools)
        assert template is not None, "it was checked"
        return template

    def _check_template(self) -> None:
        template = self._choose_template(False)
        if template is None:
            raise ConfigurationError(
                f"{self.path} has no chat template; set chat-format or chat-template",
                table=f"providers.{self.provider}",
                key="chat-format",
            )
        if template.channels:
            raise ConfigurationError(
                f"the template of {self.path} separates text and reasoning by channels, which "
                "only llama.cpp's own server reads; run llama-server and use llamacpp-server",
                table=f"providers.{self.provider}",
            )


def choose_context(wanted: int | None, facts: Facts, free: int | None) -> int:
    """Return the context size in tokens; the row's setting overrides the model's own limit.

    By default, the context takes at most half of the `free` bytes of memory that the model leaves.
    """
    largest, *others = CONTEXT_TOKENS
    made_for = facts.context_tokens or largest
    if wanted is not None:
        return wanted or made_for
    if free is not None and facts.token_bytes is not None:
        fits = [size for size in CONTEXT_TOKENS if size * facts.token_bytes <= free // 2]
        largest = next(iter(fits), others[-1])
    return min(made_for, largest)


def _measure_free_bytes(path: Path) -> int | None:
    """Return the memory that is left once a model is loaded; None if the system does not tell."""
    try:
        text = read_file("/proc/meminfo", _MEMINFO_BYTES).decode()
        lines = dict(line.split(":", 1) for line in text.splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024 - path.stat().st_size
    except (OSError, ValueError, KeyError):
        return None


def nativize_invoker(invoker: Invoker) -> dict[str, Any]:
    """Return the declaration of a tool in the form that all templates share."""
    return {
        "type": "function",
        "function": {
            "name": nativize_name(invoker.name),
            "description": invoker.description or "",
            "parameters": dict(invoker.arguments_schema),
        },
    }
