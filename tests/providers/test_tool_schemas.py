"""Schemas that a wire refuses, in a form that it takes; and the one tool that has none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.clients import assemble, produce_model
from vibe_llms.base.exceptions import ArgumentsInvalid
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.providers.tool_schemas import (
    ANTHROPIC,
    GEMINI,
    LLAMACPP,
    OLLAMA,
    OPENAI,
    SchemaRules,
    SchemaUnfit,
    fit_schema,
)

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}
A = {"type": "object", "properties": {"a": NUMBER}, "required": ["a"]}
B = {"type": "object", "properties": {"b": TEXT}, "required": ["b"]}
ALL = {"openai": OPENAI, "anthropic": ANTHROPIC, "ollama": OLLAMA, "gemini": GEMINI}
every_wire = pytest.mark.parametrize("rules", ALL.values(), ids=ALL)

ROOTS: dict[str, Any] = {
    "anyOf": {"anyOf": [A, B]},
    "oneOf": {"oneOf": [A, B, {"type": "null"}]},
    "allOf": {"allOf": [A, B]},
    "required alone": {"type": "object", "properties": {"a": NUMBER, "b": TEXT}, "anyOf": [
        {"required": ["a"]}, {"required": ["b"]}
    ]},
    "reference": {"$ref": "#/$defs/Both", "$defs": {"Both": {"allOf": [A, B]}}},
    "nested": {"allOf": [{"anyOf": [A, {"$ref": "#/definitions/B"}]}], "definitions": {"B": B}},
    "enum": {"enum": [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]},
    "const": {"const": {"a": 1, "b": "x"}},
    "not": {"type": "object", "properties": {"a": NUMBER, "b": TEXT}, "not": {"required": ["c"]}},
    "types": {"type": ["object", "null"], "properties": {"a": NUMBER, "b": TEXT}},
    "upper case": {"type": "OBJECT", "properties": {"a": NUMBER, "b": TEXT}},
    "no type": {"properties": {"a": NUMBER, "b": TEXT}},
}  # fmt: skip


@every_wire
@pytest.mark.parametrize("name", ROOTS)
def test_the_root_is_one_object_whatever_it_was(rules: SchemaRules, name: str) -> None:
    fitted = fit_schema(ROOTS[name], rules)
    assert fitted["type"] == "object"
    assert set(fitted["properties"]) == {"a", "b"}
    assert not {"anyOf", "oneOf", "allOf", "$ref", "enum", "const", "not"} & set(fitted)
    assert fit_schema(fitted, rules) is fitted


def test_what_all_alternatives_need_is_needed_and_the_rest_is_said() -> None:
    fitted = fit_schema({**ROOTS["anyOf"], "description": "Adds."}, OPENAI)
    assert "required" not in fitted
    assert fitted["description"] == "Adds.\nRequired: one of (a) or (b)"
    assert fit_schema(ROOTS["allOf"], OPENAI)["required"] == ["a", "b"]
    both = {"anyOf": [A, {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}]}
    fitted = fit_schema(both, OPENAI)
    assert (fitted["required"], fitted["properties"]) == (["a"], {"a": {"anyOf": [NUMBER, TEXT]}})


def inner(one: Any, rules: SchemaRules = OPENAI, **more: Any) -> Any:
    """What becomes of the schema of an argument."""
    schema = {"type": "object", "properties": {"x": one}, **more}
    return fit_schema(schema, rules)["properties"]["x"]


@pytest.mark.parametrize(
    ("given", "fitted"),
    [
        ({"type": "object"}, {"type": "object", "properties": {}}),
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": ["array", "null"]}, {"type": ["array", "null"], "items": {}}),
        ({"items": [TEXT, NUMBER]}, {"items": {"anyOf": [TEXT, NUMBER]}}),
        ({"type": "array", "items": True}, {"type": "array", "items": {}}),
        (True, {}),
        (False, {"not": {}}),
        ({"type": "str"}, TEXT),
        ({"type": "any"}, {}),
        ({"type": None, "description": None, "enum": [], "required": True}, {}),
        ({"type": "object", "properties": None}, {"type": "object", "properties": {}}),
        ({"minimum": 0, "exclusiveMinimum": True}, {"minimum": 0, "exclusiveMinimum": 0}),
        ({"$ref": "https://example.org/x.json", "title": "X"}, {"title": "X"}),
        ({"$ref": "#/$defs/Lost"}, {}),
        ({"$ref": "#lost", "title": "X"}, {"title": "X"}),
        ({"required": ["a", "a"]}, {"required": ["a"]}),
        ({"dependencies": {"a": ["b"], "c": {}}}, {"dependentRequired": {"a": ["b"]}}),
        ({"anyOf": [{"type": "array"}]}, {"anyOf": [{"type": "array", "items": {}}]}),
        ({"additionalProperties": True}, {"additionalProperties": True}),
    ],
)  # fmt: skip
def test_an_argument_is_described_as_servers_take_it(given: Any, fitted: Any) -> None:
    assert inner(given) == fitted


def test_references_are_kept_where_they_resolve_and_replaced_where_none_are_known() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}}
    tables: dict[str, Any] = {"$defs": {"Tree": tree}}
    reference = {"$ref": "#/$defs/Tree"}
    assert inner(reference, OPENAI, **tables) == reference
    for rules in (OLLAMA, LLAMACPP):
        assert inner(reference, rules, **tables) == tree
    assert inner(reference, GEMINI, **tables) == {
        "type": "object",
        "properties": {"left": {}},
    }
    sibling = {"type": "object", "properties": {"x": {"$ref": "#/properties/y"}, "y": NUMBER}}
    assert fit_schema(sibling, OPENAI)["properties"]["x"] == NUMBER


@pytest.mark.parametrize(
    ("given", "fitted"),
    [
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"type": ["string", "integer"]}, {"anyOf": [TEXT, NUMBER]}),
        ({"const": "a"}, {"enum": ["a"], "type": "string"}),
        ({"enum": [1, 2]}, {"description": "enum: [1,2]"}),
        ({"const": 5, "title": "X"}, {"title": "X", "description": "enum: [5]"}),
        ({"type": "integer", "enum": [1], "description": "Y"},
         {"type": "integer", "description": "Y\nenum: [1]"}),
        ({"type": "object", "additionalProperties": NUMBER},
         {"type": "object", "properties": {},
          "description": 'additionalProperties: {"type":"integer"}'}),
        ({"type": "array", "prefixItems": [TEXT, NUMBER], "uniqueItems": True},
         {"type": "array", "items": {"anyOf": [TEXT, NUMBER]},
          "description": 'prefixItems: [{"type":"string"},{"type":"integer"}]; uniqueItems'}),
        ({"type": "array", "prefixItems": [NUMBER, NUMBER], "items": NUMBER},
         {"type": "array", "items": NUMBER,
          "description": 'prefixItems: [{"type":"integer"},{"type":"integer"}]'}),
        ({"type": "array"}, {"type": "array", "items": TEXT}),
        ({"type": "string", "properties": {}, "required": []}, TEXT),
        ({"oneOf": [TEXT, NUMBER]}, {"anyOf": [TEXT, NUMBER]}),
        ({"type": "object", "additionalProperties": False}, {"type": "object", "properties": {}}),
    ],
)  # fmt: skip
def test_a_wire_of_openapi_gets_only_its_keywords(given: Any, fitted: Any) -> None:
    assert inner(given, GEMINI) == fitted


@pytest.mark.parametrize(
    "schema",
    [False, {"type": "string"}, {"type": "array", "items": TEXT}, {"$ref": "#"}, {"anyOf": [TEXT]}],
)
def test_a_schema_that_takes_no_object_fits_nothing(schema: Any) -> None:
    with pytest.raises(SchemaUnfit):
        fit_schema(schema, OPENAI)


@every_wire
def test_schemas_that_grow_without_end_are_cut(rules: SchemaRules) -> None:
    wide = {f"d{n}": {"type": "object", "properties": {
        f"p{m}": {"$ref": f"#/$defs/d{n + 1}"} for m in range(10)
    }} for n in range(8)}  # fmt: skip
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"type": "object", "properties": {"x": deep}}
    twice: dict[str, Any] = {"L0": A}
    for n in range(40):
        twice[f"L{n + 1}"] = {"anyOf": [{"$ref": f"#/$defs/L{n}"}, {"$ref": f"#/$defs/L{n}"}]}
    nested: dict[str, Any] = A
    for _ in range(1500):
        nested = {"allOf": [nested]}
    schemas: list[dict[str, Any]] = [
        {"$ref": "#/$defs/d0", "$defs": wide},
        {"$ref": "#/$defs/L20", "$defs": twice},
        deep,
        nested,
    ]
    for schema in schemas:
        assert len(json.dumps(fit_schema(schema, rules))) < 2_000_000


@every_wire
def test_a_schema_that_is_fine_is_sent_as_it_is(rules: SchemaRules) -> None:
    assert fit_schema(A, rules) is A


async def test_the_one_tool_that_cannot_be_offered_is_left_out_and_named() -> None:
    bad = [
        Invoker.from_declaration("text", {"type": "string"}),
        Invoker.from_declaration("brackets", {**A, "properties": {"a[]": {}}, "required": ["a[]"]}),
    ]
    good = [
        Invoker.from_declaration("add", {"anyOf": [A, B]}),
        Invoker.from_declaration("find", {**A, "properties": {"a": NUMBER, "filter[id]": TEXT}}),
    ]
    model = await produce_model()
    members, notices = await assemble(model, [UserCanister.from_text("Hi")], *bad, *good)
    assert [tool["name"] for tool in members["tools"]] == ["add", "find"]
    assert list(members["tools"][1]["input_schema"]["properties"]) == ["a"]
    assert ["text is not offered" in notices[0], "brackets is not offered" in notices[1]] == [
        True
    ] * 2


async def test_arguments_are_checked_against_the_true_schema() -> None:
    invoker = Invoker.from_schema("add", {"type": "object", "oneOf": [A, B]}, lambda **_: None)
    model = await produce_model()
    members, _ = await assemble(model, [UserCanister.from_text("Hi")], invoker)
    assert "oneOf" not in members["tools"][0]["input_schema"]
    assert "oneOf" in invoker.arguments_schema
    with pytest.raises(ArgumentsInvalid):
        invoker.check('{"a": 1, "b": "x"}')
