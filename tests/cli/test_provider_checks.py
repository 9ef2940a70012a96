"""`providers check` says what works, with every wire and with servers that lack each ability."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Outcome, invoke
from tests.cli.terminal import Terminal
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, Usage
from vibe_llms.messages.contents import ImageContent
from vibe_llms.messages.controls import Controls
from vibe_llms.testing import FakeServer, Part, ScriptedReply, fake_server

pytestmark = pytest.mark.usefixtures("warm")

WIRES = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-6.1-sol",
    "openai-chat": "gpt-5.5",
    "ollama": "llava:7b",
    "gemini": "gemini-3.8-flash",
}
ABILITIES = ["key", "model", "streaming", "tools", "images", "structured output", "usage"]
#: Tells what a request is: "text", "tools", "images", or "structured output".
Asked = Callable[[str, ScriptedReply], ScriptedReply]


def kind_of(canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> str:
    if any(isinstance(one, ImageContent) for canister in canisters for one in canister.contents):
        return "images"
    if invokers:
        return "tools"
    return "structured output" if "sum of" in str(canisters[-1].contents) else "text"


def answer(kind: str) -> ScriptedReply:
    if kind == "tools":
        return ScriptedReply(parts=(Part(invocation="report", arguments={"number": 7}),))
    texts = {"images": ("Red.",), "structured output": ('{"sum"', ": 5}"), "text": ("1 2 ", "3")}
    return ScriptedReply.from_chunks(*texts[kind])


def serve(change: Asked = lambda kind, reply: reply, **options: Any) -> FakeServer:
    """Return a server that can do all, unless `change` returns another reply."""

    def script(
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls = Controls(),
    ) -> ScriptedReply:
        kind = kind_of(canisters, invokers)
        return change(kind, answer(kind))

    return fake_server(script, **options)


@pytest.fixture
def connect(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeServer], None]:
    """Lead the command to a server."""

    def lead(server: FakeServer) -> None:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)

    return lead


@pytest.fixture(autouse=True)
def capable(home: Path) -> None:
    """Ollama's model is known to see; it has no description of its own in the fake."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        '[stream]\nretries = 0\n[providers.ollama.models.".*"]\naccepts = ["image", "image/png"]\n'
    )


def states_of(outcome: Outcome) -> dict[str, str]:
    """Return the lines of a report by ability."""
    return {line[:18].strip(): line[19:] for line in outcome.output.splitlines()}


def check(wire: str, *more: str) -> Outcome:
    return invoke("providers", "check", wire, "-m", WIRES[wire], "--yes", *more)


@pytest.mark.parametrize("wire", WIRES)
def test_all_works_with_every_wire(wire: str, connect: Callable[[FakeServer], None]) -> None:
    with serve() as server:
        connect(server)
        outcome = check(wire)
        assert server.refusals == []
        asked = [one for one in server.received if one.canisters]
    states = states_of(outcome)
    assert [*states] == ABILITIES
    assert outcome.status == 0
    wrong = {name: text for name, text in states.items() if not text.startswith("works")}
    assert wrong == ({"key": "not tried: this row needs none"} if wire == "ollama" else {})
    assert states["model"] == f"works: {wire}/{WIRES[wire]}"
    assert len(asked) == 4
    assert "used " in outcome.errors


@pytest.mark.parametrize("wire", WIRES)
def test_programs_get_the_report_as_json(wire: str, connect: Callable[[FakeServer], None]) -> None:
    with serve() as server:
        connect(server)
        outcome = check(wire, "--json")
    report = outcome.json
    assert (outcome.status, outcome.errors) == (0, "")
    assert {*report} == {"provider", "model", "checks", "usage"}
    assert (report["provider"], report["model"]) == (wire, f"{wire}/{WIRES[wire]}")
    assert [one["name"] for one in report["checks"]] == ABILITIES
    assert {one["state"] for one in report["checks"]} <= {"works", "skipped"}
    assert report["usage"]["output_tokens"] > 0


BROKEN: dict[str, tuple[str, ScriptedReply, str]] = {
    "tools": ("tools", ScriptedReply.from_chunks("I can't."), 'the model answered "I can\'t."'),
    "wrong call": (
        "tools",
        ScriptedReply(parts=(Part(invocation="report", arguments={"number": "x"}),)),
        "called the tool wrongly",
    ),
    "refused tools": (
        "tools",
        ScriptedReply(parts=(Part(error="refused", message="tools are not supported"),)),
        "tools are not supported",
    ),
    "images": ("images", ScriptedReply.from_chunks("I see nothing."), "'I see nothing.'"),
    "refused images": (
        "images",
        ScriptedReply(parts=(Part(error="refused", message="no vision here"),)),
        "no vision here",
    ),
    "structured output": (
        "structured output",
        ScriptedReply.from_chunks("It is 5."),
        "answered 'It is 5.' instead of the JSON",
    ),
    "another object": (
        "structured output",
        ScriptedReply.from_chunks('{"result": 5}'),
        "instead of the JSON that the schema asks for",
    ),
}


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("name", BROKEN)
def test_an_ability_that_is_broken_is_named_with_the_words(
    name: str, wire: str, connect: Callable[[FakeServer], None]
) -> None:
    ability, broken, words = BROKEN[name]
    with serve(lambda kind, reply: broken if kind == ability else reply) as server:
        connect(server)
        outcome = check(wire)
    states = states_of(outcome)
    assert states[ability].startswith("does not work: ")
    assert words in states[ability]
    # The model is of use without it.
    assert outcome.status == 0
    others = [states[one] for one in ABILITIES if one not in (ability, "key")]
    assert all(one.startswith("works") for one in others)


@pytest.mark.parametrize("wire", ["anthropic", "openai", "openai-chat", "gemini"])
def test_a_wrong_key_is_named_and_nothing_else_is_tried(
    wire: str, connect: Callable[[FakeServer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve() as server:
        connect(server)
        for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
            monkeypatch.setenv(name, "sk-wrong-0123456789abcdef")
        outcome = check(wire)
        assert len(server.received) == 1
    states = states_of(outcome)
    assert outcome.status == 77
    assert states["key"].startswith("does not work: ")
    assert "sk-wrong" not in outcome.output
    assert all(states[one] == "not tried: it depends on key" for one in ABILITIES[1:])


@pytest.mark.parametrize("wire", WIRES)
def test_a_model_that_is_missing_is_named(wire: str, connect: Callable[[FakeServer], None]) -> None:
    with serve(models=["other"]) as server:
        connect(server)
        outcome = check(wire)
    states = states_of(outcome)
    assert outcome.status == 66
    assert states["model"].startswith("does not work: ")
    assert states["streaming"] == "not tried: it depends on model"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", ["overloaded", "cut", "limit"])
def test_streaming_that_breaks_is_named(
    fault: str, wire: str, connect: Callable[[FakeServer], None]
) -> None:
    part = {
        "overloaded": Part(error="overloaded", message="come back later"),
        "cut": Part(cut=True),
        "limit": Part(error="rate-limited", message="slow down"),
    }[fault]
    broken = ScriptedReply(parts=(Part(text="1 2"), part) if fault == "cut" else (part,))
    with serve(lambda kind, reply: broken if kind == "text" else reply) as server:
        connect(server)
        outcome = check(wire)
    states = states_of(outcome)
    assert outcome.status == (75 if fault == "limit" else 69)
    assert states["streaming"].startswith("does not work: ")
    assert states["tools"] == "not tried: it depends on streaming"


def test_usage_that_is_not_counted_is_named(connect: Callable[[FakeServer], None]) -> None:
    def count_nothing(kind: str, reply: ScriptedReply) -> ScriptedReply:
        return ScriptedReply(parts=reply.parts, usage=Usage())

    with serve(count_nothing) as server:
        connect(server)
        outcome = check("openai-chat")
    assert states_of(outcome)["usage"].startswith("does not work: the server did not count")
    assert outcome.status == 0


def test_a_reply_that_is_cut_says_nothing_of_an_ability(
    connect: Callable[[FakeServer], None],
) -> None:
    def cut(kind: str, reply: ScriptedReply) -> ScriptedReply:
        parts = (Part(text="Let me think"),)
        return reply if kind == "text" else ScriptedReply(parts=parts, stop_reason="length")

    with serve(cut) as server:
        connect(server)
        states = states_of(check("openai-chat"))
    for one in ("tools", "images", "structured output"):
        assert states[one].startswith("not tried: the reply was cut off at its limit")


def test_what_a_model_is_known_not_to_do_is_not_tried(
    home: Path, connect: Callable[[FakeServer], None]
) -> None:
    (home / "config.toml").write_text(
        '[providers.openai-chat.models.".*"]\ntools = "contract"\naccepts = []\n'
        '[providers.openai-chat.models.".*".controls]\nresponse-schema = false\n'
    )
    with serve() as server:
        connect(server)
        outcome = check("openai-chat")
        assert len([one for one in server.received if one.canisters]) == 1
    states = states_of(outcome)
    assert states["tools"].startswith("not tried: the model is known to have no tools")
    assert "[providers.openai-chat.models]" in states["images"]
    assert states["structured output"].startswith("not tried: ")
    assert outcome.status == 0


def test_without_a_model_the_default_or_the_first_chat_model_is_tried(
    home: Path, connect: Callable[[FakeServer], None]
) -> None:
    with serve(models=["nomic-embed-text", "qwen3:8b", "claude-sonnet-5-5"]) as server:
        connect(server)
        outcome = invoke("providers", "check", "anthropic", "--yes")
        assert states_of(outcome)["model"] == "works: anthropic/claude-sonnet-5-5"
        outcome = invoke("providers", "check", "ollama", "--yes")
        assert states_of(outcome)["model"] == "works: ollama/qwen3:8b"
        named = invoke("providers", "check", "ollama", "-m", "ollama/qwen3:8b", "--yes")
        assert states_of(named)["model"] == "works: ollama/qwen3:8b"
    with serve(models=["nomic-embed-text"]) as server:
        connect(server)
        outcome = invoke("providers", "check", "ollama", "--yes")
        assert outcome.status == 66
        assert "no model that can chat; name one with -m" in states_of(outcome)["model"]


def test_it_asks_first_and_sends_nothing_without_a_yes(
    connect: Callable[[FakeServer], None],
) -> None:
    with serve() as server:
        connect(server)
        outcome = invoke("providers", "check", "anthropic")
        assert (outcome.status, outcome.output) == (2, "")
        assert outcome.error == "not a terminal; use --yes to send the requests"
        assert server.received == []


def check_interrupted(terminal: Terminal) -> None:
    """It ended with 130, as every command does, and without a traceback."""
    assert terminal.wait() == 130, terminal.output
    assert "Traceback" not in terminal.output
    assert "used " not in terminal.output


@pytest.mark.parametrize("stage", ["text", "tools", "structured output"])
@pytest.mark.parametrize("by", ["key", "signal"])
def test_ctrl_c_within_a_request_ends_it(
    by: str, stage: str, connect: Callable[[FakeServer], None]
) -> None:
    def hang(kind: str, reply: ScriptedReply) -> ScriptedReply:
        parts = (Part(text="1 "), Part(stall=True))
        return ScriptedReply(parts=parts) if kind == stage else reply

    with serve(hang) as server:
        connect(server)
        with Terminal("providers", "check", "anthropic", "--yes") as terminal:
            # The messages of a request are known a moment after the request.
            while not any(
                one.canisters and kind_of(one.canisters, one.invokers) == stage
                for one in server.received
            ):
                time.sleep(0.01)
            if by == "key":
                terminal.press("c-c")
            else:
                terminal.signal(signal.SIGINT)
            check_interrupted(terminal)
        asked = len(server.received)
        assert server.refusals == []
    assert asked == {"text": 1, "tools": 2, "structured output": 4}[stage]


@pytest.mark.storm
def test_ctrl_c_at_any_moment_ends_it(
    connect: Callable[[FakeServer], None], rounds: Callable[[int, int], int]
) -> None:
    def slow(kind: str, reply: ScriptedReply) -> ScriptedReply:
        return ScriptedReply(parts=(Part(delay_seconds=0.02), *reply.parts))

    chance = random.Random(13)
    with serve(slow) as server:
        connect(server)
        for _ in range(rounds(4, 60)):
            server.received.clear()
            with Terminal("providers", "check", "anthropic", "--yes") as terminal:
                while not server.received:
                    time.sleep(0.01)
                time.sleep(chance.random() * 0.3)
                terminal.press("c-c")
                # All may have been done by then.
                if terminal.wait() != 0:
                    check_interrupted(terminal)


def test_ctrl_c_at_the_question_sends_nothing(connect: Callable[[FakeServer], None]) -> None:
    with serve() as server:
        connect(server)
        with Terminal("providers", "check", "anthropic") as terminal:
            terminal.expect(r"Send them\?")
            assert terminal.press_until_the_end("c-c") == 130
            assert "Traceback" not in terminal.output
        assert server.received == []


def test_a_server_that_does_not_run_and_wrong_words(home: Path) -> None:
    outcome = invoke("providers", "check", "ollama", "-m", "x", "--yes")
    assert outcome.status == 69
    assert "ollama serve" in states_of(outcome)["streaming"]
    outcome = invoke("providers", "check", "antropic", "--yes")
    assert (outcome.status, "did you mean 'anthropic'" in outcome.error) == (66, True)
    for words in (
        ["check"],
        ["chekc", "anthropic"],
        ["check", "a", "b"],
        ["--yes"],
        ["-m", "x"],
        ["check", "anthropic", "--check"],
    ):
        assert invoke("providers", *words).status == 2


def test_no_key_is_said_before_anything_is_sent(home: Path) -> None:
    outcome = invoke("providers", "check", "groq", "--yes")
    assert outcome.status == 77
    assert "GROQ_API_KEY" in states_of(outcome)["key"]
    assert (
        json.loads(invoke("providers", "check", "groq", "--yes", "--json").output)["model"] is None
    )


def test_the_demo_can_do_most() -> None:
    outcome = invoke("providers", "check", "scripted", "--yes")
    assert outcome.status == 0
    assert states_of(outcome)["tools"] == "works: the model called a tool"
