"""The demo: a small conversation about this library that says what it is and calls tools."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from vibe_llms.base.configuration import shipped_folder
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ImageContent, Reference, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.opening import open_session
from vibe_llms.providers.scripted.demo import improvise, last_words

TOPICS = tomllib.loads((shipped_folder() / "scripts" / "demo.toml").read_text())["replies"]


def answer(words: str, tools: Sequence[Any] = (), *before: Canister) -> tuple[str, list[Any]]:
    """The text of the demo's answer, and its calls."""
    canisters = [*before, UserCanister.from_text(words)]
    reply = improvise(canisters, [Invoker.from_function(tool) for tool in tools])
    text = "".join(part.text for part in reply.parts if isinstance(part.text, str))
    calls = [(part.invocation, part.arguments) for part in reply.parts if part.invocation]
    return text, calls


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("What can you do?", "I am **scripted/demo**"),
        ("Hello!", "Hello! I am scripted/demo"),
        ("tell me about FORKS", "A fork is a copy"),
        ("where do I put my API key", "A key is read"),
        ("which models are there", "A model is named"),
        ("how is it stored", "Every conversation is a folder"),
        ("can I add tools?", "A typed Python function is a tool"),
        ("and from python?", "import asyncio"),
        ("is it private", "There is no telemetry"),
        ("think about it", "That was sample reasoning"),
        ("zzz", "I follow a script and have no answer"),
    ],
)
def test_each_topic_is_answered(words: str, said: str) -> None:
    text, calls = answer(words)
    assert said in text
    assert calls == []


def test_it_says_plainly_that_it_is_scripted() -> None:
    for words in ("What can you do?", "Hello", "who are you", "zzz"):
        assert "script" in answer(words)[0]


def test_every_topic_that_it_offers_is_one_that_it_knows() -> None:
    fallback = TOPICS[-1]["parts"][0]["text"]
    offered = re.findall(r"\*(\w+)\*", fallback)
    assert len(offered) == 7
    for topic in offered:
        assert answer(topic)[0] != fallback, topic
    assert sum(reply["when"] == ".*" for reply in TOPICS) == 1


class Colour(Enum):
    RED = "red"


def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


def weather_in(city: str, unit: Literal["C", "F"] = "C", sure: bool = True) -> str:
    """Tell the weather."""
    return city


def paint(what: str, colour: Colour, coat: float, wet: bool) -> str:
    """Paint."""
    return what


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        ("Please add 2 and 3.", [("add", {"a": 2, "b": 3})]),
        ("Add -4", [("add", {"a": -4})]),
        ("add", [("add", {"a": 1})]),
        ("What is the weather in Paris?", [("weather_in", {"city": "Paris", "unit": "C"})]),
        ('weather-in "New York", please', [("weather_in", {"city": "New York", "unit": "C"})]),
        ("WEATHER_IN", [("weather_in", {"city": "WEATHER_IN", "unit": "C"})]),
        ("paint the wall 1.5", [
            ("paint", {"what": "the wall 1.5", "colour": "red", "coat": 1.5, "wet": True})]),
        ("add 1 and paint it", [
            ("add", {"a": 1}), ("paint", {"what": "it", "colour": "red", "coat": 1, "wet": True})]),
        ("nothing to do with them", []),
    ],
)  # fmt: skip
def test_tools_are_called_by_their_names_with_arguments_from_the_words(
    words: str, calls: list[Any]
) -> None:
    assert answer(words, [add, weather_in, paint])[1] == calls


@pytest.mark.parametrize(
    ("words", "choice", "calls"),
    [
        ("hello", "any", [("add", {"a": 1})]),
        ("hello", "paint", [("paint", {"what": "hello", "colour": "red", "coat": 1, "wet": True})]),
        ("paint it", "any", [("paint", {"what": "it", "colour": "red", "coat": 1, "wet": True})]),
        ("add 1", "none", []),
        ("add 1", "paint", [("paint", {"what": "add 1", "colour": "red", "coat": 1, "wet": True})]),
        ("add 1", "auto", [("add", {"a": 1})]),
    ],
)
def test_a_control_chooses_the_tool(words: str, choice: str, calls: list[Any]) -> None:
    tools = [Invoker.from_function(add), Invoker.from_function(paint)]
    controls = Controls(tool_choice=choice)
    reply = improvise([UserCanister.from_text(words)], tools, controls)
    assert [(one.invocation, one.arguments) for one in reply.parts if one.invocation] == calls


def test_a_tool_that_gets_something_is_called_by_what_it_gets() -> None:
    tool = Invoker.from_function(weather_in, name="get_weather")
    reply = improvise([UserCanister.from_text("The weather in Paris?")], [tool])
    assert reply.parts[-1].arguments == {"city": "Paris", "unit": "C"}


async def test_a_reply_has_the_form_that_is_asked_for() -> None:
    class Place(BaseModel):
        city: str
        degrees: int

    async with open_session() as session:
        conversation = await session.begin("scripted/demo")
        turn = await conversation.converse('It is 21 degrees in "Rome".', output=Place)
    assert turn.output == Place(city="Rome", degrees=21)


def test_an_ensembles_tool_is_called_by_its_own_name() -> None:
    tool = Invoker.from_function(add, name="calculator/add")
    reply = improvise([UserCanister.from_text("add 1")], [tool])
    assert reply.parts[1].invocation == "calculator/add"


def test_what_tools_returned_is_reported() -> None:
    one, two = InvocationCanister(name="add"), InvocationCanister(name="paint")
    canisters: list[Canister] = [
        UserCanister.from_text("add"),
        one,
        two,
        ResultCanister((TextualContent("5"),), invocation=one.identity),
        ResultCanister((TextualContent("no paint"),), invocation=two.identity, failed=True),
        ResultCanister((ImageContent(b"x", "image/png"),), invocation="unheard of"),
        ResultCanister((TextualContent(Reference.from_bytes(b"much")),), invocation=one.identity),
    ]
    (part,) = improvise(canisters, []).parts
    assert part.text == (
        "`add` returned: 5\n\n`paint` failed: no paint\n\n"
        "`a tool` returned: content other than text\n\n`add` returned: (4 bytes)"
    )


def test_a_history_that_begins_with_a_result_is_borne_with() -> None:
    (part,) = improvise([ResultCanister((TextualContent("5"),), invocation="i")], []).parts
    assert part.text == "`a tool` returned: 5"


def test_documents_are_mentioned_where_there_is_no_better_answer() -> None:
    document = DocumentCanister.from_text("long")
    assert answer("zzz", (), document)[0].startswith("The conversation contains 1 document,")
    assert answer("Hello", (), document)[0].startswith("Hello!")


def test_the_last_words_are_those_of_a_person_or_of_a_result() -> None:
    reference = TextualContent(Reference.from_bytes(b"x"))
    assert last_words([]) == ""
    assert last_words([AssistantCanister.from_text("a")]) == ""
    assert last_words([UserCanister.from_text("a"), AssistantCanister.from_text("b")]) == "a"
    assert last_words([UserCanister((TextualContent("a"), reference, TextualContent("b")))]) == (
        "a\n\nb"
    )
    assert last_words([ResultCanister((TextualContent("r"),), invocation="i")]) == "r"


async def test_a_conversation_with_tools_is_held_to_its_end() -> None:
    async with open_session() as session:
        conversation = await session.begin("scripted/demo", invokers=[add, weather_in])
        turn = await conversation.converse("Please add 2 and 3, and the weather in Rome.")
        assert "`add` returned: 5" in turn.text
        assert "`weather_in` returned: Rome" in turn.text
        turn = await conversation.converse("What can you do?")
        assert "scripted/demo" in turn.text
