"""Collections of documents: made, read again where something changed, searched, removed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.cli.command import Outcome, invoke
from tests.cli.terminal import Terminal
from tests.documents.making import make_pdf
from vibe_llms.opening import open_session

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with documents that did not change just now."""
    made = tmp_path / "papers"
    (made / "old").mkdir(parents=True)
    (made / "harbour.pdf").write_bytes(make_pdf(["It was built in 1911.", "Ada keeps it."]))
    (made / "old" / "notes.md").write_text("# Ferries\n\nThe blue ferry leaves at noon.\n")
    for file in made.rglob("*.*"):
        os.utime(file, (1_700_000_000, 1_700_000_000))
    return made


def index(*arguments: str) -> Outcome:
    return invoke("index", *arguments)


def test_a_collection_is_read_once_and_then_only_what_changed(folder: Path) -> None:
    assert index("add", "papers", str(folder)).output == "papers: 2 read\n"
    assert index("add", "papers").output == "papers: 2 unchanged\n"
    (folder / "new.txt").write_text("The tide comes at six.")
    (folder / "harbour.pdf").unlink()
    assert index("add", "papers").output == "papers: 1 read, 1 unchanged, 1 removed\n"


def test_a_collection_is_searched_for_an_answer(folder: Path) -> None:
    index("add", "papers", str(folder))
    outcome = invoke("ask", "--docs", "papers", "When does the blue ferry leave?", "--dry-run")
    (passages,) = [
        one["contents"][0]["text"]
        for one in json.loads(outcome.output)["messages"]
        if one["role"] == "document"
    ]
    assert "leaves at noon" in passages
    assert "[old/notes.md, Ferries]" in passages
    assert str(folder) not in outcome.output
    answered = invoke("ask", "--docs", "papers", "When does the blue ferry leave?")
    assert "- old/notes.md, Ferries\n" in answered.output


def test_what_changed_is_read_before_a_question(folder: Path) -> None:
    index("add", "papers", str(folder))
    (folder / "new.txt").write_text("The red ferry leaves at six.")
    outcome = invoke("ask", "--docs", "papers", "red ferry", "--dry-run")
    assert "The red ferry leaves at six." in outcome.output


def test_a_chat_lets_the_model_search(folder: Path) -> None:
    index("add", "papers", str(folder))
    outcome = invoke("chat", "--docs", "papers", "Hello", "--dry-run")
    assert "documents/search_document" in outcome.output


def test_what_cannot_be_read_is_reported_and_stops_nothing(folder: Path) -> None:
    (folder / "bad.pdf").write_bytes(b"%PDF-1.4 nothing")
    outcome = index("add", "papers", str(folder))
    assert outcome.status == 0
    assert outcome.output == "papers: 2 read\n"
    assert f"note: not read: {folder}/bad.pdf: " in outcome.errors
    assert "  3 files" not in index("list").output
    assert "2 files, 1 not read" in index("list").output
    files = index("status", "papers", "--json").json["files"]
    assert [bool(file["problem"]) for file in files] == [True, False, False]


def test_many_that_cannot_be_read_are_not_all_printed(folder: Path) -> None:
    for number in range(15):
        (folder / f"{number}.pdf").write_bytes(b"%PDF-1.4 nothing")
    errors = index("add", "papers", str(folder)).errors
    assert errors.count("note: not read: ") == 10
    assert "5 more were not read; see: vibe-llms index status papers" in errors


def test_scripts_get_json(folder: Path) -> None:
    added = index("add", "papers", str(folder), "--json").json
    assert sorted(added) == ["problems", "read", "removed", "unchanged"]
    (listed,) = index("list", "--json").json
    assert (listed["name"], listed["paths"], len(listed["files"])) == ("papers", [str(folder)], 2)


def test_removing_a_collection_keeps_its_files(folder: Path) -> None:
    index("add", "papers", str(folder))
    assert "not a terminal; use -y" in index("rm", "papers").error
    assert index("rm", "papers", "-y").status == 0
    assert index("list", "--json").json == []
    assert (folder / "harbour.pdf").exists()


def test_uploaded_files_are_a_collection_too() -> None:
    async def upload() -> None:
        async with open_session() as session:
            catalog = session.access_documents().catalog
            await catalog.upload("web", b"The blue ferry leaves at noon.", "a.txt", "text/plain")
            await catalog.upload("web", b"%PDF-1.7 broken", "b.pdf", "application/pdf")

    asyncio.run(upload())
    assert "noon" in invoke("ask", "--docs", "web", "blue ferry", "--dry-run").output
    added = index("add", "web")
    assert (added.output, "not read: b.pdf" in added.errors) == ("web: 1 unchanged\n", True)
    assert index("list").output == "web  1 files, 1 not read  uploaded\n"
    (listed,) = index("list", "--json").json
    assert [one["path"] for one in listed["files"]] == ["a.txt", "b.pdf"]
    assert listed == index("status", "web", "--json").json
    assert index("rm", "web", "-y").status == 0
    assert index("list", "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("add", "papers", "missing"), 2, "missing: no such file or folder"),
        (("add", "a/b", "."), 2, "'a/b' is not a valid name of a collection"),
        (("add", "papers"), 66, "collection 'papers' not found; available: none"),
        (("status", "papers"), 66, "collection 'papers' not found"),
        (("rm", "papers", "-y"), 66, "collection 'papers' not found"),
    ],
)
def test_a_wrong_name_is_one_line(arguments: tuple[str, ...], status: int, words: str) -> None:
    outcome = index(*arguments)
    assert outcome.status == status
    assert words in outcome.error


def test_an_unknown_collection_is_an_error_before_anything_is_stored() -> None:
    assert invoke("ask", "--docs", "papers", "What?").status == 66
    assert invoke("chat", "--docs", "papers", "What?").status == 66
    assert invoke("list", "--json").json == []


def test_an_interrupted_reading_keeps_what_is_done(folder: Path, tmp_path: Path) -> None:
    home = Path(os.environ["VIBE_LLMS_HOME"])
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(
        "[documents.readers.endless]\n"
        'module = "tests.documents.peculiar"\n'
        'suffixes = [".endless"]\n'
    )
    (folder / "z.endless").write_text(str(tmp_path / "process"))
    root = str(Path(__file__).parents[2])
    with Terminal(
        "index", "add", "papers", str(folder), environment={"PYTHONPATH": root}
    ) as terminal:
        terminal.expect("reading papers: 2 of 3")
        terminal.press("c-c")
        assert terminal.wait() == 130
        assert "Continue: vibe-llms index add papers" in " ".join(terminal.output.split())
    (folder / "z.endless").unlink()
    assert index("add", "papers").output == "papers: 2 unchanged\n"
