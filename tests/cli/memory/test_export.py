"""`memory export|import` at the terminal and for scripts."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import invoke, remember, run
from tests.cli.terminal import Terminal
from vibe_llms.base.folders import replace_file
from vibe_llms.memory import files

pytestmark = pytest.mark.usefixtures("warm")


def test_a_memory_goes_into_a_file_and_comes_back(home: Path, tmp_path: Path) -> None:
    remember("Ada keeps bees.", "--topic", "hobby")
    remember("The office is in Turin.", "--scope", "global")
    file = tmp_path / "memory.json"
    assert invoke("memory", "export", str(file)).errors == f"exported 1 entry to {file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert invoke("memory", "export", "--all", str(file)).errors.startswith("exported 2 entries")
    assert invoke("memory", "import", str(file)).errors == "2 entries already known\n"
    invoke("memory", "forget", "--yes", "bees")
    reported = invoke("memory", "import", "--dry-run", str(file)).errors
    assert reported == "would import 1 entry into user-me\n1 entry already known\n"
    assert "bees" not in invoke("memory", "list").output
    reported = invoke("memory", "import", str(file)).errors
    assert reported == "imported 1 entry into user-me\n1 entry already known\n"
    assert "bees" in invoke("memory", "list").output
    reported = invoke("memory", "import", "--scope", "user-ben", str(file)).errors
    assert reported == "imported 2 entries into user-ben\n"
    assert [path.name for path in tmp_path.glob(".new-*")] == []


def test_standard_input_and_output_do_as_well(home: Path) -> None:
    remember("Ada keeps bees.")
    assert "Ada keeps bees." in invoke("memory", "export").output
    data = run("memory", "export").output.encode()
    assert json.loads(data)["memories"][0]["data"]["content"] == "Ada keeps bees."
    assert run("memory", "export", "-").output.encode()[:200] == data[:200]
    reported = run("memory", "import", "--json", "--scope", "global", "-", data=data).json
    assert reported == {
        "new": {"global": 1},
        "known": 0,
        "bad": [],
        "secrets": [],
        "dry_run": False,
    }


def test_a_file_with_bad_items_is_not_imported_by_halves(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    good = {"data": {"id": 1735689600, "content": "Ada keeps bees."}}
    bad = [{"data": {"content": " "}} for _ in range(12)]
    file.write_text(json.dumps({"memories": [good, *bad]}))
    refused = invoke("memory", "import", str(file))
    assert refused.status == 2
    assert "memories[1], line 1: an empty text cannot be remembered\n" in refused.errors
    assert "and 2 more; to see all: --dry-run --json\n" in refused.errors
    assert f"nothing was imported: 12 of 13 items of {file} cannot be remembered" in refused.error
    assert not (home / "memory" / "entries").exists()
    assert invoke("memory", "import", "--json", str(file)).json["error"]["kind"] == "memory-invalid"
    reported = invoke("memory", "import", "--dry-run", "--json", str(file)).json
    assert len(reported["bad"]) == 12
    assert (reported["bad"][0]["index"], reported["bad"][0]["line"]) == (1, 1)
    assert reported["new"] == {"user-me": 1}
    reported = invoke("memory", "import", "--skip-bad", str(file)).errors
    assert reported.endswith("imported 1 entry into user-me\n")
    assert "2025-01-01" in invoke("memory", "list").output


@pytest.mark.parametrize(
    ("content", "words", "status"),
    [
        (b'{"a": [\n 1,\n not JSON', "memory.json cannot be read: line 3, column 3: JSON is", 2),
        (b'{"memories": ["\\ud800"]}', "half of a surrogate pair", 2),
        (None, "No such file", 66),
    ],
)
def test_a_file_that_cannot_be_read_is_one_clear_error(
    home: Path, tmp_path: Path, content: bytes | None, words: str, status: int
) -> None:
    file = tmp_path / "memory.json"
    if content is not None:
        file.write_bytes(content)
    refused = invoke("memory", "import", str(file))
    assert words in refused.error
    assert refused.status == status
    assert not (home / "memory" / "entries").exists()


def test_a_place_that_is_no_file_is_an_error(home: Path, tmp_path: Path) -> None:
    assert "is not a file" in invoke("memory", "export", str(tmp_path)).error
    assert "Is a directory" in invoke("memory", "import", str(tmp_path)).error
    assert "exclude each other" in invoke("memory", "export", "--all", "--scope", "global").error
    missing = invoke("memory", "export", str(tmp_path / "none" / "x.json"))
    assert missing.status == 1
    assert "No such file" in missing.error


def test_long_imports_show_progress(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    items = [{"data": {"content": f"fact number {number}"}} for number in range(1001)]
    file.write_text(json.dumps({"memories": items}))
    reported = invoke("memory", "import", "--dry-run", str(file), terminals="stderr").errors
    assert "200 of 1001" in reported
    assert "1000 of 1001" in reported
    assert "of 1001" not in invoke("memory", "import", "--dry-run", str(file)).errors


def test_broken_standard_input_is_named(home: Path) -> None:
    refused = run("memory", "import", "-", data=b'{"memories": [')
    assert "standard input cannot be read: line 1, column 15: unexpected end" in refused.error


def write_many(folder: Path, count: int) -> Path:
    file = folder / "memory.json"
    items = [{"data": {"content": f"fact number {number}"}} for number in range(count)]
    file.write_text(json.dumps({"memories": items}))
    return file


def test_an_import_that_a_full_disk_ends_reports_what_is_stored(home: Path, tmp_path: Path) -> None:
    file = write_many(tmp_path, 500)
    calls = 0

    def fill(path: Path, *_: object, **__: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 250:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        original(path, *_, **__)

    original: Any = replace_file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "replace_file", fill)
        failed = invoke("memory", "import", str(file))
    assert failed.status == 1
    reported = "imported 200 of 500 so far; run it again to continue: "
    assert failed.error.startswith(reported)
    assert "the disk is full; free some space" in failed.error
    again = invoke("memory", "import", str(file)).errors
    assert again == "imported 251 entries into user-me\n249 entries already known\n"


def test_an_interrupted_import_reports_what_is_stored(home: Path, tmp_path: Path) -> None:
    file = write_many(tmp_path, 5_000)
    with Terminal("memory", "import", str(file)) as terminal:
        terminal.expect("200 of 5000")
        terminal.press("c-c")
        terminal.expect(r"imported [1-9]\d*00 of 5000 so far; run it again to continue")
        assert terminal.wait() == 130
