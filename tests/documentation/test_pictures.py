"""The pictures of the pages: each is listed, shown, small, and as it was made.

Stale pictures fail no test, since each change of a style would need Chromium then:
`.auxiliary/scripts/screenshots --check` says whether they are stale.
"""

from __future__ import annotations

import hashlib
import json
import re
import runpy
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.documentation.pages import DOCUMENTATION, PAGES, ROOT, Page

SCRIPT = ROOT / ".auxiliary/scripts/screenshots"
FOLDER = DOCUMENTATION / "pictures"
LISTED = json.loads((FOLDER / "pictures.json").read_text())["pictures"]
_LARGEST_BYTES = 150_000
_WIDE, _PHONE = (1280, 800), (390, 844)
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


def images(page: Page) -> list[tuple[str, Path]]:
    """Return the description and the file of each image of a page."""
    return [
        (words, (page.path.parent / target).resolve())
        for words, target in _IMAGE.findall(page.prose)
    ]


@pytest.mark.parametrize("page", list(PAGES.values()), ids=lambda page: page.name)
def test_every_image_of_a_page_exists_and_is_described(page: Page) -> None:
    for words, path in images(page):
        assert path.is_file(), f"{page.name}: {path.name} is not there"
        assert len(words) > 20, f"{page.name}: describe {path.name} for those who do not see it"


def test_every_picture_is_listed_and_shown() -> None:
    assert sorted(LISTED) == sorted(path.name for path in FOLDER.glob("*.png"))
    shown = {path.name for page in PAGES.values() for _, path in images(page)}
    assert sorted(set(LISTED) - shown) == []


@pytest.mark.parametrize("name", sorted(LISTED))
def test_a_picture_is_small_and_as_it_was_made(name: str) -> None:
    data = (FOLDER / name).read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (_PHONE if "-phone-" in name else _WIDE)
    assert len(data) == LISTED[name]["bytes"] <= _LARGEST_BYTES
    assert hashlib.sha256(data).hexdigest() == LISTED[name]["sha256"], (
        f"{name} was not made by the script; run .auxiliary/scripts/screenshots"
    )


def test_the_check_says_when_the_page_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script: dict[str, Any] = runpy.run_path(str(SCRIPT))
    check, hash_sources = script["check"], script["hash_sources"]
    for folder in script["SOURCES"]:
        shutil.copytree(folder, tmp_path / folder.relative_to(ROOT))
    listed = tmp_path / "pictures.json"
    changed = {
        "ROOT": tmp_path,
        "SOURCES": [tmp_path / folder.relative_to(ROOT) for folder in script["SOURCES"]],
        "LIST": listed,
    }
    for name, value in changed.items():
        monkeypatch.setitem(check.__globals__, name, value)
    assert check() == 1
    listed.write_text(json.dumps({"page": hash_sources()}))
    assert check() == 0
    capsys.readouterr()
    style = tmp_path / "sources/vibe_llms/page/style/messages.css"
    style.write_text(style.read_text().replace("#ffffff", "#fffffe", 1))
    assert check() == 1
    assert "run .auxiliary/scripts/screenshots" in capsys.readouterr().out
