"""Notes of one kind are one note."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cli.command import invoke, streams
from vibe_llms.cli.display import Display, Silence
from vibe_llms.cli.notes import merge_notices
from vibe_llms.messages.events import MessageProgressEvent, Notice, NoticeEvent, TextChunk


def _notices(count: int, words: str) -> list[NoticeEvent]:
    return [
        NoticeEvent(notice=Notice("x", f"{one}.pdf {words}", f"c{one}", f"{one}.pdf"))
        for one in range(count)
    ]


def test_different_notes_stay_apart_and_equal_ones_are_counted() -> None:
    notices = [Notice("x", "a.pdf: torn", "", "a.pdf"), Notice("x", "a.pdf: old", "", "a.pdf")]
    assert merge_notices(notices) == ["a.pdf: torn", "a.pdf: old"]
    assert merge_notices([Notice("x", "again")] * 3) == ["again (3 times)"]
    assert merge_notices([]) == []


@pytest.mark.parametrize("kind", ["display", "silence"])
def test_thirty_notes_of_one_kind_are_one_and_stand_before_the_answer(kind: str) -> None:
    async def work() -> str:
        with streams() as (output, errors):
            display = Display() if kind == "display" else Silence()
            display.begin("a/model")
            for one, other in zip(_notices(30, "is text"), _notices(30, "is long"), strict=True):
                display(one)
                display(other)
            display(MessageProgressEvent(TextChunk("Hello.")))
            said = errors.text
            display.close()
            # Nothing is held back when the turn is over.
            display(_notices(1, "is late")[0])
            assert output.text == ("Hello." if kind == "display" else "")
            assert errors.text == f"{said}note: 0.pdf is late\n"
            return said

    assert asyncio.run(work()) == (
        "note: 0.pdf is text; the same for 1.pdf, 2.pdf, 3.pdf and 26 more\n"
        "note: 0.pdf is long; the same for 1.pdf, 2.pdf, 3.pdf and 26 more\n"
    )


def test_a_note_is_not_held_back_for_long() -> None:
    async def work() -> None:
        with streams() as (_, errors):
            display = Display()
            display.begin("a/model")
            display(_notices(1, "is text")[0])
            while "is text" not in errors.text:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(work(), 20))


@pytest.mark.slow
def test_thirty_files_make_one_note_each_way(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"n{number:02}.html").write_text("<p>It is late.</p>")
        (tmp_path / f"x{number:02}.bin").write_bytes(b"\0\1" + b"\xff" * 9 + bytes([number]))
        (tmp_path / f"y{number:02}.txt").touch()
    outcome = invoke("-m", "scripted/demo", "-f", str(tmp_path), "hello")
    assert outcome.status == 0
    notes = outcome.errors.splitlines()
    assert len(notes) == len({line.partition(".")[2] for line in notes}) <= 3, notes
    assert any(line.endswith("y03.txt and 26 more") for line in notes), notes
    assert any(
        line.endswith("; the same for x01.bin, x02.bin, x03.bin and 26 more") for line in notes
    )
    assert invoke("-q", "-m", "scripted/demo", "-f", str(tmp_path), "hello").errors == ""
