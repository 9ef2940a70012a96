"""Agents: how their rows are read, and how conversations begin with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vibe_llms.agents.definitions import Agent, access_agent, read_agents, survey_optional
from vibe_llms.base.configuration import Budget, Places, load_configuration
from vibe_llms.base.exceptions import AgentNotFound, ConfigurationError, RequestError
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import SupervisorCanister, UserCanister, role_of
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.opening import open_session
from vibe_llms.testing import Part, ScriptedReply, scripted_model

DEMO = "scripted/demo"
CODER = {
    "description": "Writes code.",
    "model": DEMO,
    "supervisor": "You write code.",
    "ensembles": ["documents"],
    "controls": {"temperature": 0.5, "top-p": 0.9},
    "output-tokens": 500,
    "tool-mode": "native",
    "budget": {"tokens": 100000, "period": "day"},
}
ROWS: dict[str, Any] = {
    "agents": {
        "coder": CODER,
        "translator": {"prompt": "Translate to $language: ${input} ($$)", "model": DEMO},
        "resting": {"enabled": False},
    }
}
#: At least 1 KiB, which the archive stores under its hash.
LONG = "Be kind. " * 200


def configure(home: Path, **row: Any) -> Any:
    return load_configuration(Places.under(home), overrides={"agents": {"one": row}})


def texts(conversation: Conversation) -> list[str]:
    return [one.text for one in conversation.canisters if isinstance(one, SupervisorCanister)]


def test_a_row_is_read_as_an_agent(home: Path) -> None:
    configuration = load_configuration(Places.under(home), overrides=ROWS)
    assert access_agent(configuration, "coder") == Agent(
        name="coder",
        description="Writes code.",
        model=DEMO,
        supervisor="You write code.",
        ensembles=("documents",),
        controls=Controls(temperature=0.5, top_p=0.9, output_tokens=500),
        tool_mode="native",
        budget=Budget(tokens=100000, period="day"),
    )
    assert "resting" not in read_agents(configuration)
    assert {"coder", "translator"} <= set(read_agents(configuration))


def test_instructions_may_be_in_a_file_next_to_the_configuration(home: Path) -> None:
    home.mkdir()
    (home / "coder.md").write_text("You write code.\n")
    agent = access_agent(configure(home, **{"supervisor-file": "coder.md"}), "one")
    assert agent.supervisor == "You write code."


@pytest.mark.parametrize(
    ("row", "key", "words"),
    [
        ({"modle": "x"}, "modle", "unknown key; did you mean 'model'?"),
        ({"model": 1}, "model", "Expected `str`"),
        ({"ensembles": ["python", "pyton"]}, "ensembles", "'pyton' not found in [ensembles]"),
        ({"optional-ensembles": ["pyton", "*"]}, "optional-ensembles", "'pyton' not found"),
        ({"tools": ["pyton/execute_code"]}, "tools", "'pyton/execute_code' not found"),
        ({"tools": ["fetch_page"]}, "tools", "'fetch_page' not found; a tool is written ROW/TOOL"),
        ({"agents": ["other"]}, "agents", "'other' not found in [agents]; known names"),
        ({"controls": {"temprature": 1}}, "temprature", "did you mean 'temperature'?"),
        ({"controls": {"temperature": "warm"}}, "temperature", "cannot be 'warm'"),
        ({"output-tokens": 0}, "output-tokens", ">= 1"),
        ({"tool-mode": "nativ"}, "tool-mode", "'nativ' is not one of"),
        ({"prompt": "Translate."}, "prompt", "it must contain $input"),
        ({"prompt": "$input for 5 $"}, "prompt", "$$ is a dollar sign"),
        ({"budget": {"tokens": 0}}, "tokens", ">= 1"),
        ({"budget": {"money": -1}}, "money", "> 0"),
        ({"budget": {"period": "minute"}}, "period", "'minute' is not one of"),
        ({"budget": {"limit": 1}}, "limit", "unknown key"),
        ({"supervisor": "a", "supervisor-file": "b"}, "one", "exclude each other"),
        ({"supervisor-file": "missing.md"}, "supervisor-file", "missing.md cannot be read: No"),
        ({"enabled": 1}, "enabled", "Expected `bool`"),
    ],
)
def test_a_wrong_row_names_the_key(home: Path, row: Any, key: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        access_agent(configure(home, **row), "one")
    assert (caught.value.key, caught.value.file) == (key, "the options")
    assert caught.value.path[:2] == ("agents", "one")
    assert words in caught.value.message


def test_a_file_with_instructions_must_be_text(home: Path) -> None:
    home.mkdir()
    (home / "bad.md").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"bad\.md is not UTF-8 text"):
        access_agent(configure(home, **{"supervisor-file": "bad.md"}), "one")


def test_a_wrong_row_does_not_prevent_the_use_of_others(home: Path) -> None:
    rows = {"agents": {"good": {}, "bad": {"x": 1}, "a/b": {}}}
    configuration = load_configuration(Places.under(home), overrides=rows)
    assert access_agent(configuration, "good") == Agent(name="good")
    with pytest.raises(ConfigurationError, match="name of an agent has up to 64 letters"):
        access_agent(configuration, "a/b")
    with pytest.raises(ConfigurationError, match="unknown key"):
        read_agents(configuration)


async def test_a_session_gives_its_agents_by_name() -> None:
    async with open_session(configuration=ROWS) as session:
        assert "coder" in [agent.name for agent in session.survey_agents()]
        assert session.access_agent("coder").description == "Writes code."
        for name in ("codr", "resting"):
            with pytest.raises(AgentNotFound, match=f"'{name}' not found; known agents: .*coder"):
                session.access_agent(name)


async def test_a_conversation_begins_with_what_the_agent_says() -> None:
    async with open_session(configuration=ROWS) as session:
        conversation = await session.begin(agent="coder")
        assert f"{conversation.model.provider}/{conversation.model.name}" == DEMO
        assert texts(conversation) == ["You write code."]
        assert [one.name for one in conversation.ensembles] == ["documents"]
        await conversation.converse("Hello!")
        details = (await session.archive.restore(conversation.identity)).details
        assert details.agent == "coder"
        fork = await conversation.fork()
        assert (await session.archive.restore(fork.identity)).details.agent == "coder"


async def test_the_callers_own_arguments_win_and_lists_are_added() -> None:
    model = scripted_model(["Hi"])
    async with open_session(configuration=ROWS) as session:
        conversation = await session.begin(
            model,
            agent="coder",
            supervisor="Be brief.",
            ensembles=["web", "documents"],
            controls=Controls(temperature=1.0),
            memory=False,
        )
        assert conversation.model is model
        assert texts(conversation) == ["Be brief."]
        assert [one.name for one in conversation.ensembles] == ["documents", "web"]
        await conversation.converse("Hello!")
    controls = model.requests[0]["controls"]
    assert (controls["temperature"], controls["top-p"]) == (1.0, 0.9)
    assert controls["output-tokens"] == 500


@pytest.mark.parametrize(
    ("own", "given", "hooks"),
    [(True, None, 1), (True, False, 0), (None, None, 0), (False, True, 1)],
)
async def test_memory_is_the_callers_choice_first(own: Any, given: Any, hooks: int) -> None:
    async with open_session() as session:
        agent = Agent(name="one", model=DEMO, memory=own)
        conversation = await session.begin(agent=agent, memory=given)
        assert len(conversation.hooks) == hooks


async def test_a_model_that_does_not_exist_is_an_error_of_the_row() -> None:
    rows = {"agents": {"one": {"model": "scriptd/demo"}}}
    async with open_session(configuration=rows) as session:
        with pytest.raises(ConfigurationError, match=r"did you mean 'scripted'") as caught:
            await session.begin(agent="one")
        assert caught.value.path == ("agents", "one", "model")
        assert await session.begin(DEMO, agent="one")


async def test_each_message_is_written_as_the_prompt_has_it() -> None:
    model = scripted_model(ScriptedReply(parts=(Part(text=("Oui",)),), when="."))
    picture = ImageContent(b"\x89PNG", "image/png")
    async with open_session(configuration=ROWS) as session:
        conversation = await session.begin(
            model, agent="translator", variables={"language": "$French"}
        )
        await conversation.converse("Yes, $input")
        fork = await conversation.fork()
        await fork.converse([picture, "a", "b"])
        said = [one for one in fork.canisters if isinstance(one, UserCanister)]
        assert said[0].text == "Translate to $French: Yes, $input ($)"
        assert said[1].contents == (
            picture,
            TextualContent("Translate to $French: a\n\nb ($)"),
        )
        again = await fork.regenerate()
        await again.converse()
        assert again.canisters[-2] == said[1]


@pytest.mark.parametrize(
    ("agent", "variables", "words"),
    [
        ("translator", {}, r"the prompt of the agent 'translator' needs a value for \$language"),
        ("translator", {"language": "x", "tone": "y"}, r"has no \$tone; its variables are \$lang"),
        ("coder", {"a": "x"}, r"'coder' has no \$a; its variables are none"),
        (None, {"a": "x"}, "name the agent too"),
    ],
)
async def test_variables_are_those_of_the_prompt(agent: Any, variables: Any, words: str) -> None:
    async with open_session(configuration=ROWS) as session:
        with pytest.raises(RequestError, match=words):
            await session.begin(agent=agent, variables=variables)


@pytest.mark.parametrize("supervisor", ["You write code.", LONG])
async def test_a_conversation_is_resumed_with_its_agent(supervisor: str) -> None:
    rows = {"agents": {"one": {"supervisor": supervisor, "ensembles": ["documents"]}}}
    async with open_session(configuration=rows) as session:
        begun = await session.begin(DEMO, agent="one")
        await begun.converse("Hello!")
    async with open_session(configuration=rows) as session:
        resumed = await session.resume(begun.identity, agent="one")
        assert resumed.canisters == begun.canisters
        assert [one.name for one in resumed.ensembles] == ["documents"]


async def test_instructions_are_said_once_with_the_next_message_after_a_resume() -> None:
    async with open_session(configuration=ROWS) as session:
        begun = await session.begin(scripted_model(["Hi"]), supervisor="Be brief.")
        await begun.converse("Hello!")
        plain = await session.resume(begun.identity, model=DEMO)
        resumed = await session.resume(begun.identity, model=DEMO, agent="coder")
        assert (await resumed.count_tokens()).tokens > (await plain.count_tokens()).tokens
        # Nothing is stored for a conversation that does not go on.
        stored = await session.archive.restore(begun.identity)
        assert list(stored.canisters) == list(begun.canisters)
        assert stored.details.model != DEMO
        for text in ("And?", "And then?"):
            await resumed.converse(text)
        again = await session.resume(begun.identity, agent="coder")
        await again.converse("Well?")
        stored = await session.archive.restore(begun.identity)
    roles = [role_of(one) for one in stored.canisters]
    assert roles == [
        *("supervisor", "user", "assistant", "supervisor", "user", "assistant"),
        *("user", "assistant", "user", "assistant"),
    ]
    assert stored.details.model == DEMO


async def test_a_fork_of_a_resumed_conversation_has_its_model_and_instructions() -> None:
    async with open_session(configuration=ROWS) as session:
        begun = await session.begin(scripted_model(["Hi"]))
        await begun.converse("Hello!")
        resumed = await session.resume(begun.identity, model=DEMO, agent="coder")
        await resumed.rename("kept")
        fork = await resumed.fork()
        await fork.converse("And?")
        stored = await session.archive.restore(fork.identity)
        former = await session.archive.restore(begun.identity)
    assert [role_of(one) for one in stored.canisters][2:] == ["supervisor", "user", "assistant"]
    assert stored.details.model == DEMO
    assert former.details == replace(begun.history.details, name="kept")
    assert list(former.canisters) == list(begun.canisters)


async def test_optional_ensembles_that_lack_something_are_left_out() -> None:
    events: list[Event] = []
    broken = {"module": "vibe_llms.ensembles.mcp", "command": ["/nowhere/server"]}
    rows = {
        "agents": {
            "one": {"ensembles": ["web"], "optional-ensembles": ["python", "images", "web", "*"]}
        },
        "ensembles": {"python": {"needs": ["no_such_package"]}, "broken": broken, "documents": {}},
    }
    async with open_session(configuration=rows, event_handler=events.append) as session:
        conversation = await session.begin(DEMO, agent="one")
        assert [one.name for one in conversation.ensembles] == ["web", "documents"]
        agent = session.access_agent("one")
        names = survey_optional(session.configuration, agent)
        assert names == ["python", "images", "documents", "broken"]
    (notice,) = [event.notice.text for event in events if isinstance(event, NoticeEvent)]
    assert notice.startswith("broken: ")
    assert notice.endswith("its tools are left out")


async def test_a_wrong_row_of_an_optional_ensemble_is_an_error() -> None:
    rows = {
        "agents": {"one": {"optional-ensembles": ["web"]}},
        "ensembles": {"web": {"trusted-host": []}},
    }
    async with open_session(configuration=rows) as session:
        with pytest.raises(ConfigurationError, match="did you mean 'trusted-hosts'"):
            await session.begin(DEMO, agent="one")


async def test_a_history_that_has_the_instructions_gets_no_second_ones() -> None:
    async with open_session(configuration=ROWS) as session:
        begun = await session.begin(agent="coder")
        again = await session.begin(agent="coder", history=begun.canisters)
        assert texts(again) == ["You write code."]


async def test_single_tools_are_offered_alone() -> None:
    tools = ["rag_search_tool", "memory/search_memories", "documents/search_document"]
    row = {"tools": tools, "model": DEMO}
    whole = {**row, "ensembles": ["documents"]}
    async with open_session(configuration={"agents": {"one": row, "whole": whole}}) as session:
        assert session.access_agent("one").tools == (
            "documents/search_document",
            "memory/search_memories",
        )
        assert session.access_agent("one").equipped
        conversation = await session.begin(agent="one", save=False)
        assert list(conversation.invokers) == [
            "documents/search_document",
            "memory/search_memories",
        ]
        await conversation.offer("file_content_extraction_tool")
        assert "documents/read_document" in conversation.invokers
        conversation.withhold("rag_search_tool")
        assert list(conversation.invokers) == ["documents/read_document", "memory/search_memories"]
        conversation.withhold("documents")
        assert list(conversation.invokers) == ["memory/search_memories"]
        other = await session.begin(agent="whole", save=False)
        assert len(other.invokers) == 4


async def test_a_single_tool_that_an_ensemble_lacks_is_an_error_of_the_row() -> None:
    row = {"tools": ["documents/burn_document"], "model": DEMO}
    async with open_session(configuration={"agents": {"one": row}}) as session:
        with pytest.raises(
            ConfigurationError, match="'documents/burn_document' not found"
        ) as caught:
            await session.begin(agent="one", save=False)
    assert caught.value.path == ("agents", "one", "tools")
