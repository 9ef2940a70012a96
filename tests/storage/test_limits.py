"""No file is written that its reader refuses: the limits of all writers and readers agree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import vibe_llms
from vibe_llms.base.exceptions import RequestError, StorageError
from vibe_llms.base.files import LARGEST_SETTINGS
from vibe_llms.base.folders import replace_file
from vibe_llms.base.keys import store_key
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.session.core import Session
from vibe_llms.storage.details import change_details

SOURCES = Path(vibe_llms.__file__).parent
#: The parameter with the limit of each function that reads or writes whole files, and its default.
READERS = {
    "read_file": (1, ""),
    "read_trusted": (1, "LARGEST_SETTINGS"),
    "read_toml": (1, "LARGEST_SETTINGS"),
    "read_settings": (1, "LARGEST_SETTINGS"),
    "read_within": (2, "LARGEST_FILE"),
    "read_relative": (2, "LARGEST_FILE"),
    "read_keys": (1, "LARGEST_SETTINGS"),
}
#: Files whose only reader is another program, or which are written with constant contents.
UNREAD = {"cli/export.py", "cli/settings.py", "memory/repository.py"}


def survey_limits(path: Path, functions: dict[str, tuple[int, str]]) -> set[str]:
    """Return the limits, as they are written, of all calls of some functions in a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name in functions:
            place, default = functions[name]
            named = [one.value for one in node.keywords if one.arg == "limit"]
            given = named or node.args[place : place + 1]
            found.add(ast.unparse(given[0]) if given else default)
    return found


def test_each_module_that_writes_a_file_reads_it_with_the_same_limit() -> None:
    writers = {
        str(path.relative_to(SOURCES)): limits
        for path in SOURCES.rglob("*.py")
        if (limits := survey_limits(path, {"replace_file": (2, "")}))
    }
    assert len(writers) > 15
    wrong = {
        name: sorted(limits - survey_limits(SOURCES / name, READERS))
        for name, limits in writers.items()
        if name not in UNREAD
    }
    assert {name: limits for name, limits in wrong.items() if limits} == {}


def test_data_that_nobody_could_read_are_not_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    replace_file(file, b"old", 4)
    with pytest.raises(OSError, match="it would be larger than 4 bytes, so it was not written"):
        replace_file(file, b"longer", 4)
    assert file.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [file]


def test_a_key_that_does_not_fit_leaves_the_others_readable(tmp_path: Path) -> None:
    file = tmp_path / "credentials.toml"
    store_key(file, "anthropic", "secret")
    with pytest.raises(StorageError, match="larger than 1 MiB"):
        store_key(file, "openai", "x" * LARGEST_SETTINGS)
    assert file.read_text() == 'anthropic = "secret"\n'


async def test_tags_that_do_not_fit_leave_the_conversation_as_it_was(session: Session) -> None:
    conversation = await session.begin("scripted/demo")
    await conversation.converse("Hello")
    identity = conversation.identity
    tags = [f"tag number {number}" for number in range(100_000)]
    with pytest.raises(RequestError, match=r"a conversation would have .*, and the limit is 1 MiB"):
        await session.archive.revise(identity, add_tags=tags)
    assert isinstance((await session.archive.restore(identity)).canisters[0], UserCanister)
    assert (await session.survey_conversations())[0].tags == ()


def test_a_change_that_does_not_fit_changes_nothing() -> None:
    with pytest.raises(RequestError, match="nothing was changed"):
        change_details(b"format = 1\ncreated = 2026-01-01T00:00:00Z\n", {"name": "x" * 2**20}, "x")
