"""`Invoker`: a tool that a model can call, with its name, its schema and what it does."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import InvokerInvalid
from vibe_llms.invocation.schemata import Schema, Signature, innermost
from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    TextualContent,
    VideoContent,
    repair_text,
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}(?:/[A-Za-z0-9_.-]{1,128})?")
_CONTENT_TYPES = (TextualContent, ImageContent, AudioContent, VideoContent, FileContent)


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
                value = await function(*bound.args, **bound.kwargs)
            else:
                value = await run_in_thread(lambda: function(*bound.args, **bound.kwargs))
                if inspect.isawaitable(value):
                    value = await value
            return contents_from(value)

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


def contents_from(value: object) -> tuple[Content, ...]:
    """What a tool returned, as contents: text as it is, contents as they are, the rest as JSON."""
    match value:
        case str():
            return (TextualContent(repair_text(value)),)
        case _ if isinstance(value, _CONTENT_TYPES):
            return (value,)
        case list() | tuple() if value and all(isinstance(v, _CONTENT_TYPES) for v in value):
            return tuple(value)
        case bytes():
            return (FileContent(value, "application/octet-stream"),)
        case _:
            return (TextualContent(_encode(value)),)


def _encode(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_simplify).decode()
    except UnicodeEncodeError:
        import json

        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_simplify)
        return repair_text(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))


def _simplify(value: object) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, fallback=str)


async def run_in_thread(function: Callable[[], Any]) -> Any:
    """The result of a blocking function, run in a daemon thread of its own.

    A thread cannot be stopped: cancelling the wait abandons it, and since it is a daemon it does
    not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def work() -> None:
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001  (the border of a tool's call)
            _tell(loop, settle, future.set_exception, _portable(error))
        else:
            _tell(loop, settle, future.set_result, value)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), daemon=True, name="vibe-llms tool").start()
    return await future


def _portable(error: BaseException) -> BaseException:
    # A future refuses the first, and the others would end more than the coroutine that awaits it;
    # in a thread nobody has pressed Ctrl-C.
    if isinstance(error, StopIteration | KeyboardInterrupt | GeneratorExit):
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    # An abandoned thread may outlive its loop.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def describe(invoker: Invoker) -> Mapping[str, Any]:
    """Name, description and schema as plain data, for programs and for people."""
    return {
        "name": invoker.name,
        "description": invoker.description,
        "arguments_schema": invoker.arguments_schema,
    }
