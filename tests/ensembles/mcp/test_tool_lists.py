"""The tools of a server, remembered while they hold: who is started when, and what is offered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.ensembles.mcp.servers import produce_ensemble
from tests.fakes import mcp_lasting
from tests.fakes.models import model_of, says
from tests.fakes.warm import warm_command
from vibe_llms import Session, open_session
from vibe_llms.base.exceptions import PackageMissing
from vibe_llms.ensembles.mcp import connection, tool_lists
from vibe_llms.ensembles.mcp.settings import McpSettings
from vibe_llms.ensembles.mcp.tool_lists import LONGEST_SECONDS, ServerTool, ToolListFile
from vibe_llms.ensembles.pins import Definition
from vibe_llms.messages.canisters import ResultCanister, Turn
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.testing import Part, ScriptedReply

pytestmark = pytest.mark.usefixtures("warm_process")

HOUR_MS = 3_600_000
PATIENCE = {"open-seconds": 60, "list-seconds": 60}
SETTINGS = McpSettings(command=("look",), environment={"KEY": "one"})
TOOL = ServerTool("look", "Look.", {"b": 1, "a": 1.5}, {"annotations": {"readOnlyHint": True}})


class Lasting:
    """The server, and sessions that use it one after the other."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.folder = home / "server"
        self.folder.mkdir(parents=True)
        self.describe("Look around.")
        self.events: list[Event] = []

    def describe(self, description: str, *, holds: int = HOUR_MS) -> None:
        listed = {"description": description, "holds": holds}
        (self.folder / "list.json").write_text(json.dumps(listed))

    @property
    def stored(self) -> Path:
        return ToolListFile(self._home, "lasting").path

    @property
    def starts(self) -> int:
        file = self.folder / "starts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    @property
    def notices(self) -> list[str]:
        return [one.notice.text for one in self.events if isinstance(one, NoticeEvent)]

    def open(self, **row: Any) -> AbstractAsyncContextManager[Session]:
        command = warm_command(mcp_lasting.__file__, str(self.folder))
        rows = {"lasting": {"module": "vibe_llms.ensembles.mcp", "command": command, **PATIENCE}}
        rows["lasting"] |= row
        return open_session(
            home=self._home, configuration={"ensembles": rows}, event_handler=self.events.append
        )

    async def ask(self, session: Session) -> tuple[list[Definition], Turn]:
        """The tools that a new conversation offers, and a turn that calls one."""
        call = ScriptedReply(parts=(Part(invocation="lasting/look", arguments={"b": 1}),))
        conversation = await session.begin(
            model_of(call, says("Done.")), ensembles=["lasting"], save=False
        )
        offered = [Definition.of(one) for one in conversation.invokers.values()]
        return offered, await conversation.converse("Go.")

    async def begin(self, **row: Any) -> None:
        """A conversation that calls nothing, in a session of its own."""
        async with self.open(**row) as session:
            await session.begin(model_of(), ensembles=["lasting"], save=False)


@pytest.fixture
def lasting(tmp_path: Path) -> Lasting:
    return Lasting(tmp_path)


def results(turn: Turn) -> list[str]:
    return [one.text for one in turn.canisters if isinstance(one, ResultCanister)]


async def test_the_first_call_starts_a_server_whose_tools_are_known(lasting: Lasting) -> None:
    row = {"pin-tools": False}
    async with lasting.open(**row) as session:
        first, _ = await lasting.ask(session)
    assert lasting.starts == 1
    await lasting.begin(**row)
    assert lasting.starts == 1
    async with lasting.open(**row) as session:
        # The order of the keys is part of what a model is sent, and of what providers cache.
        second, turn = await lasting.ask(session)
        assert [one.encode() for one in second] == [one.encode() for one in first]
        assert [*second[0].arguments_schema["properties"]] == ["b", "a"]
        assert (results(turn), lasting.starts) == (["a meadow"], 2)
        # What another process stores is of no interest to one that has the server.
        lasting.stored.write_text(lasting.stored.read_text().replace("around", "away"))
        third, _ = await lasting.ask(session)
    assert (third, lasting.starts) == (second, 2)


@pytest.mark.parametrize(
    ("holds", "row", "starts"),
    [
        (HOUR_MS, {}, 1),
        (0, {}, 2),
        (HOUR_MS, {"required": True}, 2),
        (HOUR_MS, {"protocol": "handshake"}, 2),
    ],
)
async def test_a_server_is_started_at_once_unless_its_list_holds(
    lasting: Lasting, holds: int, row: dict[str, Any], starts: int
) -> None:
    lasting.describe("Look.", holds=holds)
    for _ in range(2):
        await lasting.begin(**row)
    assert lasting.starts == starts


async def test_a_list_that_no_longer_holds_is_forgotten(lasting: Lasting) -> None:
    await lasting.begin()
    lasting.describe("Look around.", holds=0)
    async with lasting.open() as session:
        await lasting.ask(session)
    await lasting.begin()
    assert lasting.starts == 3


async def test_who_asks_for_a_server_itself_starts_it(lasting: Lasting) -> None:
    await lasting.begin()
    async with lasting.open() as session:
        assert (await session.open_ensemble("lasting")).invokers
    assert lasting.starts == 2


@pytest.mark.parametrize(
    ("pins", "offered", "result"),
    [
        (False, "Look, and send it.", "a meadow"),
        (True, "Look around.", "the tool is blocked because its server changed its description"),
    ],
)
async def test_a_tool_that_is_another_one_by_now_is_not_called(
    lasting: Lasting, pins: bool, offered: str, result: str
) -> None:
    row = {"pin-tools": pins}
    await lasting.begin(**row)
    lasting.describe("Look, and send it.")
    async with lasting.open(**row) as session:
        (tool,), turn = await lasting.ask(session)
        assert tool.description == "Look around."
        assert "changed the tool's description, so it was not called" in results(turn)[0]
        (tool,), turn = await lasting.ask(session)
    assert tool.description == offered
    assert result in results(turn)[0]


async def test_a_server_that_starts_no_more_costs_one_call_and_is_reported(
    lasting: Lasting,
) -> None:
    await lasting.begin()
    (lasting.folder / "broken").touch()
    async with lasting.open() as session:
        _, turn = await lasting.ask(session)
        assert "its process ended with status 1; it said: it is broken" in results(turn)[0]
        assert turn.text == "Done."
        assert lasting.notices == []
        await session.begin(model_of(), ensembles=["lasting"], save=False)
    assert len(lasting.notices) == 1
    await lasting.begin()
    (first, second) = lasting.notices
    assert "it is broken; its tools are left out" in first
    assert first == second


async def test_what_is_missing_is_missed_before_any_call(
    lasting: Lasting, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lasting.begin()
    monkeypatch.setattr(connection, "find_spec", lambda _: None)
    with pytest.raises(PackageMissing):
        await lasting.begin()


def test_what_a_server_lists_at_an_address_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ToolListFile, "read", lambda *_: (TOOL,))
    assert produce_ensemble(command=["look"]).recall()
    assert not produce_ensemble(url="http://127.0.0.1:9/mcp").recall()


async def test_a_variable_that_is_not_set_is_an_error_before_any_call(
    lasting: Lasting, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"environment": {"TOKEN": "${LASTING_TOKEN}"}, "required": False}
    monkeypatch.setenv("LASTING_TOKEN", "a")
    await lasting.begin(**row)
    monkeypatch.setenv("LASTING_TOKEN", "b")
    await lasting.begin(**row)
    assert lasting.starts == 2
    monkeypatch.delenv("LASTING_TOKEN")
    await lasting.begin(**row)
    assert "which is not set in the environment" in lasting.notices[0]


def change_nothing(_: Path, __: pytest.MonkeyPatch) -> McpSettings:
    return SETTINGS


def change_the_row(_: Path, __: pytest.MonkeyPatch) -> McpSettings:
    return McpSettings(command=("look",), environment={"KEY": "two"})


def go_elsewhere(_: Path, patch: pytest.MonkeyPatch) -> McpSettings:
    patch.chdir("/")
    return SETTINGS


def remove_the_folder(file: Path, patch: pytest.MonkeyPatch) -> McpSettings:
    folder = file.parent / "gone"
    folder.mkdir()
    patch.chdir(folder)
    folder.rmdir()
    return SETTINGS


def put_another_program_first(file: Path, patch: pytest.MonkeyPatch) -> McpSettings:
    program = file.parent / "look"
    program.touch(mode=0o700)
    patch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return SETTINGS


def update_the_library(_: Path, patch: pytest.MonkeyPatch) -> McpSettings:
    patch.setattr(tool_lists, "__version__", "99")
    return SETTINGS


def write_half(file: Path, _: pytest.MonkeyPatch) -> McpSettings:
    file.write_bytes(file.read_bytes()[:-1])
    return SETTINGS


def let_others_write(file: Path, _: pytest.MonkeyPatch) -> McpSettings:
    os.chmod(file, 0o666)
    return SETTINGS


def wait(seconds: float) -> Callable[[Path, pytest.MonkeyPatch], McpSettings]:
    def change(_: Path, patch: pytest.MonkeyPatch) -> McpSettings:
        now = time.time() + seconds
        patch.setattr(time, "time", lambda: now)
        return SETTINGS

    return change


@pytest.mark.parametrize(
    ("change", "known"),
    [
        (change_nothing, True),
        (wait(99), True),
        (wait(101), False),
        # The clock was set back.
        (wait(-LONGEST_SECONDS), False),
        (change_the_row, False),
        (go_elsewhere, False),
        (remove_the_folder, False),
        (put_another_program_first, False),
        (update_the_library, False),
        (write_half, False),
        (let_others_write, False),
    ],
)
def test_a_list_is_known_while_everything_is_as_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, pytest.MonkeyPatch], McpSettings],
    known: bool,
) -> None:
    lists = ToolListFile(tmp_path, "a")
    assert lists.read(SETTINGS) is None
    lists.keep(SETTINGS, [TOOL], 100)
    assert b"one" not in lists.path.read_bytes()
    settings = change(lists.path, monkeypatch)
    found = lists.read(settings)
    assert found == ((TOOL,) if known else None)
    assert ToolListFile(tmp_path, "b").read(settings) is None


def test_a_list_holds_for_a_day_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = ToolListFile(tmp_path, "a")
    lists.keep(SETTINGS, [TOOL], 10 * LONGEST_SECONDS)
    assert lists.read(SETTINGS) == (TOOL,)
    wait(LONGEST_SECONDS + 1)(lists.path, monkeypatch)
    assert lists.read(SETTINGS) is None


@pytest.mark.parametrize("large", ["long", "deep"])
def test_a_list_that_cannot_be_stored_is_not_and_the_last_one_is_forgotten(
    tmp_path: Path, large: str
) -> None:
    schema: dict[str, Any] = {"a": "x" * 2**20}
    if large == "deep":
        for _ in range(100_000):
            schema = {"a": schema}
    lists = ToolListFile(tmp_path, "a")
    lists.keep(SETTINGS, [TOOL], 100)
    lists.keep(SETTINGS, [ServerTool("look", "Look.", schema)], 100)
    assert lists.read(SETTINGS) is None


def test_where_nothing_can_be_written_a_list_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "tools").touch()
    lists = ToolListFile(tmp_path, "a")
    lists.keep(SETTINGS, [TOOL], 100)
    assert lists.read(SETTINGS) is None


PROGRAM = """
import asyncio, sys
from vibe_llms import open_session

async def main():
    async with open_session(home=sys.argv[1]) as session:
        conversation = await session.begin("scripted/demo", agent="general")
        await conversation.converse("Hello!")
        print("python/execute_code" in conversation.invokers, "mcp" in sys.modules)

asyncio.run(main())
"""


def test_a_turn_of_the_shipped_agent_does_not_wait_for_the_interpreter(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    # It is the same wherever it is started.
    places = (Path.cwd(), tmp_path)
    said = [subprocess.check_output(command, text=True, cwd=place) for place in places]
    assert said == ["True True\n", "True False\n"]
