"""TOML, the environment and the caller make one configuration; what is wrong is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from vibe_llms.base import configuration
from vibe_llms.base.configuration import (
    Configuration,
    Places,
    StreamSettings,
    ToolSettings,
    find_places,
    load_configuration,
    merge,
    read_toml,
    shipped_folder,
)
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.messages.controls import check_controls

SHIPPED = str(shipped_folder() / "configuration" / "general.toml")


def load(
    home: Path,
    text: str | bytes | None = None,
    environment: Mapping[str, str] | None = None,
    **overrides: Any,
) -> Configuration:
    if text is not None:
        home.mkdir(parents=True, exist_ok=True)
        data = text.encode() if isinstance(text, str) else text
        (home / "config.toml").write_bytes(data)
    return load_configuration(
        Places.under(home), environment=environment or {}, overrides=overrides or None
    )


#: The shipped rows, in their order.
ROWS = [
    *("anthropic", "bedrock", "openai", "openai-chat", "gemini", "azure", "azure-chat"),
    *("azure-anthropic", "vertex", "vertex-anthropic", "openrouter", "groq", "mistral"),
    *("deepseek", "xai", "together"),
    *("fireworks", "cerebras", "perplexity", "moonshot", "minimax", "zai", "sambanova"),
    *("huggingface", "nebius", "deepinfra", "cloudflare", "ollama", "llamacpp", "vllm", "lmstudio"),
    *("llamacpp-server", "scripted"),
]


def test_the_shipped_defaults_are_those_of_the_classes(home: Path) -> None:
    configuration = load(home)
    assert configuration.stream == StreamSettings()
    assert configuration.tools == ToolSettings()
    assert configuration.default_model == ""
    assert [row.name for row in configuration.rows("providers")] == ROWS
    assert {row.file for row in configuration.rows("providers")} == {SHIPPED}


def test_each_layer_overrides_the_one_below(home: Path) -> None:
    text = """
    default-model = "scripted/demo"
    aliases = { fast = "a/b", slow = "c/d" }
    [stream]
    retries = 5
    idle-seconds = 7
    """
    configuration = load(
        home,
        text,
        {"VIBE_LLMS_STREAM__IDLE_SECONDS": "8.5", "VIBE_LLMS_ALIASES__FAST": "e/f"},
        stream={"first-byte-seconds": 9},
    )
    assert configuration.stream == StreamSettings(retries=5, idle_seconds=8.5, first_byte_seconds=9)
    assert configuration.aliases == {"fast": "e/f", "slow": "c/d"}
    assert configuration.default_model == "scripted/demo"
    assert configuration.tools == ToolSettings()


def test_tables_merge_at_every_depth_while_lists_and_values_are_replaced(home: Path) -> None:
    text = """
    [providers.anthropic]
    beta = ["b"]
    [providers.anthropic.models."claude.*".controls]
    temperature = { maximum = 1 }
    [providers.mine]
    module = "some.module"
    """
    configuration = load(
        home,
        text,
        providers={"anthropic": {"beta": ["c"], "models": {"claude.*": {"title": "t"}}}},
    )
    row = configuration.row("providers", "anthropic")
    assert row.module == "vibe_llms.providers.anthropic"
    assert row.settings["base-url"] == "${ANTHROPIC_BASE_URL:-https://api.anthropic.com}"
    assert row.settings["beta"] == ["c"]
    assert row.settings["models"] == {
        "claude.*": {"controls": {"temperature": {"maximum": 1}}, "title": "t"}
    }
    assert [row.name for row in configuration.rows("providers")][-1] == "mine"
    assert configuration.row("providers", "mine").file == str(home / "config.toml")


TREES = st.recursive(
    st.integers() | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
TABLES = st.dictionaries(st.sampled_from("abc"), TREES, max_size=3)


@settings(deadline=None, database=None)
@given(TABLES, TABLES, TABLES)
def test_merging_is_associative_and_changes_neither_side(
    one: dict[str, Any], two: dict[str, Any], three: dict[str, Any]
) -> None:
    before = repr((one, two, three))
    assert merge(merge(one, two), two) == merge(one, two)
    assert merge(one, {}) == one == merge({}, one)
    if not any(
        isinstance(tree.get(key), dict) != isinstance(other.get(key), dict)
        for tree in (one, two, three)
        for other in (one, two, three)
        for key in "abc"
    ):
        assert set(merge(one, merge(two, three))) == set(merge(merge(one, two), three))
    assert repr((one, two, three)) == before


def test_a_row_that_is_not_enabled_is_no_row(home: Path) -> None:
    text = "[providers.anthropic]\nenabled = false\n[providers.scripted]\nenabled = true\n"
    configuration = load(home, text)
    assert [row.name for row in configuration.rows("providers")] == ROWS[1:]
    assert "enabled" not in configuration.row("providers", "scripted").settings


WRONG: dict[str, tuple[str | bytes, str, str, str]] = {
    "malformed": ("default-model == 1", "", "", "not valid TOML.*line 1"),
    "duplicate": ("a = 1\na = 2", "", "", "not valid TOML"),
    "deep": ("a = " + "[" * 5000 + "]" * 5000, "", "", "not valid TOML"),
    "huge number": ("a = " + "9" * 5000, "", "", "not valid TOML"),
    "byte order mark": (b"\xef\xbb\xbfdefault-model = ''", "", "", "not valid TOML"),
    "not UTF-8": (b"default-model = '\xff'", "", "", "not UTF-8"),
    "unknown key": ("colour = 'red'", "", "colour", "unknown key"),
    "unknown table": ("[colours]\nred = 1", "", "colours", "unknown key"),
    "unknown key in a table": ("[stream]\nidle = 1", "stream", "idle", "unknown key"),
    "underscore": ("[stream]\nidle_seconds = 1", "stream", "idle_seconds", "unknown key"),
    "wrong type": ("[stream]\nretries = 'two'", "stream", "retries", "Expected `int`"),
    "out of range": ("[tools]\nparallel = 0", "tools", "parallel", ">= 1"),
    "nothing kept": ("[tools]\nkept-bytes = 0", "tools", "kept-bytes", ">= 1"),
    "nothing shown": ("[tools]\nshown-bytes = 0", "tools", "shown-bytes", ">= 1"),
    "no time": ("[tools]\ntimeout-seconds = 0", "tools", "timeout-seconds", "> 0"),
    "negative": ("[stream]\nidle-seconds = -1", "stream", "idle-seconds", "> 0"),
    "no number": ("[stream]\nidle-seconds = nan", "stream", "idle-seconds", "> 0"),
    "wrong choice": ("[storage]\ndurability = 'some'", "storage", "durability", "'some'"),
    "table for a value": ("[default-model]\na = 1", "", "default-model", "Expected `str`"),
    "value for a table": ("stream = 5", "", "stream", "Expected `object`"),
    "alias": ("[aliases]\nfast = 'a/b'\nslow = 3", "aliases", "slow", "Expected `str`"),
    "row that is no table": (
        "[providers]\nmine = 5", "providers", "mine", "Expected `object`"
    ),
    "row without module": (
        "[providers.mine]\nbase-url = 'x'", "providers", "mine", r'needs a module = "..."'
    ),
    "module that is no text": ("[providers.mine]\nmodule = 5", "providers", "mine", "module"),
    "factory that is no text": (
        "[providers.mine]\nmodule = 'm'\nfactory = 5", "providers.mine", "factory", "string"
    ),
    "enabled that is no truth": (
        "[providers.mine]\nmodule = 'm'\nenabled = 'no'", "providers.mine", "enabled", "true or"
    ),
    "control": ("[controls]\nwarmth = 1", "controls", "warmth", "unknown control 'warmth'"),
    "value of a control": (
        "[controls]\ntemperature = 'hot'", "controls", "temperature", "cannot be 'hot'"
    ),
    "control of a row": (
        "[providers.scripted.controls]\ntop-k = [1]",
        "providers.scripted.controls",
        "top-k",
        "cannot be",
    ),
}  # fmt: skip


def use(configuration: Configuration) -> None:
    """Read the rows of the providers, and all controls."""
    list(configuration.rows("providers"))
    check_controls(configuration)


@pytest.mark.parametrize("name", WRONG)
def test_an_error_names_the_file_the_table_and_the_key(home: Path, name: str) -> None:
    text, table, key, message = WRONG[name]
    with pytest.raises(ConfigurationError, match=message) as caught:
        use(load(home, text))
    assert caught.value.file == str(home / "config.toml")
    assert (caught.value.table, caught.value.key) == (table, key)
    assert str(home / "config.toml") in str(caught.value)


def test_an_error_in_what_is_shipped_names_the_file_that_the_user_can_change(home: Path) -> None:
    configuration = load(home, "[providers.anthropic]\nbase-url = 'http://localhost'")
    assert configuration.error("x", "providers", "anthropic", "base-url").file == str(
        home / "config.toml"
    )
    own = str(home / "config.toml")
    assert configuration.error("x", "providers", "anthropic", "module").file == own
    assert configuration.error("x", "nowhere").file == ""


ENVIRONMENT = {
    "unknown": ("VIBE_LLMS_COLOUR", "red", "", "colour"),
    "unknown in a table": ("VIBE_LLMS_STREAM__COLOUR", "red", "stream", "colour"),
    "empty": ("VIBE_LLMS_", "1", "", ""),
    "empty part": ("VIBE_LLMS_STREAM____IDLE", "1", "stream", ""),
    "wrong type": ("VIBE_LLMS_STREAM__RETRIES", "many", "stream", "retries"),
    "value for a table": ("VIBE_LLMS_STORAGE", "5", "", "storage"),
    "below a value": ("VIBE_LLMS_STORAGE__DURABILITY__X", "5", "storage", "durability"),
    "row that is none": ("VIBE_LLMS_PROVIDERS__MINE", "5", "providers", "mine"),
}


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_an_error_in_the_environment_names_the_variable(home: Path, name: str) -> None:
    variable, value, table, key = ENVIRONMENT[name]
    with pytest.raises(ConfigurationError) as caught:
        load(home, None, {variable: value, "PATH": "/bin"})
    assert caught.value.file == f"environment {variable}"
    assert (caught.value.table, caught.value.key) == (table, key)


@pytest.mark.parametrize(
    ("variable", "text", "path", "value"),
    [
        ("VIBE_LLMS_DEFAULT_MODEL", "scripted/demo", ("default-model",), "scripted/demo"),
        ("VIBE_LLMS_DEFAULT_MODEL", '"5"', ("default-model",), "5"),
        ("VIBE_LLMS_DEFAULT_MODEL", "a = b", ("default-model",), "a = b"),
        ("VIBE_LLMS_DEFAULT_MODEL", "1\nstream = 2", ("default-model",), "1\nstream = 2"),
        ("VIBE_LLMS_DEFAULT_MODEL", "9" * 5000, ("default-model",), "9" * 5000),
        ("VIBE_LLMS_TOOLS__MAX_ROUNDS", "3", ("tools", "max-rounds"), 3),
        (
            "VIBE_LLMS_PROVIDERS__ANTHROPIC__BETA",
            '["a", "b"]',
            ("providers", "anthropic", "beta"),
            ["a", "b"],
        ),
        (
            "VIBE_LLMS_PROVIDERS__MY_OWN_ROW__BASE_URL",
            "http://localhost:1/v1",
            ("providers", "my-own_ROW", "base-url"),
            "http://localhost:1/v1",
        ),
        (
            "VIBE_LLMS_PROVIDERS__NEW_ROW",
            "{ module = 'm' }",
            ("providers", "new-row", "module"),
            "m",
        ),
        ("VIBE_LLMS_PROVIDERS__ANTHROPIC__ENABLED", "false",
         ("providers", "anthropic", "enabled"), False),
        ("VIBE_LLMS_CONTROLS__TOP_P", "0.5", ("controls", "top-p"), 0.5),
    ],
)  # fmt: skip
def test_a_variable_overrides_the_setting_that_its_name_spells(
    home: Path, variable: str, text: str, path: tuple[str, ...], value: object
) -> None:
    known = "[providers.my-own_ROW]\nmodule = 'm'\n"
    level: Any = load(home, known, {variable: text}).tree
    for key in path:
        level = level[key]
    assert level == value


def test_the_environment_of_the_process_is_read_unless_another_is_given(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_DEFAULT_MODEL", "scripted/demo")
    configuration = load_configuration()
    assert configuration.default_model == "scripted/demo"
    assert configuration.places == Places.under(home) == Places(home, home, home)


def test_one_variable_puts_everything_under_one_folder(tmp_path: Path) -> None:
    places = find_places({"VIBE_LLMS_HOME": str(tmp_path / "all")})
    assert places.configuration_file == tmp_path / "all" / "config.toml"
    assert places.keys_file == tmp_path / "all" / "keys.toml"
    assert places.history_file == tmp_path / "all" / "history"
    assert places.data == tmp_path / "all"
    assert find_places({"VIBE_LLMS_HOME": "~/all"}).data == tmp_path / "all"


@pytest.mark.parametrize("home", ["here", "./here", "../here", "~no-such-user/here"])
def test_a_home_that_depends_on_the_current_folder_is_refused(home: str) -> None:
    with pytest.raises(ConfigurationError, match="not an absolute path") as caught:
        find_places({"VIBE_LLMS_HOME": home})
    assert (caught.value.file, caught.value.key) == ("environment", "VIBE_LLMS_HOME")


def test_without_that_variable_the_platform_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    places = find_places({"VIBE_LLMS_HOME": ""})
    assert places.configuration.is_relative_to(tmp_path)
    assert places.data.is_absolute()
    assert places.state.is_absolute()


def test_a_file_that_cannot_be_read_is_no_empty_file(home: Path) -> None:
    (home / "config.toml").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        load(home)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_toml(home / "nothing.toml")


def test_a_link_to_nowhere_and_a_name_that_is_too_long_are_reported(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").symlink_to(home / "nowhere.toml")
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load(home)
    with pytest.raises(ConfigurationError, match="cannot be read: File name too long"):
        load(home / ("x" * 300))


def test_a_home_below_a_file_has_no_settings_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert load(tmp_path / "file" / "home").default_model == ""


HOSTILE = """
import pathlib, os
pathlib.Path(os.environ["TELL"]).write_text(__name__)
"""
PROGRAM = """
import asyncio, vibe_llms
from vibe_llms.base.configuration import load_configuration

async def main():
    async with vibe_llms.open_session() as session:
        conversation = await session.begin()
        turn = await conversation.converse("Hello!")
        assert conversation.model.name == "demo", conversation.model.name
        assert session.configuration.default_model == ""

asyncio.run(main())
"""


def check_current_folder(folder: Path, home: Path, command: list[str]) -> None:
    """Whatever lies in the current folder, nothing of it is read or run."""
    folder.mkdir(exist_ok=True)
    reported = folder / "reported"
    for name in ("config.toml", "config.local.toml", ".vibe-llms.toml", "general.toml"):
        (folder / name).write_text('default-model = "nothing/at-all"\n')
    (folder / ".env").write_text("VIBE_LLMS_DEFAULT_MODEL=nothing/at-all\n")
    (folder / "keys.toml").write_text('anthropic = "sk-ant-0123456789"\n')
    for name in ("click", "msgspec", "platformdirs", "keyring", "parrot", "httpx2", "pydantic"):
        (folder / f"{name}.py").write_text(HOSTILE)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "VIBE_LLMS_HOME": str(home),
        "TELL": str(reported),
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not reported.exists(), reported.read_text()


def test_nothing_is_read_from_the_current_folder(tmp_path: Path, home: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    check_current_folder(tmp_path / "hostile", home, [sys.executable, str(program)])


def test_nor_by_the_command_that_python_runs_as_a_module(tmp_path: Path, home: Path) -> None:
    command = [sys.executable, "-m", "vibe_llms", "chat", "-m", "scripted/demo", "Hello!"]
    check_current_folder(tmp_path / "hostile", home, command)


def test_that_check_sees_a_module_of_the_current_folder(tmp_path: Path, home: Path) -> None:
    with pytest.raises(AssertionError):
        check_current_folder(
            tmp_path / "hostile", home, [sys.executable, "-c", "import platformdirs"]
        )


class Shelf(Struct, frozen=True, forbid_unknown_fields=True):
    height: int = 0


class Room(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    shelves: list[dict[str, Shelf]] = []


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"name": "n", "shelves": [{}, {"a.b": {}, "[c]": {"height": "high"}}]}, "1.[c].height"),
        ({"name": "n", "shelves": [{"a": {"depth": 1}}]}, "0.a.depth"),
        ({"name": "n", "shelves": [{"a": 1}]}, "0.a"),
    ],
)
def test_an_error_is_placed_through_tables_and_lists(
    home: Path, values: dict[str, Any], place: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(home).read(Room, values, "rooms", "mine")
    assert f"{caught.value.table}.{caught.value.key}" == f"rooms.mine.shelves.{place}"


def test_an_error_without_a_key_is_about_the_whole_table(home: Path) -> None:
    with pytest.raises(ConfigurationError, match="required field `name`") as caught:
        load(home).read(Room, {}, "rooms", "mine")
    assert (caught.value.table, caught.value.key) == ("rooms", "mine")


def test_shipped_files_are_found_in_an_installation_or_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "sources" / "vibe_llms" / "base" / "configuration.py"
    monkeypatch.setattr(configuration, "__file__", str(module))
    assert shipped_folder() == tmp_path / "data"
    installed = module.parents[1] / "data"
    installed.mkdir(parents=True)
    assert shipped_folder() == installed


@pytest.mark.parametrize(("enabled", "fits"), [(True, True), (False, True), ("yes", False)])
def test_whether_memory_is_enabled_is_true_or_false(enabled: object, fits: bool) -> None:
    loaded = load_configuration(overrides={"memory": {"enabled": enabled}, "offline": fits})
    assert loaded.offline is fits
    if fits:
        assert loaded.memory_enabled is enabled
        return
    with pytest.raises(ConfigurationError, match="must be true or false"):
        _ = loaded.memory_enabled
