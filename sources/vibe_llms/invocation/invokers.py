"""`Invoker`: a tool that a model can call, with its name, its schema and what it does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from msgspec import Struct

from vibe_llms.exceptions import InvokerInvalid
from vibe_llms.invocation.results import contents_from
from vibe_llms.invocation.schemata import Schema, Signature, innermost
from vibe_llms.invocation.threads import run_in_thread
from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.messages.contents import (
    Content,
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}(?:/[A-Za-z0-9_.-]{1,128})?")


class InvocationContext(Struct, frozen=True):
    """What a tool may know of its call; a parameter with this annotation receives it.

    `report_progress(text, done=…, total=…)` tells whoever watches how far the tool is; it may be
    called from the tool's thread.
    """

    conversation: str
    invocation: InvocationCanister
    report_progress: Callable[..., None]


class Invoker(Struct, frozen=True, kw_only=True):
    """A tool. `name` is canonical: bare for functions, `ensemble/tool` for those of an ensemble.

    `invoke(arguments, context)` gets the arguments as the text that the model sent, and either
    returns contents or raises; `ArgumentsInvalid` tells the model what to mend.
    """

    name: str
    description: str
    arguments_schema: Schema
    invoke: Callable[[str, InvocationContext], Awaitable[Sequence[Content]]]
    ensemble: str = ""

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
    ) -> Self:
        """A tool from a typed function, sync or async; a sync one runs in a thread.

        The signature, annotations and defaults give the schema, the docstring the descriptions.
        `InvokerInvalid` where a parameter has no JSON Schema.

        >>> def add(a: int, b: int = 2) -> int:
        ...     "Add two numbers."
        ...     return a + b
        >>> invoker = Invoker.from_function(add)
        >>> invoker.name, invoker.description, sorted(invoker.arguments_schema["properties"])
        ('add', 'Add two numbers.', ['a', 'b'])
        """
        name = name or str(getattr(innermost(function), "__name__", ""))
        if not _NAME.fullmatch(name):
            raise InvokerInvalid(
                f"{name!r} is no name for a tool; use letters, digits, _ and -, "
                "or give one: Invoker.from_function(function, name=...)"
            )
        signature = Signature(function, {InvocationContext: "context"})

        async def invoke(arguments: str, context: InvocationContext) -> Sequence[Content]:
            bound = signature.bind(arguments, {"context": context})
            if inspect.iscoroutinefunction(function):
                return contents_from(await function(*bound.args, **bound.kwargs))

            def work() -> Any:
                value = function(*bound.args, **bound.kwargs)
                return value if inspect.isawaitable(value) else contents_from(value)

            value = await run_in_thread(work)
            return contents_from(await value) if inspect.isawaitable(value) else value

        return cls(
            name=name,
            description=signature.description if description is None else description,
            arguments_schema=signature.schema,
            invoke=invoke,
        )


def gather_invokers(
    tools: Iterable[Invoker | Callable[..., Any]],
) -> dict[str, Invoker]:
    """Tools by their names; functions become invokers. `InvokerInvalid` where two share a name."""
    gathered: dict[str, Invoker] = {}
    for tool in tools:
        invoker = tool if isinstance(tool, Invoker) else Invoker.from_function(tool)
        if invoker.name in gathered:
            raise InvokerInvalid(
                f"two tools are called {invoker.name!r}; give one another name: "
                "Invoker.from_function(function, name=...)"
            )
        gathered[invoker.name] = invoker
    return gathered


def describe(invoker: Invoker) -> Mapping[str, Any]:
    """Name, description and schema as plain data, for programs and for people."""
    return {
        "name": invoker.name,
        "description": invoker.description,
        "arguments_schema": invoker.arguments_schema,
    }
