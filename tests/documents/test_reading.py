"""Documents are read in processes that end, whatever a document or a caller does."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.documents.children import children
from tests.documents.making import make_pdf
from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import (
    ConfigurationError,
    DocumentUnreadable,
    PackageMissing,
    RegistrationError,
    RequestError,
    SessionClosed,
)
from vibe_llms.conversations.document_texts import Part, Place
from vibe_llms.documents import reading
from vibe_llms.documents.readers.interfaces import ReaderNotice
from vibe_llms.documents.reading import DocumentReader
from vibe_llms.documents.snapshots import Snapshot, take_snapshot
from vibe_llms.interpreter.processes import read_process

Configure = Callable[..., Configuration]


async def wait_for_process(link: Path) -> int:
    """The number of a process that it leaves in a link, since it can write no file."""
    async with asyncio.timeout(30):
        while not link.is_symlink():
            await asyncio.sleep(0.01)
    return int(os.readlink(link))


async def test_bytes_and_files_give_their_text(reader: DocumentReader, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes("Grüße\r\n\r\nEnde".encode())
    text = await reader.read(path)
    assert (text.title, text.text, text.format) == ("notes.txt", "Grüße\n\nEnde", "text")
    assert (await reader.read(path.read_bytes(), "notes.txt")) == text


async def test_long_bytes_are_hashed_in_a_thread(
    reader: DocumentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def take(source: Path | bytes, name: str = "", *, limit: int) -> Snapshot:
        threads.append(threading.get_ident())
        return take_snapshot(source, name, limit=limit)

    monkeypatch.setattr(reading, "take_snapshot", take)
    for data in (b"short", b"x" * 1_000_000):
        with await reader.snapshot(data, "a.txt") as snapshot:
            assert snapshot.digest == hashlib.sha256(data).hexdigest()
    assert [one == threading.get_ident() for one in threads] == [True, False]


async def test_a_page_has_its_headings(reader: DocumentReader) -> None:
    text = await reader.read(b"<title>T</title><h1>A</h1>a<h2>B</h2><p>b", "page.html")
    assert (text.title, text.text) == ("T", "# A\n\na\n\n## B\n\nb")
    assert text.place_at(text.text.index("b")) == Place(heading="A > B")


async def test_a_pdf_is_read_whatever_its_name(reader: DocumentReader) -> None:
    data = make_pdf(["One", "", "Three"], title="Pages")
    text = await reader.read(data, "pages.txt")
    assert (text.format, text.title, text.pages) == ("pdf", "Pages", 3)
    assert text.text == "One\n\nThree"
    assert text.notices == ("page 2 has no text; it may be a scan",)
    assert text.place_at(text.text.index("Three")) == Place(3)


async def test_a_scan_says_so(reader: DocumentReader) -> None:
    with pytest.raises(DocumentUnreadable, match=r"^scan\.pdf: pages 1-2 have no text"):
        await reader.read(make_pdf(["", ""]), "scan.pdf")


async def test_a_third_partys_row_reads_its_files(configure: Configure) -> None:
    rows = {"loud": {"module": "tests.documents.peculiar", "factory": "shouting", "mark": "!"}}
    types = {"types": ["text/plain"], "suffixes": [".loud"]}
    async with DocumentReader(configure(readers={"loud": rows["loud"] | types})) as reader:
        text = await reader.read(b"hello", "a.loud")
        assert (text.title, text.text, text.format) == ("LOUD", "HELLO!", "loud")
        # The row comes last, so it also reads what the shipped row of this type reads.
        assert (await reader.read(b"hello", "a", mimetype="text/plain")).text == "HELLO!"
        assert (await reader.read(b"hello", "a.loud", reader="text")).text == "hello"


async def test_an_unknown_reader_is_named(reader: DocumentReader) -> None:
    with pytest.raises(RequestError, match="reader 'pdff' not found; available: text, "):
        await reader.read(b"a", reader="pdff")


async def test_a_row_without_its_module_is_named(configure: Configure) -> None:
    row = {"module": "tests.documents.absent", "suffixes": [".x"]}
    async with DocumentReader(configure(readers={"x": row})) as reader:
        with pytest.raises(RegistrationError, match=r"\[documents.readers.x\].*not found") as found:
            await reader.read(b"a", "a.x")
    assert (found.value.table, found.value.key) == ("documents.readers.x", "module")


async def test_a_missing_package_is_named(
    reader: DocumentReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pypdfium2.py").write_text("raise ModuleNotFoundError('pypdfium2')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PackageMissing, match=r"pip install 'vibe-llms\[documents\]'") as found:
        await reader.read(make_pdf(["a"]), "a.pdf")
    assert found.value.package == "pypdfium2"


async def test_one_process_reads_many_documents(reader: DocumentReader) -> None:
    numbers = {(await reader.read(b"a", "a.process")).text for _ in range(5)}
    assert len(numbers) == 1
    assert children() == 1


async def test_a_process_is_used_again_although_its_parent_needs_much_memory(
    reader: DocumentReader,
) -> None:
    held = bytearray(700 * 1024 * 1024)
    held[:: resource.getpagesize()] = b"x" * len(held[:: resource.getpagesize()])
    numbers = {(await reader.read(b"a", "a.process")).text for _ in range(3)}
    assert len(numbers) == 1


async def test_many_at_once_share_few_processes(reader: DocumentReader) -> None:
    texts = await asyncio.gather(*(reader.read(b"a", "a.process") for _ in range(20)))
    assert 1 <= len({text.text for text in texts}) <= 2
    assert children() <= 2


async def test_an_idle_process_ends(
    reader: DocumentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_IDLE_SECONDS", 0.01)
    await reader.read(b"a", "a.txt")
    async with asyncio.timeout(10):
        while children():
            await asyncio.sleep(0.01)


async def test_closing_ends_what_is_read(configure: Configure, tmp_path: Path) -> None:
    reader = DocumentReader(configure())
    place = tmp_path / "number"
    work = asyncio.ensure_future(reader.read(str(place).encode(), "a.endless"))
    await wait_for_process(place)
    await reader.close()
    assert children() == 0
    with pytest.raises(SessionClosed):
        await work
    with pytest.raises(SessionClosed):
        await reader.read(b"a", "a.txt")


async def test_a_cancelled_read_leaves_nothing(reader: DocumentReader, tmp_path: Path) -> None:
    place = tmp_path / "number"
    work = asyncio.ensure_future(reader.read(str(place).encode(), "a.endless"))
    number = await wait_for_process(place)
    work.cancel()
    async with asyncio.timeout(1):
        with pytest.raises(asyncio.CancelledError):
            await work
    assert read_process(number) is None
    assert children() == 0


async def test_parts_arrive_as_they_are_read(reader: DocumentReader, tmp_path: Path) -> None:
    items = reader.stream(str(tmp_path / "number").encode(), "a.endless")
    async with aclosing(items):
        assert await anext(items) == ReaderNotice(format="endless")
        assert await anext(items) == Part("the first page", Place(1))
    assert children() == 0


async def test_a_crash_is_one_error(reader: DocumentReader) -> None:
    with pytest.raises(DocumentUnreadable, match=r"^a.crashing: its reader crashed \(SIGSEGV\)"):
        await reader.read(b"0", "a.crashing")
    assert children() == 0
    text = await reader.read(b"2", "a.crashing")
    assert (text.text, text.complete) == ("page 1\n\npage 2", False)
    assert text.notices[0].startswith("the rest could not be read: its reader crashed (SIGSEGV)")


async def test_a_readers_error_keeps_what_was_read(reader: DocumentReader) -> None:
    with pytest.raises(DocumentUnreadable, match=r"^a\.refusing: the ink is invisible$"):
        await reader.read(b"0", "a.refusing")
    text = await reader.read(b"1", "a.refusing")
    assert (text.text, text.complete) == ("page 1", False)
    assert text.notices == ("the rest could not be read: the ink is invisible",)


async def test_a_slow_reader_is_stopped(configure: Configure, tmp_path: Path) -> None:
    place = tmp_path / "number"
    async with DocumentReader(configure(limits={"seconds": 0.5})) as reader:
        await reader.read(b"a", "warm.txt")
        text = await reader.read(str(place).encode(), "a.endless")
        assert text.text == "the first page"
        assert text.notices[0].endswith("took more than 0.5 s (seconds in [documents.limits])")
        assert read_process(int(os.readlink(place))) is None


async def test_a_row_has_limits_of_its_own(configure: Configure, tmp_path: Path) -> None:
    row = {"seconds": 0.5, "memory-bytes": 16 * 1024**3}
    async with DocumentReader(configure(readers={"endless": row, "greedy": row})) as reader:
        await reader.read(b"a", "warm.txt")
        text = await reader.read(str(tmp_path / "number").encode(), "a.endless")
        assert "took more than 0.5 s" in text.notices[0]


async def test_too_much_memory_is_one_error(reader: DocumentReader) -> None:
    with pytest.raises(DocumentUnreadable, match="it needs more than 2 GiB of memory"):
        await reader.read(b"a", "a.greedy")


async def test_pages_and_characters_have_limits(configure: Configure) -> None:
    async with DocumentReader(configure(limits={"pages": 7})) as reader:
        text = await reader.read(b"100", "a.pages")
        assert text.text.split("\n\n") == [f"page {page}" for page in (1, 2, 4, 5, 7)]
        assert (text.pages, text.complete) == (100, False)
        assert text.notices == (
            "only the first 7 pages were read (pages in [documents.limits])",
            "pages 3, 6 have no text; they may be scans",
        )
    async with DocumentReader(configure(limits={"characters": 8})) as reader:
        text = await reader.read(b"100", "a.pages")
        assert (text.text, text.complete) == ("page 1\n\npa", False)
        (text,) = [await reader.read(b"12345678", "a.txt")]
        assert text.complete


async def test_a_reader_has_no_network_and_no_keys(
    reader: DocumentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    assert (await reader.read(b"a", "a.network")).text == "refused: Operation not permitted"


async def test_a_reader_cannot_write(reader: DocumentReader, tmp_path: Path) -> None:
    file = tmp_path / "precious.txt"
    file.write_text("precious")
    text = await reader.read(str(file).encode(), "a.writing")
    assert text.text == "refused: File too large"
    assert file.read_text() == "precious"
    assert "SOME_API_KEY" not in (await reader.read(b"a", "a.environment")).text


PARENT = """
import asyncio, sys
from vibe_llms.base.configuration import load_configuration
from vibe_llms.documents.reading import DocumentReader
row = {"module": "tests.documents.peculiar", "suffixes": [".endless"]}
settings = load_configuration(overrides={"documents": {"readers": {"endless": row}}})
asyncio.run(DocumentReader(settings).read(sys.argv[1].encode(), "a.endless"))
"""


async def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    place = tmp_path / "number"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(place)], env=environment)
    try:
        number = await wait_for_process(place)
        process = read_process(number)
        assert process is not None
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    async with asyncio.timeout(10):
        while (now := read_process(number)) is not None and now.started == process.started:
            if now.state == "Z":
                break
            await asyncio.sleep(0.01)


async def test_a_snapshot_is_what_was_read(reader: DocumentReader, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")
    with await reader.snapshot(path) as snapshot:
        path.write_text("after, and longer")
        assert snapshot.digest == hashlib.sha256(b"before").hexdigest()
        assert (await reader.read(snapshot)).text == "before"
        assert (await reader.read(snapshot)).text == "before"


async def test_remarks_come_in_the_stream(reader: DocumentReader) -> None:
    items = [item async for item in reader.stream(make_pdf(["One", "Two"]), "a.pdf")]
    assert items[0] == ReaderNotice(format="pdf")
    assert items[1] == ReaderNotice(pages=2)
    assert items[2:] == [Part("One", Place(1)), Part("Two", Place(2))]


async def test_a_row_of_the_wrong_type_is_named(configure: Configure) -> None:
    row = {"memory-bytes": "much"}
    with pytest.raises(ConfigurationError, match=r"\[documents.readers.pdf\], key 'memory-bytes'"):
        DocumentReader(configure(readers={"pdf": row}))


async def test_a_folder_of_documents_costs_one_process(
    reader: DocumentReader, tmp_path: Path
) -> None:
    for number in range(200):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
    texts = await asyncio.gather(*(reader.read(tmp_path / f"{n}.txt") for n in range(200)))
    assert [text.text for text in texts] == [f"text {number}" for number in range(200)]
    assert children() <= 2
