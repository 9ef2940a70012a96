"""Tools: made from functions, called with what a model sent, their returns as contents."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from vibe_llms.base.exceptions import ArgumentsInvalid, InvokerInvalid
from vibe_llms.invocation import schemata
from vibe_llms.invocation.invokers import (
    InvocationContext,
    Invoker,
    describe,
    export,
    find_invoker,
    gather_invokers,
    invoker,
)
from vibe_llms.messages.canisters import InvocationCanister


def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


async def add_later(a: int) -> int:
    await asyncio.sleep(0)
    return a + 1


class Adder:
    async def __call__(self, a: int) -> int:
        return a + 1


async def call(function: Any, arguments: str = "{}", **options: Any) -> str:
    invoker = (
        function if isinstance(function, Invoker) else Invoker.from_function(function, **options)
    )
    invocation = InvocationCanister(name=invoker.name, arguments=arguments)
    context = InvocationContext("talk", invocation, lambda *args, **kwargs: None)
    return (await invoker.invoke(arguments, context)).text


async def test_functions_of_every_kind_are_called() -> None:
    assert await call(add, '{"a": 3}') == "5"
    assert await call(add_later, '{"a": 3}') == "4"
    assert await call(Adder(), '{"a": 3}', name="adder") == "4"
    assert await call(functools.partial(add, b=7), '{"a": 3}') == "10"
    assert await call(functools.partial(add_later, 5)) == "6"
    assert await call(lambda a: a, '{"a": "x"}', name="identity") == "x"


def test_a_tool_is_allowed_returns_trusted_text_and_sends_nothing_by_default() -> None:
    plain = Invoker.from_function(add)
    assert (plain.approval, plain.outside, plain.sends, plain.pure) == ("allow", *[False] * 3)


async def test_a_blocking_function_runs_in_a_thread_of_its_own_with_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    seen: list[object] = []

    def look() -> None:
        seen.extend([threading.current_thread(), variable.get()])

    await call(look)
    assert seen[0] is not threading.current_thread()
    assert isinstance(seen[0], threading.Thread)
    assert seen[0].daemon
    assert seen[1] == "set"


async def test_a_tool_may_ask_for_its_context() -> None:
    def look(context: InvocationContext, what: str) -> str:
        return f"{context.conversation} {context.invocation.name} {what}"

    assert await call(look, '{"what": "x"}') == "talk look x"


async def test_arguments_that_do_not_fit_are_not_run() -> None:
    with pytest.raises(ArgumentsInvalid, match="a: Input should be a valid integer"):
        await call(add, '{"a": "3"}')


VALID = '{"a": 12, "b": -3}'


async def test_no_prefix_of_valid_arguments_ever_runs() -> None:
    ran: list[int] = []

    def note(a: int = 0, b: int = 0) -> None:
        ran.append(a)

    invoker = Invoker.from_function(note)
    for end in range(1, len(VALID)):
        with pytest.raises(ArgumentsInvalid):
            await call(invoker, VALID[:end])
    assert ran == []
    await call(invoker, VALID)
    assert ran == [12]


@pytest.mark.parametrize(
    "name", ["add", "_x", "a-b", "ensemble/tool.v2", "A" * 64, "a/" + "b" * 128]
)
def test_names_of_tools(name: str) -> None:
    assert Invoker.from_function(add, name=name).name == name


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("get weather", "get_weather"),
        ("weather.now", "weather_now"),
        ("1a", "_1a"),
        ("-a", "_-a"),
        ("m\u00e9t\u00e9o", "m_t_o"),
        ("a/b/c", "a_b/c"),
        ("/a", "_a"),
        ("a/", "a_"),
        ("a/b c.d", "a/b_c.d"),
        ("a\n", "a_"),
        ("C++", "C__"),
    ],
)
def test_special_characters_in_names_become_underscores(name: str, normal: str) -> None:
    one = Invoker.from_function(add, name=name, aliases=[f"{name}!", f"{name}?", "plus"])
    alias = Invoker.from_function(add, name=f"{name}!").name
    assert (one.name, one.aliases) == (normal, (alias, "plus"))
    assert Invoker.from_schema(name, {"type": "object"}, add).name == normal


@pytest.mark.parametrize("name", ["", "A" * 65, "\u5929\u6c17", "/", "+-*", "a/" + "b" * 129])
def test_an_invalid_tool_name_is_refused(name: str) -> None:
    with pytest.raises(InvokerInvalid, match="is not a valid tool name"):
        Invoker.from_schema(name, {"type": "object"}, add)


def test_names_that_become_one_are_reported() -> None:
    tools = [Invoker.from_function(add, name=name) for name in ("get weather", "get.weather")]
    with pytest.raises(InvokerInvalid, match=r"two tools are called 'get_weather'.*underscores"):
        gather_invokers(tools)
    other = Invoker.from_function(add, name="other", aliases=["get weather"])
    with pytest.raises(InvokerInvalid, match="two tools are called 'get_weather'"):
        gather_invokers([tools[0], other])


@pytest.mark.parametrize("function", [lambda a: a, Adder(), functools.partial(Adder())])
def test_a_tool_without_a_name_has_to_be_given_one(function: Callable[..., Any]) -> None:
    with pytest.raises(InvokerInvalid, match=r"name=\.\.\."):
        Invoker.from_function(function)


def test_the_description_can_be_given() -> None:
    assert Invoker.from_function(add).description == "Add two numbers."
    assert Invoker.from_function(add, description="Sum.").description == "Sum."
    assert Invoker.from_function(functools.partial(add, 1)).description == "Add two numbers."


def test_tools_are_gathered_by_their_names_and_no_two_share_one() -> None:
    other = Invoker.from_function(add, name="other")
    gathered = gather_invokers([add, other])
    assert list(gathered) == ["add", "other"]
    assert gathered["other"] is other
    with pytest.raises(InvokerInvalid, match="two tools are called 'add'"):
        gather_invokers([add, Invoker.from_function(add_later, name="add")])


def test_a_tool_is_described_as_plain_data() -> None:
    described = describe(Invoker.from_function(add))
    assert described["name"] == "add"
    assert described["description"] == "Add two numbers."
    assert set(described["arguments_schema"]["properties"]) == {"a", "b"}


@invoker(
    aliases=["plus", "sum-up"],
    approval="ask",
    llm_format="the sum is {0}".format,
    gui_format="Σ = {0}".format,
)
def add_marked(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_function_can_be_marked_and_stays_the_function_that_it_is() -> None:
    assert add_marked(1, 2) == 3
    one = Invoker.from_function(add_marked)
    assert (one.name, one.aliases, one.approval) == ("add_marked", ("plus", "sum-up"), "ask")
    assert await call(one, '{"a": 1, "b": 2}') == "the sum is 3"
    other = Invoker.from_function(add_marked, name="other", approval="allow")
    assert (other.name, other.aliases, other.approval) == ("other", ("plus", "sum-up"), "allow")


def test_marks_give_a_name_and_a_description() -> None:
    marked = invoker(name="total", description="Sum.")(functools.partial(add))
    one = Invoker.from_function(marked)
    assert (one.name, one.description) == ("total", "Sum.")
    assert Invoker.from_function(add, aliases=["a b"]).aliases == ("a_b",)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("add_marked", "add_marked"),
        ("plus", "add_marked"),
        ("Add-Marked", "add_marked"),
        ("SUM_UP", "add_marked"),
        ("home/add", "home/add"),
        ("home__add", "home/add"),
        ("add", None),
        ("", None),
    ],
)
def test_a_tool_is_found_by_what_a_model_calls_it(name: str, meant: str | None) -> None:
    tools = gather_invokers([add_marked, Invoker.from_function(add, name="home/add")])
    found = find_invoker(tools, name)
    assert (found.name if found else None) == meant


def test_an_ambiguous_spelling_finds_no_tool() -> None:
    tools = gather_invokers(
        [Invoker.from_function(add, name="a-b"), Invoker.from_function(add, name="a_b")]
    )
    assert find_invoker(tools, "A B") is None
    assert find_invoker(tools, "a-b") is tools["a-b"]


def test_aliases_are_names_too() -> None:
    with pytest.raises(InvokerInvalid, match="two tools are called 'plus'"):
        gather_invokers([add_marked, Invoker.from_function(add, name="plus")])


def test_checking_arguments_runs_nothing() -> None:
    def fail(a: int) -> None:
        raise AssertionError

    one = Invoker.from_function(fail)
    one.check('{"a": 1}')
    with pytest.raises(ArgumentsInvalid):
        one.check('{"a": "1"}')


def test_a_tool_is_exported_in_the_form_that_most_programs_exchange() -> None:
    assert export(Invoker.from_function(add)) == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": Invoker.from_function(add).arguments_schema,
        },
    }


async def test_the_schema_of_a_function_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    produce = schemata._produce_schema

    def count(model: Any) -> Any:
        made.append(model)
        return produce(model)

    monkeypatch.setattr(schemata, "_produce_schema", count)

    class Greeter:
        def __init__(self, word: str) -> None:
            self.word = word

        def greet(self, name: str) -> str:
            return f"{self.word} {name}"

    def look(city: str) -> str:
        return city

    first, second = Invoker.from_function(look), Invoker.from_function(look, name="other")
    assert len(made) == 1
    assert first.arguments_schema == second.arguments_schema
    # Changing one changes no other.
    first.arguments_schema["properties"].clear()
    assert Invoker.from_function(look).arguments_schema == second.arguments_schema
    greeters = [Invoker.from_function(Greeter(word).greet) for word in ("Hello", "Bye")]
    assert len(made) == 2
    said = [await call(one, '{"name": "Ada"}') for one in greeters]
    assert said == ["Hello Ada", "Bye Ada"]


def test_a_tool_without_a_hash_is_read_each_time() -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, city: str) -> str:
            return city

    one = Invoker.from_function(Odd(), name="look")
    assert list(one.arguments_schema["properties"]) == ["city"]
