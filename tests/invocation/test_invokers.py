"""Tools: made from functions, called with what a model sent, their returns as contents."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from vibe_llms.exceptions import InvokerInvalid
from vibe_llms.invocation.invokers import (
    InvocationContext,
    Invoker,
    describe,
    gather_invokers,
)
from vibe_llms.invocation.schemata import ArgumentsInvalid
from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.messages.contents import (
    text_of,
)


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
    return text_of(await invoker.invoke(arguments, context))


async def test_functions_of_every_kind_are_called() -> None:
    assert await call(add, '{"a": 3}') == "5"
    assert await call(add_later, '{"a": 3}') == "4"
    assert await call(Adder(), '{"a": 3}', name="adder") == "4"
    assert await call(functools.partial(add, b=7), '{"a": 3}') == "10"
    assert await call(functools.partial(add_later, 5)) == "6"
    assert await call(lambda a: a, '{"a": "x"}', name="identity") == "x"


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
    "name", ["1a", "a b", "a.b", "a/b/c", "/a", "a/", "A" * 65, "a\n", "\u00e9", "-a"]
)
def test_what_is_no_name_for_a_tool(name: str) -> None:
    with pytest.raises(InvokerInvalid, match="is no name for a tool"):
        Invoker.from_function(add, name=name)


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
