"""A strict server of both interfaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.openai import FakeOpenAI


@pytest.fixture
def fake_openai() -> Iterator[FakeOpenAI]:
    """A strict server of Chat Completions and Responses on this machine."""
    with FakeOpenAI() as server:
        yield server
