"""`--memory` and `/memory`: what a person sees of the memory while they talk."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import invoke, run, streams, write_script
from tests.cli.terminal import NEXT_PROMPT, PROMPT, Terminal
from vibe_llms.cli.memory.repl_memory import USAGE
from vibe_llms.cli.options import Options, open_conversation
from vibe_llms.cli.repl import Repl
from vibe_llms.messages.canisters import DocumentCanister
from vibe_llms.opening import open_session

pytestmark = pytest.mark.usefixtures("warm")

_FACT = json.dumps({"facts": [{"statement": "The user has a cat called Tom"}]})
SCRIPT = f"""
[[replies]]
when = "The user said"
parts = [{{ text = '{_FACT}' }}]
[[replies]]
when = "called[?]"
parts = [{{ text = "Tom." }}]
[[replies]]
when = "."
parts = [{{ text = "That is a fine name for a cat." }}]
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # Nothing is left to a process in the background, which has tests of its own.
    monkeypatch.setenv("VIBE_LLMS_MEMORY__WAIT", "true")
    return write_script(tmp_path, SCRIPT)


class Lines:
    """What a person types, given in advance; at its end they leave."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = list(lines)

    def type_ahead(self, text: str) -> None:
        """Give lines before the others."""
        self._lines[:0] = text.splitlines()

    async def read(self, *_: Any, **__: Any) -> str:
        if not self._lines:
            raise EOFError
        return self._lines.pop(0)


def hold(*lines: str, wait: bool = True, **options: Any) -> tuple[str, str, Repl]:
    """What a REPL printed in which these lines are typed, and itself."""

    async def work() -> tuple[str, str, Repl]:
        given = Options(**options)
        with streams() as (output, errors):
            async with open_session() as session:
                conversation = await open_conversation(session, given)
                repl = Repl(session, conversation, given, Lines(lines[:-1]))
                await repl.run()
                if wait:
                    await session.background.wait()
                last = Repl(session, repl.conversation, given, Lines(lines[-1:]))
                await last.run()
                return output.text, errors.text, last

    return asyncio.run(work())


def documents(repl: Repl) -> int:
    return sum(isinstance(one, DocumentCanister) for one in repl.conversation.canisters)


def test_what_was_said_once_is_known_the_next_time(model: str) -> None:
    assert invoke("chat", "-m", model, "--memory", "My cat is called Tom.").status == 0
    asked = invoke("chat", "-m", model, "--memory", "--dry-run", "What is my cat called?")
    (document, said) = asked.json["messages"]
    assert (document["role"], said["role"]) == ("document", "user")
    assert '"The user has a cat called Tom"' in document["contents"][0]["text"]
    without = invoke("chat", "-m", model, "--dry-run", "What is my cat called?")
    assert "document" not in without.output
    assert len(json.loads(invoke("list", "--json").output)) == 1


def test_whether_it_is_on_without_a_flag_is_configured(home: Path, model: str) -> None:
    invoke("memory", "add", "The cat is called Tom")
    (home / "config.toml").write_text("[memory]\nenabled = true\n")
    question = ("chat", "-m", model, "--dry-run", "What is the cat called?")
    assert "document" in invoke(*question).output
    assert "document" not in invoke(*question, "--no-memory").output
    (home / "config.toml").write_text("[memory]\nenabled = 'yes'\n")
    assert "must be true or false" in invoke(*question).error


def test_what_is_not_kept_is_not_remembered(model: str) -> None:
    assert invoke("chat", "-n", "-m", model, "--memory", "My cat is called Tom.").status == 0
    assert invoke("memory", "list").output == ""


@pytest.mark.parametrize("options", [("-c",), ("-c", "--fork"), ("-c", "-n")])
def test_a_conversation_that_goes_on_has_it_too(model: str, options: tuple[str, ...]) -> None:
    invoke("chat", "-m", model, "Hello")
    invoke("memory", "add", "The cat is called Tom")
    asked = invoke("chat", *options, "--memory", "--dry-run", "What is the cat called?")
    assert "The cat is called Tom" in asked.output


def test_a_conversation_shows_what_was_recalled_and_remembered(model: str) -> None:
    invoke("memory", "add", "The cat is called Leo")
    output, errors, _ = hold("My cat is called Tom.", "/memory", model=model, memory=True)
    assert "recalled for the last message:" in errors
    assert '"The cat is called Leo"' in output
    assert "in this session:" in errors
    assert "  remembered: The user has a cat called Tom" in output


def test_nothing_recalled_and_pending_turns_are_shown(tmp_path: Path) -> None:
    slow = SCRIPT.replace(f"text = '{_FACT}'", "delay-seconds = 3600")
    model = write_script(tmp_path, slow)
    lines = ("My cat is called Tom.", "/memory")

    async def work() -> str:
        with streams() as (_, errors):
            async with open_session() as session:
                given = Options(model=model, memory=True)
                conversation = await open_conversation(session, given)
                await Repl(session, conversation, given, Lines(lines)).run()
                session.background.cancel()
                return errors.text

    reported = asyncio.run(work())
    assert "memory is on" in reported
    assert "nothing was recalled for the last message" in reported
    assert "(a turn is still to be remembered)" in reported


def test_it_is_switched_on_and_off(model: str) -> None:
    invoke("memory", "add", "The cat is called Tom")
    question = "What is the cat called?"
    _, errors, repl = hold(
        "/memory", question, "/memory on", question, "/memory off", question, "/memory", model=model
    )
    assert errors.count("memory is off; to turn it on: /memory on") == 2
    assert "(memory is on from the next message on)" in errors
    assert documents(repl) == 1


def test_in_the_mode_of_tools_its_tools_are_switched(home: Path, model: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text("[memory]\nmode = 'tools'\n")
    assert "memory/store_memory " not in hold("/tools", model=model)[1]
    _, errors, _ = hold("/memory on", "/memory", "/tools", model=model)
    assert "memory is on: the model uses it with its tools" in errors
    assert "memory/store_memory " in errors
    _, errors, _ = hold("/memory off", "/memory", model=model, memory=True)
    assert "memory is off" in errors


def test_entries_are_added_found_and_deleted_at_the_prompt(model: str) -> None:
    output, errors, _ = hold(
        "/memory add The cat is called Tom", "/memory search cats", "/memory search weather",
        model=model,
    )  # fmt: skip
    assert "remembered as " in errors
    assert "The cat is called Tom" in output
    assert "no matching entries" in errors
    identity = output.split()[0]
    _, errors, _ = hold("/memory search cats", f"/memory rm {identity}", model=model)
    assert f"deleted {identity}: The cat is called Tom" in errors
    assert invoke("memory", "list").output == ""


def test_entries_of_another_user_are_not_deleted_at_the_prompt(model: str) -> None:
    added = invoke("memory", "add", "--json", "--scope", "user-ben", "Ben has a cat.").json
    _, errors, _ = hold(f"/memory rm {added['id']}", model=model)
    assert f"no entry matches '{added['id']}'" in errors
    assert "Ben has a cat." in invoke("memory", "list", "--scope", "user-ben").output


@pytest.mark.parametrize("words", ["x", "add", "search", "rm", "on now"])
def test_other_words_are_explained(model: str, words: str) -> None:
    assert USAGE in hold(f"/memory {words}", model=model)[1]


def test_a_recalled_document_is_shown_as_what_it_is(model: str) -> None:
    invoke("memory", "add", "The cat is called Tom")
    invoke("chat", "-m", model, "--memory", "--name", "talk", "What is the cat called?")
    shown = invoke("show", "talk").output
    assert "1 document Memory" in shown
    assert '"The cat is called Tom"' in shown
    assert "2 user" in shown


# The end.


def test_pending_turns_can_be_canceled(tmp_path: Path, model: str) -> None:
    slow = write_script(
        tmp_path, SCRIPT.replace(f"text = '{_FACT}'", "delay-seconds = 3600"), name="slow.toml"
    )
    with Terminal("chat", "-m", slow, "--memory", "My cat is called Tom.") as terminal:
        terminal.expect("fine name")
        terminal.expect("remembering a turn")
        terminal.press("c-c")
        terminal.expect(r"still remembering a turn; Ctrl-C again cancels")
        terminal.press("c-c")
        terminal.expect("the work of memory on 1 turn was cancelled; it will resume next time")
        assert terminal.wait() == 0
    assert invoke("memory", "list").output == ""
    write_script(tmp_path, SCRIPT, name="slow.toml")
    later = run("chat", "-m", model, "--memory", "Hello")
    assert "memory remembered 1 turn of an earlier session" in later.errors
    assert "cat called Tom" in invoke("memory", "list").output


def test_what_a_process_was_killed_over_is_remembered_later(tmp_path: Path, model: str) -> None:
    slow = write_script(
        tmp_path, SCRIPT.replace(f"text = '{_FACT}'", "delay-seconds = 3600"), name="slow.toml"
    )
    with Terminal("chat", "-m", slow, "--memory", "My cat is called Tom.") as terminal:
        terminal.expect("remembering a turn")
        terminal.signal(signal.SIGKILL)
        assert terminal.wait() == -signal.SIGKILL
    write_script(tmp_path, SCRIPT, name="slow.toml")
    later = run("chat", "-m", model, "--memory", "Hello")
    assert "memory remembered 1 turn of an earlier session" in later.errors
    assert "cat called Tom" in invoke("memory", "list").output


def test_leaving_a_conversation_waits_for_it(model: str) -> None:
    with Terminal("chat", "-m", model, "--memory") as terminal:
        terminal.expect(PROMPT)
        terminal.enter("My cat is called Tom.")
        assert "fine name" in terminal.expect(NEXT_PROMPT)
        terminal.press("c-d")
        assert terminal.wait() == 0
    assert "cat called Tom" in invoke("memory", "list").output


def test_without_it_nothing_of_memory_is_loaded(home: Path) -> None:
    code = (
        "import sys\n"
        "from vibe_llms.cli.main import main\n"
        "try:\n"
        "    main(['chat', '-m', 'scripted/demo', 'Hello'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "print([name for name in sys.modules if name.startswith('vibe_llms.memory')])\n"
    )
    done = run("-c", code, command=(sys.executable,))
    assert done.output.splitlines()[-1] == "[]"
    assert not (home / "memory").exists()
    assert not (home / "ingestion").exists()
