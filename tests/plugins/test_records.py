"""What was installed and is no longer so is noticed before any of it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.index import FakeIndex
from tests.plugins.rows import offer
from vibe_llms.base.exceptions import PluginMissing, RegistrationError, StorageError
from vibe_llms.plugins import records
from vibe_llms.plugins.installing import install, plan_installation
from vibe_llms.plugins.pins import Plugin
from vibe_llms.plugins.records import survey_records, verify

SIMPLE = {"plug/__init__.py": "VALUE = 1\n", "plug/inner.py": "VALUE = 2\n"}


@pytest.fixture
def plugin(home: Path, index: FakeIndex) -> Plugin:
    """One that is installed."""
    found = offer(home, index, SIMPLE)
    install(plan_installation(found))
    verify(found)
    return found


def alter(packages: Path) -> None:
    (packages / "plug" / "inner.py").write_text("VALUE = 3\n")


def add(packages: Path) -> None:
    (packages / "json.py").write_text("")


def add_bytecode(packages: Path) -> None:
    (packages / "plug" / "__pycache__").mkdir()
    (packages / "plug" / "__pycache__" / "inner.cpython-311.pyc").write_bytes(b"")


def take_away(packages: Path) -> None:
    (packages / "plug" / "inner.py").unlink()


def move(packages: Path) -> None:
    (packages / "plug" / "inner.py").rename(packages / "plug" / "outer.py")


def take_all(packages: Path) -> None:
    packages.rename(packages.parent / "elsewhere")


CHANGES = (alter, add, add_bytecode, take_away, move, take_all)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_refused_until_it_is_installed_anew(
    plugin: Plugin, change: Callable[[Path], None]
) -> None:
    change(plugin.packages)
    with pytest.raises(RegistrationError, match="vibe-llms plugins install mine") as caught:
        verify(plugin)
    assert caught.value.table == "providers.mine"
    install(plan_installation(plugin))
    verify(plugin)


def test_a_link_in_place_of_a_file_is_refused(plugin: Plugin, tmp_path: Path) -> None:
    path = plugin.packages / "plug" / "inner.py"
    path.rename(tmp_path / "inner.py")
    os.symlink(tmp_path / "inner.py", path)
    with pytest.raises(StorageError, match="link"):
        verify(plugin)


def test_files_that_are_not_looked_at_would_be_detected(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = records.read_record(plugin.folder)
    assert record is not None
    monkeypatch.setattr(records, "survey_files", lambda _: dict(record.files))
    alter(plugin.packages)
    with pytest.raises(pytest.fail.Exception), pytest.raises(RegistrationError):
        verify(plugin)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"row": 3}', "\x00"])
def test_a_folder_whose_record_cannot_be_read_is_no_plugin(plugin: Plugin, text: str) -> None:
    (plugin.folder / "record.json").write_text(text)
    with pytest.raises(PluginMissing):
        verify(plugin)
    assert list(survey_records(plugin.folder.parent)) == []


def test_a_record_of_other_pins_is_none_of_these(plugin: Plugin) -> None:
    path = plugin.folder / "record.json"
    path.write_text(path.read_text().replace("plug==1.0", "plug==1.1"))
    with pytest.raises(PluginMissing):
        verify(plugin)
