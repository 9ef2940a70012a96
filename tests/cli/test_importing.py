"""The command `import`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.cli.terminal import COMMAND
from tests.importing.claude_ai import message, talk
from tests.importing.conftest import write_json, write_zip


@pytest.fixture
def export(tmp_path: Path) -> str:
    """An export with one conversation."""
    return str(write_zip(tmp_path / "data.zip", {"conversations.json": [talk()], "users.json": []}))


def test_an_export_is_imported_once_and_can_be_found(export: str) -> None:
    assert invoke("import", "--dry-run", export).output == "would import: 1 imported (4 messages)\n"
    assert invoke("list", "--json").json == []
    assert invoke("import", export)[:2] == (0, "1 imported (4 messages)\n")
    assert invoke("import", export)[:2] == (0, "1 unchanged\n")
    (found,) = invoke("list", "--json").json
    assert (found["name"], found["messages"]) == ("Sails", 4)
    assert invoke("search", "angle").status == 0
    assert "Like wings." in invoke("show", "sails").output


def test_a_refused_conversation_is_named_and_decides_the_status(tmp_path: Path) -> None:
    lost = {**talk(), "uuid": "c3", "chat_messages": [message("m1", "human", "?", files=[{}])]}
    path = write_json(tmp_path / "e.json", [talk(), {"uuid": "c2", "chat_messages": 1}, lost])
    done = invoke("import", str(path))
    assert done.status == 1
    assert done.output == "1 imported, 1 partly, 1 refused (5 messages)\n"
    assert "refused: e.json: it has no list of messages (chat_messages)" in done.errors
    assert "partly: Sails: 1 file that the export does not contain" in done.errors
    found = invoke("import", "--json", str(path)).json
    assert found["counts"]["unchanged"] == 2
    assert [one["status"] for one in found["conversations"]] == [
        "unchanged",
        "refused",
        "unchanged",
    ]


def test_filters_are_options(export: str) -> None:
    assert invoke("import", "--match", "kites", export).output == "1 skipped\n"
    assert invoke("import", "--since", "2026-04-01", export).output == "1 skipped\n"
    assert invoke("import", "--tag", "old", export).output == "1 imported (4 messages)\n"
    assert len(invoke("list", "--tag", "old", "--json").json) == 1


def test_a_wrong_file_is_an_error_that_names_the_programs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Hello", "utf-8")
    done = invoke("import", str(tmp_path / "notes.txt"))
    assert done.status != 0
    assert "not an export of a known program (claude-ai" in done.error


def test_an_export_that_was_not_downloaded_whole_is_told_apart(tmp_path: Path) -> None:
    path = write_json(tmp_path / "conversations.json", [talk()])
    path.write_bytes(path.read_bytes()[:60])
    done = invoke("import", str(path))
    assert done.status == 2
    assert "as JSON: the file ends in the middle of it" in done.error


def test_ctrl_c_keeps_what_is_done_and_says_so(tmp_path: Path) -> None:
    many = [{**talk(), "uuid": f"c{number}"} for number in range(3000)]
    path = write_json(tmp_path / "export.json", many)
    home = Path(os.environ["VIBE_LLMS_HOME"]) / "conversations"
    with subprocess.Popen(
        [*COMMAND, "import", "--json", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while process.poll() is None and not (home.is_dir() and len(os.listdir(home)) > 20):
            pass
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")
    report = json.loads(output)
    assert report["interrupted"] is True
    kept = report["counts"]["imported"]
    assert 20 <= kept < 3000
    assert len(invoke("list", "--json", "--limit", "0").json) in (kept, kept + 1)
    again = invoke("import", "--json", "--match", "none", str(path)).json
    assert again["skipped"] == 3000
