"""Schemas from elsewhere: nothing is fetched for them, and no expression of theirs is matched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vibe_llms.base.exceptions import ArgumentsInvalid
from vibe_llms.invocation.checks import SchemaCheck
from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest


class Schemas(Listener):
    """Answers every request with a schema that nothing fits."""

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        return HttpAnswer(chunks=[b"false"], headers={"content-type": "application/schema+json"})


@pytest.fixture
def server() -> Iterator[Schemas]:
    with Schemas() as server:
        yield server


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_no_server_is_asked_for_what_a_schema_refers_to(server: Schemas, keyword: str) -> None:
    schema = {"properties": {"a": {keyword: f"{server.url}/schema.json"}}}
    with pytest.raises(ArgumentsInvalid, match="cannot be applied"):
        SchemaCheck(schema)('{"a": 1}')
    assert SchemaCheck(schema, trusted=False)('{"a": 1}') == {"a": 1}
    assert server.connections == 0


#: Without `patternProperties`, `additionalProperties` still matches their expressions.
CLOSED = {"patternProperties": {"^(x+)+$": {}}, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        CLOSED,
        {"properties": {"a": CLOSED}},
        {"allOf": [{"type": "object"}, {"properties": {"a": {"anyOf": [CLOSED]}}}]},
        {"$ref": "#/$defs/one", "$defs": {"one": CLOSED}},
    ],
)
def test_no_foreign_expression_is_matched_wherever_it_is(schema: dict[str, Any]) -> None:
    values = {"a": {"y": 1}, "b": 1}
    assert SchemaCheck(schema, trusted=False)('{"a": {"y": 1}, "b": 1}') == values
    with pytest.raises(ArgumentsInvalid):
        SchemaCheck(schema)('{"a": {"y": 1}, "b": 1}')


def test_a_schema_of_ours_that_refers_to_itself_for_ever_is_an_error() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    with pytest.raises(ArgumentsInvalid, match="the schema cannot be applied"):
        SchemaCheck(schema)("{}")


def test_only_so_many_problems_are_listed() -> None:
    check = SchemaCheck({"additionalProperties": {"type": "string"}})
    with pytest.raises(ArgumentsInvalid) as caught:
        check("{" + ", ".join(f'"a{number}": 1' for number in range(25)) + "}")
    assert len(str(caught.value).splitlines()) == 20
