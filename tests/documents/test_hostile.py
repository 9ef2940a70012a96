"""Whatever a file does to its reader: a clear error, or the right text, within limits."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.documents.children import children
from tests.documents.hostile import MEBIBYTE, survey
from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.documents.reading import DocumentReader

CASES = {case.label: case for case in survey()}
#: Files that do what another one does in the same format, or in another.
ALIKE = frozenset(
    re.findall(
        r"\S+",
        """
    heading-spaces heading-marks many-headings open-fence csv-quote csv-null csv-delimiters
    csv-ragged xlsx-far xlsx-merged xlsx-digits xlsx-cut html-tables html-lists html-span
    html-attribute html-comment html-bogus html-rot13 html-punycode html-utf-16 html-zlib html-pre
    html-options pdf-tail pdf-as-docx pdf-count pdf-many-scans pdf-box pdf-long-page pdf-font
    docx-many docx-text docx-deep-open docx-tables docx-span docx-flag docx-changes odt-spaces
    odt-columns odt-frames odt-spans epub-lost mail-charset mail-base64
    """,
    )
)
#: Limits as the shipped ones, but soon reached.
LIMITS = {
    "seconds": 10,
    "memory-bytes": 512 * MEBIBYTE,
    "file-bytes": 64 * MEBIBYTE,
    "characters": 1_000_000,
    "pages": 2000,
}


@pytest.fixture
async def bounded(configure: Callable[..., Configuration]) -> AsyncIterator[DocumentReader]:
    async with DocumentReader(configure(limits=LIMITS)) as reader:
        yield reader


def test_there_are_enough() -> None:
    assert len(CASES.keys() - ALIKE) >= 60
    assert CASES.keys() > ALIKE


@pytest.mark.parametrize(
    "label",
    [pytest.param(one, marks=pytest.mark.slow if one in ALIKE else ()) for one in CASES],
)
async def test_a_hostile_file(bounded: DocumentReader, label: str) -> None:
    case = CASES[label]
    begun = time.monotonic()
    try:
        data = case.data if isinstance(case.data, bytes) else case.data()
        text = await bounded.read(data, case.name)
    except DocumentUnreadable as error:
        found = str(error)
        assert case.text is None, found
        assert re.search(case.error, found), found
        assert len(found) < 500
        assert found.isprintable()
    else:
        found = " ".join([text.text, *text.notices])
        assert case.text is None or case.text in text.text
        assert re.search(case.error, found), found[:1000]
        assert len(text.text) <= LIMITS["characters"] * 1.1
        assert case.complete in (None, text.complete)
        assert text.complete or text.notices
    assert not case.absent or case.absent not in found
    assert time.monotonic() - begun < LIMITS["seconds"] + 5
    await bounded.close()
    assert children() == 0


async def test_files_that_are_none(bounded: DocumentReader, tmp_path: Path) -> None:
    with open(tmp_path / "sparse.pdf", "wb") as file:
        file.truncate(1024**3)
    os.mkfifo(tmp_path / "pipe.pdf")
    (tmp_path / "dangling.pdf").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop.pdf").symlink_to(tmp_path / "loop.pdf")
    for name, words in {
        "sparse.pdf": "it is larger than 64 MiB",
        "pipe.pdf": "it is a named pipe, not a regular file",
        "dangling.pdf": "No such file or directory",
        "loop.pdf": "Too many levels of symbolic links",
    }.items():
        async with asyncio.timeout(5):
            with pytest.raises(DocumentUnreadable, match=f"^{name}: .*{words}"):
                await bounded.read(tmp_path / name)
