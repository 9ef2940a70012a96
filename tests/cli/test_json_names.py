"""One thing has one name in everything that `--json` prints: that of the table in the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click
import pytest

from tests.cli.command import invoke
from vibe_llms.cli.agents import agents
from vibe_llms.cli.runs import runs
from vibe_llms.cli.serving import users

PAGE = Path(__file__).parents[2] / "documentation" / "reference" / "command.md"
#: Other words for what the table names: none of them is ever a field.
SYNONYMS = {
    "identity": "id",
    "identifier": "id",
    "uuid": "id",
    "cid": "conversation",
    "conversation_id": "conversation",
    "canister": "message",
    "message_id": "message",
    "label": "name",
    "created_at": "created",
    "date": "created",
    "timestamp": "created",
    "updated_at": "updated",
    "modified": "updated",
    "parent": "forked_from",
    "superseded": "superseded_by",
    "why": "problem",
}
#: Every command that prints objects of its own, with what they must have.
COMMANDS: Mapping[tuple[str, ...], set[str]] = {
    ("chat", "hello"): {"conversation", "model"},
    ("list",): {"id", "name", "title", "created", "updated", "model", "forked_from", "problem"},
    ("show", "first"): {"id", "name", "created", "model", "forked_from"},
    ("fork", "first"): {"id", "forked_from"},
    ("search", "hello"): {"conversation", "message", "name", "title", "created"},
    ("export", "first", "--format"): {"id", "name"},
    ("memory", "list"): {"id", "created", "scope", "content", "conversation"},
    ("memory", "search", "tea"): {"id", "created", "scope", "content", "conversation"},
    ("memory", "log"): set(),
    ("memory", "status"): set(),
    ("models",): {"model", "title"},
    ("providers",): {"name", "problem"},
    ("agents", "list"): {"name", "model"},
    ("agents", "show", "general"): {"name", "model"},
    ("mcp", "list"): {"name"},
    ("doctor",): set(),
}


def survey_fields(value: object) -> Iterator[str]:
    """The fields of objects, at any depth but within messages, which are as they are stored."""
    if isinstance(value, list):
        for one in value:
            yield from survey_fields(one)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            if name != "messages":
                yield from survey_fields(inner)


def read_table() -> set[str]:
    section = (
        PAGE.read_text("utf-8").partition("Fields have the same names")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


@pytest.fixture
def filled() -> None:
    assert invoke("chat", "-q", "--name", "first", "hello").status == 0
    assert invoke("memory", "add", "I like tea").status == 0
    assert invoke("mcp", "add", "clock", "--", "clock-server").status == 0


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_fields_have_the_names_of_the_table(command: Sequence[str], filled: None) -> None:
    arguments = [*command, "json"] if command[-1] == "--format" else [*command, "--json"]
    outcome = invoke(*arguments)
    assert outcome.output, outcome
    found = set(survey_fields(outcome.json))
    assert COMMANDS[tuple(command)] <= found
    assert not found & set(SYNONYMS), found


def test_the_table_names_what_the_commands_print() -> None:
    table = read_table()
    assert table
    assert set().union(*COMMANDS.values()) <= table
    assert not table & set(SYNONYMS)
    assert set(SYNONYMS.values()) <= table


@pytest.mark.parametrize("group", [agents, runs, users], ids=lambda group: str(group.name))
def test_every_command_about_agents_runs_and_users_prints_json(group: click.Group) -> None:
    shown = [one for one in group.commands.values() if not one.hidden]
    assert shown
    assert [one.name for one in shown if "as_json" not in {each.name for each in one.params}] == []
