"""Files, addresses and bytes as contents and documents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pictures import make_png
from vibe_llms.base.exceptions import AttachmentUnreadable
from vibe_llms.conversations import attachments
from vibe_llms.conversations.attachments import (
    detect_type,
    is_address,
    produce_attachment,
    produce_document,
    read_attachment,
    read_bytes,
    read_document,
    read_text,
)
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    Location,
    TextualContent,
    VideoContent,
)

PNG = make_png()
PDF = b"%PDF-1.7\n1 0 obj\n"
SVG = b"  <svg xmlns='http://www.w3.org/2000/svg'/>"


@pytest.mark.parametrize(
    ("data", "name", "mimetype"),
    [
        (PNG, "a", "image/png"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF\0", "a", "image/jpeg"),
        (b"GIF89a\1\0\1\0\x80\0\0", "a", "image/gif"),
        (b"RIFF\x24\x80\0\0WEBPVP8 ", "a", "image/webp"),
        (b"RIFF\x24\x80\0\0WAVEfmt ", "a", "audio/wav"),
        (b"ID3\x03\0\0\0\0\0\0\xff\xfb", "a", "audio/mpeg"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "a", "video/mp4"),
        (PDF, "a.txt", "application/pdf"),
        (rb"{\rtf1 hello}", "a", "application/rtf"),
        (SVG, "a", "image/svg+xml"),
        (b"a,b\n", "a.csv", "text/csv"),
        (b"# Hi\n", "README.MD", "text/markdown"),
        (b"<p>", "a.htm", "text/html"),
        ("naïve".encode(), "a.txt", "text/plain"),
        ("naïve".encode("utf-16"), "a.txt", "text/plain"),
        # Words that begin as a binary format does are words.
        (b"BMW is a maker of cars", "a", "text/plain"),
        (b"MZ", "a", "text/plain"),
        (b"ID3 tags explained", "a", "text/plain"),
    ],
)
def test_the_bytes_decide_the_type(data: bytes, name: str, mimetype: str) -> None:
    assert detect_type(data, name) == mimetype


@pytest.mark.parametrize("data", [b"\x01\x02\x03\xff", "naïve".encode("latin-1"), b"a\0b\xfe"])
def test_bytes_of_no_known_type_are_refused(data: bytes) -> None:
    with pytest.raises(AttachmentUnreadable, match="unknown type"):
        detect_type(data, "x.bin")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, ImageContent),
        (b"ID3\x03\0\0\0\0\0\0\xff\xfb", AudioContent),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", VideoContent),
        (PDF, FileContent),
    ],
)
def test_an_attachment_keeps_its_bytes(tmp_path: Path, data: bytes, kind: type) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    content = read_attachment(str(path))
    assert isinstance(content, kind)
    assert getattr(content, "data", None) == data
    assert getattr(content, "name", "file") == "file"


def test_a_type_that_is_given_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\x01\x02\xff")
    assert read_attachment(str(path), "image/x-odd") == ImageContent(b"\x01\x02\xff", "image/x-odd")
    for wrong in ("image", "image/", "a b/c", "\n/x"):
        with pytest.raises(AttachmentUnreadable, match="is not a MIME type"):
            read_attachment(str(path), wrong)


def test_text_is_attached_as_utf_8_whatever_it_was() -> None:
    assert produce_attachment("naïve".encode("utf-16"), "n.txt") == FileContent(
        "naïve".encode(), "text/plain", "n.txt"
    )
    assert produce_attachment(b"\xef\xbb\xbfx", "n.txt") == FileContent(b"x", "text/plain", "n.txt")
    assert produce_attachment(b"na\xefve", "n", "text/plain") == FileContent(
        b"na\xefve", "text/plain", "n"
    )


@pytest.mark.parametrize(
    ("address", "mimetype", "content"),
    [
        ("https://e.org/a.PNG?x", "", ImageContent(Location("https://e.org/a.PNG?x"), "image/png")),
        ("HTTP://e.org/a.pdf", "", FileContent(Location("HTTP://e.org/a.pdf"), "application/pdf")),
        ("https://e.org/a.mp4", "", VideoContent(Location("https://e.org/a.mp4"), "video/mp4")),
        ("https://e.org/a.mp3", "", AudioContent(Location("https://e.org/a.mp3"), "audio/mpeg")),
        (
            "https://youtu.be/x?t=3",
            "",
            VideoContent(Location("https://youtu.be/x?t=3"), "video/mp4"),
        ),
        ("https://e.org/a", "image/gif", ImageContent(Location("https://e.org/a"), "image/gif")),
    ],
)  # fmt: skip
def test_an_address_is_left_to_the_provider(
    address: str, mimetype: str, content: ImageContent
) -> None:
    assert read_attachment(address, mimetype) == content


def test_an_address_without_a_type_is_refused() -> None:
    with pytest.raises(AttachmentUnreadable, match=r"--at https://e\.org/a image/png"):
        read_attachment("https://e.org/a")
    with pytest.raises(AttachmentUnreadable, match="not a valid URL"):
        read_attachment("https://[e.org/a")
    assert not is_address("https:e.org")
    assert not is_address("ftp://e.org")


def test_a_document_is_its_text(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# Nötes\n", "utf-8")
    document = read_document(str(path))
    assert document.contents == (TextualContent("# Nötes\n", "text/markdown"),)
    assert (document.title, document.source) == ("notes.md", str(path))


def test_a_document_that_is_no_text_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "paper.pdf"
    path.write_bytes(PDF)
    assert read_document(str(path)).contents == (FileContent(PDF, "application/pdf", "paper.pdf"),)
    assert produce_document(SVG, "a.svg").contents == (ImageContent(SVG, "image/svg+xml"),)


def test_a_document_may_lie_at_an_address() -> None:
    document = read_document("https://e.org/a.pdf")
    assert document.contents == (FileContent(Location("https://e.org/a.pdf"), "application/pdf"),)
    assert document.title == document.source == "https://e.org/a.pdf"


def test_the_reason_of_an_unreadable_attachment_is_reported(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    cases = {
        str(tmp_path / "none"): "No such file or directory",
        str(tmp_path): "Is a directory",
        str(empty): "it is empty",
        str(loop): "symbolic links",
        "~nosuchuser/x": "not a valid file path",
        "a\0b": "not a valid file path",
        "x" * 5000: "File name too long",
    }
    for path, words in cases.items():
        with pytest.raises(AttachmentUnreadable, match=words):
            read_attachment(path)
    with pytest.raises(AttachmentUnreadable, match="it is empty"):
        produce_attachment(b"", "standard input")


def test_the_home_of_the_user_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.txt").write_text("hi")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_bytes(Path("~/x.txt")) == b"hi"


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_a_pipe_of_the_shell_can_be_read_as_a_file(folder: str) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"hi")
    os.close(writing)
    assert read_bytes(Path(f"{folder}/{reading}")) == b"hi"
    os.close(reading)


def test_what_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "LONGEST_BYTES", 1024 * 1024)
    path = tmp_path / "long"
    path.write_bytes(b"x" * (1024 * 1024))
    assert len(read_bytes(path)) == 1024 * 1024
    path.write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(AttachmentUnreadable, match="larger than 1 MiB"):
        read_bytes(path)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        (b"\xef\xbb\xbfmarked", "marked"),
        ("marked".encode("utf-16"), "marked"),
        (b"\xfe\xff\0m", "m"),
        (b"\xff\xfex", None),
        (b"\xff", None),
        (b"a\0b", None),
        (b"", ""),
    ],
)
def test_text_is_what_decodes(data: bytes, text: str | None) -> None:
    assert read_text(data) == text
