"""A plugin of pytest: the tests that `suites.toml` lists as not applicable have to fail."""

from __future__ import annotations

import fnmatch
import os
import tomllib
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that do not apply."""
    suites = tomllib.loads(Path(__file__).with_name("suites.toml").read_text())
    for listed in suites[os.environ["SUITE"]].get("not-applicable", ()):
        mark = pytest.mark.xfail(reason=listed["reason"], strict=True)
        for pattern in listed["tests"]:
            plain = f"*/{pattern.replace('[', '[[]')}"
            found = [item for item in items if fnmatch.fnmatchcase(f"/{item.nodeid}", plain)]
            if not found:
                raise pytest.UsageError(f"no test fits {pattern}, which suites.toml lists")
            for item in found:
                item.add_marker(mark)
