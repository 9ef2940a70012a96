"""The performance page, into which benchmarks write their tables."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime

from measure import HERE

PAGE = HERE.parent.parent / "documentation" / "explanation" / "performance.md"


def describe_machine() -> str:
    """When, with what and where something is measured."""
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} with Python {platform.python_version()} on "
        f"{os.cpu_count()} shared cores ({platform.machine()}, {platform.system()})."
    )


def write_between(lines: Iterable[str], figures: str) -> None:
    """Write lines of the page between the marks of this name."""
    begin, end = f"<!-- {figures}: begin -->", f"<!-- {figures}: end -->"
    text = PAGE.read_text()
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    PAGE.write_text(f"{head}{begin}\n" + "\n".join(lines) + f"\n{end}{tail}")


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
