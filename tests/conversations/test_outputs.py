"""Typed output: schemas of types, replies as values, and asking again for what does not fit."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from tests.fakes.anthropic import FakeAnthropic
from tests.fakes.clients import produce_model
from vibe_llms import open_session
from vibe_llms.base.exceptions import OutputCut, OutputInvalid, RequestError
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.outputs import OutputMismatch, produce_form, read_partial
from vibe_llms.messages.canisters import (
    AssistantCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
    role_of,
)
from vibe_llms.messages.controls import ControlRange
from vibe_llms.messages.events import (
    Event,
    MessageProgressEvent,
    MessageStartedEvent,
    NoticeEvent,
    TurnEndedEvent,
)
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.scripted.client import ScriptedModel
from vibe_llms.session.core import Session
from vibe_llms.testing import Part, Script, ScriptedReply, check_events, scripted_model
from vibe_llms.testing.wires.anthropic_replies import text_reply


class Person(pydantic.BaseModel):
    name: str
    born: Annotated[int, pydantic.Field(ge=0)]
    children: list[Person] = []


@dataclasses.dataclass
class City:
    name: str
    kind: Literal["town", "village"] = "town"


class Address(TypedDict):
    street: str


class River(msgspec.Struct):
    name: str
    kilometres: float


class Tree(msgspec.Struct):
    value: int
    branches: list[Tree] = []


SCHEMA = {
    "title": "point",
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        (Person, '{"name": "Ada", "born": 1815}', Person(name="Ada", born=1815)),
        (City, '{"name": "Ulm", "kind": "town"}', City("Ulm")),
        (Address, '{"street": "High"}', {"street": "High"}),
        (River, '{"name": "Rhine", "kilometres": 1230}', River("Rhine", 1230)),
        (Tree, '{"value": 1, "branches": [{"value": 2}]}', Tree(1, [Tree(2)])),
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (Literal["a", "b"], '{"value": "b"}', "b"),
        (SCHEMA, '{"x": 1}', {"x": 1}),
        ({"type": "array", "items": {"type": "string"}}, '{"value": ["a"]}', ["a"]),
        ({"enum": [1, 2]}, '{"value": 2}', 2),
    ],
)
def test_a_text_becomes_a_value_of_the_type(output: Any, text: str, value: object) -> None:
    form = produce_form(output)
    assert form.read(text) == value
    assert form.read(f"```json\n{text}\n```\n") == value
    assert form.schema["type"] == "object"
    json.dumps(form.schema)
    assert json.dumps(form.schema, separators=(",", ":")) in form.instruction


@pytest.mark.parametrize(
    ("output", "text", "problem"),
    [
        (Person, '{"name": "Ada", "born": -1}', "born: Input should be greater"),
        (Person, '{"name": "Ada"}', "born: Field required"),
        (Person, "Ada, 1815", "not valid JSON"),
        (Person, "", "^The reply is empty.$"),
        (River, " \n", "^The reply is empty.$"),
        (Person, '{"name": "Ada", "born": NaN}', "not valid JSON"),
        (City, '{"name": "Ulm", "kind": "x"}', "kind: Input should be 'town' or 'village'"),
        (River, '{"name": "Rhine"}', "missing required field `kilometres`"),
        (River, "{", "truncated"),
        (list[int], "[1, 2]", "the one member 'value'"),
        (list[int], '{"value": ["a"]}', "0: Input should be a valid integer"),
        (SCHEMA, '{"x": "a"}', "x: 'a' is not of type 'integer'"),
        (SCHEMA, '{"x": 1, "y": 2}', "Additional properties"),
        ({"enum": [1, 2]}, '{"value": 3}', "3 is not one of"),
        (Tree, "[" * 100_000, "JSON|recursion|Expected"),
    ],
)
def test_invalid_values_are_reported_with_a_remedy(output: Any, text: str, problem: str) -> None:
    with pytest.raises(OutputMismatch, match=problem):
        produce_form(output).read(text)


def test_objects_are_closed_and_a_type_that_refers_to_itself_keeps_its_parts() -> None:
    schema = produce_form(Person).schema
    assert schema["additionalProperties"] is False
    assert schema["title"] == "Person"
    assert schema["$defs"]["Person"]["additionalProperties"] is False
    assert "$defs" not in produce_form(City).schema
    assert "$defs" not in produce_form(River).schema
    assert "Tree" in produce_form(Tree).schema["$defs"]
    wrapped = produce_form(list[Person]).schema
    assert wrapped["properties"]["value"]["items"] == {"$ref": "#/$defs/Person"}
    assert wrapped["$defs"]["Person"]["properties"]["name"]["type"] == "string"


def nest(depth: int) -> dict[str, Any]:
    return {"not": nest(depth - 1)} if depth else {}


@pytest.mark.parametrize("output", [{"type": "nonsense"}, nest(500), object(), type("X", (), {})])
def test_what_has_no_schema_is_refused_at_once(output: object) -> None:
    with pytest.raises(RequestError, match="JSON Schema"):
        produce_form(output)


def test_nothing_that_a_schema_refers_to_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    form = produce_form({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}})
    # The network is closed in tests, which would be another error.
    with pytest.raises(Exception, match="Unresolvable"):
        form.read('{"a": 1}')


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("Wait", None),
        ('{"na', {}),
        ('{"name": "A', {"name": "A"}),
        ('```json\n{"name": "Ada", "born"', {"name": "Ada"}),
        ('{"a": [1, {"b": tr', {"a": [1, {}]}),
        ("{]", None),
    ],
)
def test_a_growing_text_shows_what_it_holds_so_far(text: str, value: object) -> None:
    assert read_partial(text) == value


def says(*chunks: str, **options: Any) -> ScriptedReply:
    return ScriptedReply(parts=(Part(text=chunks),), **options)


class Talk:
    """A conversation with a script that is not kept, and its events."""

    def __init__(self, session: Session, *replies: ScriptedReply, native: bool = False) -> None:
        self.events: list[Event] = []
        self.model: ScriptedModel = scripted_model(Script(replies))
        if native:
            self.model.attributes = ModelAttributes(controls={"response-schema": ControlRange()})
        self._session = session

    async def begin(self) -> Conversation:
        return await self._session.begin(self.model, event_handler=self.events.append, save=False)


async def test_a_model_that_takes_no_schema_gets_it_in_the_prompt() -> None:
    async with open_session() as session:
        talk = Talk(session, says('{"name": "Ada", "born": 1815}'))
        conversation = await talk.begin()
        turn = await conversation.converse("Who?", output=Person)
    assert turn.output == Person(name="Ada", born=1815)
    assert [role_of(one) for one in turn.canisters] == ["supervisor", "user", "assistant"]
    instruction = turn.canisters[0]
    assert isinstance(instruction, SupervisorCanister)
    assert "JSON Schema" in instruction.text
    check_events(talk.events)
    assert isinstance(talk.events[-1], TurnEndedEvent)
    assert talk.events[-1].turn.output == turn.output


async def test_a_model_that_takes_a_schema_is_given_it() -> None:
    async with open_session() as session:
        talk = Talk(session, says('{"name": "Ada", "born": 1815}'), says("Free."), native=True)
        conversation = await talk.begin()
        turn = await conversation.converse("Who?", output=Person)
        assert (await conversation.converse("And now?")).output is None
    assert turn.output == Person(name="Ada", born=1815)
    assert [role_of(one) for one in turn.canisters] == ["user", "assistant"]
    first, second = talk.model.requests
    assert first["controls"]["response-schema"] == produce_form(Person).schema
    assert "response-schema" not in second.get("controls", {})


async def test_anthropic_is_given_the_schema_in_its_own_form(
    fake_anthropic: FakeAnthropic,
) -> None:
    fake_anthropic.replies = [text_reply('{"name": "Ada", "born": 1815}')]
    model = await produce_model(fake_anthropic.url)
    async with open_session() as session:
        conversation = await session.begin(model, save=False)
        turn = await conversation.converse("Who?", output=Person)
    assert turn.output == Person(name="Ada", born=1815)
    body = fake_anthropic.requests[0].json
    assert body["output_config"]["format"] == {
        "type": "json_schema",
        "schema": produce_form(Person).schema,
    }
    assert fake_anthropic.refusals == []
    await model.client.close()


async def test_what_does_not_fit_is_asked_for_again() -> None:
    async with open_session() as session:
        talk = Talk(session, says("Ada!"), says('{"name": "Ada"}'), says('{"name":"Ada","born":1}'))
        conversation = await talk.begin()
        turn = await conversation.converse("Who?", output=Person)
    assert turn.output == Person(name="Ada", born=1)
    asked = [one.text for one in turn.canisters if isinstance(one, UserCanister)]
    assert len(asked) == 3
    assert "born: Field required" in asked[2]
    notices = [event.notice for event in talk.events if isinstance(event, NoticeEvent)]
    assert [notice.subject for notice in notices] == ["output", "output"]
    check_events(talk.events)


async def test_only_the_message_that_asks_again_is_fresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh: list[frozenset[str]] = []
    converse = ScriptedModel.converse

    async def note(self: ScriptedModel, *arguments: Any) -> Any:
        fresh.append(arguments[-1].fresh)
        return await converse(self, *arguments)

    monkeypatch.setattr(ScriptedModel, "converse", note)
    async with open_session() as session:
        talk = Talk(session, says("Ada!"), says('{"name":"Ada","born":1}'))
        turn = await (await talk.begin()).converse("Who?", output=Person)
    first, again = (one.identity for one in turn.canisters if isinstance(one, UserCanister))
    assert first in fresh[0]
    assert fresh[1:] == [{again}]


async def test_output_that_never_fits_is_an_error_and_all_replies_are_kept() -> None:
    async with open_session() as session:
        talk = Talk(session, *[says("No.")] * 3, says("Works."))
        conversation = await talk.begin()
        with pytest.raises(OutputInvalid, match=r"3 attempts: This is not valid JSON"):
            await conversation.converse("Who?", output=Person)
        assert len([c for c in conversation.canisters if isinstance(c, AssistantCanister)]) == 3
        assert (await conversation.converse("Go on")).text == "Works."
    check_events(talk.events)


async def test_a_reply_that_was_cut_off_is_another_error_than_one_that_does_not_fit() -> None:
    async with open_session() as session:
        talk = Talk(session, says('{"name": "A', stop_reason=StopReason.LENGTH))
        conversation = await talk.begin()
        with pytest.raises(OutputCut, match="output-tokens"):
            await conversation.converse("Who?", output=Person)
    assert len(talk.model.requests) == 1


async def test_a_refusal_is_not_asked_for_again() -> None:
    async with open_session() as session:
        talk = Talk(session, says("I won't.", stop_reason=StopReason.REFUSED))
        conversation = await talk.begin()
        with pytest.raises(OutputInvalid, match="ended as refused"):
            await conversation.converse("Who?", output=Person)
    assert len(talk.model.requests) == 1


async def test_tools_are_called_before_the_output_is_read() -> None:
    def look_up(name: str) -> int:
        """Look up a year."""
        return 1815

    call = ScriptedReply(parts=(Part(invocation="look_up", arguments={"name": "Ada"}),))
    async with open_session() as session:
        talk = Talk(session, call, says('{"name": "Ada", "born": 1815}'))
        conversation = await talk.begin()
        turn = await conversation.converse("Who?", output=Person, invokers=[look_up])
    assert turn.output == Person(name="Ada", born=1815)


async def test_rounds_of_calls_are_counted_once_although_a_reply_is_corrected() -> None:
    def look_up(name: str) -> int:
        """Look up a year."""
        return 1815

    call = ScriptedReply(parts=(Part(invocation="look_up", arguments={"name": "Ada"}),))
    settings = {"tools": {"max-rounds": 2}}
    async with open_session(configuration=settings) as session:
        talk = Talk(session, call, says("1815"), call, says('{"name": "Ada", "born": 1815}'))
        conversation = await talk.begin()
        turn = await conversation.converse("Who?", output=Person, invokers=[look_up])
    assert turn.output == Person(name="Ada", born=1815)


async def test_what_is_undone_is_the_turn_and_not_its_correction() -> None:
    async with open_session() as session:
        talk = Talk(session, says("Hello."), says("Ada!"), says('{"name": "Ada", "born": 1815}'))
        conversation = await talk.begin()
        await conversation.converse("Hello!")
        await conversation.converse("Who?", output=Person)
        undone = await conversation.undo()
    assert undone.canisters[:2] == conversation.canisters[:2]
    assert not any(isinstance(one, UserCanister) for one in undone.canisters[2:])


async def test_a_loop_sees_the_output_of_the_present_message_alone() -> None:
    def look_up(name: str) -> int:
        """Look up a year."""
        return 1815

    call = ScriptedReply(
        parts=(Part(text='{"name": "Bob"'), Part(invocation="look_up", arguments={"name": "Ada"}))
    )
    async with open_session() as session:
        talk = Talk(session, call, says('{"name": ', '"Ada"', ', "born": 1815}'))
        conversation = await talk.begin()
        seen: list[Any] = []
        async with conversation.stream("Who?", output=Person, invokers=[look_up]) as events:
            async for event in events:
                if isinstance(event, MessageStartedEvent | MessageProgressEvent):
                    seen.append(events.partial)
    ada = {"name": "Ada", "born": 1815}
    assert [one for one in seen if one] == [{"name": "Bob"}, {"name": "Ada"}, ada]


async def test_a_loop_sees_the_output_grow() -> None:
    async with open_session() as session:
        talk = Talk(session, says('{"name": ', '"Ada"', ', "born": 18', "15}"))
        conversation = await talk.begin()
        seen: list[Any] = []
        async with conversation.stream("Who?", output=Person) as events:
            async for event in events:
                if isinstance(event, MessageProgressEvent):
                    seen.append(events.partial)
        assert events.turn is not None
    assert seen == [
        {},
        {"name": "Ada"},
        {"name": "Ada", "born": 18},
        {"name": "Ada", "born": 1815},
    ]
    assert events.turn.output == Person(name="Ada", born=1815)
