"""Ctrl-C and the end of a process while a turn runs (C1), and the work that is left at the end."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import invoke, script_of, streams, write_script
from tests.cli.terminal import COMMAND, Terminal
from tests.fakes.hooks import Companion
from tests.fakes.models import endless
from vibe_llms.cli.running import finish_work, run_turn
from vibe_llms.messages.canisters import StopReason, Turn, UserCanister
from vibe_llms.opening import open_session

pytestmark = pytest.mark.usefixtures("warm")

_WORDS = [f"word{n} " for n in range(60)]
_SLOW = script_of(*(f"{{ text = '{word}' }}, {{ delay-seconds = 0.02 }}" for word in _WORDS))


@pytest.fixture
def slow(tmp_path: Path) -> str:
    return write_script(tmp_path / "scripts", _SLOW)


def with_bug(planting: str) -> Sequence[str]:
    """The command with a bug planted in it."""
    program = f"{planting}; from vibe_llms.cli.main import main; main()"
    return (sys.executable, "-c", program)


def restore() -> list[dict[str, Any]]:
    """The messages of the conversation that was used last."""
    (newest, *_) = invoke("list", "--json", "--limit", "1").json
    messages: list[dict[str, Any]] = invoke("show", newest["id"], "--json").json["messages"]
    return messages


def check_partial_is_kept() -> None:
    """What had arrived is in the archive, marked, and the conversation goes on."""
    messages = restore()
    assert len(messages) > 1
    prompt, reply = messages[-2:]
    assert prompt["role"] == "user"
    assert reply["role"] == "assistant"
    assert reply["ending"]["interrupted"] is True
    said = "".join(content["data"] for content in reply["contents"])
    assert said
    assert "".join(_WORDS).startswith(said)
    again = invoke("-c", "-m", "scripted/demo", "hello")
    assert again.status == 0
    assert again.output.startswith("Hello!")
    assert restore()[-4:-2] == [prompt, reply]


def check_interrupt(
    model: str,
    seconds: float,
    end: Callable[[Terminal], None],
    command: Sequence[str] = COMMAND,
) -> None:
    """A reply that is ended after so many seconds leaves with 130, quietly, and is kept."""
    with Terminal("chat", "-m", model, "go", command=command) as terminal:
        terminal.expect("word0")
        time.sleep(seconds)
        end(terminal)
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.output
        assert "the partial answer is kept" in terminal.output
    check_partial_is_kept()


def press(terminal: Terminal) -> None:
    terminal.press("c-c")


@pytest.mark.storm
def test_ctrl_c_keeps_what_arrived_at_any_point(
    slow: str, rounds: Callable[[int, int], int]
) -> None:
    chance = random.Random(11)
    for _ in range(rounds(6, 100)):
        check_interrupt(slow, chance.random() * 1.0, press)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_keeps_what_arrived_too(slow: str, number: signal.Signals) -> None:
    check_interrupt(slow, 0.1, lambda terminal: terminal.signal(number))


def test_two_presses_are_as_good_as_one(slow: str) -> None:
    check_interrupt(slow, 0.1, lambda terminal: terminal.press("c-c", "c-c", "c-c"))


def test_a_reply_that_is_thrown_away_would_be_seen(slow: str) -> None:
    planted = with_bug(
        "import vibe_llms.conversations.turns as t; t._is_worth_keeping = lambda _: False"
    )
    with pytest.raises(AssertionError):
        check_interrupt(slow, 0.1, press, planted)


def test_a_status_that_is_wrong_would_be_seen(slow: str) -> None:
    planted = with_bug("import vibe_llms.cli.failures as f; f.INTERRUPTED = 1")
    with pytest.raises(AssertionError):
        check_interrupt(slow, 0.1, press, planted)


def test_a_window_that_is_closed_loses_nothing(slow: str) -> None:
    with Terminal("chat", "-m", slow, "go") as terminal:
        terminal.expect("word1")
        terminal.hang_up()
        terminal.process.wait(60)
    check_partial_is_kept()


def test_ctrl_c_before_the_reply_leaves_an_acceptable_conversation(tmp_path: Path) -> None:
    model = write_script(tmp_path, script_of("{ delay-seconds = 60.0 }", "{ text = 'never' }"))
    with Terminal("chat", "-m", model, "go") as terminal:
        terminal.expect("waiting for")
        terminal.press("c-c")
        assert terminal.wait() == 130
    assert invoke("-c", "-m", "scripted/demo", "hello").output.startswith("Hello!")
    roles = [message["role"] for message in restore()]
    assert roles in (["user", "user", "assistant"], ["user", "assistant", "user", "assistant"])


@pytest.mark.storm
@pytest.mark.usefixtures("cold")
def test_ctrl_c_while_it_starts_is_quiet(rounds: Callable[[int, int], int]) -> None:
    chance = random.Random(12)
    for _ in range(rounds(5, 60)):
        with Terminal("chat", "hello") as terminal:
            time.sleep(chance.random() * 0.6)
            terminal.signal(signal.SIGINT)
            status = terminal.wait()
        # Until `main` runs, the interpreter ends as it likes, and may say where it was.
        if re.search("Fatal Python error: init|Could not import runpy module", terminal.output):
            continue
        if "Traceback" in terminal.output:
            assert not re.search("vibe_llms.*in main", terminal.output), terminal.output
        assert status in (0, 130, -signal.SIGINT), terminal.output


def test_without_an_interruption_the_handlers_are_as_before(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    assert invoke("hello").status == 0
    assert {number: signal.getsignal(number) for number in before} == before


async def _for_ever(_: Turn) -> None:
    await asyncio.Event().wait()


def send(after: float, *numbers: signal.Signals) -> None:
    """Send signals to this process, one after the other, while its loop runs."""
    loop = asyncio.get_running_loop()
    for count, number in enumerate(numbers, 1):
        loop.call_later(after * count, os.kill, os.getpid(), number)


@pytest.mark.parametrize(
    ("numbers", "reported"),
    [
        ((signal.SIGINT, signal.SIGINT), True),
        ((signal.SIGTERM,), False),
        ((signal.SIGHUP,), False),
    ],
)
async def test_a_second_press_or_the_system_ends_it(
    home: Path, numbers: tuple[signal.Signals, ...], reported: bool
) -> None:
    with streams() as (_, errors):
        async with open_session(home=home) as session:
            conversation = await session.begin(endless(), hooks=[Companion(work=_for_ever)])
            await conversation.converse("x")
            before = signal.getsignal(signal.SIGINT)
            send(0.1, *numbers)
            await finish_work(session)
            assert session.background.pending == 0
            assert signal.getsignal(signal.SIGINT) is before
        assert ("(still remembering a turn; Ctrl-C again cancels)" in errors.text) == reported


async def test_the_first_press_does_not_end_it(home: Path) -> None:
    done: list[str] = []

    async def work(turn: Turn) -> None:
        await asyncio.sleep(0.3)
        done.append(turn.text)

    with streams() as (_, errors):
        async with open_session(home=home) as session:
            conversation = await session.begin(endless(), hooks=[Companion(work=work)])
            await conversation.converse("x")
            await conversation.converse("y")
            send(0.05, signal.SIGINT)
            await finish_work(session, quiet=True)
        assert errors.text == ""
    assert done == ["Works.", "Works."]


async def test_leaving_at_once_cancels_background_work(home: Path) -> None:
    async with open_session(home=home) as session:
        conversation = await session.begin(endless(), hooks=[Companion(work=_for_ever)])
        await conversation.converse("x")
        await finish_work(session, leave=True)
        await asyncio.wait_for(session.background.wait(), 10)
        assert session.background.pending == 0
        await finish_work(session)


async def test_ctrl_c_while_hooks_are_asked_keeps_what_was_said(home: Path) -> None:
    companion = Companion("x", waits=True)
    async with open_session(home=home) as session:
        conversation = await session.begin(endless(), hooks=[companion])
        held = asyncio.ensure_future(run_turn(conversation, conversation.converse("My words")))
        await companion.begun.wait()
        os.kill(os.getpid(), signal.SIGINT)
        turn, leave = await held
        assert (turn.stop_reason, leave) == (StopReason.INTERRUPTED, False)
        stored = await session.archive.restore(conversation.identity)
        assert [type(one) for one in stored.canisters] == [UserCanister]
        companion.waits = False
        again = await conversation.regenerate()
        assert (await again.converse()).text == "Works."
