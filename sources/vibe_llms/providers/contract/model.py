"""Wraps a model without tools as one with tools: the contract replaces calls of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_

import msgspec

from vibe_llms.controls import Controls
from vibe_llms.events import EventHandler, Notice, ignore_events
from vibe_llms.exceptions import ReplyMalformed
from vibe_llms.invocation.invokers import Invoker, find_invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    Provenance,
    ReplyCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.contract.filter import Hearing
from vibe_llms.providers.contract.history import RewrittenHistory, read_texts
from vibe_llms.providers.contract.parser import Outcome
from vibe_llms.providers.contract.prompt import Terms, write_instructions, write_repair
from vibe_llms.providers.interfaces import (
    Loader,
    Model,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.requests import HistoryCache

#: How often a reply is asked for that is not in the form.
ATTEMPTS = 3


class ContractCache(HistoryCache[RewrittenHistory]):
    """The cache of a conversation: its rewritten history, and the wrapped model's cache."""

    def __init__(self, plain: object) -> None:
        super().__init__()
        self.plain = plain
        self.inner: object = None
        self.terms = Terms()
        self.invokers: Sequence[Invoker] = ()
        self.instructions: SupervisorCanister | None = None


class ContractModel:
    """Offers tools to any model by the contract: an agreement in its instructions, and JSON.

    To its caller, it is a model with tools like any other. Without tools it is the wrapped model.
    `event_handler` is the default one.
    """

    def __init__(self, inner: Model, event_handler: EventHandler = ignore_events) -> None:
        self.inner = inner
        self._event_handler = event_handler

    @property
    def provider(self) -> str:
        """The name of the row."""
        return self.inner.provider

    @property
    def name(self) -> str:
        """The name of the wrapped model."""
        return self.inner.name

    @property
    def attributes(self) -> ModelAttributes:
        """The attributes of the wrapped model."""
        return self.inner.attributes

    def produce_cache(self) -> ContractCache:
        """A fresh cache of rewritten history."""
        return ContractCache(self.inner.produce_cache())

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for what the wrapped model cannot take, before anything is kept or sent."""
        self.inner.check(canisters, _release(controls))

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """One reply; see `vibe_llms.providers.interfaces.Model`.

        It takes up to three round trips if the model breaks the form. The reply has the usage of
        all.
        """
        context = self._handled(context)
        cache = self._access_cache(context)
        if not invokers:
            plain = msgspec.structs.replace(context, cache=cache.plain)
            return await self.inner.converse(canisters, (), controls, plain)
        offered = {invoker.name: invoker for invoker in invokers}
        settled = controls.over(context.default_controls)
        terms = _read_terms(settled)
        said = await self._rewrite(cache, canisters, invokers, terms, context)
        assert context.event_handler is not None
        accumulator = Accumulator(
            Provenance("", self.provider, self.name), context.event_handler, context.conversation
        )
        hearing = Hearing(
            accumulator,
            lambda name: find_invoker(offered, name) is not None,
            stop=settled.stop or (),
            patient=terms.demanding,
        )
        inner = msgspec.structs.replace(
            context,
            event_handler=hearing,
            cache=cache.inner,
            default_controls=_release(context.default_controls),
        )
        with hearing:
            attempt = 0
            while True:
                attempt += 1
                reply = await self.inner.converse(said, (), _release(controls), inner)
                if not reply:
                    raise ReplyMalformed("the model returned no reply", provider=self.provider)
                outcome = _judge(hearing.conclude(), terms, offered)
                problem = outcome.problem if _is_whole(reply) else ""
                if not problem or hearing.shown or attempt == ATTEMPTS:
                    break
                again = f"the reply is asked for again ({attempt} of {ATTEMPTS - 1}): {problem}"
                context.notify(Notice("contract", again))
                hearing.abandon(reply)
                if attempt == 1:
                    # What is said of the form is no part of the history, nor of its cache.
                    inner = msgspec.structs.replace(inner, cache=self.inner.produce_cache())
                said = [*said, *_take_words(reply), UserCanister.from_text(write_repair(problem))]
            if problem:
                context.notify(Notice("contract", f"the reply is taken for plain text: {problem}"))
            if outcome.remark:
                context.notify(Notice("contract", outcome.remark))
            hearing.finish(reply, outcome)
        return accumulator.canisters

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """How many tokens the model would read, the agreement included."""
        if not invokers:
            return await self.inner.count_tokens(canisters, (), load)
        context = TurnContext(load=load)
        cache = self._access_cache(context)
        said = await self._rewrite(cache, canisters, invokers, Terms(), context)
        return await self.inner.count_tokens(said, (), load)

    async def preview(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> bytes:
        """The body of the request that `converse` would send."""
        cache = self._access_cache(context)
        if not invokers:
            plain = msgspec.structs.replace(context, cache=cache.plain)
            return await self.inner.preview(canisters, (), controls, plain)
        terms = _read_terms(controls.over(context.default_controls))
        said = await self._rewrite(cache, canisters, invokers, terms, context)
        inner = msgspec.structs.replace(
            context,
            cache=cache.inner,
            default_controls=_release(context.default_controls),
        )
        return await self.inner.preview(said, (), _release(controls), inner)

    def _handled(self, context: TurnContext) -> TurnContext:
        handler = context.event_handler or self._event_handler
        return msgspec.structs.replace(context, event_handler=handler)

    def _access_cache(self, context: TurnContext) -> ContractCache:
        cache = context.cache
        return cache if isinstance(cache, ContractCache) else self.produce_cache()

    async def _rewrite(
        self,
        cache: ContractCache,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        terms: Terms,
        context: TurnContext,
    ) -> Sequence[Canister]:
        """The canisters for the wrapped model; those of earlier requests are unchanged."""
        known = cache.invokers
        same = len(known) == len(invokers) and all(map(is_, known, invokers))
        if cache.instructions is None or not same or terms != cache.terms:
            cache.invokers, cache.terms, cache.history = tuple(invokers), terms, None
            words = write_instructions(invokers, terms)
            cache.instructions = SupervisorCanister.from_text(words)
        instructions = cache.instructions

        def produce() -> RewrittenHistory:
            cache.inner = self.inner.produce_cache()
            return RewrittenHistory(instructions)

        history = await cache.extend(canisters, context, produce, lambda _: None, read_texts)
        return history.canisters()


def _release(controls: Controls) -> Controls:
    """The controls without those that the contract handles itself."""
    return msgspec.structs.replace(
        controls, tool_choice=None, parallel_invocations=None, stop=None, response_schema=None
    )


def _read_terms(controls: Controls) -> Terms:
    return Terms(
        choice=controls.tool_choice or "auto",
        several=controls.parallel_invocations is not False,
        schema=controls.response_schema,
    )


def _judge(
    outcome: Outcome,
    terms: Terms,
    offered: Mapping[str, Invoker],
) -> Outcome:
    """The outcome under the terms: the calls that may be made, and whether they suffice."""
    if outcome.problem:
        return outcome
    calls = outcome.calls
    if terms.choice == "none" and calls:
        problem = "no tool may be called in it"
        return msgspec.structs.replace(outcome, calls=(), problem=problem)
    if terms.demanding and not calls:
        return msgspec.structs.replace(outcome, problem="it has to call a tool")
    if terms.choice not in ("auto", "any", "none"):
        meant = [find_invoker(offered, call.name) for call in calls]
        if any(invoker is None or invoker.name != terms.choice for invoker in meant):
            problem = f"it has to call the tool {terms.choice!r}"
            return msgspec.structs.replace(outcome, calls=(), problem=problem)
    if not terms.several and len(calls) > 1:
        remark = f"of {len(calls)} calls only the first is made, since one at a time is asked for"
        return msgspec.structs.replace(outcome, calls=calls[:1], remark=remark)
    return outcome


def _is_whole(reply: Sequence[ReplyCanister]) -> bool:
    """Whether the model ended the reply itself, so that it can repair it."""
    ending = reply[-1].ending
    return ending is None or ending.reason in (StopReason.FINISHED, StopReason.INVOCATIONS)


def _take_words(reply: Sequence[ReplyCanister]) -> Sequence[Canister]:
    return [one for one in reply if isinstance(one, AssistantCanister) and one.contents]
