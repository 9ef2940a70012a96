"""Fixtures that the tests of runs share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.runs.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        yield Rig(tmp_path, stack)
