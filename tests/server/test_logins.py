"""Counting of failed logins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.conftest import serving
from vibe_llms.server import logins
from vibe_llms.server.failures import Rejected


async def test_a_slow_login_succeeds_although_many_others_have_failed_meanwhile(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(home) as served:
        counted = served.running._core.logins
        monkeypatch.setattr(logins, "_FAILURE_SECONDS", 0.0)
        with counted.attempt():
            for _ in range(logins._MOST_FAILURES):
                with pytest.raises(KeyError), counted.attempt():
                    raise KeyError
        monkeypatch.setattr(logins, "_FAILURE_SECONDS", 600.0)
        with pytest.raises(Rejected), counted.attempt():
            pass


async def test_logins_that_succeed_do_not_count(home: Path) -> None:
    async with serving(home) as served:
        for _ in range(logins._MOST_FAILURES * 2):
            with served.running._core.logins.attempt():
                pass
