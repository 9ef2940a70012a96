"""What a turn looks like: in a pipe byte for byte, on a terminal harmless (C2)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from tests.cli.command import invoke, streams
from tests.cli.desk import opened
from tests.cli.hostile import check_harmless, produce_payloads
from tests.cli.terminal import Screen
from vibe_llms.base.exceptions import RateLimited
from vibe_llms.cli import display
from vibe_llms.cli.display import (
    Display,
    EventLines,
    Silence,
    encode_event,
    print_notices,
    take_code,
)
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ResultCanister,
    Turn,
    Usage,
)
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.messages.events import (
    Event,
    InvocationChunk,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    Notice,
    NoticeEvent,
    ReasoningChunk,
    TextChunk,
    TurnEndedEvent,
)
from vibe_llms.transcripts.usages import describe_usage

pytestmark = pytest.mark.usefixtures("warm")

_CALL = InvocationCanister(name="weather", arguments='{"city":\n"Rome"}')


def text(words: str) -> Event:
    return MessageProgressEvent(chunk=TextChunk(words))


def reasoning(words: str) -> Event:
    return MessageProgressEvent(chunk=ReasoningChunk(words))


def started() -> Event:
    return MessageStartedEvent(role="assistant")


def ended() -> Event:
    return TurnEndedEvent(turn=Turn((), "", None, Usage(), "finished"), reason="finished")


def result(words: str) -> ResultCanister:
    return ResultCanister((TextualContent(words),), invocation=_CALL.identity)


def show(
    *events: Event, terminals: str = "", fails: bool = False, **options: Any
) -> tuple[str, str]:
    """What goes to stdout and to stderr for the events of a turn."""

    async def work() -> tuple[str, str]:
        with streams(terminals=terminals) as (output, errors):
            one = Display(**options)
            one.begin("a/b")
            for event in (*events, ended()):
                one(event)
            if not fails:
                one.finish()
            one.close()
            return output.text, errors.text

    return asyncio.run(work())


def check_pipe(words: Sequence[str]) -> None:
    """In a pipe the answer is byte for byte what the model said, and ends with one newline."""
    said = "".join(words)
    output, errors = show(started(), *map(text, words))
    assert output == said + ("" if said.endswith("\n") or not said else "\n")
    assert errors == ""


@pytest.mark.parametrize(
    "words",
    [["Hel", "lo"], ["Hello\n"], ["**Hi**\n\n", "\n"], [""], [], ["", "a", "", "\n", ""], ["\r\n"]],
)
def test_a_pipe_gets_just_what_the_model_said(words: list[str]) -> None:
    check_pipe(words)


def test_hostile_text_goes_through_a_pipe_untouched() -> None:
    for payload in produce_payloads(2, 60):
        check_pipe([payload[:3], payload[3:]])


def test_a_display_that_mends_text_in_a_pipe_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(display, "is_terminal", lambda _: True)
    with pytest.raises(AssertionError):
        check_pipe(["a\x1b[2J"])


def test_two_messages_of_a_turn_do_not_run_into_each_other() -> None:
    output, errors = show(
        started(),
        text("Let me look."),
        InvocationStartedEvent(invocation=_CALL),
        InvocationProgressEvent(invocation=_CALL, text="half\nway"),
        InvocationCompletedEvent(invocation=_CALL, result=result("sunny\nand warm")),
        started(),
        text("It is sunny."),
    )
    assert output == "Let me look.\nIt is sunny.\n"
    lines = errors.splitlines()
    assert lines[:2] == ['→ weather {"city": "Rome"}', "· weather: half way"]
    assert re.fullmatch(r"← weather: sunny and warm \(\d+\.\ds\)", lines[2])


def test_people_are_shown_what_a_result_has_for_them() -> None:
    contents = (TextualContent('{"degrees":-4}'),)
    one = ResultCanister(contents, invocation=_CALL.identity, display="It is\ncold.")
    _, errors = show(InvocationCompletedEvent(invocation=_CALL, result=one))
    assert errors == "← weather: It is cold.\n"


def test_a_failed_tool_is_shown_and_long_results_are_cut() -> None:
    failed = msgspec.structs.replace(result("x" * 500), failed=True)
    _, errors = show(InvocationFailedEvent(invocation=_CALL, result=failed))
    assert errors == f"✗ weather: {'x' * 199}…\n"
    nothing = ResultCanister((), invocation=_CALL.identity)
    kept = ResultCanister((TextualContent(Reference("a" * 64, 5000)),), invocation=_CALL.identity)
    for one, words in ((nothing, "(0 contents)"), (kept, "(1 contents)")):
        _, errors = show(InvocationCompletedEvent(invocation=_CALL, result=one))
        assert errors == f"← weather: {words}\n"


def test_reasoning_goes_to_stderr_and_ends_with_its_own_line() -> None:
    events = (started(), reasoning("Let me "), reasoning("think."), text("42"))
    assert show(*events) == ("42\n", "Let me think.\n")
    assert show(*events, hide_reasoning=True) == ("42\n", "")
    assert show(*events, quiet=True) == ("42\n", "")
    assert show(started(), reasoning("Done.\n"), text("42")) == ("42\n", "Done.\n")
    failed = MessageFailedEvent(error=ValueError(), partial=AssistantCanister())
    assert show(started(), reasoning("Hm"), failed, fails=True) == ("", "Hm\n")


def test_reasoning_is_dim_and_apart_on_a_terminal() -> None:
    output, errors = show(
        started(), text("One"), reasoning("Hm"), text("Two"), terminals="stdout stderr"
    )
    assert errors == "\x1b[2mHm\x1b[0m\n\n"
    assert Screen().feed(output).lines == ["One", "", "Two"]


def test_a_notice_is_printed_unless_quiet() -> None:
    event = NoticeEvent(notice=Notice("retry", "again\nin 2 s"))
    assert show(event, text("x")) == ("x\n", "note: again in 2 s\n")
    assert show(event, text("x"), quiet=True) == ("x\n", "")
    with streams() as (_, errors):
        print_notices()(event)
        print_notices(quiet=True)(event)
        print_notices()(text("x"))
        assert errors.text == "note: again in 2 s\n"


def test_a_notice_does_not_disturb_a_drawing() -> None:
    event = NoticeEvent(notice=Notice("fork", "moved"))
    output, errors = show(text("Some text"), event, text(" goes on"), terminals="stdout stderr")
    assert Screen().feed(output).lines == ["Some text goes on"]
    assert errors == "\x1b[2mnote: moved\x1b[0m\n"


def test_markdown_is_drawn_where_it_is_wanted() -> None:
    assert Screen().feed(show(text("# Hi"), terminals="stdout")[0]).lines == ["Hi"]
    assert show(text("# Hi"), terminals="stdout", render=False)[0] == "# Hi\n"
    assert show(text("# Hi"), render=True)[0] == "Hi\n"
    assert show(text("# Hi"))[0] == "# Hi\n"


def check_terminal(payloads: Sequence[str], render: bool) -> None:
    """Nothing that a model, a tool, a name or a notice says drives the terminal."""
    for payload in payloads:
        call = InvocationCanister(name=payload, arguments=payload)
        streams_of_events = show(
            started(),
            reasoning(payload),
            *(text(part) for part in (payload[:2], payload[2:])),
            InvocationStartedEvent(invocation=call),
            InvocationProgressEvent(invocation=call, text=payload),
            InvocationCompletedEvent(invocation=call, result=result(payload)),
            InvocationFailedEvent(invocation=call, result=result(payload)),
            NoticeEvent(notice=Notice("x", payload)),
            started(),
            text(payload),
            terminals="stdout stderr",
            render=render,
        )
        for sent in streams_of_events:
            check_harmless(sent)


@pytest.mark.parametrize("render", [False, True])
@pytest.mark.storm
def test_nothing_hostile_drives_the_terminal(
    render: bool, rounds: Callable[[int, int], int]
) -> None:
    check_terminal(produce_payloads(3, rounds(50, 200)), render)


@pytest.mark.parametrize("render", [False, True])
def test_a_hole_in_the_clearing_would_be_seen(
    render: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("vibe_llms.cli.terminal", "vibe_llms.cli.markdown"):
        monkeypatch.setattr(f"{module}.visible", lambda words: words)
    with pytest.raises(AssertionError):
        check_terminal(["\x1b]52;c;cm0gLXJm\x07"], render)


def test_a_sequence_that_comes_in_two_pieces_is_seen_through() -> None:
    output, _ = show(text("\x1b"), text("[2J\r"), text("\nx"), terminals="stdout", render=False)
    assert output == "␛[2J\nx\n"
    held, _ = show(text("x\r"), terminals="stdout", render=False)
    assert held == "x␍\n"


@pytest.mark.parametrize(
    ("answer", "first", "last"),
    [
        ("no code", "no code", "no code"),
        ("```\na\n```\nand\n```py\nb\n```\n", "a\n", "b\n"),
        ("````md\n```\nin\n```\n````\n", "```\nin\n```\n", "```\nin\n```\n"),
        ("1. x\n   ```sh\n   ls\n     -l\n   ```\n", "ls\n  -l\n", "ls\n  -l\n"),
        ("~~~\na\n```\n~~~\n", "a\n```\n", "a\n```\n"),
        ("```inline``` is no fence", "```inline``` is no fence", "```inline``` is no fence"),
        ("```\ncut off", "cut off\n", "cut off\n"),
        ("```\n```\n", "", ""),
        ("```\na\u2028```\nb\n```", "a\u2028```\nb\n", "a\u2028```\nb\n"),
    ],
)
def test_code_is_taken_out_of_an_answer(answer: str, first: str, last: str) -> None:
    assert take_code("first")(answer) == first
    assert take_code("last")(answer) == last


def test_only_the_code_is_printed_and_nothing_of_a_failure() -> None:
    events = (started(), text("See:\n```\nls"), text("\n```\n"))
    assert show(*events, transform=take_code("first")) == ("ls\n", "")
    assert show(*events, transform=take_code("first"), terminals="stdout")[0] == "ls\n"
    assert show(*events, transform=take_code("first"), fails=True) == ("", "")


def test_events_are_printed_as_lines_of_json() -> None:
    error = RateLimited("slow down", provider="p")
    error.retry_after = 3.0
    events: list[Event] = [
        started(),
        text("a\nb"),
        reasoning("c"),
        MessageProgressEvent(chunk=InvocationChunk("{")),
        MessageCompletedEvent(canister=AssistantCanister.from_text("x")),
        MessageFailedEvent(error=error, partial=AssistantCanister()),
        NoticeEvent(notice=Notice("retry", "again")),
        ended(),
    ]
    with streams() as (output, errors):
        lines = EventLines()
        lines.begin("a/b")
        for event in events:
            lines(event)
        lines.finish()
        lines.close()
        printed = [json.loads(line) for line in output.text.splitlines()]
        assert errors.text == ""
    assert [one["event"] for one in printed] == [
        "message-started", "message-progress", "message-progress", "message-progress",
        "message-completed", "message-failed", "notice", "turn-ended",
    ]  # fmt: skip
    assert [one["chunk"] for one in printed[1:4]] == [
        {"kind": "text", "text": "a\nb"},
        {"kind": "reasoning", "text": "c"},
        {"kind": "invocation", "text": "{"},
    ]
    assert printed[4]["canister"]["role"] == "assistant"
    assert printed[5]["error"] == {
        "kind": "rate-limited", "message": "p: slow down", "status": 75, "retry_after": 3.0,
    }  # fmt: skip
    assert encode_event(ended()) == encode_event(events[-1])


async def test_silence_lets_only_notices_through() -> None:
    with streams(terminals="stderr") as (output, errors):
        silence = Silence()
        silence.begin("a/b")
        silence(text("x"))
        silence(NoticeEvent(notice=Notice("fork", "again")))
        silence.finish()
        silence.close()
        assert (output.text, errors.text) == ("", "\x1b[2mnote: again\x1b[0m\n")


async def test_the_waiting_line_gives_way_to_what_comes() -> None:
    with streams(terminals="stdout stderr") as (_, errors):
        one = Display(hide_reasoning=True)
        one.begin("a/b")
        one(reasoning("hidden"))
        one(reasoning("more"))
        for _ in range(1000):
            if "thinking" in errors.text:
                break
            await asyncio.sleep(0.01)
        assert "thinking" in Screen().feed(errors.text).text
        one(text("x"))
        assert Screen().feed(errors.text).text == ""
        one(InvocationStartedEvent(invocation=_CALL))
        for _ in range(1000):
            if "running weather" in errors.text:
                break
            await asyncio.sleep(0.01)
        one.close()
        assert "running" not in Screen().feed(errors.text).text


async def test_a_retry_is_seen_in_the_line_of_waiting_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    words = "p: overloaded; retrying in 2 s (1 of 2)"
    for produce in (Display, Silence):
        async with opened() as desk:
            one = produce()
            one.begin("a/b")
            one(NoticeEvent(notice=Notice("retry", words)))
            await desk.until(lambda: words in desk.emulator.rows[0])
            one.close()
            await desk.until(lambda: not any(desk.emulator.rows))


@pytest.mark.parametrize("colour", ["", "1"])
async def test_a_reply_that_is_silent_for_long_has_a_sign_of_life_below_it(
    colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", colour)
    monkeypatch.setattr("vibe_llms.cli.progress._SILENCE_SECONDS", 0.1)
    async with opened() as desk:
        one = Display()
        one.begin("a/b")
        for words in ("One.\n\n", "Two.\n\n"):
            one(text(words))
            await desk.until(lambda: any("waiting for a/b" in row for row in desk.emulator.rows))
        one(text("Three.\n"))
        one(ended())
        one.close()
        lines = ["One.", "", "Two.", "", "Three."]
        await desk.until(lambda: [*filter(None, desk.emulator.rows)] == [*filter(None, lines)])
        assert desk.emulator.rows[:5] == lines


async def test_a_reply_that_goes_into_a_pipe_has_no_sign_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vibe_llms.cli.progress._SILENCE_SECONDS", 0.01)
    with streams(terminals="stderr") as (_, errors):
        one = Display()
        one.begin("a/b")
        one(text("One.\n"))
        await asyncio.sleep(0.1)
        one.close()
        assert errors.text == ""


def test_usage_is_printed_for_people() -> None:
    assert describe_usage(Usage(1000, 0, 0, 5)) == "1,000 tokens in, 5 out"
    assert describe_usage(Usage(1, 2000, 3, 5, 7)) == (
        "2,004 tokens in (2,000 from the cache), 5 out + 7 of reasoning"
    )


def test_the_event_of_the_usage_has_the_usage() -> None:
    lines = invoke("chat", "-m", "scripted/demo", "--jsonl", "hello").output.splitlines()
    events = [json.loads(line) for line in lines]
    usages = [one["usage"] for one in events if one.get("subject") == "usage"]
    assert usages[-1] == events[-1]["turn"]["usage"] != {}
