"""`ask` and the documents of `-f`: what the model is given, and what people see."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Outcome, invoke
from tests.cli.terminal import Terminal
from tests.documents.making import make_pdf

pytestmark = pytest.mark.usefixtures("warm")

PAGES = ["The harbour was built in 1911.", "The keeper of the lighthouse is called Ada."]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "papers"
    made.mkdir()
    (made / "harbour.pdf").write_bytes(make_pdf(PAGES))
    (made / "notes.md").write_text("# Ferries\n\nThe blue ferry leaves at noon.\n")
    return made


def write_long(folder: Path) -> Path:
    """A document that is too long for a small model, with its answer in the middle."""
    file = folder / "long.txt"
    chapters = [f"Chapter {n} says that ferry {n} is blue.\n\n{'filler ' * 80}" for n in range(300)]
    file.write_text("\n\n".join(chapters))
    return file


def given(outcome: Outcome) -> list[tuple[str, str]]:
    """The messages of a request that was not sent."""
    assert outcome.status == 0, outcome.errors
    return [
        (one["role"], "".join(content.get("text", "") for content in one["contents"]))
        for one in json.loads(outcome.output)["messages"]
    ]


def ask(*arguments: str) -> Outcome:
    return invoke("ask", *arguments)


def test_an_answer_is_followed_by_its_sources(folder: Path) -> None:
    outcome = ask(str(folder / "harbour.pdf"), "Who keeps the lighthouse?")
    assert outcome.status == 0
    assert outcome.output.endswith("\n\nSources:\n- harbour.pdf\n")
    assert "harbour.pdf is sent to scripted/demo as text" in outcome.errors


def test_the_model_is_given_the_text_and_not_the_path(folder: Path) -> None:
    outcome = ask(str(folder / "harbour.pdf"), "Who keeps it?", "--dry-run")
    (supervisor, _), (document, text), (user, question) = given(outcome)
    assert (supervisor, document, user) == ("supervisor", "document", "user")
    assert PAGES[1] in text
    assert question == "Who keeps it?"
    assert str(folder) not in outcome.output


def test_the_sources_are_in_the_json(folder: Path) -> None:
    outcome = ask(str(folder), "Who keeps it?", "--json")
    assert outcome.json["sources"] == ["harbour.pdf", "notes.md"]


def test_of_many_sources_the_first_are_printed(folder: Path) -> None:
    notes = folder / "many"
    notes.mkdir()
    for number in range(14):
        (notes / f"{number:02}.txt").write_text(f"Note {number}")
    outcome = ask(str(notes), "What is noted?")
    assert outcome.output.endswith("\n- 09.txt\n… and 4 more; --json has all\n")
    assert "- 10.txt" not in outcome.output
    assert len(ask(str(notes), "What is noted?", "--json").json["sources"]) == 14


def test_quiet_prints_only_the_answer(folder: Path) -> None:
    outcome = ask(str(folder), "Who keeps it?", "-q")
    assert "Sources" not in outcome.output
    assert outcome.errors == ""


def test_a_long_document_is_searched_before_the_model_is_asked(folder: Path) -> None:
    outcome = ask(str(write_long(folder)), "What color is ferry 217?", "--dry-run")
    roles = [role for role, _ in given(outcome)]
    assert roles == ["supervisor", "supervisor", "document", "document", "user"]
    beginning, passages = (text for role, text in given(outcome) if role == "document")
    assert "long.txt is too long to include in full" in beginning
    assert "ferry 217 is blue" in passages
    assert passages.startswith("[long.txt")
    assert len(passages) < 7000
    answered = ask(str(folder / "long.txt"), "What color is ferry 217?")
    assert answered.output.endswith("Sources:\n- long.txt\n")


def test_the_conversation_can_be_continued(folder: Path) -> None:
    assert ask(str(folder / "harbour.pdf"), "Who keeps it?").status == 0
    outcome = invoke("chat", "-c", "And since when?", "--dry-run")
    assert any(PAGES[1] in text for _, text in given(outcome))


@pytest.mark.parametrize(
    ("sources", "titles"),
    [
        (["harbour.pdf", "notes.md"], ["harbour.pdf", "notes.md"]),
        (["."], ["harbour.pdf", "notes.md"]),
        (["*.md"], ["notes.md"]),
        (["**/*.pdf"], ["harbour.pdf"]),
    ],
)
def test_files_folders_and_patterns_can_be_added(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], titles: list[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / ".hidden.md").write_text("secret")
    flags = [flag for source in sources for flag in ("-f", source)]
    outcome = invoke("chat", *flags, "What is there?")
    assert outcome.status == 0
    stored = invoke("show", "--json", listed()[0]["id"]).json["messages"]
    assert [one["title"] for one in stored if one["role"] == "document"] == titles


def listed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = invoke("list", "--json").json
    return found


@pytest.mark.parametrize(
    ("source", "status", "words"),
    [
        ("missing.pdf", 66, "missing.pdf: cannot be read: No such file or directory"),
        ("*.docx", 66, "*.docx: no files found"),
        ("empty", 66, "empty: no files found"),
        ("empty.txt", 66, "empty.txt: it is empty"),
        ("damaged.pdf", 66, "damaged.pdf: "),
        ("junk.bin", 66, "junk.bin: "),
    ],
)
def test_what_cannot_be_read_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, status: int, words: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    (folder / "empty.txt").touch()
    (folder / "damaged.pdf").write_bytes(b"%PDF-1.4 nothing")
    (folder / "junk.bin").write_bytes(bytes(range(256)))
    outcome = ask(source, "What?")
    assert outcome.status == status
    assert outcome.error.startswith(words)
    assert listed() == []


def test_a_damaged_file_of_a_folder_is_left_out_with_a_note(folder: Path) -> None:
    (folder / "damaged.pdf").write_bytes(b"%PDF-1.4 nothing")
    outcome = ask(str(folder), "Who keeps it?")
    assert outcome.status == 0
    assert "damaged.pdf: " in outcome.errors
    assert outcome.output.endswith("Sources:\n- harbour.pdf\n- notes.md\n")


def test_too_many_files_are_a_collection(folder: Path) -> None:
    for number in range(501):
        (folder / f"{number}.txt").write_text("x")
    outcome = ask(str(folder), "What?")
    assert outcome.status == 66
    assert "make a collection of them: vibe-llms index add" in outcome.error


def test_a_question_needs_a_document() -> None:
    outcome = ask("Who keeps it?")
    assert outcome.status == 2
    assert "Give a file and a question" in outcome.error


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<title>Harbour</title><body><h1>Harbour</h1><p>The keeper is called Ada.</p>"
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        monkeypatch.setenv("VIBE_LLMS_WEB__ALLOW_HOSTS", json.dumps([host]))
        yield f"http://{host}/page.html"
        server.shutdown()


def test_a_web_page_is_a_document_with_its_title(page: str) -> None:
    outcome = ask(page, "Who keeps it?", "--dry-run")
    (text,) = [text for role, text in given(outcome) if role == "document"]
    assert "The keeper is called Ada." in text
    assert "<p>" not in text
    assert f"fetched {page}: Harbour" in outcome.errors


def test_a_private_address_is_refused_with_the_remedy() -> None:
    outcome = ask("http://127.0.0.1:9/page.html", "What?")
    assert outcome.status == 66
    assert "allow-hosts" in outcome.error
    assert listed() == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("ask", "{}", "What?"), "reading long.pdf"),
        (("chat", "-f", "{}", "What?"), "waiting for scripted/demo"),
    ],
)
def test_ctrl_c_while_a_document_is_read_keeps_nothing(
    tmp_path: Path, command: tuple[str, ...], words: str
) -> None:
    document = tmp_path / "long.pdf"
    lines = "\n".join(f"Line {number} of a page with many words." for number in range(60))
    document.write_bytes(make_pdf([lines] * 3000))
    with Terminal(*(one.format(document) for one in command)) as terminal:
        terminal.expect(words)
        terminal.press("c-c")
        assert terminal.wait() == 130
        assert "Continue" not in terminal.output
    assert listed() == []


@pytest.mark.parametrize(
    "order", [["a.md", "b.md", "What?"], ["What?", "a.md", "b.md"], ["-f", "a.md", "b.md", "What?"]]
)
def test_the_question_is_found_among_the_files_of_a_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.md", "b.md"):
        Path(name).write_text(f"About {name}.")
    outcome = invoke("ask", "-m", "scripted/demo", *order)
    assert outcome.status == 0
    assert outcome.output.endswith("- a.md\n- b.md\n")
    assert invoke("show", "-1", "--json").json["messages"][-2]["contents"][0]["data"] == "What?"


@pytest.mark.parametrize("words", [["a.md", "b.md"], ["a.md", "what", "is", "b.md"]])
def test_a_file_is_not_taken_for_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.md", "b.md"):
        Path(name).write_text(f"About {name}.")
    outcome = invoke("ask", "-m", "scripted/demo", *words)
    assert outcome.status == 2
    assert "The question is missing" in outcome.error
    assert invoke("list", "--json").json == []
