"""The script that compares the public interface with that of an earlier revision."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

from tests.documentation.test_site import PUBLIC

ROOT = Path(__file__).resolve().parents[1]
INTERFACE = runpy.run_path(str(ROOT / ".auxiliary" / "scripts" / "interface"))
LITTLE = {
    "__init__.py": """
from vibe_llms.inner import Bird, Cage, feed, find
__all__ = ["Bird", "Cage", "feed", "find"]
""",
    "inner.py": """
from typing import TypedDict, Unpack
from msgspec import Struct

class Bird(Struct):
    name: str
    eggs: int = 0
    def sing(self, loud: bool = True) -> None: ...

class Options(TypedDict, total=False):
    seeds: int
    water: int

class Cage:
    def open(self, **options: Unpack[Options]) -> None: ...
    def _lock(self) -> None: ...

def feed(bird: Bird, amount: int = 1) -> None: ...
def find() -> Bird | None: ...
def private() -> None: ...
""",
}


def write_package(folder: Path, **changes: tuple[str, str]) -> Path:
    """Write the little package with one place of each named module changed."""
    home = folder / "vibe_llms"
    home.mkdir(parents=True)
    for name, text in LITTLE.items():
        old, new = changes.get(name.removesuffix(".py"), ("", ""))
        assert old in text
        (home / name).write_text(text.replace(old, new, 1) if old else text)
    return folder


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        ("amount: int = 1", "amount: int", ["feed(amount)", "required"]),
        ("bird: Bird, amount", "bird: Bird, who: str, amount", ["feed(who)", "required"]),
        ("    eggs: int = 0\n", "", ["Bird.__init__(eggs)", "removed"]),
        ("    seeds: int\n", "", ["Cage.open(seeds)", "removed"]),
        ("def sing", "def call", ["Bird.sing", "removed"]),
        ("class Cage", "class Coop", ["Cage", "removed"]),
        ("def _lock", "def _shut", []),
        ("def private", "def secret", []),
        ("amount: int = 1", "amount: int = 1, fast: bool = False", []),
        ("amount: int = 1", "amount: str = 1", ["feed(amount)", "`int` -> `str`"]),
        ("amount: int = 1", "amount: str | int = 1", []),
        ("seeds: int\n", "seeds: str\n", ["Cage.open(seeds)", "`int` -> `str`"]),
        ("eggs: int = 0", "eggs: int | None = 0", ["Bird.eggs`", "`int` -> `int | None`"]),
        ("-> Bird | None", "-> Bird", []),
        ("-> Bird | None", "-> Bird | list[Bird]", ["find()", "`Bird | list[Bird]`"]),
    ],
)
def test_a_change_that_breaks_something_public_is_named(
    old: str, new: str, reported: list[str], tmp_path: Path
) -> None:
    before = write_package(tmp_path / "before")
    after = write_package(tmp_path / "after", inner=(old, new))
    problems = INTERFACE["compare"](before, after)
    assert bool(problems) == bool(reported)
    for word in reported:
        assert word in "\n".join(problems)


def test_a_class_that_moves_to_another_module_breaks_nothing(tmp_path: Path) -> None:
    before = write_package(tmp_path / "before")
    after = write_package(tmp_path / "after", __init__=("vibe_llms.inner", "vibe_llms.other"))
    (after / "vibe_llms" / "inner.py").rename(after / "vibe_llms" / "other.py")
    assert INTERFACE["compare"](before, after) == []


def test_all_public_modules_are_compared() -> None:
    homes = {"vibe_llms.base.exceptions", "vibe_llms.synchronous"}
    assert {*INTERFACE["PUBLIC"]} == homes | {package.__name__ for package in PUBLIC}


def test_an_unknown_revision_is_named() -> None:
    with pytest.raises(SystemExit, match="cannot read the sources of 'no-such-tag'"):
        INTERFACE["main"](["no-such-tag"])


@pytest.mark.slow
def test_a_change_that_breaks_the_package_itself_is_named(tmp_path: Path) -> None:
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "sources" / "vibe_llms", tmp_path / "vibe_llms", ignore=skipped)
    assert INTERFACE["compare"](ROOT / "sources", tmp_path) == []
    options = tmp_path / "vibe_llms" / "session" / "options.py"
    text = options.read_text("utf-8")
    assert "    tags: Sequence[str]\n" in text
    options.write_text(text.replace("    tags: Sequence[str]\n", ""))
    assert INTERFACE["compare"](ROOT / "sources", tmp_path) == [
        "vibe_llms: `Session.begin(tags)`: *Parameter was removed*"
    ]
