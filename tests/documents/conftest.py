"""A reader of documents with the shipped rows and those of `peculiar`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.documents.children import BEFORE
from vibe_llms.base.configuration import Configuration, Places, load_configuration, merge
from vibe_llms.documents.reading import DocumentReader
from vibe_llms.interpreter.processes import survey_tree

PECULIAR = (
    *("shouting", "process", "endless", "crashing", "refusing", "greedy", "network"),
    *("environment", "pages", "writing"),
)


@pytest.fixture(autouse=True)
def before() -> None:
    """Count only the processes of this test."""
    BEFORE.clear()
    BEFORE.update(one.identity for one in survey_tree(os.getpid()))


@pytest.fixture
def configure(tmp_path: Path) -> Callable[..., Configuration]:
    def configure(**documents: Any) -> Configuration:
        rows = {
            name: {"module": "tests.documents.peculiar", "suffixes": [f".{name}"]}
            for name in PECULIAR
        }
        overrides = merge({"readers": rows}, documents)
        return load_configuration(
            Places.under(tmp_path / "home"), environment={}, overrides={"documents": overrides}
        )

    return configure


@pytest.fixture
async def reader(configure: Callable[..., Configuration]) -> AsyncIterator[DocumentReader]:
    async with DocumentReader(configure()) as reader:
        yield reader
