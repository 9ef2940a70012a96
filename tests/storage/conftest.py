"""Fixtures that the tests of storage share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.postgres import TestDatabase, temporary_database


@pytest.fixture
def place() -> Iterator[TestDatabase]:
    with temporary_database() as made:
        yield made
