"""From a signature to a schema, and from a model's words back to arguments, or to a refusal."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import typing_extensions
from pydantic import BaseModel, Field

from vibe_llms.base.exceptions import ArgumentsInvalid, InvokerInvalid
from vibe_llms.conversations.outputs import produce_form
from vibe_llms.invocation.schemata import Signature


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Book(BaseModel):
    """A book."""

    title: str
    pages: int = 0


@dataclass
class Shelf:
    height: int
    title: str = "top"


class Tree(BaseModel):
    kids: list[Tree] = []


class Context:
    """What is injected."""


SENTINEL = object()


def plain(text: str, count: int = 3) -> None:
    """Say something.

    At length.

    Args:
        text: What
            to say.
        count: How often.
    """


def choices(mode: Literal["fast", "slow"], colour: Colour, note: str | None = None) -> None: ...


def structured(book: Book, shelf: Shelf, tree: Tree, books: list[Book] = []) -> None: ...  # noqa: B006


def with_defaults(book: Book = Book(title="t"), when: dt.date | None = None) -> None: ...


def annotated(
    number: Annotated[int, Field(ge=1, le=5, description="From one to five.")],
    many: Annotated[list[int], Field(default_factory=list)],
    other: int = Field(7, le=9, description="At most nine."),
    odd: Annotated[int, {"not": "hashable"}] = 1,
) -> None:
    """Annotated.

    Args:
        number: not this one
        many: Some numbers.
        other: nor this one
    """


def kinds(a: Any, b: Any, /, c: Any, *, d: Any = 4) -> None: ...


def clashing(model_dump: int, schema: str, copy: bool, model_config: int, _x: int = 5) -> None: ...


def typed(when: dt.date, which: uuid.UUID, pair: tuple[int, str], tags: set[str]) -> None: ...


def injected(text: str, context: Context, other: Context | None = None) -> None: ...


def nothing() -> None: ...


def sentinel(value: Any = SENTINEL) -> None: ...


def surrogate(text: str = "\ud800") -> None:
    """Odd \udfff.

    Args:
        text: odd \ud800
    """


class Machine:
    """A machine."""

    def run(self, speed: int) -> None:
        """Run."""

    @classmethod
    def build(cls, size: int) -> None:
        """Build."""

    @staticmethod
    def stop(now: bool = True) -> None:
        """Stop."""

    def __call__(self, order: str) -> None: ...


def bind(function: Callable[..., Any], arguments: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    bound = Signature(function, {Context: "context"}).bind(arguments, {"context": "here"})
    return bound.args, bound.kwargs


FUNCTIONS: list[Callable[..., Any]] = [
    plain, choices, structured, with_defaults, annotated, kinds, clashing, typed, injected, nothing,
    sentinel, surrogate, Machine().run, Machine.build, Machine.stop, Machine(),
    functools.partial(plain, "said"), functools.partial(kinds, 1, d=3),
]  # fmt: skip


#: The words of JSON Schema 2020-12 that pydantic makes use of here.
WORDS = {
    "$defs", "$ref", "additionalProperties", "anyOf", "default", "description", "enum", "format",
    "items", "maxItems", "maximum", "minItems", "minimum", "prefixItems", "properties", "required",
    "type", "uniqueItems",
}  # fmt: skip


def check_schema(node: Any, *, names: bool = False) -> None:
    """Only words of JSON Schema where they belong, and no invented titles."""
    if isinstance(node, list):
        for item in node:
            check_schema(item)
    elif isinstance(node, dict):
        assert names or set(node) <= WORDS, node
        for key, value in node.items():
            if names or key not in ("default", "enum", "required"):
                check_schema(value, names=not names and key in ("properties", "$defs"))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_schema_is_made_of_the_words_of_json_schema(function: Callable[..., Any]) -> None:
    schema = Signature(function, {Context: "context"}).schema
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert set(schema.get("required", ())) <= set(schema["properties"])
    check_schema(schema)
    json.dumps(schema, ensure_ascii=False).encode()


def test_the_docstring_describes_the_tool_and_its_parameters() -> None:
    signature = Signature(plain)
    assert signature.description == "Say something.\n\nAt length."
    assert signature.schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["text"],
        "properties": {
            "text": {"type": "string", "description": "What to say."},
            "count": {"type": "integer", "default": 3, "description": "How often."},
        },
    }


def test_literals_enumerations_and_options_become_choices() -> None:
    schema = Signature(choices).schema
    assert schema["properties"]["mode"] == {"enum": ["fast", "slow"], "type": "string"}
    assert schema["$defs"]["Colour"] == {"enum": ["red", "blue"], "type": "string"}
    assert schema["properties"]["note"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert schema["required"] == ["mode", "colour"]
    assert bind(choices, '{"mode": "fast", "colour": "red"}') == (("fast", Colour.RED, None), {})


def test_nested_models_and_dataclasses_are_made() -> None:
    text = '{"book": {"title": "t"}, "shelf": {"height": 2}, "tree": {"kids": [{}]}}'
    args, _ = bind(structured, text)
    assert args == (Book(title="t"), Shelf(2), Tree(kids=[Tree()]), [])
    assert Signature(structured).schema["$defs"]["Book"]["properties"]["title"] == {
        "type": "string"
    }
    assert args[3] is not bind(structured, text)[0][3], "a mutable default is shared"


def test_a_default_that_is_a_model_keeps_what_it_calls_title() -> None:
    schema = Signature(with_defaults).schema
    assert schema["properties"]["book"]["default"] == {"title": "t", "pages": 0}


def test_what_an_annotation_says_goes_before_the_docstring() -> None:
    properties = Signature(annotated).schema["properties"]
    assert properties["number"] == {
        "type": "integer", "minimum": 1, "maximum": 5, "description": "From one to five."
    }  # fmt: skip
    assert properties["other"] == {
        "type": "integer", "maximum": 9, "default": 7, "description": "At most nine."
    }  # fmt: skip
    assert properties["many"]["description"] == "Some numbers."
    assert bind(annotated, '{"number": 1}') == ((1, [], 7, 1), {})


def test_parameters_of_every_kind_are_given_as_they_have_to_be() -> None:
    assert bind(kinds, '{"a": 1, "b": 2, "c": 3}') == ((1, 2, 3), {"d": 4})
    assert bind(clashing, '{"model_dump": 1, "schema": "s", "copy": true, "model_config": 2}') == (
        (1, "s", True, 2, 5),
        {},
    )
    assert bind(nothing, "") == ((), {})
    assert bind(sentinel, "{}") == ((SENTINEL,), {})
    assert bind(sentinel, '{"value": null}') == ((None,), {})


def test_what_is_injected_is_no_part_of_the_schema() -> None:
    assert set(Signature(injected, {Context: "context"}).schema["properties"]) == {"text"}
    assert bind(injected, '{"text": "t"}') == (("t", "here", "here"), {})
    with pytest.raises(ArgumentsInvalid, match="context"):
        bind(injected, '{"text": "t", "context": 1}')


def test_methods_and_callable_objects_are_called_without_their_self() -> None:
    assert bind(Machine().run, '{"speed": 1}') == ((1,), {})
    assert bind(Machine.build, '{"size": 1}') == ((1,), {})
    assert bind(Machine.stop, "{}") == ((True,), {})
    assert bind(Machine(), '{"order": "go"}') == (("go",), {})
    assert Signature(Machine().run).description == "Run."


def test_what_a_partial_application_has_fixed_is_neither_shown_nor_given() -> None:
    fixed = functools.partial(functools.partial(kinds, 1, d="a secret"), 2)
    signature = Signature(fixed)
    assert set(signature.schema["properties"]) == {"c"}
    assert "secret" not in str(signature.schema)
    with pytest.raises(ArgumentsInvalid, match="d: Extra inputs"):
        bind(fixed, '{"c": 3, "d": 4}')
    assert bind(fixed, '{"c": 3}') == ((3,), {})
    assert Signature(functools.partial(plain, "x")).description == "Say something.\n\nAt length."


def test_json_represents_types_that_it_does_not_have() -> None:
    text = (
        '{"when": "2026-01-02", "which": "12345678123456781234567812345678",'
        ' "pair": [1, "a"], "tags": ["a", "a"]}'
    )
    assert bind(typed, text)[0] == (
        dt.date(2026, 1, 2), uuid.UUID("12345678123456781234567812345678"), (1, "a"), {"a"}
    )  # fmt: skip


def star(*args: int) -> None: ...


def double_star(**kwargs: int) -> None: ...


def unknown_name(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def unserializable(a: Context) -> None: ...


def function_taking(a: Callable[[int], int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (star, r"'star' takes \*args"),
        (double_star, r"'double_star' takes \*\*kwargs"),
        (print, r"\*args"),
        (max, "cannot be read"),
        (unknown_name, "cannot be read: name 'Nowhere'"),
        (unserializable, "'unserializable' cannot be described in JSON Schema"),
        (function_taking, "cannot be described in JSON Schema"),
    ],
)
def test_a_function_without_a_schema_is_no_tool(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(InvokerInvalid, match=message):
        Signature(function)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{}", "text: Field required"),
        ('{"text": 5}', "text: Input should be a valid string"),
        ('{"text": "t", "count": "5"}', "count: Input should be a valid integer"),
        ('{"text": "t", "count": 1.0}', "count: Input should be a valid integer"),
        ('{"text": "t", "count": true}', "count: Input should be a valid integer"),
        ('{"text": "t", "more": 1}', "more: Extra inputs are not permitted"),
        ('{"text": null, "count": null}', "text: .*\ncount: "),
        ("[]", "should be an object"),
        ("null", "should be an object"),
        ('"text"', "should be an object"),
        ('{"text": "t"', "not valid JSON"),
        ('{"text": "t"}}', "not valid JSON"),
        ('{"text": "t"} {}', "not valid JSON"),
        ("{'text': 't'}", "not valid JSON"),
        ('{"text": "t",}', "not valid JSON"),
        ('{"text": "\\ud800"}', "not valid JSON"),
        ('{"text": "\ud800"}', "not valid JSON"),
        ('{"text": "t", "count": NaN}', "not valid JSON"),
        ("\ufeff{}", "not valid JSON"),
        (" ", "not valid JSON"),
        ('{"a":' * 100_000, "not valid JSON"),
        ('{"text": "t", "count": ' + "9" * 6000 + "}", "."),
    ],
)
def test_what_does_not_fit_is_reported_so_that_it_can_be_fixed(
    arguments: str, problem: str
) -> None:
    with pytest.raises(ArgumentsInvalid, match=problem):
        Signature(plain).bind(arguments, {})


def loose(value: Any = None, number: float = 0.0) -> None: ...


@pytest.mark.parametrize("arguments", ['{"value": NaN}', '{"number": Infinity}', '{"number": NaN}'])
def test_numbers_that_json_does_not_have_are_refused_at_any_depth(arguments: str) -> None:
    with pytest.raises(ArgumentsInvalid):
        Signature(loose).bind(arguments, {})


def test_many_problems_are_reported_in_part() -> None:
    def take(numbers: list[int]) -> None: ...

    with pytest.raises(ArgumentsInvalid) as caught:
        Signature(take).bind(json.dumps({"numbers": ["x"] * 1000}), {})
    lines = str(caught.value).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "and 980 more"


def test_a_function_without_a_docstring_has_no_description() -> None:
    assert Signature(nothing).description == ""


class Place(typing_extensions.TypedDict):
    """A place of a user who prefers typing_extensions."""

    city: typing_extensions.Required[str]
    deep: typing_extensions.NotRequired[bool]


def test_annotations_of_typing_extensions_mean_what_those_of_typing_mean() -> None:
    def look(
        place: Place,
        unit: typing_extensions.Annotated[
            typing_extensions.Literal["c", "f"], Field(description="the unit")
        ] = "c",
    ) -> None: ...

    schema = Signature(look, {}).schema
    place = schema["$defs"]["Place"]
    assert (sorted(place["properties"]), place["required"]) == (["city", "deep"], ["city"])
    unit = schema["properties"]["unit"]
    assert (unit["enum"], unit["description"]) == (["c", "f"], "the unit")
    assert produce_form(Place).read('{"city": "Oslo"}') == {"city": "Oslo"}
