"""What the tests of the command share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli import terminal
from tests.fakes.anthropic import KEY, FakeAnthropic
from tests.fakes.postgres import TestDatabase, temporary_database


@pytest.fixture
def claude(fake_anthropic: FakeAnthropic, monkeypatch: pytest.MonkeyPatch) -> FakeAnthropic:
    """The strict fake, as the environment leads the command to it."""
    monkeypatch.setenv("VIBE_LLMS_PROVIDERS__ANTHROPIC__BASE_URL", fake_anthropic.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    return fake_anthropic


@pytest.fixture
def warm(warm_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the command from a process that has imported it, in tests of anything but its start."""
    monkeypatch.setattr(terminal, "forks_command", True)


@pytest.fixture
def cold(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the command anyway, in a file whose other tests fork it."""
    monkeypatch.setattr(terminal, "forks_command", False)


@pytest.fixture
def place() -> Iterator[TestDatabase]:
    with temporary_database() as made:
        yield made
