"""What the tests of the command share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.terminal import warming
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
    """The command is forked from a process that has imported it, where its start is no subject."""
    monkeypatch.setattr(warming, "command", True)


@pytest.fixture
def cold(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is started, in a file whose other tests have it forked."""
    monkeypatch.setattr(warming, "command", False)


@pytest.fixture
def place() -> Iterator[TestDatabase]:
    with temporary_database() as made:
        yield made
