"""Model wrapper that adds tools through the contract, for models without native tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_

import msgspec

from vibe_llms.base.exceptions import ReplyMalformed
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
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import EventHandler, Notice, ignore_events
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.contract.filter import ReplyFilter
from vibe_llms.providers.contract.history import RewrittenHistory, read_texts
from vibe_llms.providers.contract.parser import ReplyOutcome
from vibe_llms.providers.contract.prompt import Terms, write_instructions, write_repair
from vibe_llms.providers.interfaces import (
    Loader,
    Model,
    TokenCount,
    TurnContext,
    refuse_loading,
)
from vibe_llms.providers.requests import HistoryCache

#: Maximum number of attempts at a reply, including the first.
ATTEMPTS = 3


class ContractCache(HistoryCache[RewrittenHistory]):
    """Cache of a conversation: its rewritten history and the wrapped model's caches."""

    def __init__(self, plain: object) -> None:
        super().__init__()
        self.plain = plain
        self.inner: object = None
        self.terms = Terms()
        self.invokers: Sequence[Invoker] = ()
        self.instructions: SupervisorCanister | None = None


class ContractModel:
    """Model that offers tools to any wrapped model, through instructions and JSON.

    Callers use it like a model with native tool calls. Requests without tools go to the wrapped
    model unchanged. `event_handler` is the default handler.
    """

    def __init__(self, inner: Model, event_handler: EventHandler = ignore_events) -> None:
        self.inner = inner
        self._event_handler = event_handler

    @property
    def provider(self) -> str:
        """Name of the row."""
        return self.inner.provider

    @property
    def name(self) -> str:
        """Name of the wrapped model."""
        return self.inner.name

    @property
    def attributes(self) -> ModelAttributes:
        """Attributes of the wrapped model."""
        return self.inner.attributes

    def produce_cache(self) -> ContractCache:
        """Return an empty cache of rewritten history."""
        return ContractCache(self.inner.produce_cache())

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Raise for input that the wrapped model does not support; nothing is stored or sent."""
        self.inner.check(canisters, _release(controls))

    async def converse(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        controls: Controls = Controls(),
        context: TurnContext = TurnContext(),
    ) -> tuple[ReplyCanister, ...]:
        """Return one reply; see `vibe_llms.providers.interfaces.Model`.

        If the model breaks the form, up to `ATTEMPTS` round trips are made. The usage covers all.
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
        reply_filter = ReplyFilter(
            accumulator,
            lambda name: find_invoker(offered, name) is not None,
            stop=settled.stop or (),
            patient=terms.demanding,
        )
        inner = msgspec.structs.replace(
            context,
            event_handler=reply_filter,
            cache=cache.inner,
            default_controls=_release(context.default_controls),
        )
        with reply_filter:
            attempt = 0
            while True:
                attempt += 1
                reply = await self.inner.converse(said, (), _release(controls), inner)
                if not reply:
                    raise ReplyMalformed("the model returned no reply", provider=self.provider)
                outcome = _judge(reply_filter.conclude(), terms, offered)
                problem = outcome.problem if _is_whole(reply) else ""
                if not problem or reply_filter.shown or attempt == ATTEMPTS:
                    break
                again = f"the reply is requested again ({attempt} of {ATTEMPTS - 1}): {problem}"
                context.notify(Notice("contract", again))
                reply_filter.abandon(reply)
                if attempt == 1:
                    # Repair messages belong neither to the history nor to its cache.
                    inner = msgspec.structs.replace(inner, cache=self.inner.produce_cache())
                said = [*said, *_take_words(reply), UserCanister.from_text(write_repair(problem))]
            if problem:
                context.notify(Notice("contract", f"the reply is treated as plain text: {problem}"))
            if outcome.notice:
                context.notify(Notice("contract", outcome.notice))
            reply_filter.finish(reply, outcome)
        return accumulator.canisters

    async def count_tokens(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker] = (),
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """Count the tokens that the model would read, including the contract's instructions."""
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
        """Return the body of the request that `converse` would send."""
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
        """Rewrite the canisters for the wrapped model; reuse those of earlier requests."""
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
    """Return the controls without those that the contract handles itself."""
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
    outcome: ReplyOutcome,
    terms: Terms,
    offered: Mapping[str, Invoker],
) -> ReplyOutcome:
    """Apply the terms to the outcome: drop calls that may not be made, and report violations."""
    if outcome.problem:
        return outcome
    calls = outcome.calls
    if terms.choice == "none" and calls:
        problem = "it must not call a tool"
        return msgspec.structs.replace(outcome, calls=(), problem=problem)
    if terms.demanding and not calls:
        return msgspec.structs.replace(outcome, problem="it must call a tool")
    if terms.choice not in ("auto", "any", "none"):
        meant = [find_invoker(offered, call.name) for call in calls]
        if any(invoker is None or invoker.name != terms.choice for invoker in meant):
            problem = f"it must call the tool {terms.choice!r}"
            return msgspec.structs.replace(outcome, calls=(), problem=problem)
    if not terms.several and len(calls) > 1:
        notice = f"only the first of {len(calls)} calls is run, because one at a time is requested"
        return msgspec.structs.replace(outcome, calls=calls[:1], notice=notice)
    return outcome


def _is_whole(reply: Sequence[ReplyCanister]) -> bool:
    """Return True if the model ended the reply on its own, so that it can be asked to repair it."""
    ending = reply[-1].ending
    return ending is None or ending.reason in (StopReason.FINISHED, StopReason.INVOCATIONS)


def _take_words(reply: Sequence[ReplyCanister]) -> Sequence[Canister]:
    return [one for one in reply if isinstance(one, AssistantCanister) and one.contents]
