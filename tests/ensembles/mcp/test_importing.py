"""Servers of other programs' files become rows; what cannot is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import RequestError
from vibe_llms.conversations.hosts import EnsembleConfiguration
from vibe_llms.ensembles.mcp.ensemble import McpEnsemble
from vibe_llms.ensembles.mcp.importing import MODULE, is_name, read_servers, survey_keys

CLAUDE_DESKTOP = """
{
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/ada"],
      "env": {"GITHUB_TOKEN": "ghp_sesame", "DEBUG": 1, "NOTHING": null}
    }
  }
}
"""
CLAUDE_CODE = """
{"mcpServers": {
    "api": {"type": "http", "url": "${BASE:-https://api.example}/mcp",
            "headers": {"Authorization": "Bearer ${API_KEY}"}},
    "old": {"type": "sse", "url": "https://old.example/sse"}
}}
"""
CURSOR = """
{"mcpServers": {
    "My Server!": {"command": "${userHome}/bin/server", "args": ["--token=${env:TOKEN}"],
                   "envFile": "${workspaceFolder}/.env", "autoApprove": ["all"]},
    "work": {"command": "node", "args": ["${workspaceFolder}/server.js"]}
}}
"""
VS_CODE = """
// comments are allowed, also http://such
{
  "inputs": [{"type": "promptString", "id": "api-key", "password": true}],
  /* and these */
  "servers": {
    "perplexity": {
      "type": "stdio",
      "command": "npx", // here
      "args": ["-y", "server//not-a-comment"],
      "env": {"PERPLEXITY_API_KEY": "${input:api-key}"},
    },
  },
}
"""


def rows(text: str) -> dict[str, Any]:
    return {one.name: one.row for one in read_servers(text)}


def test_a_file_of_claude_desktop() -> None:
    assert rows(CLAUDE_DESKTOP) == {
        "filesystem": {
            "module": MODULE,
            "command": ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/home/ada"],
            "environment": {"GITHUB_TOKEN": "ghp_sesame", "DEBUG": "1"},
        }
    }


def test_a_file_of_claude_code_with_its_variables() -> None:
    assert rows(CLAUDE_CODE) == {
        "api": {
            "module": MODULE,
            "url": "${BASE:-https://api.example}/mcp",
            "headers": {"Authorization": "Bearer ${API_KEY}"},
        },
        "old": {"module": MODULE, "url": "https://old.example/sse", "transport": "sse"},
    }


def test_a_file_of_cursor_and_what_it_says_that_means_nothing_here() -> None:
    mine, work = read_servers(CURSOR)
    assert mine.name == "My-Server"
    assert mine.row["command"] == ["${HOME}/bin/server", "--token=${TOKEN}"]
    assert mine.notes == (
        "autoApprove is omitted",
        "envFile is omitted",
        "it was called 'My Server!'",
    )
    assert work.problem == "it uses ${workspaceFolder}, which is not supported; replace it"


def test_a_file_of_vs_code_with_comments_and_inputs() -> None:
    (one,) = read_servers(VS_CODE)
    assert one.row == {
        "module": MODULE,
        "command": ["npx", "-y", "server//not-a-comment"],
        "environment": {"PERPLEXITY_API_KEY": "${API_KEY}"},
    }
    assert one.notes == ("it asks for 'api-key': set the variable API_KEY",)


@pytest.mark.parametrize(
    ("tree", "name"),
    [
        ({"mcp": {"servers": {"a": {"command": "x"}}}}, "a"),
        ({"context_servers": {"b": {"command": "x", "args": []}}}, "b"),
        ({"mcpServers": {"c": {"serverUrl": "http://x"}}}, "c"),
        ({"mcpServers": {"d": {"httpUrl": "http://x", "timeout": 3}}}, "d"),
        ({"mcpServers": {"9 lives": {"command": "x"}}}, "server-9-lives"),
        ({"mcpServers": {"é": {"command": "x", "cwd": "/tmp", "env": {"A": True}}}}, "server"),
    ],
)
def test_other_tables_and_names(tree: Any, name: str) -> None:
    (one,) = read_servers(json.dumps(tree))
    assert (one.name, one.problem) == (name, "")
    assert is_name(one.name)
    settings = {key: value for key, value in one.row.items() if key != "module"}
    McpEnsemble(one.name, EnsembleConfiguration(load_configuration(), settings))


def test_a_disabled_server_is_imported_disabled() -> None:
    for off in ({"disabled": True}, {"enabled": False}):
        (one,) = read_servers(json.dumps({"mcpServers": {"a": {"command": "x", **off}}}))
        assert one.row["enabled"] is False


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("x", "it is not a table"),
        ({}, "it has neither a command nor a url"),
        ({"command": "x", "url": "http://x"}, "it has two URLs"),
        ({"command": ["x"]}, "its command is not text"),
        ({"command": "x", "args": "y"}, "its args is not a list"),
        ({"command": "x", "args": [[]]}, "its args contains a value that is not text"),
        ({"command": "x", "env": []}, ""),
        ({"command": "x", "env": ["A=1"]}, "its env is not a table"),
        ({"type": "telepathy", "url": "http://x"}, "its type 'telepathy' is unknown"),
        ({"command": "${command:pick}"}, "it uses ${command:pick}, which is not supported"),
    ],
)
def test_what_is_no_server_is_reported(entry: Any, problem: str) -> None:
    (one,) = read_servers(json.dumps({"mcpServers": {"a": entry}}))
    assert one.problem.startswith(problem) if problem else not one.problem


def test_two_names_that_become_one_are_not_mixed() -> None:
    servers = {"a b": {"command": "x"}, "a-b": {"command": "y"}}
    first, second = read_servers(json.dumps({"mcpServers": servers}))
    assert (first.name, second.problem) == ("a-b", "another server is also called 'a-b'")


def test_what_loads_code_unseen_is_left_out() -> None:
    entry = {"command": "x", "env": {"LD_PRELOAD": "evil.so", "A": "b"}}
    (one,) = read_servers(json.dumps({"mcpServers": {"a": entry}}))
    assert one.row["environment"] == {"A": "b"}
    assert one.notes == ("LD_PRELOAD is omitted: it can make the program load other code",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("{}", "no servers found"),
        ("[]", "no servers found"),
        ('{"mcpServers": []}', "no servers found"),
    ],
)
def test_a_file_of_something_else_is_reported(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_servers(text)


def test_the_keys_that_a_row_holds_are_known() -> None:
    row = {
        "headers": {"Authorization": "Bearer sesame", "x-team": "blue"},
        "environment": {"TOKEN": "${TOKEN}", "PASSWORD": "open"},
    }
    assert list(survey_keys(row)) == [("Authorization", "Bearer sesame"), ("PASSWORD", "open")]
