"""What a session does with documents: it reads each once, and finds passages by name and place."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.documents.making import make_pdf
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import DocumentUnreadable, RequestError
from vibe_llms.conversations.documents import survey_files
from vibe_llms.documents.core import Documents, produce_documents
from vibe_llms.documents.reading import DocumentReader
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import FileContent, Location, Reference, hash_bytes
from vibe_llms.providers.interfaces import refuse_loading

PAGES = [
    "The harbour was built in 1911.",
    "The lighthouse keeper was called Ada.",
    "Ferries leave every hour.",
]
REPORT = FileContent(make_pdf(PAGES), "application/pdf", "harbour.pdf")
LONG = FileContent(
    "".join(
        f"Chapter {n}: the ferry number {n} is blue.\n\n{'filler ' * 90}\n\n" for n in range(40)
    ).encode(),
    "text/plain",
    "ferries.txt",
)


class CountingReader(DocumentReader):
    """Counts what it reads."""

    def __init__(self, folder: Path) -> None:
        super().__init__(load_configuration(places=Places.under(folder), environment={}))
        self.count = 0

    async def read(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
        self.count += 1
        return await super().read(*arguments, **options)  # type: ignore[arg-type]


@pytest.fixture
async def documents(tmp_path: Path) -> AsyncIterator[Documents]:
    made = produce_documents(
        load_configuration(places=Places.under(tmp_path), environment={}), lambda _: None
    )
    made.reader = CountingReader(tmp_path)
    yield made
    await made.close()


def count_reads(documents: Documents) -> int:
    assert isinstance(documents.reader, CountingReader)
    return documents.reader.count


async def test_a_file_is_read_once_also_by_reference_and_by_the_next_session(
    documents: Documents, tmp_path: Path
) -> None:
    assert isinstance(REPORT.data, bytes)
    text = await documents.read(REPORT)
    assert (text.pages, text.format) == (3, "pdf")
    stored = Reference(hash_bytes(REPORT.data), len(REPORT.data))
    assert await documents.read(FileContent(stored, REPORT.mimetype, "copy.pdf")) == text
    other = produce_documents(
        load_configuration(places=Places.under(tmp_path), environment={}), lambda _: None
    )
    assert await other.read(FileContent(stored, REPORT.mimetype, "copy.pdf")) == text
    await other.close()
    assert count_reads(documents) == 1


async def test_a_folder_is_added_to_a_collection_and_what_changes_is_read(
    documents: Documents, tmp_path: Path
) -> None:
    folder = tmp_path / "papers"
    folder.mkdir()
    assert isinstance(REPORT.data, bytes)
    (folder / "harbour.pdf").write_bytes(REPORT.data)
    (folder / "damaged.pdf").write_bytes(REPORT.data[:200])
    for path in folder.iterdir():
        # A file that was written just now is read again, as it may still change.
        os.utime(path, (1_700_000_000, 1_700_000_000))
    first = await documents.add("papers", [str(folder)])
    assert first.read == (str(folder / "harbour.pdf"),)
    assert list(first.problems) == [str(folder / "damaged.pdf")]
    (folder / "damaged.pdf").unlink()
    (folder / "notes.txt").write_text("The blue ferry leaves at noon.")
    seen: list[tuple[int, int, str]] = []
    second = await documents.add("papers", [folder], lambda *step: seen.append(step))
    assert (second.read, second.unchanged, second.removed) == ((str(folder / "notes.txt"),), 1, 1)
    assert seen == [(1, 1, str(folder / "notes.txt"))]
    found = await documents.find("What is blue at noon?", [], ["papers"])
    assert {one.name for one in found} == {"harbour.pdf", "notes.txt"}
    with pytest.raises(RequestError, match="no such file"):
        await documents.add("papers", [tmp_path / "nothing"])


async def test_tasks_that_want_the_same_file_read_it_once(documents: Documents) -> None:
    texts = await asyncio.gather(*(documents.read(REPORT) for _ in range(5)))
    assert count_reads(documents) == 1
    assert all(text == texts[0] for text in texts)


async def test_one_that_is_cancelled_does_not_take_the_text_from_the_others(
    documents: Documents,
) -> None:
    first = asyncio.create_task(documents.read(REPORT))
    second = asyncio.create_task(documents.read(REPORT))
    while not count_reads(documents):
        await asyncio.sleep(0)
    first.cancel()
    assert (await second).pages == 3
    assert first.cancelled()


async def test_the_last_one_that_is_cancelled_ends_the_reading(documents: Documents) -> None:
    begun = asyncio.Event()
    ended: list[bool] = []

    async def load(_: Sequence[Reference]) -> Mapping[str, bytes]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        raise AssertionError("nothing ends the wait")

    file = FileContent(Reference("a" * 64, 100), "application/pdf", "a.pdf")
    tasks = [asyncio.create_task(documents.read(file, load)) for _ in range(2)]
    await begun.wait()
    while [one.waiting for one in documents._readings.values()] != [2]:
        await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert not ended
    tasks[1].cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert ended


async def test_a_second_file_of_the_same_name_is_searched_too(documents: Documents) -> None:
    files = survey_files(
        UserCanister((FileContent(text.encode(), "text/plain", "notes.txt"),))
        for text in ("The tide is low.", "The tide is high.")
    )
    found = await documents.find("tide", files)
    assert {one.name for one in found} == {"notes.txt", "notes.txt (2)"}


async def test_a_reference_is_loaded(documents: Documents) -> None:
    assert isinstance(REPORT.data, bytes)
    data = REPORT.data

    async def load(references: Sequence[Reference]) -> Mapping[str, bytes]:
        return {one.hash: data for one in references}

    stored = Reference(hash_bytes(data), len(data))
    text = await documents.read(FileContent(stored, REPORT.mimetype, "harbour.pdf"), load)
    assert "lighthouse keeper" in text.text


async def test_what_only_a_provider_has_cannot_be_read(documents: Documents) -> None:
    with pytest.raises(DocumentUnreadable, match="only the provider"):
        await documents.read(FileContent(Location("https://example.org/a.pdf"), "", "a.pdf"))


async def test_passages_have_the_name_and_the_place(documents: Documents) -> None:
    documents.offer("one", [REPORT, LONG], (), refuse_loading)
    found = await documents.search("one", "who keeps the lighthouse?", "harbour.pdf")
    assert (found[0].name, found[0].place) == ("harbour.pdf", "pages 1-3")
    every = await documents.search("one", "which ferry is number 17?")
    assert every[0].name == "ferries.txt"
    assert any("number 17 is blue" in one.text for one in every)
    assert sum(len(one.text) for one in every) <= 6000


async def test_a_damaged_file_does_not_keep_the_others_from_being_searched(
    documents: Documents,
) -> None:
    damaged = FileContent(b"%PDF-1.4 nothing", "application/pdf", "damaged.pdf")
    (found,) = await documents.find("lighthouse", [damaged, REPORT])
    assert found.name == "harbour.pdf"
    with pytest.raises(DocumentUnreadable, match=r"damaged\.pdf"):
        await documents.find("lighthouse", [damaged])


async def test_a_conversation_reads_only_its_own_documents(documents: Documents) -> None:
    documents.offer("one", [REPORT], (), refuse_loading)
    documents.offer("two", [LONG], (), refuse_loading)
    assert [*await documents.survey("one")] == ["harbour.pdf"]
    assert [*await documents.survey("three")] == []
    with pytest.raises(RequestError, match=r"available: ferries\.txt"):
        await documents.read_page("two", "harbour.pdf", 1)
    with pytest.raises(RequestError, match="available: none"):
        await documents.search("three", "harbour", "harbour.pdf")
    assert await documents.search("three", "harbour") == []


@pytest.mark.parametrize("source", ["/etc/passwd", "../../etc/passwd", "file:///etc/passwd", ""])
async def test_a_model_cannot_name_a_path(documents: Documents, source: str) -> None:
    documents.offer("one", [REPORT], (), refuse_loading)
    with pytest.raises(RequestError, match="not found; available"):
        await documents.read_page("one", source, 1)


async def test_pages_end_with_their_number(documents: Documents) -> None:
    documents.offer("one", [LONG], (), refuse_loading)
    text = await documents.read_page("one", "ferries.txt", 2)
    assert text.endswith("**Page #2. Total pages: 3**")
    with pytest.raises(RequestError, match="has no page 4; it has 3"):
        await documents.read_page("one", "ferries.txt", 4)


async def test_a_survey_says_what_cannot_be_read(documents: Documents) -> None:
    damaged = FileContent(b"%PDF-1.4 nothing", "application/pdf", "damaged.pdf")
    documents.offer("one", [REPORT, damaged], (), refuse_loading)
    found = await documents.survey("one")
    assert found["harbour.pdf"].startswith("pdf, 3 pages, ")
    assert found["damaged.pdf"].startswith("cannot be read: damaged.pdf: ")
