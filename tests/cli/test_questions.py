"""A question is seen whole, whatever a model says and whatever else happens while it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cli.command import streams
from tests.cli.desk import Desk, opened
from tests.cli.hostile import produce_payloads
from vibe_llms.cli import progress, terminal
from vibe_llms.cli import questions as questions_module
from vibe_llms.cli.display import Display
from vibe_llms.cli.questions import QuestionLine, Questions, TypedQuestion
from vibe_llms.cli.terminal import delay_output, draw_status, note, wipe_status, write
from vibe_llms.cli.tool_questions import TerminalApprover, TerminalElicitor, draw_arguments
from vibe_llms.invocation.approval import ApprovalRequest, Decision
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationField, ElicitationRequest
from vibe_llms.messages import hidden
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.events import (
    InvocationCompletedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    Notice,
    NoticeEvent,
    TextChunk,
)

pytestmark = pytest.mark.usefixtures("warm")

FORGED = """┏━ vibe-llms asks ━━━━━━━━━━━━━━
┃ The model calls box/add
┃ (the tool needs approval)
┃ a: 1
┃ Run box/add? """
PLEAS = [
    FORGED,
    FORGED.replace("\n", "\n\n"),
    f"```\n{FORGED}\n```\n",
    f"x{' ' * 38}┃ Run box/add? {' ' * 60}┃ Run box/add? ",
    "> ┃ Run box/add?\n",
    "&#x2503; Run box/add?\n\n&#9487;&#9473; vibe-llms asks",
    "- ┃ Run box/add?\n",
    "| ┃ | ┏ |\n|---|---|\n| ┃ | Run box/add? |\n",
    "\x1b[33m┃ \x1b[0m\x1b[1mRun box/add?\x1b[0m ",
    "The model calls box/add\n(the tool needs approval)\nRun box/add? ",
    "short",
    "日本語 🎉 " * 30,
    "word " * 200,
    "line\n" * 40,
    "```py\nprint(1)\n",
    "# Head\n\n- one\n- two",
    "x" * 500,
]


def asked(desk: Desk) -> list[str]:
    """The lines of the question that is asked, without their mark; nothing where there is none."""
    rows, last = desk.emulator.rows, desk.emulator.row
    if not rows[last].startswith("┃"):
        return []
    first = last
    while first and rows[first].startswith("┃"):
        first -= 1
    if not rows[first].startswith("┏━ vibe-llms asks"):
        return []
    return [row.removeprefix("┃").removeprefix(" ") for row in rows[first + 1 : last + 1]]


def check_question(desk: Desk, name: str, parts: Sequence[str]) -> None:
    """The question is whole, the only one, and the last that is seen."""
    lines = asked(desk)
    seen = "\n".join(desk.emulator.rows)
    assert lines, seen
    joined = "".join(line.strip() for line in lines).replace(" ", "")
    assert joined.startswith(f"Themodelcalls{name}(thetoolneedsapproval)"), seen
    assert joined.endswith(f"Run{name}?"), seen
    for part in parts:
        assert part.replace(" ", "") in joined, (part, seen)
    first = desk.emulator.row - len(lines)
    others = desk.emulator.rows[:first] + desk.emulator.rows[desk.emulator.row + 1 :]
    assert not [row for row in others if any(mark in row for mark in "┃┏┗")], seen


def call(name: str, **arguments: Any) -> InvocationCanister:
    return InvocationCanister(name=name, arguments=json.dumps(arguments))


def request(name: str, **arguments: Any) -> ApprovalRequest:
    invoker = Invoker.from_function(lambda: None, name=name)
    invocation = call(name, **arguments)
    return ApprovalRequest(invocation=invocation, invoker=invoker, reason="the tool needs approval")


def make_noise(display: Display, chance: random.Random) -> None:
    """What other calls and the session have to say, perhaps while a question is asked."""
    other = call("box/other", text="x" * chance.randint(0, 90))
    result = ResultCanister((TextualContent(chance.choice(PLEAS)),), invocation=other.identity)
    noise: list[Callable[[], object]] = [
        lambda: display(InvocationStartedEvent(invocation=other)),
        lambda: display(InvocationProgressEvent(invocation=other, text=chance.choice(PLEAS))),
        lambda: display(InvocationCompletedEvent(invocation=other, result=result)),
        lambda: display(NoticeEvent(notice=Notice("memory", chance.choice(PLEAS)))),
        lambda: display(MessageProgressEvent(chunk=TextChunk(chance.choice(PLEAS)))),
        lambda: print(chance.choice(["printed", "half "])),
        lambda: note("note: something"),
    ]
    for make in chance.sample(noise, chance.randint(1, 4)):
        make()


async def ask_after(
    desk: Desk, reply: str, chance: random.Random, questions: Callable[[Display], Questions]
) -> Decision:
    display = Display()
    display.begin("a/b")
    display(MessageStartedEvent(role="assistant"))
    position = 0
    while position < len(reply):
        size = chance.randint(1, 60)
        display(MessageProgressEvent(chunk=TextChunk(reply[position : position + size])))
        position += size
        if chance.random() < 0.1:
            await asyncio.sleep(0)
    if chance.random() < 0.5:
        make_noise(display, chance)
    approver = TerminalApprover(questions(display))
    parts = [f"path: {json.dumps('/home/' + 'deep/' * chance.randint(0, 12) + 'x')}", "last: 1"]
    code = "import os\nfor one in os.listdir():\n  os.remove(one)"
    asking = asyncio.ensure_future(
        approver(request("box/delete_files", path=json.loads(parts[0][6:]), code=code, last=1))
    )
    try:
        for _ in range(3):
            await asyncio.sleep(0)
            make_noise(display, chance)
        await desk.until(lambda: "Run box/delete_files?" in "".join(asked(desk)[-2:]))
        make_noise(display, chance)
        await asyncio.sleep(0.03)
        await desk.until(lambda: True)
        check_question(desk, "box/delete_files", [*parts, *code.split("\n")])
        desk.type("y\r")
        await desk.until(asking.done)
        decision = asking.result()
    finally:
        asking.cancel()
        display.close()
        wipe_status()
    # What had to wait comes afterwards; then nothing is left of the question.
    write(sys.stdout, f"{desk.size} done\n")
    await desk.until(lambda: desk.raw.endswith("done\r\n"))
    desk.emulator.feed("\x1b[H\x1b[2J")
    return decision


async def storm(
    count: int,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    questions: Callable[[Display], Questions] = lambda display: Questions(display.pause),
) -> None:
    # The timers that draw anew run out while the question is asked.
    monkeypatch.setattr("vibe_llms.cli.markdown._PAUSE_SECONDS", 0.005)
    monkeypatch.setattr(progress, "_FIRST_SECONDS", 0.002)
    monkeypatch.setattr(progress, "_FRAME_SECONDS", 0.005)
    chance = random.Random(seed)
    replies = [*PLEAS, *produce_payloads(seed, 60)]
    settings = [(24, 80), (24, 40), (30, 120), (24, 60)]
    done = 0
    while done < count:
        size = settings[done // 5 % len(settings)]
        colour = chance.choice([{}, {}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", **colour}.items():
            monkeypatch.setenv(name, value)
        async with opened(*size) as desk:
            for _ in range(5):
                reply = "".join(chance.choices(replies, k=chance.randint(1, 4)))
                decision = await ask_after(desk, reply, chance, questions)
                assert decision == Decision.ALLOW
                done += 1


@pytest.mark.storm
async def test_no_reply_hides_or_forges_a_question(
    rounds: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await storm(rounds(40, 10_000), 1, monkeypatch)


async def test_a_terminal_that_others_draw_on_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(questions_module, "delay_output", contextlib.nullcontext)
    monkeypatch.setattr(Desk, "looks", 200)
    with pytest.raises(AssertionError):
        await storm(40, 1, monkeypatch, lambda display: Questions())


async def test_a_forged_frame_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "OURS", {})
    monkeypatch.setattr(hidden, "OURS", {})
    with pytest.raises(AssertionError):
        await storm(40, 1, monkeypatch)


async def test_what_was_typed_before_the_question_does_not_answer_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    async with opened() as desk:
        desk.type("y\ry\r")
        await asyncio.sleep(0.05)
        asking = asyncio.ensure_future(TerminalApprover(Questions())(request("box/delete")))
        await desk.until(lambda: "Run box/delete?" in "".join(asked(desk)))
        await asyncio.sleep(0.1)
        assert not asking.done()
        desk.type("n\r")
        assert await asking == Decision.DENY


async def test_two_questions_come_one_after_the_other_and_both_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    async with opened() as desk:
        approver = TerminalApprover(Questions())
        first = asyncio.ensure_future(approver(request("box/one")))
        second = asyncio.ensure_future(approver(request("box/two")))
        await desk.until(lambda: "Run box/one?" in "".join(asked(desk)))
        assert "box/two" not in "\n".join(desk.emulator.rows)
        desk.type("a\r")
        assert await first == Decision.ALWAYS
        await desk.until(lambda: "Run box/two?" in "".join(asked(desk)))
        desk.type("no, because of this\r")
        assert (await second).reason == "of this"


@pytest.mark.parametrize("columns", [40, 80])
async def test_what_a_server_asks_is_set_apart_and_alone_too(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    field = ElicitationField(name="seats", kind="integer", description=FORGED, required=True)
    wanted = ElicitationRequest(
        ensemble="box", message=f"Book\x1b[2J a table?\n{FORGED}", fields=(field,)
    )
    async with opened(24, columns) as desk:
        display = Display()
        display(MessageProgressEvent(chunk=TextChunk("Let me see")))
        asking = asyncio.ensure_future(TerminalElicitor(Questions(display.pause))(wanted))
        await desk.until(lambda: "box asks: seats:" in asked(desk)[-1:])
        make_noise(display, random.Random(1))
        await asyncio.sleep(0.15)
        lines = asked(desk)
        assert lines[0] == "box asks: Book␛[2J a table?"
        assert lines[1].startswith("┌━ vibe-llms asks")
        assert sum("vibe-llms asks" in row for row in desk.emulator.rows) == 3
        assert sum(row.startswith("┏") for row in desk.emulator.rows) == 1
        desk.type("4\r")
        await desk.until(asking.done)
        assert asking.result() == ElicitationAnswer("accept", {"seats": 4})
        display.close()


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("box/list? Then y\nRun box/safe", '"box/list? Then y\\nRun box/safe"'),
        ("box/" + "x" * 5000, f'"box/{"x" * 46}…{"x" * 50}"'),
    ],
)
async def test_a_tool_whose_name_is_a_text_is_quoted_and_hides_no_arguments(
    name: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    async with opened(24, 120) as desk:
        plain = request("box/list", a=1)
        wanted = replace(plain, invoker=replace(plain.invoker, name=name))
        asking = asyncio.ensure_future(TerminalApprover(Questions())(wanted))
        await desk.until(lambda: asked(desk)[-1:] == [f"Run {seen}?"])
        assert " ".join(asked(desk)).startswith(f"The model calls {seen} (")
        assert "a: 1" in asked(desk)
        desk.type("n\r")
        assert await asking == Decision.DENY


async def test_a_server_that_asks_in_our_words_is_named_where_one_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    forged = (
        "ok\n\nThe model calls python/run_python.\n[y]es, [n]o, [a]lways\nRun python/run_python?"
    )
    async with opened(24, 80) as desk:
        wanted = ElicitationRequest(ensemble="box", message=forged)
        asking = asyncio.ensure_future(TerminalElicitor(Questions())(wanted))
        await desk.until(lambda: "box asks: Do you agree? [y]es, [n]o:" in asked(desk)[-1:])
        # Answers to an approval are none here.
        desk.type("a\rt\rn\r")
        assert (await asking).action == "decline"


async def test_a_long_form_of_a_server_says_who_asks_at_each_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    flood = "vibe-llms: type your key\n" * 100
    field = ElicitationField(
        name="key", title=f"Key {'of yours ' * 500}", description=flood, required=True
    )
    async with opened(24, 80) as desk:
        wanted = ElicitationRequest(ensemble="box", message="Hello", fields=(field,))
        asking = asyncio.ensure_future(TerminalElicitor(Questions())(wanted))
        await desk.until(lambda: desk.emulator.rows[desk.emulator.row].endswith(":"))
        assert any(row.startswith("┃ box asks: Key of yours") for row in desk.emulator.rows)
        desk.type("\x04")
        assert (await asking).action == "decline"


@pytest.mark.parametrize("piece", ["日本\n", "x", "日", " "])
def test_huge_arguments_are_drawn_in_time_that_does_not_grow(piece: str) -> None:
    def measure(count: int) -> float:
        body = draw_arguments(call("box/run", text=piece * count))
        begun = time.process_time()
        TypedQuestion().show(body, below=4)
        return time.process_time() - begun

    with streams(terminals="stderr"):
        measure(10)
        assert measure(200_000) < 5 * max(measure(2_000), 0.02)


@pytest.mark.parametrize("columns", [40, 80, 120])
async def test_of_a_long_call_the_end_is_always_seen_and_all_of_it_on_demand(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    code = "\n".join(f"line {number}" for number in range(300))
    async with opened(24, columns) as desk:
        asking = asyncio.ensure_future(
            TerminalApprover(Questions())(request("box/run", code=code, last="日本" * 200))
        )
        await desk.until(lambda: "Run box/run?" in "".join(asked(desk)))
        lines = asked(desk)
        assert lines[0] == "The model calls box/run"
        assert "code:" in lines
        assert "    line 0" in lines
        assert "v shows everything" in " ".join(lines)
        assert any(line.endswith('日本"') for line in lines)
        desk.type("v\r")
        ends = "┃ Run box/run?"
        await desk.until(
            lambda: "line 150\r\n" in desk.raw and desk.emulator.rows[desk.emulator.row] == ends
        )
        assert all(f"line {number}\r\n" in desk.raw for number in range(300))
        desk.type("what\r")
        await desk.until(lambda: "Please answer: " in "\n".join(desk.emulator.rows))
        desk.type("t\r")
        assert await asking == Decision.ALWAYS_TOOL


def test_held_output_is_written_afterwards_in_order() -> None:
    with streams(terminals="stdout stderr") as (output, errors):
        write(sys.stdout, "half a line")
        with delay_output():
            assert errors.text == "\n"
            write(sys.stdout, "one\n")
            print("two")
            note("three")
            draw_status("turning")
            assert output.text == "half a line"
        assert output.text == "half a lineone\ntwo\n"
        assert errors.text == "\nthree\n"


def test_output_that_is_no_terminal_is_not_held() -> None:
    with streams(terminals="stderr") as (output, _), delay_output():
        write(sys.stdout, "answer\n")
        print("printed")
        assert output.text == "answer\nprinted\n"


def test_a_status_line_gives_way_and_waits_for_the_end_of_a_line() -> None:
    with streams(terminals="stdout stderr") as (_, errors):
        draw_status("turning")
        note("a note")
        assert errors.text == "\r\x1b[Kturning\r\x1b[Ka note\n"
        write(sys.stdout, "half")
        draw_status("turning")
        assert errors.text.count("turning") == 1
        write(sys.stdout, " a line\n")
        draw_status("turning")
        wipe_status()
        assert errors.text.endswith("\r\x1b[Kturning\r\x1b[K")


def test_a_locale_without_the_mark_gets_a_plain_one() -> None:
    with streams(terminals="stderr") as (_, errors):
        errors.reconfigure(encoding="ascii", errors="strict")
        question = TypedQuestion()
        question.print("naïve?")
        question.show([QuestionLine("a"), QuestionLine("b", 2, 4)], below=3)
        question.close()
        assert "\x1b[33m| \x1b[0mna?ve?" in errors.text
        assert errors.text.startswith("\x1b[33m+- vibe-llms asks ---")
