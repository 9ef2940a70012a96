"""`read` prints a document as it is read, a page of it, or an error with what to do."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.cli.terminal import COMMAND, LONGEST_SECONDS
from tests.documents.making import make_pdf
from vibe_llms.interpreter.processes import read_process, survey_tree

pytestmark = pytest.mark.usefixtures("warm")

#: A PDF file of one page whose password is "open".
LOCKED = Path(__file__).parents[1] / "data" / "documents" / "locked.pdf"
ROW = """
[documents.readers.{0}]
module = "tests.documents.peculiar"
suffixes = [".{0}"]
"""


@pytest.fixture
def pages(tmp_path: Path) -> str:
    path = tmp_path / "pages.pdf"
    path.write_bytes(make_pdf(["One", "", "Three\nlines"], title="Pages"))
    return str(path)


def test_the_text_of_a_file(pages: str) -> None:
    done = invoke("read", pages)
    assert (done.status, done.output) == (0, "One\n\nThree\nlines\n")
    assert done.errors == "note: page 2 has no text; it may be a scan\n"


def test_a_page(pages: str) -> None:
    assert invoke("read", pages, "--page", "3").output == "Three\nlines\n"
    done = invoke("read", pages, "--page", "2")
    assert (done.status, done.output) == (66, "")
    assert done.error == "pages.pdf: page 2 not found: it has no text; it may be a scan"
    done = invoke("read", pages, "--page", "4")
    assert (done.status, done.error) == (66, "pages.pdf: page 4 not found: it has 3 pages")


def test_pages_of_a_text_are_its_slices(tmp_path: Path) -> None:
    path = tmp_path / "long.md"
    sections = [f"# Section {number}\n\n{'word ' * 400}end" for number in range(12)]
    text = "\n\n".join(sections)
    path.write_text(text)
    printed = [invoke("read", str(path), "--page", str(page)).output[:-1] for page in (1, 2, 3)]
    # What comes between two sections belongs to no part.
    assert "".join("".join(printed).split()) == "".join(text.split())
    assert all(9_900 <= len(page) <= 10_100 for page in printed[:2])
    assert (
        invoke("read", str(path), "--page", "4").error
        == "long.md: page 4 not found: it has 3 pages"
    )


def test_standard_input_as_json(pages: str) -> None:
    done = invoke("read", "-", "--json", data=Path(pages).read_bytes())
    assert done.status == 0
    assert done.json == {
        "title": "Pages",
        "format": "pdf",
        "pages": 3,
        "complete": True,
        "notices": ["page 2 has no text; it may be a scan"],
        "parts": [
            {"text": "One", "page": 1, "sheet": "", "heading": ""},
            {"text": "Three\nlines", "page": 3, "sheet": "", "heading": ""},
        ],
    }


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "standard input: it is empty"),
        (b" \n ", "standard input: it has no text"),
        (bytes(1000), "standard input: it is of an unknown format, which cannot be read"),
        (make_pdf([""]), "standard input: page 1 has no text; it may be a scan"),
    ],
    ids=["empty", "blank", "unknown", "scan"],
)
def test_what_cannot_be_read_is_one_line(data: bytes, words: str) -> None:
    done = invoke("read", "-", data=data)
    assert (done.status, done.output) == (66, "")
    assert done.error.startswith(words)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    done = invoke("read", str(tmp_path / "no.pdf"), "--json")
    assert done.status == 66
    assert done.json["error"]["kind"] == "document-unreadable"
    assert done.error == "no.pdf: cannot be read: No such file or directory"


def test_a_password() -> None:
    done = invoke("read", str(LOCKED))
    assert done.status == 66
    assert done.error == "locked.pdf: it needs a password; give it with --password-stdin"
    done = invoke("read", str(LOCKED), "--password-stdin", data=b"wrong\n")
    assert done.error == "locked.pdf: the password is wrong; give it with --password-stdin"
    done = invoke("read", str(LOCKED), "--password-stdin", data=b"open\n")
    assert (done.status, done.output) == (0, "Secret words\n")


def test_a_text_that_ends_early_has_a_status_of_its_own(
    pages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIBE_LLMS_DOCUMENTS__LIMITS__PAGES", "1")
    done = invoke("read", pages)
    assert (done.status, done.output) == (65, "One\n")
    assert done.errors == "note: only the first 1 pages were read (pages in [documents.limits])\n"


def test_a_reader_by_name(pages: str) -> None:
    done = invoke("read", pages, "--reader", "tex")
    assert (done.status, done.error[:24]) == (2, "reader 'tex' not found; ")
    assert "1 0 obj" in invoke("read", pages, "--reader", "text").output


def test_control_characters_are_visible_on_a_terminal() -> None:
    done = invoke("read", "-", data=b"a\x1b[31mb", terminals="stdout")
    assert done.output == "a␛[31mb\n"
    assert invoke("read", "-", data=b"a\x1b[31mb").output == "a\x1b[31mb\n"


def test_the_first_page_shows_at_once_and_ctrl_c_ends_it(home: Path, tmp_path: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(ROW.format("endless"))
    place, document = tmp_path / "number", tmp_path / "a.endless"
    document.write_text(str(place))
    process = subprocess.Popen(
        [*COMMAND, "read", str(document)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.read(14) == b"the first page"
        number = int(os.readlink(place))
        assert number in {one.identity for one in survey_tree(process.pid)}
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LONGEST_SECONDS)
    assert (process.returncode, errors) == (130, b"")
    assert read_process(number) is None
