"""The table of the REPL's commands: its help and its completion."""

from __future__ import annotations

import asyncio

import pytest

from tests.cli.command import invoke
from vibe_llms.cli.options import Options, open_conversation
from vibe_llms.cli.repl_commands import COMMANDS, GROUPS, draw_help, offer_words
from vibe_llms.cli.text import width
from vibe_llms.opening import open_session

_TYPED = [
    *("/model", "/new", "/open", "/tools", "/tools on", "/tools off", "/approve"),
    *("/approve allow", "/memory", "/copy", "/set", "/set effort", "/set seed", "/undo"),
]


@pytest.mark.parametrize("cells", [40, 80, 200])
def test_the_help_has_every_command_and_fits(cells: int) -> None:
    drawn = draw_help(cells)
    assert all(width(line) <= cells for line in drawn.splitlines()), drawn
    for group, commands in GROUPS.items():
        assert group in drawn.splitlines()
        for name, (words, _) in commands.items():
            assert f"  {name} {words}".rstrip() in drawn
    assert COMMANDS.keys() == {name for group in GROUPS.values() for name in group}


def test_the_arguments_of_a_command_are_offered() -> None:
    identity = invoke("--print-id", "hello").errors.splitlines()[-1]

    async def work() -> dict[str, list[str]]:
        given = Options(model="anthropic/claude-sonnet-5-5")
        async with open_session(keys={"anthropic": "k"}) as session:
            conversation = await open_conversation(session, given)
            return {
                typed: [
                    value
                    for value, _ in await offer_words(
                        session, conversation, *typed.partition(" ")[::2]
                    )
                ]
                for typed in _TYPED
            }

    offered = asyncio.run(work())
    assert "scripted/demo" in offered["/model"]
    assert offered["/new"] == offered["/model"]
    assert offered["/open"] == [identity]
    assert offered["/tools"] == ["on ", "off "]
    assert "python" in offered["/tools on"]
    assert offered["/approve"] == ["always ", "allow ", "ask ", "deny "]
    assert "list" in offered["/memory"]
    assert offered["/copy"] == ["code"]
    assert "effort" in offered["/set"]
    assert "temperature" not in offered["/set"]
    assert offered["/set effort"] == ["low", "medium", "high", "xhigh", "max"]
    for typed in ("/tools off", "/approve allow", "/set seed", "/undo"):
        assert offered[typed] == []
