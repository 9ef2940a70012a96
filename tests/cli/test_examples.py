"""The command `examples`: files of the documentation are listed and copied, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.cli.terminal import Terminal
from tests.documentation.pages import DOCUMENTATION, EXAMPLES, PAGES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    path = tmp_path / "work"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def test_they_are_listed_by_page() -> None:
    pages = invoke("examples", "--json").json
    assert pages["define-agents"] == ["config_agents.toml", "config_examples.toml", "use_agents.py"]
    assert all((EXAMPLES / file).exists() for files in pages.values() for file in files)
    lines = invoke("examples").output.splitlines()
    assert [line.split()[0] for line in lines] == [*pages]


@pytest.mark.parametrize(
    "name", ["notes.txt", "attach-pictures-and-files", "use-in-shell-scripts.md"]
)
def test_a_file_or_those_of_a_page_are_copied_here(folder: Path, name: str) -> None:
    outcome = invoke("examples", name)
    assert outcome.status == 0
    assert outcome.output.split() == sorted(os.listdir(folder))
    for copy in folder.iterdir():
        assert copy.read_bytes() == (EXAMPLES / copy.name).read_bytes()
    again = invoke("examples", name)
    assert (again.status, again.output) == (0, "")
    assert "all files are already there" in again.errors


def test_all_are_copied_to_a_new_folder_with_what_is_in_folders(folder: Path) -> None:
    assert invoke("examples", "--to", "new/place").status == 0
    copied = {one.relative_to("new/place") for one in Path("new/place").rglob("*")}
    assert Path("shout/vibe_llms_shout/__init__.py") in copied
    assert Path("harbour.pdf") in copied
    assert not any("__pycache__" in one.parts for one in copied)


def test_no_file_is_overwritten_without_being_asked_for(folder: Path) -> None:
    notes = folder / "notes.txt"
    notes.write_text("mine")
    outcome = invoke("examples", "notes.txt")
    assert outcome.status == 2
    assert "use -y to overwrite it" in outcome.error
    with Terminal("examples", "notes.txt") as terminal:
        terminal.expect("notes.txt exists. Overwrite it")
        terminal.enter("n")
        assert terminal.wait() == 1
    assert notes.read_text() == "mine"
    assert invoke("examples", "notes.txt", "-y").status == 0
    assert notes.read_bytes() == (EXAMPLES / "notes.txt").read_bytes()


def test_what_a_link_leads_to_is_not_touched(folder: Path) -> None:
    (folder / "mine").write_text("mine")
    (folder / "notes.txt").symlink_to("mine")
    assert invoke("examples", "notes.txt").status == 2
    assert invoke("examples", "notes.txt", "-y").status == 0
    assert (folder / "mine").read_text() == "mine"
    assert not (folder / "notes.txt").is_symlink()


def test_a_name_that_is_not_one_is_bad_usage(folder: Path) -> None:
    assert "did you mean 'notes.txt'?" in invoke("examples", "nots.txt").error
    assert invoke("examples", "../README.md").status == 2
    (folder / "notes.txt").mkdir()
    outcome = invoke("examples", "notes.txt", "-y")
    assert outcome.status == 2
    assert "is a folder; use --to DIR" in outcome.error


def test_each_page_with_examples_says_how_to_get_them() -> None:
    pages = invoke("examples", "--json").json
    for page in PAGES.values():
        titles = {block.title.partition("/")[0] for block in page.blocks if block.title}
        if page.path.parent.parent != DOCUMENTATION or page.path.parent.name in (
            "adr",
            "reference",
        ):
            continue
        assert titles <= {*pages.get(page.path.stem, ())}, page.name
        line = f"Copy the files of this page with `vibe-llms examples {page.path.stem}`."
        assert (line in page.path.read_text()) == (page.path.stem in pages), page.name
