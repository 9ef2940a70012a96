"""Models and agents as options, tokens and costs, and titles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.acp.editor import Editor, Failure, editing
from tests.acp.scripts import options_for, said_by_user, stored
from tests.cli.command import script_of, write_script
from vibe_llms.acp.options import LaunchOptions


@pytest.fixture
def models(tmp_path: Path, home: Path) -> tuple[str, str]:
    """Two models with other answers; the configuration has an agent for the second one."""
    one = write_script(tmp_path, script_of("{ text = 'One.' }"), "one.toml")
    two = write_script(tmp_path, script_of("{ text = 'Two.' }"), "two.toml")
    home.mkdir()
    (home / "config.toml").write_text(
        f'default-model = "{one}"\n'
        f'[agents.second]\nmodel = "{two}"\nsupervisor = "Be second."\ndescription = "The second"\n'
        '[agents.form]\nprompt = "$input for $name"\n'
    )
    return one, two


def current(options: list[dict[str, Any]]) -> dict[str, str]:
    return {one["id"]: one["currentValue"] for one in options}


async def choose(editor: Editor, session: str, option: str, value: Any) -> dict[str, str]:
    answer = await editor.call(
        "session/set_config_option", sessionId=session, configId=option, value=value
    )
    return current(answer["configOptions"])


async def test_a_new_session_lists_usable_models_and_agents(
    models: tuple[str, str], tmp_path: Path
) -> None:
    async with editing() as editor:
        opened = await editor.call("session/new", cwd=str(tmp_path), mcpServers=[])
    model, agent = opened["configOptions"]
    assert (model["id"], model["category"], model["currentValue"]) == ("model", "model", models[0])
    # No key is set here.
    assert not [one for one in model["options"] if one["value"].startswith("anthropic/")]
    assert (agent["id"], agent["currentValue"]) == ("agent", "-")
    names = {one["value"]: one.get("description") for one in agent["options"]}
    assert names["second"] == "The second"
    assert "form" not in names


async def test_the_chosen_model_answers_the_next_message(
    models: tuple[str, str], tmp_path: Path, home: Path
) -> None:
    async with editing() as editor:
        session = await editor.open(tmp_path)
        await editor.say(session, "Hi")
        assert (await choose(editor, session, "model", models[1]))["model"] == models[1]
        await editor.say(session, "Hi")
        assert editor.text() == "One.Two."
    async with editing() as editor:
        loaded = await editor.call(
            "session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[]
        )
        assert current(loaded["configOptions"])["model"] == models[1]


async def test_a_chosen_agent_brings_its_model_and_instructions(
    models: tuple[str, str], tmp_path: Path, home: Path
) -> None:
    async with editing() as editor:
        session = await editor.open(tmp_path)
        chosen = await choose(editor, session, "agent", "second")
        assert chosen == {"model": models[1], "agent": "second"}
        await editor.say(session, "Hi")
        assert (await choose(editor, session, "agent", "-"))["agent"] == "-"
        await editor.say(session, "Again")
        assert editor.text() == "Two.Two."
    assert [path.parent.name for path in home.glob("conversations/*/messages.jsonl")] == [session]
    assert [one["role"] for one in stored(home)][:2] == ["supervisor", "user"]


async def test_an_agent_is_chosen_for_a_conversation_that_is_stored(
    models: tuple[str, str], tmp_path: Path, home: Path
) -> None:
    async with editing() as editor:
        session = await editor.open(tmp_path)
        await editor.say(session, "One")
        assert (await choose(editor, session, "agent", "second"))["agent"] == "second"
        await editor.say(session, "Two")
        assert editor.text() == "One.Two."
    assert said_by_user(home) == ["One", "Two"]
    assert [one["role"] for one in stored(home)].count("supervisor") == 1


async def test_a_session_begins_with_the_agent_of_the_command(
    models: tuple[str, str], tmp_path: Path
) -> None:
    async with editing(LaunchOptions(agent="second")) as editor:
        session = await editor.open(tmp_path)
        await editor.say(session, "Hi")
        assert editor.text() == "Two."
    async with editing() as editor:
        loaded = await editor.call(
            "session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[]
        )
        assert current(loaded["configOptions"])["agent"] == "second"


async def test_what_is_chosen_during_a_turn_holds_from_the_next_one(
    models: tuple[str, str], tmp_path: Path
) -> None:
    script = script_of("{ text = 'Slow' }", "{ stall = true }")
    async with editing(options_for(tmp_path, script)) as editor:
        session = await editor.open(tmp_path)
        turn = editor.prompt(session, "Hi")
        await editor.wait_for("agent_message_chunk")
        assert (await choose(editor, session, "model", models[1]))["model"] == models[1]
        editor.notify("session/cancel", sessionId=session)
        assert (await turn)["stopReason"] == "cancelled"
        await editor.say(session, "Hi")
        assert editor.text() == "SlowTwo."


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("model", "nobody/nothing", "nobody"),
        ("model", "", "no model is given"),
        ("model", True, "values that are text"),
        ("agent", "nobody", "nobody"),
        ("agent", "form", "variables"),
        ("mode", "code", "option 'mode' not found; use model and agent"),
    ],
)
async def test_a_wrong_choice_is_an_error_and_changes_nothing(
    models: tuple[str, str], tmp_path: Path, option: str, value: Any, problem: str
) -> None:
    async with editing() as editor:
        session = await editor.open(tmp_path)
        with pytest.raises(Failure, match=problem) as failure:
            await choose(editor, session, option, value)
        assert failure.value.code == -32602
        assert await choose(editor, session, "agent", "-") == {"model": models[0], "agent": "-"}
        await editor.say(session, "Hi")
        assert editor.text() == "One."


async def test_tokens_are_sent_after_a_turn_and_when_a_session_is_loaded(tmp_path: Path) -> None:
    usage = "{ uncached_input_tokens = 40, output_tokens = 2 }"
    options = options_for(tmp_path, script_of("{ text = 'Yes.' }", usage=usage))
    async with editing(options) as editor:
        session = await editor.open(tmp_path)
        await editor.say(session, "Hi")
        update = editor.of("usage_update")[-1]
        assert update["used"] == 42
        # No window is declared for this model.
        assert (update["size"], update["_meta"]) == (32_768, {"vibe-llms": {"size": "assumed"}})
        assert await editor.call(
            "session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[]
        )
        assert editor.of("usage_update")[-1] == update


async def test_a_title_is_sent_when_it_changes(tmp_path: Path) -> None:
    async with editing(options_for(tmp_path, script_of("{ text = 'Yes.' }"))) as editor:
        session = await editor.open(tmp_path)
        await editor.say(session, "What is the sky?\nTell me.")
        await editor.say(session, "And the sea?")
        (update,) = editor.of("session_info_update")
        assert update["title"] == "What is the sky?"
        (listed,) = (await editor.call("session/list"))["sessions"]
        assert listed["title"] == update["title"]


async def test_a_model_that_is_gone_is_replaced_and_reported(tmp_path: Path, home: Path) -> None:
    options = options_for(tmp_path, script_of("{ text = 'Yes.' }"))
    async with editing(options) as editor:
        session = await editor.open(tmp_path)
        await editor.say(session, "Hi")
    (path,) = home.glob("conversations/*/metadata.toml")
    text = path.read_text("utf-8")
    path.write_text(text.replace(f'model = "{options.model}"', 'model = "gone/away"'), "utf-8")
    async with editing(options) as editor:
        await editor.call("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
        assert "gone" in editor.text("agent_thought_chunk")
        assert await editor.say(session, "Again") == "end_turn"
    assert said_by_user(home) == ["Hi", "Again"]
