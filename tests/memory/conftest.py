"""Fixtures that the tests of memory share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.postgres import TestDatabase, temporary_database
from vibe_llms.memory import Memory


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path, durable=False)


@pytest.fixture
def place() -> Iterator[TestDatabase]:
    with temporary_database() as made:
        yield made
