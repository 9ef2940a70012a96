"""The same tasks for each program, by each dialect that it speaks."""

from __future__ import annotations

import importlib
import os
import time
import urllib.request
from pathlib import Path

import pytest
from interfaces import (
    COUNT,
    COUNTED,
    GREETED,
    GREETING,
    KEY,
    LOOK,
    QUESTION,
    REPORTED,
    SEEN,
    STATED,
    STATEMENT,
    THOUGHT,
    TURN,
    URL,
    Program,
)

_MODULE = importlib.import_module(f"adapters.{os.environ['SUITE'].replace('-', '_')}")
_PROGRAM: type[Program] = _MODULE.PROGRAM
_TURNS = 20
#: Seconds until the server has noticed that a client has left.
_LIMIT_SECONDS = 20


@pytest.fixture(params=_PROGRAM.dialects)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Program:
    """The program, with a folder of its own."""
    return _PROGRAM(request.param, tmp_path)


def test_a_reply_comes_in_one_piece(program: Program) -> None:
    assert GREETED in program.answer(GREETING)


def test_a_reply_is_streamed(program: Program) -> None:
    assert GREETED in program.stream(GREETING).text


def test_reasoning_is_shown(program: Program) -> None:
    assert THOUGHT in program.stream(GREETING).reasoning


def test_a_tool_is_called_and_its_result_is_read(program: Program) -> None:
    reply, cities = program.call_tool(QUESTION)
    assert REPORTED in reply
    assert [*cities] == ["Rome"]


def test_a_reply_keeps_to_a_schema(program: Program) -> None:
    assert program.structure(STATEMENT) == STATED


def test_an_image_arrives(program: Program) -> None:
    assert SEEN in program.look(LOOK)


def test_a_conversation_has_twenty_turns(program: Program) -> None:
    replies = program.converse([TURN] * _TURNS)
    assert len(replies) == _TURNS
    for number, reply in enumerate(replies, 1):
        assert f"This is turn {number}." in reply


def test_a_reply_is_cancelled(program: Program) -> None:
    before = _count_running()
    assert COUNTED.split()[0] in program.cancel(COUNT)
    assert GREETED in program.answer(GREETING)
    if program.dialect == "responses":
        return  # A stored response goes on without its client.
    limit = time.monotonic() + _LIMIT_SECONDS
    while _count_running() > before:
        assert time.monotonic() < limit, "the turn goes on although its client has left"
        time.sleep(0.05)


def _count_running() -> float:
    """Return how many turns run on the server."""
    request = urllib.request.Request(f"{URL}/metrics", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith("vibe_llms_running_turns "))
    return float(line.split()[-1])
