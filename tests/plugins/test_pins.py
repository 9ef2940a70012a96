"""What a row pins: exact versions with hashes, or an error that names the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.plugins.rows import ZEROS, read_row, write_row
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.opening import open_session
from vibe_llms.plugins import pins
from vibe_llms.providers.provider_pool import survey_plugins

REFUSED: Mapping[str, tuple[Mapping[str, Sequence[str]], str, str]] = {
    "no version": ({"plug": [ZEROS]}, "plug", "write it as name==version"),
    "a range": ({"plug>=1": [ZEROS]}, "plug>=1", "write it as name==version"),
    "several": ({"plug==1.*": [ZEROS]}, "plug==1.*", "write it as name==version"),
    "an extra": ({"plug[x]==1": [ZEROS]}, "plug[x]==1", "write it as name==version"),
    "an address": ({"plug @ https://e.x/p.whl": [ZEROS]}, "plug @ https://e.x/p.whl", "write it"),
    "a marker": ({"plug==1; python_version>'3'": [ZEROS]}, "plug==1; python_version>'3'", "write"),
    "an option": ({"--pre": [ZEROS]}, "--pre", "write it as name==version"),
    "two lines": ({"plug==1\n--pre": [ZEROS]}, "plug==1\n--pre", "write it as name==version"),
    "no hash": ({"plug==1": []}, "plug==1", "needs the hashes"),
    "a weak hash": ({"plug==1": ["md5:" + "0" * 32]}, "plug==1", "needs the hashes"),
    "a short hash": ({"plug==1": ["sha256:00"]}, "plug==1", "needs the hashes"),
    "one of two": ({"plug==1": [ZEROS, "sha256:x"]}, "plug==1", "needs the hashes"),
    "twice": ({"plug==1": [ZEROS], "Plug==2": [ZEROS]}, "Plug==2", "listed twice"),
    "this library": ({"vibe-llms==9": [ZEROS]}, "vibe-llms==9", "must not replace"),
    "a package of ours": ({"MsgSpec==9": [ZEROS]}, "MsgSpec==9", "must not replace"),
    "an extra of ours": ({"genai_prices==9": [ZEROS]}, "genai_prices==9", "extra of vibe-llms"),
    "nothing": ({}, "requirements", "must name a package"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_pinned_is_refused(home: Path, name: str) -> None:
    requirements, key, words = REFUSED[name]
    write_row(home, requirements)
    with pytest.raises(ConfigurationError, match=words) as caught:
        survey_plugins(load_configuration())
    assert caught.value.key == key
    assert caught.value.table.startswith("providers.mine.install")
    assert caught.value.file == str(home / "config.toml")


@pytest.mark.parametrize("module", ["json", "vibe_llms.mine", "msgspec", "genai_prices.x", "os"])
def test_a_module_that_would_replace_ours_or_pythons_is_refused(home: Path, module: str) -> None:
    write_row(home, {"plug==1": [ZEROS]}, module=module)
    with pytest.raises(ConfigurationError, match="must not replace") as caught:
        survey_plugins(load_configuration())
    assert caught.value.key == "module"


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("ftp://e.x/simple", "http"),
        ("wheels", "absolute path"),
        ("https://", "http"),
        ("https://me:secret@e.x/simple", "must not contain a user name or password"),
        ("https://[::1/simple", "not a URL"),
    ],
)
def test_what_is_no_index_is_refused(home: Path, index: str, words: str) -> None:
    write_row(home, {"plug==1": [ZEROS]}, index=index)
    with pytest.raises(ConfigurationError, match=words) as caught:
        survey_plugins(load_configuration())
    assert "secret" not in str(caught.value)


async def test_a_key_that_is_not_known_is_named_with_its_row(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        f"[providers.mine]\nmodule = 'plug'\n[providers.mine.install]\nrequirements = "
        f"{{ 'plug==1' = ['{ZEROS}'] }}\npre = true\n"
    )
    async with open_session() as session:
        with pytest.raises(ConfigurationError, match="unknown key") as caught:
            await session.access_model("mine/x")
    assert caught.value.key == "pre"


def test_the_folder_follows_from_the_pins(home: Path) -> None:
    other = "sha256:" + "1" * 64
    write_row(home, {"plug==1": [ZEROS, other]}, name="one")
    write_row(home, {"plug==1": [other, ZEROS]}, name="two", index="https://e.x/simple")
    write_row(home, {"plug==1": [ZEROS]}, name="three")
    write_row(home, {"plug==2": [ZEROS, other]}, name="four")
    write_row(home, {"plug==1": [ZEROS, other]}, name="five", module="Plüg/../..")
    folders = [read_row(name).folder for name in ("one", "two", "three", "four", "five")]
    assert folders[0] == folders[1]
    assert len(set(folders)) == 4
    assert {folder.parent for folder in folders} == {home / "plugins"}


def test_the_pins_are_written_as_installers_read_them(home: Path) -> None:
    write_row(home, {"plug==1": [ZEROS], "needed==2": [ZEROS, ZEROS[:-1] + "1"]})
    plugin = read_row()
    assert plugin.pinned == (
        f"needed==2 --hash={ZEROS} --hash={ZEROS[:-1]}1\nplug==1 --hash={ZEROS}\n"
    )
    assert plugin.name == "plug==1, needed==2"


def test_where_this_library_is_not_installed_its_own_name_is_still_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pins, "_OURSELVES", "vibe-llms-that-is-not-installed")
    assert list(pins.survey_own_packages()) == ["vibe-llms-that-is-not-installed"]
