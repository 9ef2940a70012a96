"""The examples in the docstrings of the sources run, and give what they say."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import vibe_llms

MODULES = [
    found.name
    for found in pkgutil.walk_packages(vibe_llms.__path__, "vibe_llms.")
    if not found.name.endswith("__main__")
]


def run_examples(name: str, home: Path) -> doctest.TestResults:
    return doctest.testmod(import_module(name), extraglobs={"home": home}, raise_on_error=False)


@pytest.mark.parametrize("name", ["vibe_llms", *MODULES])
def test_the_examples_of_a_module_run(name: str, home: Path) -> None:
    assert run_examples(name, home).failed == 0


def test_there_are_examples_where_a_newcomer_looks_for_them(home: Path) -> None:
    for name in ("synchronous", "testing", "invocation.invokers", "messages.contents"):
        assert run_examples(f"vibe_llms.{name}", home).attempted > 0
