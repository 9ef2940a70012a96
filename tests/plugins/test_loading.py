"""Where a plugin's modules are found: its own before all others, the rest after all others."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fakes.index import FakeIndex
from tests.plugins.rows import offer
from vibe_llms.base.exceptions import PluginMissing, RegistrationError
from vibe_llms.plugins import loading
from vibe_llms.plugins.installing import install, plan_installation
from vibe_llms.plugins.loading import open_plugin
from vibe_llms.plugins.pins import Plugin

pytestmark = pytest.mark.usefixtures("clean_imports")


def produce(home: Path, index: FakeIndex, files: Mapping[str, str], **row: str) -> Plugin:
    plugin = offer(home, index, files, **row)
    install(plan_installation(plugin))
    return plugin


def test_a_module_is_found_once_its_row_is_used_and_not_before(
    home: Path, index: FakeIndex
) -> None:
    plugin = produce(home, index, {"plug/__init__.py": "", "plug/sub/inner.py": "VALUE = 2\n"})
    before = list(sys.path)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("plug")
    open_plugin(plugin)
    assert importlib.import_module("plug.sub.inner").VALUE == 2
    assert sys.path == before
    open_plugin(plugin)
    assert len([one for one in sys.meta_path if isinstance(one, loading._Finder)]) == 2
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("plug.sub.nothing")


def test_what_is_not_installed_is_not_opened(home: Path, index: FakeIndex) -> None:
    plugin = offer(home, index, {"plug.py": ""})
    with pytest.raises(PluginMissing):
        open_plugin(plugin)
    assert not [one for one in sys.meta_path if isinstance(one, loading._Finder)]


def test_the_pinned_module_goes_before_one_of_its_name_elsewhere(
    home: Path, index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "plug.py").write_text("VALUE = 'elsewhere'\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    open_plugin(produce(home, index, {"plug.py": "VALUE = 'pinned'\n"}))
    assert importlib.import_module("plug").VALUE == "pinned"


def check_nothing_is_replaced(home: Path, index: FakeIndex) -> None:
    """`AssertionError` where a plugin replaces a package that is not its own."""
    # The last two are installed, and not loaded yet.
    taken = ("json", "vibe_llms", "msgspec", "hypothesis", "hatchling", "uv")
    files = {f"{name}.py": "PLANTED = True\n" for name in taken}
    for name in taken[4:]:
        sys.modules.pop(name, None)
    open_plugin(produce(home, index, {**files, "plug.py": "", "further.py": "VALUE = 1\n"}))
    for name in taken:
        assert not hasattr(importlib.import_module(name), "PLANTED"), name
    assert importlib.import_module("further").VALUE == 1


def test_a_plugin_replaces_nothing(home: Path, index: FakeIndex) -> None:
    check_nothing_is_replaced(home, index)


def test_a_folder_on_the_path_would_be_detected(
    home: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_first(plugin: Plugin) -> None:
        monkeypatch.syspath_prepend(str(plugin.packages))

    monkeypatch.setitem(globals(), "open_plugin", put_first)
    with pytest.raises(AssertionError, match=r"hypothesis|hatchling"):
        check_nothing_is_replaced(home, index)


def test_an_optional_package_of_ours_is_not_brought_by_a_plugin(
    home: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `keyring` would be, which is imported where it is installed."""
    monkeypatch.setattr(
        loading, "survey_own_modules", lambda: frozenset({"an_optional_package_of_ours"})
    )
    files = {"plug.py": "", "an_optional_package_of_ours.py": ""}
    open_plugin(produce(home, index, files))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("an_optional_package_of_ours")


def test_bytecode_is_neither_read_nor_written(
    home: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    plugin = produce(home, index, {"plug/__init__.py": "", "plug/inner.py": "VALUE = 1\n"})
    open_plugin(plugin)
    importlib.import_module("plug.inner")
    open_plugin(plugin)
    assert not list(plugin.packages.rglob("*.pyc"))


def test_of_two_modules_of_one_name_the_second_is_refused(home: Path, index: FakeIndex) -> None:
    one = produce(home, index, {"plug.py": "VALUE = 1\n"})
    other = produce(home, index, {"plug.py": "VALUE = 2\n"}, version="2.0", name="other")
    open_plugin(one)
    importlib.import_module("plug")
    with pytest.raises(
        RegistrationError, match="another module 'plug' is already loaded"
    ) as caught:
        open_plugin(other)
    assert (caught.value.table, caught.value.key) == ("providers.other", "module")


def test_two_rows_with_the_same_pins_share_the_module(home: Path, index: FakeIndex) -> None:
    one = produce(home, index, {"plug.py": "VALUE = 1\n"})
    twin = offer(home, index, {"plug.py": "VALUE = 1\n"}, name="twin")
    open_plugin(one)
    module = importlib.import_module("plug")
    open_plugin(twin)
    assert importlib.import_module("plug") is module
    assert module.VALUE == 1


def test_a_plugin_finds_its_own_version_and_its_data(home: Path, index: FakeIndex) -> None:
    code = (
        "from importlib.metadata import entry_points, version\n"
        "from importlib.resources import files\n"
        "VERSION, DATA = version('plug'), files('plug').joinpath('data.txt').read_text()\n"
    )
    entry = "[plug.hooks]\nhook = plug:VERSION\n"
    files = {
        "plug/__init__.py": code,
        "plug/data.txt": "words",
        "plug-1.0.dist-info/entry_points.txt": entry,
    }
    open_plugin(produce(home, index, files))
    module = importlib.import_module("plug")
    assert (module.VERSION, module.DATA) == ("1.0", "words")
    # What looks for hooks in all that is installed does not find a plugin's.
    assert not importlib.metadata.entry_points(group="plug.hooks")
