"""Functions of a program as an ensemble: registered with a decorator and called by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

import msgspec

from vibe_llms.base.exceptions import InvokerInvalid
from vibe_llms.invocation.invokers import (
    InvocationContext,
    Invoker,
    InvokerOptions,
    describe,
    export,
    find_invoker,
    gather_invokers,
)
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import InvocationCanister

F = TypeVar("F", bound=Callable[..., Any])


class FunctionEnsemble:
    """A collection of functions that are offered together, as `name/function`.

    >>> tools = FunctionEnsemble("sums")
    >>> @tools.register(aliases=["plus"])
    ... def add(a: int, b: int) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> tools.access("plus").name
    'sums/add'
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._invokers: dict[str, Invoker] = {}

    @property
    def name(self) -> str:
        """First part of its tools' names."""
        return self._name

    @property
    def invokers(self) -> Sequence[Invoker]:
        """Its tools, in the order of registration."""
        return tuple(self._invokers.values())

    def register(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        **options: Unpack[InvokerOptions],
    ) -> Callable[[F], F]:
        """Return a decorator that registers a function and leaves it unchanged.

        The options are those of the decorator `invoker`.
        """

        def take(function: F) -> F:
            bare = Invoker.from_function(function, name=name, description=description, **options)
            one = msgspec.structs.replace(
                bare, name=f"{self._name}/{bare.name}", ensemble=self._name
            )
            self._invokers = gather_invokers([*self._invokers.values(), one])
            return function

        return take

    def access(self, name: str) -> Invoker:
        """Find a tool by name or alias, with or without its ensemble, or raise `InvokerInvalid`."""
        for candidate in (name, f"{self._name}/{name}"):
            if (found := find_invoker(self._invokers, candidate)) is not None:
                return found
        known = ", ".join(self._invokers) or "none"
        raise InvokerInvalid(f"{self._name!r} has no tool {name!r}; known tools: {known}")

    async def invoke(
        self, name: str, arguments: str | Mapping[str, Any] = "{}"
    ) -> InvocationOutput:
        """Call a tool without a model: check the arguments, and raise its exceptions.

        `arguments` are JSON text, or values that can be encoded as JSON.
        """
        invoker = self.access(name)
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        invocation = InvocationCanister(name=invoker.name, arguments=text)
        return await invoker.invoke(text, InvocationContext("", invocation, lambda *_, **__: None))

    def describe(self) -> list[dict[str, Any]]:
        """Describe all tools as plain data, including aliases, for models or people."""
        return [{**describe(one), "aliases": list(one.aliases)} for one in self._invokers.values()]

    def export(self) -> list[dict[str, Any]]:
        """Return all tools in the common exchange format, for other libraries and servers."""
        return [export(one) for one in self._invokers.values()]

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""
