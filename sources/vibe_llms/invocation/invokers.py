"""`Invoker`: a tool that a model can call, with its name, schema and function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack, get_type_hints
from weakref import WeakKeyDictionary

from msgspec import Struct

from vibe_llms.exceptions import InvokerInvalid
from vibe_llms.invocation.limits import Pause
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest
from vibe_llms.invocation.results import InvocationOutput, Rendering, produce_output
from vibe_llms.invocation.schemata import Schema, Signature, innermost
from vibe_llms.invocation.threads import run_in_thread
from vibe_llms.messages.canisters import InvocationCanister

_NAME = r"[A-Za-z_][A-Za-z0-9_-]{0,63}(?:/[A-Za-z0-9_.-]{1,128})?"


F = TypeVar("F", bound=Callable[..., Any])
Approval: TypeAlias = Literal["always", "allow", "ask", "deny"]

_MARKS = "__invoker__"
#: Signatures of functions and bound methods, kept as long as these live.
_SIGNATURES: WeakKeyDictionary[Callable[..., Any], dict[bool, Signature]] = WeakKeyDictionary()


def never(_: Mapping[str, Any]) -> str:
    """For tools whose approval does not depend on their arguments in this way."""
    return ""


def skip_check(arguments: str) -> None:
    """For tools that check their arguments only when they run."""


class InvocationContext(Struct, frozen=True):
    """What a tool may know of its call; a parameter with this annotation receives it.

    `report_progress(text, done=…, total=…)` reports progress as events; it may be called from the
    tool's thread. In an async tool, the time limit pauses during a block
    `with context.pause_limit():`, for tools that ask a person. `ask` is there in a run: it asks the
    user of the run, who may be elsewhere. `tainted` is true if untrusted text is in the
    conversation.
    """

    conversation: str
    invocation: InvocationCanister
    report_progress: Callable[..., None]
    pause_limit: Pause = nullcontext
    ask: Callable[[ElicitationRequest], Awaitable[ElicitationAnswer]] | None = None
    tainted: bool = False


class Invoker(Struct, frozen=True, kw_only=True):
    """A tool. `name` is canonical: bare for functions, `ensemble/tool` for tools of an ensemble.

    `invoke(arguments, context)` receives the arguments as the text that the model sent, and returns
    or raises. `ArgumentsInvalid` says what is to be fixed; `check` does the same without running
    anything. A model may also call the tool by its `aliases`. `approval` decides whether a call
    runs: `allow`, `deny`, or `ask`. `outside` is true if the tool returns untrusted text; `sends`
    is true if it may send data out, so that it asks again while untrusted text is in the
    conversation, unless `approval` is `always`.

    The result of a `pure` tool depends only on its arguments: another call with the same arguments
    in the same conversation gets the first result, and the tool does not run again. An `idempotent`
    tool may run again if a crash left it unknown whether it ran, because twice is the same as once.

    With `show_in_stage` off, clients of the server see that the tool is called, but neither
    arguments, progress nor result.

    `timeout_seconds`, `shown_bytes` and `kept_bytes` override the limits of `[tools]`.
    `annotations` are what its server says about it besides name, description and schema. `caution`
    is shown after the reason when a call needs approval. `blocked` says why the tool does not run
    until a person has looked at it, whatever its approval. `must_ask(arguments)` says why a call
    with these arguments always asks, even if the tool is allowed; empty if it need not.

    A tool that runs `elsewhere` is never invoked here. Once the other calls of the reply have their
    results, its call ends the turn with the stop reason `invocations`. The next prompt holds the
    result, as a `ResultCanister` of the call.

    `question(arguments)` is what a call asks the user. A tool that has one is not invoked, since
    the answer is its result.

    `scope_of(arguments)` names what a remembered approval of a call covers, such as a host; empty
    for these very arguments. Calls whose scope is one of `allowed_scopes` do not ask.
    """

    name: str
    description: str
    arguments_schema: Schema
    invoke: Callable[[str, InvocationContext], Awaitable[InvocationOutput]]
    check: Callable[[str], object] = skip_check
    ensemble: str = ""
    aliases: tuple[str, ...] = ()
    approval: Approval = "allow"
    outside: bool = False
    sends: bool = False
    pure: bool = False
    elsewhere: bool = False
    idempotent: bool = False
    show_in_stage: bool = True
    timeout_seconds: float | None = None
    shown_bytes: int | None = None
    kept_bytes: int | None = None
    annotations: Mapping[str, Any] = {}
    caution: str = ""
    blocked: str = ""
    must_ask: Callable[[Mapping[str, Any]], str] = never
    question: Callable[[Mapping[str, Any]], ElicitationRequest] | None = None
    scope_of: Callable[[Mapping[str, Any]], str] = never
    allowed_scopes: Collection[str] = ()

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        **options: Unpack[InvokerOptions],
    ) -> Self:
        """A tool from a typed function, sync or async; a sync one runs in a thread.

        The signature, annotations and defaults give the schema, the docstring the descriptions; the
        rest are the options of the decorator `invoker`, over those that the function is marked
        with. `InvokerInvalid` if a parameter has no JSON Schema.

        >>> def add(a: int, b: int = 2) -> int:
        ...     "Add two numbers."
        ...     return a + b
        >>> invoker = Invoker.from_function(add)
        >>> invoker.name, invoker.description, sorted(invoker.arguments_schema["properties"])
        ('add', 'Add two numbers.', ['a', 'b'])
        """
        from copy import deepcopy

        marks: dict[str, Any] = {**getattr(function, _MARKS, {}), **options}
        given = name or marks.pop("name", None) or getattr(innermost(function), "__name__", "")
        name, aliases = _read_names(given, marks.pop("aliases", ()))
        signature = _read_signature(function)
        formats = (marks.pop("llm_format", None), marks.pop("gui_format", None))
        marked = marks.pop("description", None)

        def check(arguments: str) -> None:
            signature.bind(arguments, {"context": None})

        async def invoke(arguments: str, context: InvocationContext) -> InvocationOutput:
            bound = signature.bind(arguments, {"context": context})
            return await _call(lambda: function(*bound.args, **bound.kwargs), function, formats)

        return cls(
            name=name,
            description=next(
                text for text in (description, marked, signature.description) if text is not None
            ),
            arguments_schema=deepcopy(signature.schema),
            invoke=invoke,
            check=check,
            aliases=aliases,
            **marks,
        )

    @classmethod
    def from_declaration(
        cls, name: str, schema: Mapping[str, Any], *, description: str = ""
    ) -> Self:
        """A tool that runs elsewhere: the turn ends when the model calls it.

        The name is offered as it is, and neither it nor the schema is checked.
        """
        return cls(
            name=name,
            description=description,
            arguments_schema=dict(schema),
            invoke=_refuse_to_run,
            elsewhere=True,
        )

    @classmethod
    def from_schema(
        cls,
        name: str,
        schema: Mapping[str, Any],
        function: Callable[..., Any],
        *,
        description: str = "",
        **options: Unpack[InvokerOptions],
    ) -> Self:
        """A tool from a JSON Schema (2020-12) and a function, for tools that come from elsewhere.

        The function is called with the arguments by their names, once they fit the schema; one of
        its parameters may be annotated as an `InvocationContext`. `InvokerInvalid` if the schema is
        invalid.

        >>> schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        >>> Invoker.from_schema("double", schema, lambda a: 2 * a).name
        'double'
        """
        marks: dict[str, Any] = dict(options)
        name, aliases = _read_names(name, marks.pop("aliases", ()))
        formats = (marks.pop("llm_format", None), marks.pop("gui_format", None))
        from vibe_llms.invocation.checks import SchemaCheck

        check = SchemaCheck(schema)
        injected = _find_context(function)

        async def invoke(arguments: str, context: InvocationContext) -> InvocationOutput:
            values = {**await check.run(arguments), **dict.fromkeys(injected, context)}
            return await _call(lambda: function(**values), function, formats)

        return cls(
            name=name,
            description=description,
            arguments_schema=dict(schema),
            invoke=invoke,
            check=check,
            aliases=aliases,
            **marks,
        )


async def _refuse_to_run(_: str, context: InvocationContext) -> InvocationOutput:
    raise InvokerInvalid(f"the tool {context.invocation.name!r} does not run here")


class InvokerOptions(TypedDict, total=False):
    """Options of a function besides its name and description; see `invoker`."""

    aliases: Sequence[str]
    approval: Approval
    outside: bool
    sends: bool
    pure: bool
    idempotent: bool
    show_in_stage: bool
    timeout_seconds: float
    shown_bytes: int
    kept_bytes: int
    llm_format: Rendering
    gui_format: Rendering


def invoker(
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Unpack[InvokerOptions],
) -> Callable[[F], F]:
    """Mark a function as a tool and set its options; the function itself stays unchanged.

    The options are `aliases`, `approval`, `outside`, `sends`, `pure`, `idempotent`,
    `show_in_stage`, `timeout_seconds`, `shown_bytes` and `kept_bytes` as an `Invoker` has them, and
    `llm_format` and `gui_format`, which render what the function returns for the model and for
    people: a template such as `"{city}: {degrees}°"`, or a function of the value.

    >>> @invoker(aliases=["sum"], llm_format="the sum is {0}".format)
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> add(1, 2), Invoker.from_function(add).aliases
    (3, ('sum',))
    """
    given = {"name": name, "description": description, **options}

    def mark(function: F) -> F:
        setattr(function, _MARKS, {key: value for key, value in given.items() if value is not None})
        return function

    return mark


def _read_signature(function: Callable[..., Any]) -> Signature:
    """The signature of a function, cached: making a schema takes longer than most calls."""
    # Each lookup of a method creates a new object; its function and instance stay the same.
    bound = inspect.ismethod(function)
    key: Callable[..., Any] = getattr(function, "__func__", function) if bound else function
    try:
        known = _SIGNATURES.setdefault(key, {})
    except TypeError:
        # It is not hashable, or cannot be weakly referenced.
        known = {}
    if bound not in known:
        known[bound] = Signature(function, {InvocationContext: "context"})
    return known[bound]


def normalize_name(name: str) -> str:
    """The name of a tool: characters that models do not accept become underscores.

    `InvokerInvalid` if no letter or digit is left, or the name is too long.

    >>> normalize_name("look up!"), normalize_name("2nd.try"), normalize_name("time/now")
    ('look_up_', '_2nd_try', 'time/now')
    """
    ensemble, slash, tool = name.rpartition("/")
    head, tail = (ensemble, tool) if ensemble and tool else (name, "")
    normal = re.sub(r"[^A-Za-z0-9_-]", "_", head)
    normal = normal if normal[:1].isalpha() else f"_{normal.removeprefix('_')}"
    if tail:
        normal += slash + re.sub(r"[^A-Za-z0-9_.-]", "_", tail)
    if (
        name == "<lambda>"
        or not re.search("[A-Za-z0-9]", normal)
        or not re.fullmatch(_NAME, normal)
    ):
        raise InvokerInvalid(
            f"{name!r} is not a valid tool name; use letters, digits, _ and -, at most 64, or "
            "set one: Invoker.from_function(function, name=...)"
        )
    return normal


def _read_names(name: object, aliases: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """The name and the aliases of a tool, without duplicates."""
    normal = normalize_name(str(name))
    others = dict.fromkeys(map(normalize_name, aliases))
    others.pop(normal, None)
    return normal, tuple(others)


def _find_context(function: Callable[..., Any]) -> list[str]:
    """The parameters that receive the context of a call."""
    try:
        hints = get_type_hints(function)
    except (TypeError, NameError):
        return []
    return [name for name, hint in hints.items() if hint is InvocationContext]


async def _call(
    call: Callable[[], Any],
    function: Callable[..., Any],
    formats: tuple[Rendering | None, Rendering | None],
) -> InvocationOutput:
    """The result of a function; one that is not async is called and rendered in a thread."""
    if inspect.iscoroutinefunction(function):
        return produce_output(await call(), *formats)

    def work() -> Any:
        value = call()
        return value if inspect.isawaitable(value) else produce_output(value, *formats)

    value = await run_in_thread(work)
    return produce_output(await value, *formats) if inspect.isawaitable(value) else value


def gather_invokers(
    tools: Iterable[Invoker | Callable[..., Any]],
) -> dict[str, Invoker]:
    """Tools by name; functions become invokers. `InvokerInvalid` if two have the same name."""
    gathered: dict[str, Invoker] = {}
    taken: set[str] = set()
    for tool in tools:
        invoker = tool if isinstance(tool, Invoker) else Invoker.from_function(tool)
        for name in (invoker.name, *invoker.aliases):
            if name in taken:
                raise InvokerInvalid(
                    f"two tools are called {name!r} (special characters in names of functions "
                    "become underscores); rename one"
                )
            taken.add(name)
        gathered[invoker.name] = invoker
    return gathered


def find_invoker(invokers: Mapping[str, Invoker], name: str) -> Invoker | None:
    """The tool that a model means: by name, alias, or a different spelling of one.

    Case, and characters other than letters and digits, do not matter. `None` if no tool or more
    than one matches.
    """
    if (exact := invokers.get(name)) is not None:
        return exact
    for spell in (str, _spell):
        found = [
            invoker
            for invoker in invokers.values()
            if spell(name) in map(spell, (invoker.name, *invoker.aliases))
        ]
        if len(found) == 1:
            return found[0]
    return None


def name_tools(names: Iterable[str]) -> str:
    """The tools that are offered, in the words of an error.

    >>> name_tools(["add", "clock"]), name_tools([])
    ('the tools are add, clock', 'no tools are offered')
    """
    known = ", ".join(names)
    return f"the tools are {known}" if known else "no tools are offered"


def _spell(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")


def describe(invoker: Invoker) -> Mapping[str, Any]:
    """Name, description and schema as plain data."""
    return {
        "name": invoker.name,
        "description": invoker.description,
        "arguments_schema": invoker.arguments_schema,
    }


def export(invoker: Invoker) -> dict[str, Any]:
    """The tool in the common exchange format: an object of type `function`."""
    return {
        "type": "function",
        "function": {
            "name": invoker.name,
            "description": invoker.description,
            "parameters": invoker.arguments_schema,
        },
    }
