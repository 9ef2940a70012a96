"""The input of a turn: attachments, documents and pipes reach the model, or say why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.cli.test_options import PDF, PNG, ask, listed, messages_of, stored
from tests.fakes.anthropic import FakeAnthropic
from vibe_llms.base.exceptions import AttachmentUnreadable
from vibe_llms.cli.inputs import read_piped
from vibe_llms.messages.contents import ImageContent


def test_attachments_and_documents_go_along(claude: FakeAnthropic, tmp_path: Path) -> None:
    picture, paper, notes = tmp_path / "a.png", tmp_path / "b.pdf", tmp_path / "c.md"
    picture.write_bytes(PNG)
    paper.write_bytes(PDF)
    notes.write_text("# Notes\n")
    ask("-a", str(picture), "--at", str(paper), "application/pdf", "-f", str(notes), "what?")
    (message,) = messages_of(claude)
    kinds = [part["type"] for part in message["content"]]
    assert sorted(kinds) == ["document", "document", "image", "text"]
    assert kinds[-1] == "text"
    assert claude.refusals == []


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files in the current folder, as the shell names them for `*.md`."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        Path(f"{name}.md").write_text(f"About {name}.\n")
    return ["a.md", "b.md", "c.md"]


@pytest.mark.parametrize("option", ["-f", "-a"])
@pytest.mark.parametrize("order", ["files first", "prompt first", "in quotes"])
def test_all_files_of_a_pattern_are_attached(
    claude: FakeAnthropic, files: list[str], option: str, order: str
) -> None:
    given = {
        "files first": [option, *files, "What is it about?"],
        "prompt first": ["What is it about?", option, *files],
        "in quotes": [option, "*.md", "What is it about?"],
    }
    ask(*given[order])
    (message,) = messages_of(claude)
    said = [part.get("text", "") for part in message["content"]]
    assert said[-1] == "What is it about?"
    assert all(f"About {name}." in str(message) for name in "abc")
    assert "b.md" not in said[-1]


def test_a_file_of_a_pattern_that_cannot_be_read_is_left_out(
    claude: FakeAnthropic, files: list[str]
) -> None:
    Path("a.md").write_text("")
    outcome = ask("-f", *files, "What?")
    assert "note: left out: a.md: it is empty" in outcome.errors
    assert "About c." in str(messages_of(claude))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-f", "a.md", "compare", "it", "with", "b.md"], "put the whole prompt in quotes"),
        (["-f", "a.md", "b.md", "compare", "these"], "put -f or -a before each file"),
        (["-f", "a.md", "-a", "b.md", "c.md", "What?"], "put -f or -a before each file"),
        (["a.md", "b.md", "What is it?"], "To attach it: -f a.md"),
    ],
)
def test_a_file_that_may_be_a_word_is_refused_with_what_to_do(
    files: list[str], arguments: list[str], words: str
) -> None:
    outcome = invoke("-m", "scripted/demo", *arguments)
    assert outcome.status == 2
    assert words in outcome.error
    assert listed() == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["-f", "a.md", "compare it with b.md"],
        ["-f", "a.md", "--", "compare", "it", "with", "b.md"],
        ["-f", "a.md", "compare", "it", "with", "folder"],
    ],
)
def test_a_prompt_may_name_files(
    claude: FakeAnthropic, files: list[str], arguments: list[str]
) -> None:
    Path("folder").mkdir()
    ask(*arguments)
    assert messages_of(claude)[0]["content"][-1]["text"].startswith("compare it with ")
    assert "About b." not in str(messages_of(claude))


def test_a_file_in_a_prompt_without_quotes_is_noted(files: list[str]) -> None:
    outcome = invoke("-m", "scripted/demo", "explain", "b.md")
    assert outcome.status == 0
    assert "note: b.md is sent as text; to attach the file: -f b.md" in outcome.errors


def test_a_pattern_of_too_many_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str]
) -> None:
    monkeypatch.setattr("vibe_llms.cli.inputs.MOST_FILES", 1)
    outcome = invoke("-m", "scripted/demo", "-f", *files, "What?")
    assert outcome.status == 2
    assert "vibe-llms index add NAME PATH" in outcome.error


@pytest.mark.parametrize("kind", ["folder", "pattern", "deep pattern"])
def test_links_in_a_folder_are_left_out_with_a_note(
    claude: FakeAnthropic, tmp_path: Path, kind: str
) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    outside.mkdir()
    (folder / "sub" / "own.txt").write_text("My own.")
    (folder / "own.txt").write_text("My own.")
    (outside / "secret.txt").write_text("Xanadu")
    (folder / "linked.txt").symlink_to(outside / "secret.txt")
    (folder / "sub" / "up").symlink_to(outside)
    patterns = {"folder": "", "pattern": "*.txt", "deep pattern": "**/*.txt"}
    named = str(folder / patterns[kind])
    outcome = ask("-f", named, "what?")
    assert "linked.txt: cannot be read: it is a symbolic link" in outcome.errors
    assert "--follow-links" in outcome.errors
    assert "Xanadu" not in str(messages_of(claude))
    assert "My own." in str(messages_of(claude))
    ask("-f", named, "--follow-links", "what?")
    assert "Xanadu" in str(messages_of(claude))
    # A file that is named itself is read.
    ask("-f", str(folder / "linked.txt"), "what?")
    assert "Xanadu" in str(messages_of(claude))


@pytest.mark.parametrize("trusted", [False, True])
def test_the_user_may_vouch_for_documents(
    claude: FakeAnthropic, tmp_path: Path, trusted: bool
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("My own.")
    ask("-f", str(path), *["--trust"] * trusted, "what?")
    (document,) = (one for one in stored(listed()[0]["id"]) if one["role"] == "document")
    assert document.get("trusted", False) == trusted


def test_an_address_is_sent_as_one(claude: FakeAnthropic) -> None:
    ask("-a", "https://e.org/a.png", "--at", "https://e.org/b", "image/gif", "what?")
    urls = [part["source"] for part in messages_of(claude)[0]["content"] if "source" in part]
    assert urls == [
        {"type": "url", "url": "https://e.org/a.png"},
        {"type": "url", "url": "https://e.org/b"},
    ]


@pytest.mark.parametrize(
    ("flags", "data", "kind"),
    [
        (["-a", "-"], PNG, "image"),
        (["--at", "-", "image/png"], PNG, "image"),
        (["-f", "-"], b"some text", "document"),
        # What is no text is attached without an option too.
        ([], PNG, "image"),
        ([], PDF, "document"),
    ],
)
def test_standard_input_can_be_attached(
    claude: FakeAnthropic, flags: list[str], data: bytes, kind: str
) -> None:
    ask(*flags, "what is it?", data=data)
    content = messages_of(claude)[0]["content"]
    assert [part["type"] for part in content] == [kind, "text"]
    assert claude.refusals == []


def test_piped_bytes_that_are_no_text_are_replaced_or_refused() -> None:
    outcome = ask("-m", "scripted/demo", data="naïve".encode("latin-1"))
    assert "U+FFFD" in outcome.errors
    assert stored(listed()[0]["id"])[0]["contents"][0]["data"] == "na\ufffdve"
    outcome = invoke("look", data=b"\x01\x02\0\xff")
    assert outcome.status == 66
    assert "unknown type" in outcome.error
    with pytest.raises(AttachmentUnreadable):
        read_piped(b"\0\xff")
    assert read_piped(PNG) == ImageContent(PNG, "image/png")
    assert read_piped("\ufeffx\n".encode()) == "x"


def test_a_long_document_from_standard_input_is_shortened_and_named() -> None:
    outcome = invoke("ask", "-", "What is it?", data=b"words " * 40_000)
    assert outcome.status == 0
    assert "standard input is too long for scripted/demo" in outcome.errors
    assert outcome.output.endswith("Sources:\n- standard input\n")
