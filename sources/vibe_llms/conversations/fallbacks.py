"""Rules of a fallback: which failures let another model answer, and which model that can be."""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.base.exceptions import (
    BudgetExceeded,
    ConfigurationError,
    ContextOverflow,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    ProviderUnreachable,
    RateLimited,
    ReplyCut,
    ReplyMalformed,
    ReplyTimeout,
    RequestError,
    VibeLlmsError,
)
from vibe_llms.messages.events import Notice
from vibe_llms.providers.breakers import Breakers
from vibe_llms.providers.interfaces import Model

#: Failures of an endpoint. Another model would refuse an invalid request too, and a wrong key or an
#: unknown model must not go unnoticed.
_FAILURES = (
    PaymentRequired,
    ProviderOverloaded,
    ProviderUnreachable,
    RateLimited,
    ReplyCut,
    ReplyMalformed,
    ReplyTimeout,
)


class Fallback:
    """The models that may answer one turn in place of its own model, in order."""

    def __init__(self, addresses: Sequence[str], breakers: Breakers) -> None:
        self._left = list(addresses)
        self._breakers = breakers
        #: Error of the turn's own model, which is raised if no other one can answer.
        self.first: VibeLlmsError | None = None

    def __bool__(self) -> bool:
        """Return True if another model may answer."""
        return bool(self._left)

    def covers(self, error: VibeLlmsError) -> bool:
        """Return True if another model may answer after this error.

        After the first one failed, anything that keeps a model of the fallback from answering
        leads to the next one.
        """
        if self.first is not None:
            kinds = (ProviderError, RequestError, ConfigurationError, BudgetExceeded)
            return isinstance(error, kinds)
        return bool(self._left) and isinstance(error, (*_FAILURES, ContextOverflow))

    def fail(self, model: Model, error: VibeLlmsError) -> None:
        """Record why a model did not answer."""
        self.first = self.first or error
        if isinstance(error, _FAILURES):
            self._breakers.open(address_of(model), error)

    def succeed(self, model: Model) -> None:
        """Record that a model answered."""
        self._breakers.close(address_of(model))

    def is_failing(self, model: Model) -> bool:
        """Return True if a model failed a short time ago and another one may answer."""
        return bool(self._left) and self._breakers.is_open(address_of(model))

    def take(self) -> str | None:
        """Return the address of the next model that did not fail a short time ago, or None."""
        while self._left:
            address = self._left.pop(0)
            if not self._breakers.is_open(address):
                return address
        return None


def require_larger(model: Model, failed: Model, error: ContextOverflow) -> None:
    """Raise `ContextOverflow` unless a model is known to accept more tokens than the failed one."""
    limit = error.limit or failed.attributes.context_tokens or 0
    if (model.attributes.context_tokens or 0) <= limit:
        size = f"more than {limit} tokens" if limit else "a longer history"
        text = f"{model.name} is not known to accept {size}"
        raise ContextOverflow(text, provider=model.provider)


def address_of(model: Model) -> str:
    """Return the address `provider/model` of a model."""
    return f"{model.provider}/{model.name}"


def notice_change(failed: Model, error: VibeLlmsError | None, model: Model) -> Notice:
    """Return the notice that another model answers this turn."""
    why = "failed a short time ago" if error is None else f"did not answer ({error})"
    return Notice("fallback", f"{address_of(failed)} {why}; {address_of(model)} answers this turn")


def notice_omission(address: str, error: VibeLlmsError) -> Notice:
    """Return the notice that a model of the fallback cannot answer."""
    return Notice("fallback", f"{address} cannot answer instead: {error}")
