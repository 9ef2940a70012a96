"""The two ways in which requests are sent."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(params=["direct", "httpx2"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How requests are sent: over our own connections, or as where httptools is missing."""
    if request.param == "httpx2":
        monkeypatch.setitem(sys.modules, "httptools", None)
    return str(request.param)
