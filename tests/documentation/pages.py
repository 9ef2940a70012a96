"""The pages of the documentation, taken apart: fenced blocks, headings, links, inline code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.documentation.transcripts import Command, read_commands

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTATION = ROOT / "documentation"
EXAMPLES = DOCUMENTATION / "examples"
PLAYED = ("console", "sh")
#: What is not played: the suite itself, and what ends when Ctrl-C is pressed.
TESTING, SERVING = "python -m pytest -n auto", "vibe-llms web"
_INSTALLATION = re.compile(r"python -m pip install (-e )?'?(?P<what>[^' ]+)'?")
_FENCE = re.compile(r"^(?P<fence> *```+)(?P<language>[a-z]*)(?: title=\"(?P<title>[^\"]+)\")?$")
_LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language, its title if it has one, and its text.

    `generated` says that it is in a part of the page that is made from code.
    """

    page: Path
    line: int
    language: str
    title: str
    text: str
    fence: str
    generated: bool

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Page:
    """A page, and what is outside its fences."""

    path: Path
    blocks: Sequence[Block]
    prose: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def links(self) -> Sequence[str]:
        return _LINK.findall(re.sub(r"`[^`\n]+`", "``", self.prose))

    @property
    def codes(self) -> Sequence[str]:
        """What is between single backticks, a line break within it as a space."""
        return [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", self.prose)]

    @property
    def anchors(self) -> set[str]:
        """The anchors of the headings, as GitHub makes them."""
        found: set[str] = set()
        for heading in re.findall(r"^#{1,6} (.+)$", self.prose, re.MULTILINE):
            words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            anchor, number = words, 0
            while anchor in found:
                number += 1
                anchor = f"{words}-{number}"
            found.add(anchor)
        return found


def take_apart(path: Path, source: str) -> Page:
    """A page; `AssertionError` where a fence is not closed or has an unknown mark."""
    blocks: list[Block] = []
    prose: list[str] = []
    fence, begun, language, title = "", 0, "", ""
    lines: list[str] = []
    generated = False
    for number, line in enumerate(source.splitlines(), 1):
        if fence:
            if line == fence:
                text = "".join(f"{inner}\n" for inner in lines)
                blocks.append(Block(path, begun, language, title, text, fence, generated))
                fence, lines = "", []
            else:
                lines.append(line)
        elif line.lstrip().startswith("```"):
            found = _FENCE.match(line)
            assert found, f"{path}:{number}: a fence that the test does not understand: {line}"
            fence, language, title = found["fence"], found["language"], found["title"] or ""
            begun = number
        else:
            prose.append(line)
            if line.startswith("<!-- "):
                generated = line.startswith("<!-- generated: ")
    assert not fence, f"{path}:{begun}: this block is not closed"
    return Page(path, blocks, "\n".join(prose) + "\n")


def find_pages() -> Iterator[Path]:
    """README.md and every page of the documentation, without the files that pages show."""
    yield ROOT / "README.md"
    for path in sorted(DOCUMENTATION.rglob("*.md")):
        if path.parent != EXAMPLES:
            yield path


def playable(block: Block) -> Sequence[Command]:
    """The commands of a block that can be played here.

    Of `sh` blocks the output is not looked at. Installing needs a network, so that part of a
    command is checked instead, and left out. `.auxiliary/scripts/newcomer` runs all of README.md.
    """
    text = block.text
    if block.language == "sh":
        text = "".join(f"$ {line}\n…\n" for line in text.splitlines())
    commands = []
    for command in read_commands(text):
        parts = command.text.split(" && ")
        kept = [
            part for part in parts if not _is_installation(part) and part not in (TESTING, SERVING)
        ]
        if kept:
            command.text = " && ".join(kept)
            commands.append(command)
    return commands


def _is_installation(command: str) -> bool:
    found = _INSTALLATION.fullmatch(command)
    if found is None:
        return False
    package, _, extras = found["what"].rstrip("]").partition("[")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert package in (".", project["name"]), command
    known = project["optional-dependencies"]
    assert all(extra in known for extra in extras.split(",") if extra), command
    return True


PAGES = {
    page.name: page for page in (take_apart(path, path.read_text("utf-8")) for path in find_pages())
}
