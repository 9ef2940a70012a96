"""A model of llama.cpp's: what it is asked, and what its thread sends of the reply."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from vibe_llms.controls import Controls
from vibe_llms.exceptions import ConfigurationError, ControlInvalid, ModelNotFound
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, ReplyCanister
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.attributes import ModelAttributes, ModelsIntegrator, settle_controls
from vibe_llms.providers.conversions import check_contents, load_words
from vibe_llms.providers.interfaces import Loader, TokenCount, TurnContext, refuse_loading
from vibe_llms.providers.llamacpp.controls import Generation, nativize_controls, produce_generation
from vibe_llms.providers.llamacpp.engines import Engine
from vibe_llms.providers.llamacpp.files import Facts
from vibe_llms.providers.llamacpp.generation import Signal, SystemNotice, Task
from vibe_llms.providers.llamacpp.history import LlamacppHistory
from vibe_llms.providers.llamacpp.messages import MODULE, unsupported
from vibe_llms.providers.llamacpp.package import (
    LoadedModel,
    access_format,
    check_package,
    load_model,
)
from vibe_llms.providers.llamacpp.settings import CONTEXT_TOKENS, Settings
from vibe_llms.providers.llamacpp.templates import Template
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.requests import HistoryCache, apply_controls, offer_tools, send_notice
from vibe_llms.providers.row_models import RowClient, RowModel
from vibe_llms.providers.spending import access_spending, reserve_output
from vibe_llms.providers.tool_names import assimilate_names, nativize_name
from vibe_llms.providers.tool_schemas import LLAMACPP, fit_tools
from vibe_llms.providers.watch import Watch

_TOOL_USE = "tool_use"


class LlamacppConnection(RowClient, Protocol):
    """What a model of a file needs of the client that made it."""

    @property
    def settings(self) -> Settings:
        """The keys of the row."""
        ...

    @property
    def integrator(self) -> ModelsIntegrator:
        """The attributes of models."""
        ...

    async def access_engine(self, path: Path, produce: Callable[[], LoadedModel]) -> Engine:
        """The thread of the model of a file, which `produce` loads there."""
        ...


class LlamacppModel(RowModel[LlamacppConnection]):
    """A file, and what its head says of it."""

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
        self.context_tokens = _choose_context(client.settings.context_tokens, facts.context_tokens)
        self._own_template = own_template
        template = self._choose_template(bool(facts.templates.get(_TOOL_USE)))
        reported = dict(template.attributes) if template is not None else {"tools": "contract"}
        reported |= {"context-tokens": self.context_tokens, "title": facts.title}
        self.attributes: ModelAttributes = client.integrator.integrate(name, further=reported)

    def produce_cache(self) -> HistoryCache[LlamacppHistory]:
        """A fresh cache of the history's pieces."""
        return HistoryCache()

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for what this model cannot take, or what is missing, before anything is kept."""
        check_package(self.provider)
        if not os.path.isfile(self.path):
            raise ModelNotFound(f"the file of {self.provider}/{self.name} is gone: {self.path}")
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
        """One round trip; see `vibe_llms.providers.interfaces.Model`.

        Loads the model if it is not, and waits until its earlier replies are done.
        `ContextOverflow`, with both sizes, before anything is generated.
        """
        stream = self.client.stream
        task = await self._produce_task(canisters, invokers, controls, context)
        if (spending := access_spending()) is not None:
            tokens = await (await self.access_engine()).ask(task.measure)
            controls = await reserve_output(spending, self, tokens, controls, context)
            task = await self._produce_task(canisters, invokers, controls, context)

        async def play(watch: Watch, accumulator: Accumulator) -> None:
            accumulator.may_stop_at_once = bool(controls.stop or context.default_controls.stop)
            # What others have asked for first may take as long as it takes.
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
                                # Also within a batch: a slow reader holds back what came with it.
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
        """How many tokens the model would read, exactly; loads it if it is not."""
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
        """What its template would be given, and how it would generate; nothing is loaded."""
        task = await self._produce_task(canisters, invokers, controls, context)
        body: dict[str, Any] = {"model": self.name, "messages": task.messages}
        if task.tools:
            body["tools"] = task.tools
        return encode_json({**body, **msgspec.to_builtins(task.generation)})

    async def access_engine(self) -> Engine:
        """The thread of this model."""
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
    ) -> Task:
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
        return Task(
            provider=self.provider,
            messages=history.messages(),
            tools=[nativize_invoker(one) for one in offered],
            generation=self._settle_choice(generation, names),
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

    def _settle_choice(self, generation: Generation, names: Mapping[str, str]) -> Generation:
        """The choice of a tool by the name that the model sees."""
        choice = generation.tool_choice
        if choice in ("auto", "any", "none"):
            return generation
        native = nativize_name(choice)
        if native not in names:
            raise ControlInvalid(
                f"there is no tool {choice!r} to choose among those that are offered",
                control="tool-choice",
                model=self.name,
            )
        return msgspec.structs.replace(generation, tool_choice=native)

    def _choose_template(self, tools: bool) -> Template | None:
        """The template; its text is not known before it is resolved where the package has it."""
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
                f"{self.path} brings no chat template; say how its model is spoken with: "
                "chat-format or chat-template",
                table=f"providers.{self.provider}",
                key="chat-format",
            )
        if template.channels:
            raise ConfigurationError(
                f"the template of {self.path} separates text and reasoning by channels, which "
                "only llama.cpp's own server reads; run llama-server and use llamacpp-server",
                table=f"providers.{self.provider}",
            )


def _choose_context(wanted: int | None, trained: int | None) -> int:
    """How many tokens to make room for; what the row says goes over what the model was made for."""
    if wanted:
        return wanted
    made_for = trained or CONTEXT_TOKENS
    return made_for if wanted == 0 else min(made_for, CONTEXT_TOKENS)


def nativize_invoker(invoker: Invoker) -> dict[str, Any]:
    """The declaration of a tool, in the form that all templates share."""
    return {
        "type": "function",
        "function": {
            "name": nativize_name(invoker.name),
            "description": invoker.description or "",
            "parameters": dict(invoker.arguments_schema),
        },
    }
