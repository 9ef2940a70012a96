"""Arguments against schemas that come from elsewhere (U3): only complete and valid ones run."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from vibe_llms.base.exceptions import ArgumentsInvalid, InvokerInvalid, VibeLlmsError
from vibe_llms.invocation import checks
from vibe_llms.invocation.checks import SchemaCheck
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.messages.canisters import InvocationCanister

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "share": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
    "additionalProperties": False,
}
CONTEXT = InvocationContext("", InvocationCanister(name="x"), lambda *_, **__: None)


async def run(invoker: Invoker, arguments: str) -> str:
    return (await invoker.invoke(arguments, CONTEXT)).text


async def test_a_tool_from_a_schema_is_called_with_arguments_by_their_names() -> None:
    def plain(city: str, days: int = 1) -> str:
        return f"{city} {days}"

    async def later(context: InvocationContext, **given: Any) -> str:
        return f"{context.invocation.name} {given}"

    one = Invoker.from_schema("look", SCHEMA, plain, description="Look.", aliases=["see"])
    assert (one.description, one.aliases, one.arguments_schema) == ("Look.", ("see",), SCHEMA)
    assert await run(one, '{"city": "Oslo", "days": 3}') == "Oslo 3"
    other = Invoker.from_schema("look", SCHEMA, later, llm_format="<{0}>".format)
    assert await run(other, '{"city": "Oslo"}') == "<x {'city': 'Oslo'}>"


async def test_what_does_not_fit_is_reported_in_words_to_act_on() -> None:
    one = Invoker.from_schema("look", SCHEMA, lambda **_: pytest.fail("it ran"))
    with pytest.raises(ArgumentsInvalid) as reported:
        await run(one, '{"days": "3", "tags": ["a", 1], "x": 1}')
    assert sorted(str(reported.value).splitlines()) == [
        "'city' is a required property",
        "Additional properties are not allowed ('x' was unexpected)",
        "days: '3' is not of type 'integer'",
        "tags.1: 1 is not of type 'string'",
    ]
    for arguments in ("[]", "3", "{", "NaN", '{"city": "a"} {}', "[" * 100_000):
        with pytest.raises(ArgumentsInvalid, match="not a JSON object"):
            one.check(arguments)


def test_what_is_no_schema_or_no_name_is_refused() -> None:
    with pytest.raises(InvokerInvalid, match="not a valid JSON Schema"):
        Invoker.from_schema("look", {"type": "nothing"}, print)
    with pytest.raises(InvokerInvalid, match="is not a valid tool name"):
        Invoker.from_schema("???", {}, print)


def test_nothing_that_a_schema_refers_to_is_fetched() -> None:
    far = {"$ref": "https://evil.example/schema.json"}
    with pytest.raises(ArgumentsInvalid, match="cannot be applied"):
        SchemaCheck(far)("{}")
    assert SchemaCheck(far, trusted=False)("{}") == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"type": 3},
        {"properties": []},
        {"required": 3},
        {"$ref": "#/nowhere"},
        {"patternProperties": {"(": {}}},
        {"properties": {"a": {"items": [{"patternProperties": {"(a+)+$": {}}}]}}},
    ],
)
def test_a_foreign_schema_that_cannot_be_applied_is_left_to_its_server(schema: Any) -> None:
    assert SchemaCheck(schema, trusted=False)('{"a": [1]}') == {"a": [1]}


def test_a_foreign_expression_cannot_take_for_ever() -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    check = SchemaCheck(schema, trusted=False)
    start = time.monotonic()
    check(json.dumps({"a": "a" * 60 + "!"}))
    assert time.monotonic() - start < 30
    with pytest.raises(ArgumentsInvalid, match="not of type 'string'"):
        check('{"a": 1}')


def produce_valid(chance: random.Random) -> dict[str, Any]:
    """Arguments that fit, with text that is hard to cut."""
    made: dict[str, Any] = {"city": chance.choice(["Oslo", 'a"b\\', "é\u2028😀", "", "{}", "]}"])}
    optional: dict[str, Any] = {
        "days": chance.choice([0, -3, 10**20, 12]),
        "exact": chance.random() < 0.5,
        "share": chance.choice([0.5, -1e-9, 3]),
        "tags": [chance.choice(["x", "}", '"', "null"]) for _ in range(chance.randrange(4))],
    }
    chosen = chance.sample(sorted(optional), chance.randrange(5))
    return {**made, **{key: optional[key] for key in chosen}}


def mutate(chance: random.Random, text: str) -> str:
    place = chance.randrange(len(text) + 1)
    match chance.randrange(5):
        case 0:
            return text[:place] + text[place + 1 :]
        case 1:
            return text[:place] + chance.choice('{}[]",:\\ 0x\0\n') + text[place:]
        case 2:
            return text + chance.choice(["}", "{}", ",", " x", "\0", " "])
        case 3:
            return text.replace(chance.choice(["true", "false", '"', ":", "1"]), "NaN", 1)
        case _:
            other = chance.randrange(len(text) + 1)
            return text[: min(place, other)] + text[max(place, other) :]


def is_valid(text: str) -> bool:
    """What the standard library, made strict, and another validator say."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        value = json.loads(text or "{}", parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and Draft202012Validator(SCHEMA).is_valid(value)


async def check_fuzz(invokers: dict[str, tuple[Invoker, list[Any]]], count: int) -> None:
    """Every prefix of 50 valid texts, and mutations: nothing runs that is not whole and valid."""
    chance = random.Random(8)
    texts = [json.dumps(produce_valid(chance), ensure_ascii=False) for _ in range(50)]
    tried = [text[:end] for text in texts for end in range(1, len(text) + 1)]
    while len(tried) < count:
        tried.append(mutate(chance, mutate(chance, chance.choice(texts))))
    good = 0
    for text in tried:
        valid = is_valid(text)
        good += valid
        for invoker, ran in invokers.values():
            before = len(ran)
            try:
                await invoker.invoke(text, CONTEXT)
            except ArgumentsInvalid:
                assert len(ran) == before, text
            else:
                assert valid, text
                assert len(ran) == before + 1
    assert 50 <= good < len(tried)


def produce_invokers() -> dict[str, tuple[Invoker, list[Any]]]:
    typed: list[Any] = []
    foreign: list[Any] = []

    async def look(
        city: str,
        days: int = 0,
        exact: bool = False,
        share: float = 0,
        tags: list[str] = [],  # noqa: B006
    ) -> None:
        typed.append(city)

    async def take(**given: Any) -> None:
        foreign.append(given)

    return {
        "function": (Invoker.from_function(look), typed),
        "schema": (Invoker.from_schema("look", SCHEMA, take), foreign),
    }


@pytest.mark.storm
async def test_only_complete_and_valid_arguments_run(rounds: Callable[[int, int], int]) -> None:
    await check_fuzz(produce_invokers(), rounds(4_000, 10_000))


async def test_a_reader_that_completes_what_is_cut_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pydantic_core import from_json

    def read_leniently(arguments: str) -> Any:
        try:
            return from_json(arguments, allow_partial="trailing-strings")
        except ValueError as error:
            raise ArgumentsInvalid(str(error)) from error

    monkeypatch.setattr(checks, "read_object", read_leniently)
    with pytest.raises(AssertionError):
        await check_fuzz(produce_invokers(), 100)


def test_null_for_an_optional_property_that_takes_no_null_is_left_out() -> None:
    properties = {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "tag": {"type": ["string", "null"]},
    }
    check = SchemaCheck({"properties": properties, "required": ["city"]}, trusted=False)
    assert check('{"city": "Oslo", "days": null, "tag": null}') == {"city": "Oslo", "tag": None}
    with pytest.raises(ArgumentsInvalid, match="city: None is not of type 'string'") as reported:
        check('{"city": null, "days": null}')
    assert "days" not in str(reported.value)


def test_arguments_that_do_not_fit_are_an_error_of_the_library() -> None:
    with pytest.raises(VibeLlmsError):
        SchemaCheck(SCHEMA)("{}")
