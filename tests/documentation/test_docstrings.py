"""What docstrings show is run, since the reference repeats it."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import vibe_llms


def _modules() -> Iterator[str]:
    """The modules that hold an example; the others have nothing to run."""
    root = Path(vibe_llms.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if ">>>" in path.read_text("utf-8"):
            parts = path.relative_to(root.parent).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__")


def check_docstrings(name: str, home: Path) -> int:
    """How many lines were run; `AssertionError` where one gives something else."""
    module = importlib.import_module(name)
    results = doctest.testmod(module, extraglobs={"home": home}, report=False)
    assert results.failed == 0, name
    return results.attempted


@pytest.mark.parametrize("name", list(_modules()))
def test_what_docstrings_show_happens(name: str, home: Path) -> None:
    check_docstrings(name, home)


@pytest.mark.parametrize(
    "name", ["synchronous", "testing", "invocation.invokers", "messages.contents"]
)
def test_there_are_examples_where_a_newcomer_looks_for_them(name: str, home: Path) -> None:
    assert check_docstrings(f"vibe_llms.{name}", home) > 0


def test_a_docstring_that_lies_is_found(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("vibe_llms.messages.contents")
    monkeypatch.setattr(module.repair_text, "__doc__", ">>> repair_text('a')\n'b'\n")
    with pytest.raises(AssertionError, match="contents"):
        check_docstrings("vibe_llms.messages.contents", home)
