"""What docstrings show is run, since the reference repeats it."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import vibe_llms


def _modules() -> Iterator[str]:
    yield vibe_llms.__name__
    for module in pkgutil.walk_packages(vibe_llms.__path__, "vibe_llms."):
        if module.name != "vibe_llms.__main__":
            yield module.name


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
