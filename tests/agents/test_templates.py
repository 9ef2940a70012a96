"""Templates of agents: variables, defaults and examples, by llm's own rules where it has some."""

from __future__ import annotations

import string
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm import templates

from vibe_llms.agents.definitions import Agent, access_agent, access_others
from vibe_llms.agents.templates import Example, is_template, survey_variables
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import ConfigurationError, RequestError
from vibe_llms.messages.canisters import SupervisorCanister, UserCanister
from vibe_llms.opening import open_session

#: llm's class, which has no types.
Template: Any = templates.Template
DEMO = "scripted/demo"
PIECES = st.sampled_from(
    ["$a", "${b}", "$input", "$$", "$$a", " ", "x", "é", "$$$a", "{a}", "\n", "$A", "$_c"]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)
VALUES = st.text(alphabet="$a{}b\\ é\n", max_size=6)


def agent_of(home: Path, **row: Any) -> Agent:
    rows = {"agents": {"one": {key.replace("_", "-"): value for key, value in row.items()}}}
    return access_agent(load_configuration(Places.under(home), overrides=rows), "one")


def write(agent: Agent, message: str, variables: Mapping[str, str]) -> str:
    fill = agent.produce_template(variables)
    assert fill is not None
    return fill(message)


@given(text=TEXTS, values=st.tuples(VALUES, VALUES, VALUES, VALUES), message=VALUES)
def test_a_prompt_is_filled_in_as_by_llm(
    text: str, values: tuple[str, str, str, str], message: str
) -> None:
    text = f"{text}$input"
    everything: dict[str, str] = dict(zip(("a", "b", "A", "_c"), values, strict=True))
    names = [name for name in survey_variables(text) if name != "input"]
    variables = {name: everything.get(name, "$ax") for name in names}
    prompt, _ = Template(name="t", prompt=text).evaluate(message, dict(variables))
    assert write(Agent(name="one", prompt=text), message, variables) == prompt


@given(text=TEXTS, default=VALUES, given_=st.none() | VALUES)
def test_a_default_holds_unless_a_value_is_given_as_in_llm(
    text: str, default: str, given_: str | None
) -> None:
    system = f"{text}$a".replace("$input", "")
    defaults = dict.fromkeys(survey_variables(system), default)
    variables = {} if given_ is None else {"a": given_}
    _, expected = Template(name="t", system=system, defaults=defaults).evaluate("m", {**variables})
    agent = Agent(name="one", supervisor_template=system, defaults=defaults)
    assert agent.instruct(variables) == expected


@given(st.text(alphabet="$ab{}_ 1é\n", max_size=12))
def test_a_template_is_valid_if_python_can_fill_it_in(text: str) -> None:
    values: defaultdict[str, str] = defaultdict(str)
    if is_template(text):
        string.Template(text).substitute(values)
    else:
        with pytest.raises(ValueError):
            string.Template(text).substitute(values)


def test_values_are_never_templates_themselves() -> None:
    agent = Agent(name="one", prompt="$a|$b|$input", defaults={"b": "$a $$ ${input}"})
    assert write(agent, "$a ${b} $$", {"a": "$input $b $"}) == (
        "$input $b $|$a $$ ${input}|$a ${b} $$"
    )


def test_all_missing_and_all_unknown_variables_are_named_once() -> None:
    # https://github.com/simonw/llm/pull/1539 and https://github.com/simonw/llm/pull/1532: a
    # variable in two places was listed twice, and one in braces was a KeyError.
    agent = Agent(name="one", prompt="$b ${a} $b $c $input", defaults={"c": ""})
    with pytest.raises(RequestError, match=r"needs a value for \$b, \$a$"):
        agent.produce_template({})
    with pytest.raises(RequestError, match=r"has no \$x, \$input; its variables are \$b, \$a, \$c"):
        agent.produce_template({"x": "", "a": "", "input": ""})
    with pytest.raises(RequestError, match="its variables are none"):
        Agent(name="one").produce_template({"x": ""})


def test_dollar_signs_are_doubled() -> None:
    # https://github.com/simonw/llm/issues/904 and https://github.com/simonw/llm/issues/432
    agent = Agent(name="one", prompt="Does it cost $$10? $$var $input")
    assert write(agent, "$5", {}) == "Does it cost $10? $var $5"


@pytest.mark.parametrize(
    ("row", "key", "words"),
    [
        ({"supervisor-template": "for $ 5"}, "supervisor-template", "$$ is a dollar sign"),
        ({"supervisor-template": "$input"}, "supervisor-template", "cannot contain $input"),
        ({"supervisor-template": "a", "supervisor": "b"}, "one", "exclude each other"),
        ({"supervisor-template": "a", "supervisor-file": "b"}, "one", "exclude each other"),
        ({"prompt": "$a $input", "defaults": {"b": ""}}, "b", "$b is in neither"),
        ({"prompt": "$input", "defaults": {"input": ""}}, "input", "whose variables are none"),
        ({"prompt": "$a $input", "defaults": {"a": 1}}, "a", "Expected `str`"),
        ({"examples": [{"input": "a"}]}, "0", "missing required field `output`"),
        ({"examples": [{"input": "a", "output": "b", "x": 1}]}, "x", "unknown key"),
    ],
)
def test_a_wrong_template_names_the_key(home: Path, row: Any, key: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        agent_of(home, **row)
    assert caught.value.key == key
    assert words in caught.value.message


def test_only_agents_that_need_variables_cannot_be_asked(home: Path) -> None:
    rows: Any = {
        "agents": {
            "lead": {"agents": ["writer"]},
            "writer": {"prompt": "$tone $input", "defaults": {"tone": "warm"}},
        }
    }
    configuration = load_configuration(Places.under(home), overrides=rows)
    assert access_others(configuration, access_agent(configuration, "lead"))
    del rows["agents"]["writer"]["defaults"]
    configuration = load_configuration(Places.under(home), overrides=rows)
    with pytest.raises(ConfigurationError, match=r"needs \$tone"):
        access_others(configuration, access_agent(configuration, "lead"))


async def test_a_conversation_has_the_filled_in_instructions_and_examples(home: Path) -> None:
    row = {
        "model": DEMO,
        "supervisor-template": "Speak like $voice.",
        "defaults": {"voice": "a pirate"},
        "examples": [{"input": "Hello $voice", "output": "Ahoy!"}],
    }
    async with open_session(configuration={"agents": {"one": row}}) as session:
        conversation = await session.begin(agent="one", variables={"voice": "$voice"})
        await conversation.converse("Hi")
        said = conversation.canisters
        assert isinstance(said[0], SupervisorCanister)
        assert said[0].text == (
            "Speak like $voice.\n\nExamples of messages, and how to answer them:\n\n<example>\n"
            "<message>\nHello $voice\n</message>\n<answer>\nAhoy!\n</answer>\n</example>"
        )
        # Examples are not messages of the user.
        assert [one.text for one in said if isinstance(one, UserCanister)] == ["Hi"]
        again = await session.resume(conversation.identity, agent="one", variables={"voice": "me"})
        said = (await again.converse("And?")).canisters
        assert isinstance(said[0], SupervisorCanister)
        assert said[0].text.startswith("Speak like me.")
        with pytest.raises(RequestError, match=r"has no \$x"):
            await session.begin(agent="one", variables={"x": ""})


def test_examples_alone_are_instructions() -> None:
    assert Agent(name="one", examples=(Example("a", "b"),)).instruct().startswith("Examples of")
    assert Agent(name="one").instruct() == ""
