"""A library: texts kept under the hash of their file, searched from tasks."""

from __future__ import annotations

from pathlib import Path

from vibe_llms.documents.library import Library
from vibe_llms.documents.texts import DocumentText

TEXT = DocumentText("a.txt", "Ada planted quinces. " + "Nothing else happened. " * 600)


async def test_what_is_added_is_found(tmp_path: Path) -> None:
    library = Library(tmp_path)
    await library.add("hash", TEXT)
    assert await library.access("hash") == TEXT
    assert await library.access("other") is None
    found = await library.search("quinces", ["hash"], characters=1_000)
    assert found[0].text.startswith("Ada planted quinces.")
    await library.close()


async def test_unused_documents_are_dropped_when_one_is_added(tmp_path: Path) -> None:
    library = Library(tmp_path, ttl_hours=24)
    await library.add("hash", TEXT)
    await library.close()
    later = Library(tmp_path, ttl_hours=-1)
    await later.add("other", TEXT)
    assert await later.access("hash") is None
    await later.close()
