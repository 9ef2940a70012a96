"""`Invoker`: a tool that a model can call, with its name, schema, and function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack, get_type_hints
from weakref import WeakKeyDictionary

from msgspec import Struct

from vibe_llms.base.exceptions import InvokerInvalid
from vibe_llms.invocation.limits import Pause
from vibe_llms.invocation.other_names import OtherNames
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest
from vibe_llms.invocation.results import InvocationOutput, Rendering, produce_output
from vibe_llms.invocation.schemata import Schema, Signature, innermost
from vibe_llms.invocation.threads import run_in_thread
from vibe_llms.messages.canisters import InvocationCanister

_NAME = r"[A-Za-z_][A-Za-z0-9_-]{0,63}(?:/[A-Za-z0-9_.-]{1,128})?"


F = TypeVar("F", bound=Callable[..., Any])
Approval: TypeAlias = Literal["always", "allow", "ask", "deny"]

_MARKS = "__invoker__"
#: Signatures of functions and bound methods, kept for the lifetime of these.
_SIGNATURES: WeakKeyDictionary[Callable[..., Any], dict[bool, Signature]] = WeakKeyDictionary()


def never(_: Mapping[str, Any]) -> str:
    """Return an empty string: the default rule of tools that ignore their arguments."""
    return ""


def skip_check(arguments: str) -> None:
    """Check nothing: for tools that check their arguments only when they run."""


class InvocationContext(Struct, frozen=True):
    """Information for a tool about its call; a parameter with this annotation receives it.

    `report_progress(text, done=…, total=…)` reports progress as events; it may be called from the
    tool's thread. An async tool that asks a person can pause its time limit with a block
    `with context.pause_limit():`. In a run, `ask` asks the user of the run, who may be elsewhere.
    `tainted` is True if untrusted text is in the conversation.
    """

    conversation: str
    invocation: InvocationCanister
    report_progress: Callable[..., None]
    pause_limit: Pause = nullcontext
    ask: Callable[[ElicitationRequest], Awaitable[ElicitationAnswer]] | None = None
    tainted: bool = False


class Invoker(Struct, frozen=True, kw_only=True):
    """A tool. `name` is canonical: bare for functions, `ensemble/tool` for tools of an ensemble.

    `invoke(arguments, context)` receives the arguments as the text that the model sent. It raises
    `ArgumentsInvalid` if the model must fix them; `check` does the same without running the tool. A
    model may also call the tool by its `aliases`, and by its `other_names` if no tool has one of
    them as its name or alias. `approval` decides whether a call runs: `allow`, `deny`, or `ask`.
    `outside` is True if the tool returns untrusted text. `sends` is True if it may send data out:
    then it asks again while untrusted text is in the conversation, unless `approval` is `always`.

    The result of a `pure` tool depends only on its arguments: another call with the same arguments
    in the same conversation gets the first result, and the tool does not run again. An `idempotent`
    tool may run again if a crash left it unknown whether it ran, because twice is the same as once.

    With `show_in_stage` off, clients of the server see that the tool is called, but not its
    arguments, progress, or result.

    `timeout_seconds`, `shown_bytes`, and `kept_bytes` override the limits of `[tools]`.
    `annotations` are its server's statements about it other than name, description, and schema.
    `caution` is shown after the reason when a call needs approval. `blocked` says why the tool does
    not run until a person has reviewed it, regardless of its approval. `must_ask(arguments)`
    returns why a call with these arguments always asks, even if the tool is allowed; empty if it
    need not.

    A tool that runs `elsewhere` is never invoked here. Once the other calls of the reply have their
    results, its call ends the turn with the stop reason `invocations`. The next prompt contains the
    result, as a `ResultCanister` of the call.

    `question(arguments)` is the question of a call to the user. A tool that has one is not invoked,
    because the answer is its result.

    `scope_of(arguments)` names the extent of a remembered approval, such as a host; empty for these
    exact arguments. Calls with a scope in `allowed_scopes` do not ask.
    """

    name: str
    description: str
    arguments_schema: Schema
    invoke: Callable[[str, InvocationContext], Awaitable[InvocationOutput]]
    check: Callable[[str], object] = skip_check
    ensemble: str = ""
    aliases: tuple[str, ...] = ()
    other_names: OtherNames = OtherNames()
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
        """Return a tool from a typed function, sync or async; a sync function runs in a thread.

        The signature, annotations, and defaults give the schema, the docstring the descriptions;
        the options are those of the decorator `invoker` and override the function's marks. Raises
        `InvokerInvalid` if a parameter has no JSON Schema.

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
        """Return a tool that runs elsewhere: the turn ends when the model calls it.

        The name is offered unchanged; neither it nor the schema is checked.
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
        """Return a tool from a JSON Schema (2020-12) and a function, for tools defined elsewhere.

        The function is called with the arguments by name, once they match the schema; one of its
        parameters may be annotated as an `InvocationContext`. Raises `InvokerInvalid` if the schema
        is invalid.

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
    raise InvokerInvalid(f"the tool {context.invocation.name!r} cannot run here")


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
    `show_in_stage`, `timeout_seconds`, `shown_bytes`, and `kept_bytes`, as in `Invoker`, and
    `llm_format` and `gui_format`, which render the function's return value for the model and for
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
    """Return the signature of a function, cached: making a schema takes longer than most calls."""
    # Each lookup of a method creates a new object, but its function and instance stay the same.
    bound = inspect.ismethod(function)
    key: Callable[..., Any] = getattr(function, "__func__", function) if bound else function
    try:
        known = _SIGNATURES.setdefault(key, {})
    except TypeError:
        # The function is not hashable or cannot be weakly referenced.
        known = {}
    if bound not in known:
        known[bound] = Signature(function, {InvocationContext: "context"})
    return known[bound]


def normalize_name(name: str) -> str:
    """Return a valid tool name: characters that models do not accept become underscores.

    Raises `InvokerInvalid` if no letter or digit is left, or the name is too long.

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
    """Return the name and aliases of a tool, without duplicates."""
    normal = normalize_name(str(name))
    others = dict.fromkeys(map(normalize_name, aliases))
    others.pop(normal, None)
    return normal, tuple(others)


def _find_context(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that receive the context of a call."""
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
    """Call a function and render its result; if it is not async, both run in a thread."""
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
    """Return tools by name, with functions as invokers; raises `InvokerInvalid` for duplicates."""
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
    """Return the tool that a model means, by a name of its own or its name in another system.

    Returns None if no tool or more than one matches.
    """
    if (own := find_own(invokers, name)) is not None:
        return own
    spelled = _spell(name)
    found = [one for one in invokers.values() if spelled in map(_spell, one.other_names.names)]
    return found[0] if len(found) == 1 else None


def find_own(invokers: Mapping[str, Invoker], name: str) -> Invoker | None:
    """Return the tool with this name or alias, or a different spelling of one.

    Case, and characters other than letters and digits, do not matter. Returns None if no tool or
    more than one matches.
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
    """List the offered tools for an error message.

    >>> name_tools(["add", "clock"]), name_tools([])
    ('known tools: add, clock', 'no tools are offered')
    """
    known = ", ".join(names)
    return f"known tools: {known}" if known else "no tools are offered"


def _spell(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")


def describe(invoker: Invoker) -> Mapping[str, Any]:
    """Return a tool's name, description, and schema as plain data."""
    return {
        "name": invoker.name,
        "description": invoker.description,
        "arguments_schema": invoker.arguments_schema,
    }


def export(invoker: Invoker) -> dict[str, Any]:
    """Return the tool in the common exchange format: an object of type `function`."""
    return {
        "type": "function",
        "function": {
            "name": invoker.name,
            "description": invoker.description,
            "parameters": invoker.arguments_schema,
        },
    }
