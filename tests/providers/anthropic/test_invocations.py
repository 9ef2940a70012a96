"""Tools as declarations, and their names on the wire and back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.clients import assemble, produce_model
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.invocation.schemata import Schema
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.providers.tool_names import assimilate_names, nativize_name

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}


async def invoke(arguments: str, context: InvocationContext) -> InvocationOutput:
    """What a tool does is irrelevant here."""
    return InvocationOutput(())


def produce_invoker(name: str, description: str = "", schema: Schema = SCHEMA) -> Invoker:
    return Invoker(name=name, description=description, arguments_schema=schema, invoke=invoke)


@pytest.mark.parametrize(
    ("name", "native"),
    [
        ("weather", "weather"),
        ("weather-2_B", "weather-2_B"),
        ("time/now", "time__now"),
        ("a" * 64, "a" * 64),
        ("e/" + "t" * 61, "e__" + "t" * 61),
    ],
)
def test_a_name_that_the_wire_allows_stays_readable(name: str, native: str) -> None:
    assert nativize_name(name) == native


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "a b", "a__b", "a_/b", "a/_b", "a/b/c", "/a", "a/", "été", "\ud800", "a" * 65,
        "e/" + "t" * 62, "😀" * 100, "a.b", "a\n",
    ],
)  # fmt: skip
def test_any_other_name_gets_one_of_its_own_with_a_hash(name: str) -> None:
    native = nativize_name(name)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", native)
    assert re.search(r"_[0-9a-f]{12}\Z", native)


def test_names_that_look_alike_on_the_wire_stay_apart() -> None:
    names = [
        "a/b",
        "a__b",
        "a b",
        "a.b",
        "a_b",
        "a/b/c",
        "a__b/c",
        "a/b__c",
        "a_/b",
        "a/_b",
        "a///b",
    ]
    assert len({nativize_name(name) for name in names}) == len(names)


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab_/- é", max_size=8), unique=True, max_size=30))
def test_no_two_names_become_one(names: list[str]) -> None:
    natives = [nativize_name(name) for name in names]
    assert len(set(natives)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", native) for native in natives)


def test_names_come_back_from_the_wire_for_the_tools_that_are_offered() -> None:
    invokers = [produce_invoker("time/now"), produce_invoker("a b")]
    names = assimilate_names(invokers)
    assert names["time__now"] == "time/now"
    assert sorted(names.values()) == ["a b", "time/now"]


async def test_tools_are_declared_in_their_order_and_accepted() -> None:
    model = await produce_model(cache="off")
    invokers = [produce_invoker("time/now", "Tell the \ud800 time."), produce_invoker("plain")]
    members, _ = await assemble(model, [UserCanister.from_text("Hi")], *invokers)
    assert members["tools"] == [
        {"name": "time__now", "description": "Tell the \ufffd time.", "input_schema": SCHEMA},
        {"name": "plain", "input_schema": SCHEMA},
    ]


async def test_a_foreign_schema_without_a_type_is_accepted() -> None:
    model = await produce_model(cache="off")
    invoker = produce_invoker("any", schema={})
    members, _ = await assemble(model, [UserCanister.from_text("Hi")], invoker)
    assert members["tools"] == [
        {"name": "any", "input_schema": {"type": "object", "properties": {}}}
    ]
