"""Forms of servers: read from their schema, answered by values or by what a person types."""

from __future__ import annotations

from typing import Any

import pytest

from vibe_llms.base.exceptions import AnswerInvalid
from vibe_llms.invocation.questions import (
    ElicitationField,
    ElicitationRequest,
    read_fields,
    write_form,
)

COLOURS = (("r", "Red"), ("g", "Green"))


def field(schema: dict[str, Any]) -> ElicitationField:
    (one,) = read_fields({"type": "object", "properties": {"a": schema}})
    return one


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"type": "string"}, ElicitationField(name="a")),
        (
            {"type": "string", "minLength": 1, "maxLength": 3, "format": "email", "title": "A"},
            ElicitationField(name="a", title="A", least=1, most=3, format="email"),
        ),
        (
            {"type": "integer", "minimum": 0, "maximum": 9, "default": 5},
            ElicitationField(name="a", kind="integer", least=0, most=9, default=5),
        ),
        ({"type": "boolean"}, ElicitationField(name="a", kind="boolean")),
        (
            {"type": "string", "enum": ["r", "g"]},
            ElicitationField(name="a", kind="choice", choices=(("r", "r"), ("g", "g"))),
        ),
        (
            {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]},
            ElicitationField(name="a", kind="choice", choices=COLOURS),
        ),
        (
            {
                "type": "string",
                "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}],
            },
            ElicitationField(name="a", kind="choice", choices=COLOURS),
        ),
        (
            {
                "type": "array",
                "minItems": 1,
                "items": {"anyOf": [{"const": "r", "title": "Red"}, {"const": "g"}]},
            },
            ElicitationField(name="a", kind="choices", choices=(("r", "Red"), ("g", "g")), least=1),
        ),
        ({"type": "array", "items": True}, ElicitationField(name="a", kind="choices")),
    ],
)
def test_a_schema_is_read(schema: dict[str, Any], found: ElicitationField) -> None:
    assert field(schema) == found


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "properties": {}},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/"}}},
        {"type": "object", "properties": {"a": 1}},
        {"type": "object", "properties": {"a": {"type": "string", "title": 1}}},
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": "x"}}},
    ],
)
def test_invalid_form_schemas_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(AnswerInvalid):
        read_fields(schema)


NUMBER, WHOLE = (
    ElicitationField(name="a", kind="number"),
    ElicitationField(name="a", kind="integer"),
)
YES = ElicitationField(name="a", kind="boolean")
ONE = ElicitationField(name="a", kind="choice", choices=COLOURS)
SEVERAL = ElicitationField(name="a", kind="choices", choices=COLOURS, least=1, most=2)


def text(form: str) -> ElicitationField:
    return ElicitationField(name="a", format=form)


@pytest.mark.parametrize(
    ("one", "typed", "value"),
    [
        (NUMBER, " 1.5 ", 1.5),
        (NUMBER, "2", 2),
        (WHOLE, "-3", -3),
        (WHOLE, "3.0", 3.0),
        (YES, "Yes", True),
        (YES, "off", False),
        (ONE, "red", "r"),
        (ONE, "2", "g"),
        (ONE, "R", "r"),
        (SEVERAL, "green, 1", ["g", "r"]),
        (text("email"), "a@b.org", "a@b.org"),
        (text("uri"), "https://a", "https://a"),
        (text("date"), "2026-07-28", "2026-07-28"),
        (text("date-time"), "2026-07-28T12:00:00Z", "2026-07-28T12:00:00Z"),
        (text("else"), " as it is ", "as it is"),
    ],
)
def test_what_a_person_types_becomes_a_value(
    one: ElicitationField, typed: str, value: object
) -> None:
    assert one.parse(typed) == value


@pytest.mark.parametrize(
    ("one", "typed", "words"),
    [
        (NUMBER, "much", "a: must be a number"),
        (NUMBER, "inf", "a: must be a number"),
        (NUMBER, "nan", "a: must be a number"),
        (WHOLE, "1.5", "a: must be a whole number"),
        (YES, "perhaps", "a: answer yes or no"),
        (ONE, "blue", "a: must be one of r, g"),
        (ONE, "3", "a: must be one of r, g"),
        (SEVERAL, "red, blue", "a: must be one of r, g"),
        (SEVERAL, "", "a: at least 1 chosen"),
        (SEVERAL, "red,red", "a: must not repeat a choice"),
        (text("email"), "unknown", "a: must be an email address"),
        (text("uri"), "nowhere", "a: must be a URL such as"),
        (text("uri"), "http://[", "a: must be a uri"),
        (text("date"), "soon", "a: must be a date, such as 2026-07-28"),
        (text("date-time"), "soon", "a: must be a date-time, such as 2026-07-28T12:00:00Z"),
        (ElicitationField(name="a", least=2), "b", "a: at least 2 characters"),
        (ElicitationField(name="a", kind="integer", most=2), "3", "a: at most 2"),
    ],
)
def test_what_does_not_fit_is_reported(one: ElicitationField, typed: str, words: str) -> None:
    with pytest.raises(AnswerInvalid) as caught:
        one.parse(typed)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("one", "value"),
    [
        (YES, 1),
        (WHOLE, True),
        (WHOLE, "1"),
        (NUMBER, True),
        (NUMBER, "1"),
        (ONE, 1),
        (ElicitationField(name="a", kind="choices"), [1]),
        (SEVERAL, "r"),
        (text(""), 1),
    ],
)
def test_a_value_of_another_type_is_refused(one: ElicitationField, value: object) -> None:
    with pytest.raises(AnswerInvalid):
        one.check(value)


def test_a_form_is_settled_with_its_defaults() -> None:
    fields = (
        ElicitationField(name="a", required=True),
        ElicitationField(name="b", kind="integer", default=2),
        ElicitationField(name="c"),
    )
    request = ElicitationRequest(ensemble="e", message="m", fields=fields)
    assert request.check({"a": "x"}) == {"a": "x", "b": 2}
    with pytest.raises(AnswerInvalid, match="a: is required"):
        request.check({})
    with pytest.raises(AnswerInvalid, match="the form has no field 'd'"):
        request.check({"a": "x", "d": 1})


@pytest.mark.parametrize(
    "field",
    [
        ElicitationField(name="a", title="A", description="d", required=True, least=1, most=9),
        ElicitationField(name="a", format="email", default="a@b.c"),
        ElicitationField(name="a", kind="integer", least=0, most=10, default=3),
        ElicitationField(name="a", kind="number", least=0.5),
        ElicitationField(name="a", kind="boolean", default=False),
        ElicitationField(name="a", kind="choice", choices=(("x", "X"), ("y", "Y")), default="x"),
        ElicitationField(
            name="a", kind="choices", choices=(("x", "X"), ("y", "y")), least=1, most=2
        ),
    ],
)
def test_a_form_reads_back_as_it_was_written(field: ElicitationField) -> None:
    assert read_fields(write_form([field])) == (field,)
