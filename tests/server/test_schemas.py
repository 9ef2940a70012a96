"""Schemas of clients: references are written out, and what could take long is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from vibe_llms.conversations.outputs import OutputMismatch, produce_form
from vibe_llms.server.failures import Rejected
from vibe_llms.server.schemas import read_schema


class Place(BaseModel):
    name: str
    pattern: int | None = None


class Person(BaseModel):
    born: Place
    died: Place | None = None
    places: list[Place] = []


def read(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return read_schema(schema, "output")


def test_references_are_written_out() -> None:
    schema = read(Person.model_json_schema())
    assert "$ref" not in str(schema)
    form = produce_form(schema)
    ada = '{"born": {"name": "London"}, "died": null, "places": [{"name": "Paris", "pattern": 1}]}'
    value = form.read(ada)
    assert isinstance(value, dict)
    assert Person.model_validate(value) == Person.model_validate_json(ada)
    with pytest.raises(OutputMismatch, match=r"places.0.name: 1 is not of type 'string'"):
        form.read('{"born": {"name": "London"}, "places": [{"name": 1}]}')


@pytest.mark.parametrize("key", ["$defs", "definitions"])
def test_what_stands_beside_a_reference_counts_too(key: str) -> None:
    short = {"type": "string", "maxLength": 3}
    schema = {"$ref": f"#/{key}/short", "minLength": 2, key: {"short": short}}
    form = produce_form(read(schema))
    assert form.read('{"value": "abc"}') == "abc"
    for text in ("a", "abcd"):
        with pytest.raises(OutputMismatch):
            form.read(f'{{"value": "{text}"}}')
    described = {"$ref": f"#/{key}/short", "description": "A name", key: {"short": short}}
    assert read(described) == {**short, "description": "A name"}


def explode(depth: int) -> Mapping[str, Any]:
    """A schema of a few lines that stands for 2 ** depth schemas."""
    twice = {
        str(number): {"allOf": [{"$ref": f"#/$defs/{number + 1}"}] * 2} for number in range(depth)
    }
    return {"$ref": "#/$defs/0", "$defs": {**twice, str(depth): {"type": "string"}}}


def nest(depth: int) -> dict[str, Any]:
    return {"not": nest(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string", "pattern": "^(a+)+$"}, "'pattern' is not supported"),
        ({"properties": {"a": {"items": {"patternProperties": {}}}}}, "'patternProperties' is not"),
        ({"anyOf": [{"$dynamicRef": "#x"}]}, "'\\$dynamicRef' is not"),
        ({"$ref": "#"}, "'#' not found"),
        ({"$ref": "http://127.0.0.1/x"}, "' not found in"),
        ({"$ref": 5}, "5 not found"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "contains itself"),
        (explode(30), "too large"),
        (nest(60), "too large"),
    ],
)
def test_what_could_take_long_is_refused(schema: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        read(schema)


def test_words_of_values_are_no_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {"pattern": {"const": {"$ref": "#", "pattern": "("}}, "$ref": True},
        "default": {"pattern": "x"},
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    }
    assert read(schema) == {name: one for name, one in schema.items() if name != "$schema"}


@pytest.mark.parametrize("schema", [{"allOf": 5}, {"properties": ["a"]}, {"not": 1}])
def test_what_is_no_schema_is_left_to_be_refused(schema: Mapping[str, Any]) -> None:
    assert read(schema) == schema
