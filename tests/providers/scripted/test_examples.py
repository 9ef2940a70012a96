"""Values that are made to fit a schema, from what was said."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from vibe_llms.providers.scripted.examples import Examples

ENDLESS = {"$ref": "#/$defs/endless"}
CITY = {"city": {"type": "string"}, "degrees": {"type": "number"}}


class Node(BaseModel):
    """A type that contains itself."""

    name: str
    next: Node | None
    others: list[Node]


@pytest.mark.parametrize(
    ("schema", "words", "value"),
    [
        (
            {"type": "object", "properties": CITY, "required": ["city", "degrees"]},
            'It is 21.5 in "Rome".',
            {"city": "Rome", "degrees": 21.5},
        ),
        ({"type": "object", "properties": CITY, "required": ["city"]}, "x", {"city": "rest"}),
        ({"type": "object", "properties": CITY}, "nothing", {}),
        ({"type": "integer", "minimum": 7}, "no number", 7),
        ({"type": "integer"}, "3.7", 3),
        ({"type": ["string", "null"]}, "nothing", None),
        ({"type": ["string", "null"]}, "'this'", "this"),
        ({"enum": ["a", "b"]}, "b", "a"),
        ({"const": 5}, "6", 5),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "4", 4),
        ({"type": "array", "items": {"type": "integer"}}, "1 2", []),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "1 2", [1, 2]),
        ({"type": "boolean"}, "no", True),
        ({"type": "null"}, "no", None),
        ({"$ref": "#/$defs/lost"}, "no", "rest"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no", "rest"),
    ],
)
def test_a_value_is_taken_from_the_words_or_made_up(
    schema: dict[str, Any], words: str, value: object
) -> None:
    made = Examples(schema, words, "rest").produce()
    assert made == value
    if "$ref" not in schema:
        jsonschema.validate(made, schema)


def test_a_type_that_contains_itself_has_a_finite_value() -> None:
    made = Examples(Node.model_json_schema(), "a 'leaf'", "rest").produce()
    assert Node.model_validate(made) == Node(name="leaf", next=None, others=[])


@pytest.mark.parametrize(
    "form",
    [
        {"type": "object", "properties": {"a": ENDLESS, "b": ENDLESS}, "required": ["a", "b"]},
        {"type": "array", "items": ENDLESS, "minItems": 10**9},
        {"anyOf": [ENDLESS]},
    ],
)
def test_a_schema_that_no_finite_value_fits_ends(form: dict[str, Any]) -> None:
    schema = {**form, "$defs": {"endless": form}}
    made = Examples(schema, "no", "rest").produce()
    assert len(json.dumps(made)) < 1_000_000
