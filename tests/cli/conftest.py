"""What the tests of the command share."""

from __future__ import annotations

import pytest

from tests.fakes.anthropic import KEY, FakeAnthropic


@pytest.fixture
def claude(fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch) -> FakeAnthropic:
    """The strict fake, as the environment leads the command to it."""
    monkeypatch.setenv("VIBE_LLMS_PROVIDERS__ANTHROPIC__BASE_URL", fake_anthropic.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    return fake_anthropic
