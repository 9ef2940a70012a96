"""Checks against schemas always end: most keywords are linear, and all count their steps."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from vibe_llms.base.exceptions import ArgumentsInvalid
from vibe_llms.conversations.outputs import OutputMismatch, produce_form
from vibe_llms.invocation import keywords
from vibe_llms.invocation.checks import SchemaCheck
from vibe_llms.invocation.keywords import CheckTooLong, SchemaInapplicable, SchemaValidator


def listed(**items: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "array", **items}}}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


OBJECTS = [{"a": number, "b": [str(number)]} for number in range(3000)]
#: Values that fit their schema, and have many items.
LONG: Mapping[str, tuple[dict[str, Any], Any]] = {
    "unique objects": (listed(uniqueItems=True), OBJECTS),
    "unique items of many kinds": (
        listed(uniqueItems=True),
        [one for number in range(1000) for one in (number, str(number), [number], {"a": number})],
    ),
    "items": (listed(items={"type": "object", "required": ["a"]}), OBJECTS),
    "contains": (listed(contains={"const": OBJECTS[-1]}), OBJECTS),
    "unevaluated items": (
        listed(items={"type": "object"}, unevaluatedItems=False), OBJECTS[:1000]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_a_long_value_is_checked_in_steps_that_grow_with_its_length(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, items = LONG[name]
    monkeypatch.setattr(keywords, "MOST_STEPS", 0)
    with keywords.limit_steps(30 * len(items)):
        assert SchemaValidator(schema, expressions="all").list_problems({"a": items}) == []


#: Schemas and values whose check takes exponential or quadratic time elsewhere.
ENDLESS: Mapping[str, tuple[dict[str, Any], Any]] = {
    "branches that contain themselves": (
        {
            "$defs": {
                "x": {"anyOf": [{"properties": {"a": {"$ref": "#/$defs/x"}}, "type": "object"}] * 2}
            },
            "properties": {"a": {"$ref": "#/$defs/x"}},
        },
        nested(60),
    ),
    "unevaluated in unevaluated": (
        {
            "$defs": {
                "x": {
                    "allOf": [{"properties": {"a": {"$ref": "#/$defs/x"}}}] * 2,
                    "unevaluatedProperties": False,
                }
            },
            "$ref": "#/$defs/x",
        },
        nested(40),
    ),
    "long choices for many items": (
        listed(items={"enum": [[number] for number in range(3000)]}), [[-1]] * 3000
    ),
    "properties for many items": (
        listed(items={"properties": {f"p{number}": {} for number in range(3000)}}), [{}] * 3000
    ),
    "choices of one kind for many items": (listed(items={"enum": [None] * 20_000}), [1] * 100),
    "errors that quote much": (listed(items={"const": "x" * 1_000_000}), [1] * 50),
    "errors in branches": (listed(anyOf=[{"allOf": [{"not": {}}] * 600}]), ["x" * 100_000]),
}  # fmt: skip
#: Schemas that cannot be applied to these values.
INAPPLICABLE: Sequence[tuple[dict[str, Any], Any]] = [
    ({"multipleOf": 0}, 3),
    ({"multipleOf": 0.5}, 10**400),
    ({"$ref": "#/anyOf/x", "anyOf": []}, 1),
    ({"$id": "http://[a", "$ref": "b"}, 1),
    ({"$ref": "#/nowhere"}, 1),
    ({"type": "array", "items": {"type": "unknown"}}, [1]),
    ({"$defs": {"x": {"$ref": "#/$defs/x"}}, "$ref": "#/$defs/x"}, 1),
]


@pytest.mark.parametrize(("schema", "value"), INAPPLICABLE)
def test_a_schema_that_cannot_be_applied_is_one_error(schema: dict[str, Any], value: Any) -> None:
    with pytest.raises(SchemaInapplicable):
        SchemaValidator(schema, expressions="all").list_problems(value)


def test_members_that_are_compared_with_each_other_count() -> None:
    schema = {"additionalProperties": {}, "unevaluatedProperties": False}
    with keywords.limit_steps(20_000), pytest.raises(CheckTooLong):
        SchemaValidator(schema, expressions="all").list_problems(
            dict.fromkeys(map(str, range(3000)))
        )


def test_what_a_model_answers_may_be_too_large_for_its_schema() -> None:
    form = produce_form({"type": "object", "properties": {"a": {"multipleOf": 0.5}}})
    with pytest.raises(OutputMismatch, match="cannot be applied"):
        form.decode('{"a": 1%s}' % ("0" * 400))


def test_an_error_quotes_no_more_than_a_model_reads() -> None:
    schema = {"const": "x" * 50_000}
    ((_, message),) = SchemaValidator(schema, expressions="all").list_problems("y")
    assert len(message) <= 1_000


def test_many_numbers_of_one_hash_are_compared_in_linear_time() -> None:
    collisions = [number * (2**61 - 1) for number in range(1, 5_000)]
    keys = {keywords._freeze(one, keywords._Meter(1)) for one in collisions}
    assert len({hash(one) for one in collisions}) == 1
    assert len({hash(one) for one in keys}) > 4_900


@pytest.mark.parametrize("name", ENDLESS)
async def test_a_check_without_end_ends(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema, value = ENDLESS[name]
    given = value if isinstance(value, dict) else {"a": value}
    with keywords.limit_steps(20_000):
        with pytest.raises(CheckTooLong):
            SchemaValidator(schema, expressions="all").list_problems(given)
        arguments = json.dumps(given)
        with pytest.raises(ArgumentsInvalid, match="too long to check"):
            SchemaCheck(schema)(arguments)
        # The author of a foreign schema has to check.
        assert SchemaCheck(schema, trusted=False)(arguments) == given
        form = produce_form({"type": "object", **schema})
        with pytest.raises(OutputMismatch, match="too long to check"):
            form.read(arguments)


async def test_a_check_of_many_steps_leaves_the_event_loop() -> None:
    places: list[bool] = []
    check, main = SchemaCheck(LONG["unique objects"][0]), threading.main_thread()
    real = SchemaValidator.list_problems

    def watched(one: SchemaValidator, value: Any) -> Any:
        found = real(one, value)
        places.append(threading.current_thread() is main)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SchemaValidator, "list_problems", watched)
        assert await check.run('{"a": [1, 2]}') == {"a": [1, 2]}
        assert await check.run(json.dumps({"a": OBJECTS})) == {"a": OBJECTS}
        form = produce_form(LONG["unique objects"][0])
        assert await form.run(json.dumps({"a": OBJECTS})) == {"a": OBJECTS}
    assert places == [True, False, False]
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "items",
    [
        [1, 1.0], [True, 1], [0, False], [None, None], [[1], [True]], [{"a": 1}, {"a": 1.0}],
        [{"a": [1, {}]}, {"a": [1, {}]}], ["1", 1], [[], {}], [[[1, 2]], [[2, 1]]],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [-0.0, 0], [10**30, 1e30], ["a", "a"],
    ],
)  # fmt: skip
def test_unique_items_and_choices_are_those_of_json_schema(items: list[Any]) -> None:
    first, second = items
    for schema, value in (
        ({"uniqueItems": True}, items),
        ({"enum": [first, "x"]}, second),
        ({"const": first}, second),
    ):
        known = [*Draft202012Validator(schema).iter_errors(value)]
        assert bool(SchemaValidator(schema, expressions="all").list_problems(value)) == bool(
            known
        ), (schema, value)


EVIL = "(a+)+$"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": EVIL}}},
        {"patternProperties": {EVIL: False}},
        {"patternProperties": {EVIL: False}, "additionalProperties": True},
        {"propertyNames": {"anyOf": [{"pattern": EVIL}, True]}},
    ],
)
def test_expressions_are_matched_in_linear_time(schema: dict[str, Any]) -> None:
    text = "a" * 5000 + "!"
    value = {"a": text} if "properties" in schema else {text: 1}
    found = SchemaValidator(schema, expressions="all").list_problems(value)
    assert bool(found) == ("properties" in schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(?=a)(a+)+$"},
        {"patternProperties": {"^(?=a)(a+)+$": False}},
        {"patternProperties": {"^(?=a)(a+)+$": {}}, "additionalProperties": False},
    ],
)
def test_an_expression_that_may_take_for_ever_is_applied_for_a_trusted_author_only(
    schema: dict[str, Any],
) -> None:
    value = "b" if "pattern" in schema else {"b": 1}
    text = "a" * 60 + "b"
    for given in (value, text if "pattern" in schema else {text: 1}):
        assert SchemaValidator(schema, expressions="linear").list_problems(given) == []
    kept = "patternProperties" in schema and "additionalProperties" not in schema
    assert bool(SchemaValidator(schema, expressions="all").list_problems(value)) != kept


def test_expressions_and_names_mean_what_they_meant() -> None:
    schema = {
        "properties": {"known": {"pattern": "^[a-z]+$"}, "ahead": {"pattern": "^(?!x)"}},
        "patternProperties": {"^n_": {"type": "integer"}},
        "additionalProperties": False,
    }
    value = {"known": "A", "ahead": "xy", "n_a": 1, "n_b": "2", "other": 1}
    known = [*Draft202012Validator(schema).iter_errors(value)]
    found = SchemaValidator(schema, expressions="all").list_problems(value)
    places = [[*path] for path, _ in found]
    assert sorted(places, key=str) == sorted(([*one.absolute_path] for one in known), key=str)


@pytest.mark.parametrize("place", ["top", "part", "reference", "member"])
def test_a_part_that_names_another_version_is_checked_by_the_same_rules(place: str) -> None:
    """jsonschema would take the rules of that version, with its expressions."""
    old = {"$schema": "http://json-schema.org/draft-07/schema#"}
    inner: dict[str, Any] = {"type": "string", "pattern": "^b"}
    schema: dict[str, Any] = {"properties": {"a": inner}}
    match place:
        case "top":
            schema = {**old, **schema}
        case "part":
            schema["properties"]["a"] = {**old, **inner}
        case "member":
            schema["default"] = {**old, **inner}
            schema["properties"]["a"] = {"$ref": "#/default"}
        case _:
            schema = {**old, "$defs": {"x": schema}, "properties": {"b": {"$ref": "#"}, "a": inner}}
    value = {"a": "a", "b": {"a": "a"}}
    assert SchemaValidator(schema, expressions="none").list_problems(value) == []
    assert SchemaValidator(schema, expressions="all").list_problems(value)
