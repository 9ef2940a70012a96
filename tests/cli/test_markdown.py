"""Markdown drawn while it streams: whatever way it comes, the screen ends up the same."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import random
import re
import time
from collections.abc import Iterable, Sequence
from itertools import dropwhile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.cli.hostile import check_harmless, produce_payloads
from tests.cli.terminal import Screen
from vibe_llms.cli import markdown
from vibe_llms.cli.markdown import MarkdownStream, split_blocks
from vibe_llms.messages.hidden import visible

_ATOMS = [
    "word ", "some more words of a sentence, ", "\n", "\n\n", "\n\n\n", "\n- item\n", "  - inner\n",
    "\n1. first\n", "```python\n", "\n```\n", "x = 1\n", "def f(): pass\n", "    indented\n", "\t",
    "| a | b |\n|---|---|\n", "| 1 | 2 |\n", "# Head\n", "## Head\n", "> quoted\n", "\n---\n",
    "**bold** ", "**", "`code` ", "*it*", "~~gone~~", "&lt; ", "\\* ", "List<String> ", "東京 ",
    "😀 ", "[a](https://example.org) ", "<https://example.org> ", "![a](https://e.org/p.png) ",
]  # fmt: skip
_TALL = 1000


class TerminalStream(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("LINES", str(_TALL))
    monkeypatch.setenv("COLUMNS", "40")


def draw(chunks: Iterable[str], lines: int = _TALL, columns: int = 40) -> str:
    """What is sent to the terminal for text that comes in chunks, each drawn when it comes."""

    async def work() -> str:
        output = TerminalStream()
        stream = MarkdownStream(output)
        for chunk in chunks:
            stream._next = 0.0
            stream.feed(chunk)
        stream.close()
        return output.getvalue()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LINES", str(lines))
        patch.setenv("COLUMNS", str(columns))
        return asyncio.run(work())


def show(chunks: Iterable[str], lines: int = _TALL, columns: int = 40) -> list[str]:
    """The lines on the screen after text that comes in chunks."""
    return Screen(lines, columns).feed(draw(chunks, lines, columns)).lines


def check_same(text: str, chunks: Sequence[str]) -> None:
    # An empty block of code at the beginning may be drawn as an empty row or not at all.
    shown, whole = (list(dropwhile(lambda row: not row, show(one))) for one in (chunks, [text]))
    assert shown == whole


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(_ATOMS), max_size=14), st.randoms(use_true_random=False))
@example(["- a\n\n", "- b\n"], random.Random(1))
@example(["word ", "\n", "\n```\n", "\n- item\n", "\n```\n", "\n", "word "], random.Random(1))
def test_any_split_of_a_text_is_drawn_the_same(atoms: list[str], chance: random.Random) -> None:
    text = "".join(atoms)
    cuts = sorted(chance.sample(range(len(text) + 1), min(len(text), chance.randint(0, 12))))
    check_same(text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])


def check_complete(text: str, lines: int) -> None:
    """In a low window every line is drawn, in order, whatever else had to be drawn again."""
    shown = iter(show([text[i : i + 7] for i in range(0, len(text), 7)], lines))
    for line in show([text]):
        assert line in shown, line


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(_ATOMS), max_size=40), st.integers(3, 9))
@example(["    indented\n", "\n\n", "    indented\n", "\n", "word "], 3)
@example(["word ", "\n", "\n```\n", "\n- item\n", "\n```\n", "\n", "word "], 3)
def test_nothing_is_missing_in_a_low_window(atoms: list[str], lines: int) -> None:
    check_complete("".join(atoms), lines)


_CODE = "Sure:\n```python\n" + "".join(f"line_{n} = {n}\n" for n in range(60)) + "```\nDone.\n"
_ROWS = "".join(f"| name {n} | {'x' * n} |\n" for n in range(30))
_TABLE = f"| a | b |\n|---|---|\n{_ROWS}\nDone.\n"


def check_once(text: str) -> None:
    """What is longer than the window is shown once, as if the window were high."""
    chunks = text.splitlines(keepends=True)
    assert show(chunks, 10) == show([text])


@pytest.mark.parametrize("text", [_CODE, _TABLE], ids=["code", "table"])
def test_what_is_longer_than_the_window_is_drawn_once(text: str) -> None:
    check_once(text)


def test_a_drawing_that_forgets_what_has_scrolled_away_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MarkdownStream, "_count_finished", lambda *_: 0)
    with pytest.raises(AssertionError):
        check_once(_CODE)


def test_a_drawing_that_trusts_what_has_changed_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The emphasis closes when its beginning has left the window long ago.
    text = f"**{' '.join(f'word{n}' for n in range(100))}**"
    check_complete(text, 4)
    monkeypatch.setattr(MarkdownStream, "_count_finished", lambda self, _: len(self._committed))
    with pytest.raises(AssertionError):
        check_complete(text, 4)


def test_a_table_that_were_settled_early_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "_has_table", lambda _: False)
    with pytest.raises(AssertionError):
        check_once(_TABLE)


def test_code_can_be_copied_unchanged() -> None:
    long = f"x = '{'y' * 60}'"
    # The terminal wraps the long line, so it is one line when it is copied.
    drawn = draw([f"```python\nif x:\n    {long}\n```\n"])
    assert re.sub(r"\x1b\[[\d;]*m", "", drawn) == f"if x:\n    {long}\n"


def test_code_within_a_list_is_wrapped_where_the_list_is() -> None:
    long = "y" * 50
    lines = show([f"- item\n\n  ```\n  {long}\n  ```\n"])
    assert "".join(line.strip() for line in lines[1:]) == long
    assert all(line.startswith("   ") for line in lines[1:])


def test_no_word_between_angle_brackets_is_swallowed() -> None:
    text = show(["Use List<String> or <b>bold</b>.\n\n<div>\n\n<!-- note -->\n"])
    assert text == ["Use List<String> or <b>bold</b>.", "", "<div>", "", "<!-- note -->"]


def test_line_breaks_stay() -> None:
    assert show(["Roses are red,\nviolets are blue.\n"]) == ["Roses are red,", "violets are blue."]


def test_addresses_are_seen() -> None:
    text = "[bank](https://evil.example) <https://e.org> <a@e.org> ![pic](https://e.org/p.png)"
    assert " ".join(show([text], columns=40)) == (
        "bank (https://evil.example) https://e.org a@e.org ![pic](https://e.org/p.png)"
    )


def test_a_table_has_its_columns_aligned() -> None:
    assert show(["| a | bb |\n|---|---:|\n| long | 1 |\n"]) == [
        "a      bb",
        "─────────",
        "long    1",
    ]


def test_headings_lists_quotes_and_lines_are_drawn() -> None:
    text = "# One\n\n## Two\n\n1. first\n2. second\n   - inner\n\n> quoted\n\n---\n\nEnd\n"
    assert show([text]) == [
        "One", "", "Two", "", " 1 first", " 2 second", "    • inner", "", "▌ quoted", "",
        "─" * 40, "", "End",
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [10, 20, 200])
def test_any_width_will_do(columns: int) -> None:
    assert show([_TABLE + _CODE], columns=columns)


def check_drawing_is_harmless(payloads: Iterable[str]) -> None:
    for payload in payloads:
        check_harmless(draw([payload[: len(payload) // 2], payload[len(payload) // 2 :]]))


def test_hostile_markdown_drives_nothing() -> None:
    check_drawing_is_harmless(produce_payloads(1, 120))


def test_hostile_text_that_only_the_source_is_cleared_of_would_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Markdown writes characters by their numbers, so clearing the source alone is not enough.
    monkeypatch.setattr(markdown, "visible", lambda text: text)
    with pytest.raises(AssertionError):
        check_drawing_is_harmless(map(visible, produce_payloads(1, 120)))


def test_without_a_terminal_blocks_are_laid_out_plainly() -> None:
    output = io.StringIO()
    stream = MarkdownStream(output)
    for chunk in ("# Head\n", "\nSome **bold", "** text.\n\n- a\n", "- b"):
        stream.feed(chunk)
    stream.close()
    assert output.getvalue() == "Head\n\nSome bold text.\n\n • a\n • b\n"


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw(["", "\n", "  \n\n"]) == ""


def test_a_line_of_other_code_finds_the_window_gone() -> None:
    async def work() -> str:
        output = TerminalStream()
        stream = MarkdownStream(output)
        stream.hide()
        stream.feed("Some text")
        stream.hide()
        output.write("note\n")
        stream.feed(" goes on.")
        stream.close()
        return output.getvalue()

    assert Screen(_TALL, 40).feed(asyncio.run(work())).lines == ["note", "Some text goes on."]


async def test_what_came_last_is_drawn_soon_even_if_nothing_follows() -> None:
    output = TerminalStream()
    stream = MarkdownStream(output)
    stream.feed("Some text")
    stream.feed(" goes on")
    assert "goes on" not in output.getvalue()
    for _ in range(500):
        if "goes on" in output.getvalue():
            break
        await asyncio.sleep(0.01)
    assert "goes on" in output.getvalue()
    stream.close()


async def test_what_waits_to_be_drawn_is_drawn_at_the_end() -> None:
    output = TerminalStream()
    stream = MarkdownStream(output)
    stream.feed("Some text")
    stream.feed(" goes on")
    stream.close()
    assert Screen(_TALL, 40).feed(output.getvalue()).lines == ["Some text goes on"]


async def test_a_window_that_was_closed_is_reported_with_the_next_text() -> None:
    class Closing(TerminalStream):
        closing = False

        def write(self, text: str) -> int:
            if self.closing:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            return super().write(text)

    output = Closing()
    output.name = "<stdout>"
    stream = MarkdownStream(output)
    stream.feed("Some text")
    stream.feed(" goes on")
    output.closing = True
    for _ in range(500):
        if stream._failure is not None:
            break
        await asyncio.sleep(0.01)
    with pytest.raises(BrokenPipeError):
        stream.feed(" and on")


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("One.\n\nTwo", "One.\n\n"),
        ("One.\nTwo", ""),
        ("One.\n\n", ""),
        ("- a\n\n- b", ""),
        ("- a\n\n  more", ""),
        ("- a\n\n-", ""),
        ("- a\n\ntext of its own", "- a\n\n"),
        ("```\na\n\nb", ""),
        ("```\na\n\nb\n```\n\nc", "```\na\n\nb\n```\n\n"),
        ("````\n```\n\nb", ""),
        ("~~~\n```\n\n~~~\n\nb", "~~~\n```\n\n~~~\n\n"),
        ("```\n``` x\n\nb", ""),
    ],
)
def test_a_block_is_done_when_nothing_can_change_it(text: str, done: str) -> None:
    assert split_blocks(text) == (done, text.removeprefix(done))


def test_a_line_of_blanks_takes_as_long_as_it_is() -> None:
    def measure(count: int) -> float:
        begun = time.process_time()
        show(["|-" + " " * count + "x"])
        return time.process_time() - begun

    measure(10)
    assert measure(40_000) < 40 * max(measure(4_000), 0.02)
