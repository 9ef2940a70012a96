"""Tools that a client of Responses runs itself, and the items of their calls."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter

from vibe_llms.server.failures import Rejected
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.responses_tools import ClientTools, read_call

ITEMS: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}
CUSTOM = {"type": "custom", "name": "patch", "description": "Edit."}
DECLARED: list[dict[str, Any]] = [
    FUNCTION,
    CUSTOM,
    {"type": "namespace", "name": "files", "tools": [FUNCTION, CUSTOM]},
    {"type": "tool_search", "execution": "client"},
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
]
#: Arguments of a call of each tool that is offered, and what the client gets.
CALLS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("look", {"a": 1}, {"type": "function_call", "name": "look"}),
    ("patch", {"input": "+"}, {"type": "custom_tool_call", "name": "patch", "input": "+"}),
    ("files/look", {"a": 1}, {"type": "function_call", "name": "look", "namespace": "files"}),
    ("files/patch", {"input": "+"}, {"type": "custom_tool_call", "namespace": "files"}),
    ("tool_search", {"query": "x"}, {"type": "tool_search_call", "execution": "client"}),
    ("local_shell", {"command": ["ls"]}, {"type": "local_shell_call"}),
    ("shell", {"commands": ["ls"]}, {"type": "shell_call"}),
    (
        "apply_patch",
        {"type": "delete_file", "path": "a"},
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
    ),
]


@pytest.mark.parametrize(("name", "arguments", "members"), CALLS, ids=[one[0] for one in CALLS])
def test_a_call_comes_back_as_the_client_expects_and_is_read_again(
    name: str, arguments: dict[str, Any], members: dict[str, Any]
) -> None:
    tools = ClientTools.read(DECLARED)
    item = tools[name].describe_call("i", "c", json.dumps(arguments), "completed")
    assert item.items() >= members.items()
    ITEMS.validate_python(item)
    again = read_call(item)
    assert again is not None
    assert (again[0], json.loads(again[1])) == (name, arguments)


@pytest.mark.parametrize(
    "tool",
    [
        *({"type": kind} for kind in ("web_search", "image_generation", "mcp", "of_next_year")),
        {"type": "tool_search"},
        {"type": "shell", "environment": {"type": "container_auto"}},
    ],
)
def test_a_tool_that_does_not_run_here_is_left_out_and_named(tool: dict[str, Any]) -> None:
    omissions = Omissions()
    tools = ClientTools.read([tool, FUNCTION], (), omissions)
    assert [one.offered for one in tools.declared] == ["look"]
    assert str(omissions) == f"tool {tool['type']}"


@pytest.mark.parametrize("text", ["+1", '{"patch": "+1"}', '{"input": "+1"}'])
def test_the_text_of_a_custom_call_is_found_however_the_model_wraps_it(text: str) -> None:
    item = ClientTools.read([CUSTOM])["patch"].describe_call("i", "c", text, "completed")
    assert item["input"] == "+1"


def test_tools_that_were_found_are_added_and_declared_ones_stay() -> None:
    found = [[{**FUNCTION, "description": "another"}, {**FUNCTION, "name": "new"}]]
    tools = ClientTools.read([FUNCTION], found)
    assert [one.offered for one in tools.declared] == ["look", "new"]
    assert tools["look"].description == ""


@pytest.mark.parametrize(
    ("choice", "control", "allowed", "named"),
    [
        ("required", "any", None, ""),
        ("none", "none", None, ""),
        ({"type": "function", "name": "look"}, "look", None, ""),
        ({"type": "custom", "name": "patch"}, "patch", None, ""),
        ({"type": "function", "name": "look", "namespace": "files"}, "files/look", None, ""),
        ({"type": "apply_patch"}, "apply_patch", None, ""),
        ({"type": "web_search"}, None, None, "tool_choice web_search"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION, {"type": "mcp"}]},
            "auto",
            {"look"},
            "",
        ),
    ],
)
def test_a_tool_choice_is_read(
    choice: Any, control: str | None, allowed: set[str] | None, named: str
) -> None:
    omissions = Omissions()
    read = ClientTools.read(DECLARED).read_choice(choice, omissions)
    assert (read.control, read.allowed, str(omissions)) == (control, allowed, named)


@pytest.mark.parametrize(
    "choice",
    [
        "sometimes",
        {"type": "function", "name": "unknown"},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "mode": "auto", "tools": ["look"]},
        {"type": ["function"]},
        {"type": "function", "name": ["look"]},
        {"type": "function", "name": "look", "namespace": ["files"]},
    ],
)
def test_a_tool_choice_that_is_wrong_is_refused(choice: Any) -> None:
    with pytest.raises(Rejected) as refused:
        ClientTools.read(DECLARED).read_choice(choice, Omissions())
    assert refused.value.failure.param == "tool_choice"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "function"}, "tools[0].name"),
        ({"type": "namespace", "tools": []}, "tools[0]"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}, "tools[0].tools[0]"),
        ({"type": "function", "name": 3}, "tools[0]"),
        ({"type": "function", "function": {"name": 3}}, "tools[0].function"),
        (
            {**CUSTOM, "format": {"type": "grammar", "syntax": "lark", "grammar": "start: x"}},
            "tools[0].format",
        ),
    ],
)
def test_a_declaration_that_is_wrong_is_refused_with_its_place(
    tool: dict[str, Any], param: str
) -> None:
    with pytest.raises(Rejected) as refused:
        ClientTools.read([tool])
    assert str(refused.value.failure.param).startswith(param)


def test_thousands_of_allowed_tools_are_found_at_once() -> None:
    declared = [{**FUNCTION, "name": f"look{number}"} for number in range(3_000)]
    tools = ClientTools.read(declared)
    choice = {"type": "allowed_tools", "mode": "auto", "tools": declared}
    begun = time.process_time()
    allowed = tools.read_choice(choice, Omissions()).allowed
    assert time.process_time() - begun < 0.5
    assert allowed is not None
    assert len(allowed) == 3_000


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        ([{"type": "namespace", "name": "files", "tools": [FUNCTION, CUSTOM]}], []),
        ([FUNCTION], [[CUSTOM]]),
    ],
)
def test_tools_in_namespaces_and_found_ones_count(declared: Any, found: Any) -> None:
    assert len(ClientTools.read(declared, [*found, *found], most=2).declared) == 2
    with pytest.raises(Rejected) as refused:
        ClientTools.read(declared, found, most=1)
    assert refused.value.failure.status == 413
