"""The strict fake of the Gemini API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.gemini import FakeGemini


@pytest.fixture
def fake_gemini() -> Iterator[FakeGemini]:
    with FakeGemini() as server:
        yield server
        assert server.refusals == []
