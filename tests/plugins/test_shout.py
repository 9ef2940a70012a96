"""The example of the page on plugins is as short as the page says."""

from __future__ import annotations

from tests.plugins.conftest import EXAMPLE


def test_a_provider_with_all_parts_has_fewer_than_100_lines() -> None:
    lines = (EXAMPLE / "vibe_llms_shout" / "__init__.py").read_text("utf-8").splitlines()
    # As written, blank lines and docstrings included.
    assert 50 < len(lines) < 100
