"""All benchmarks by one command, as ratios against raw baselines in the same run.

    python .auxiliary/benchmarks/run.py               everything, some minutes
    python .auxiliary/benchmarks/run.py --quick       fewer runs
    python .auxiliary/benchmarks/run.py streaming     one part of those below
    python .auxiliary/benchmarks/run.py --page        also write the table of the performance page

Figures are medians; a ratio is the median of the ratios pair by pair. Leaves with 1 where a bar was
not held.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from archives import measure_archives
from context_turns import measure_compacting, measure_deciding
from crowds import measure_crowds, measure_first_chunk
from measure import Row
from memory_building import measure_building
from startup import (
    measure_agent,
    measure_help,
    measure_imports,
    measure_oneshot,
    measure_rows,
)
from streaming import measure_chunks, measure_contract, measure_crowd
from tools import measure_tools
from turns import measure_first_turns, measure_turns

from page import PAGE, describe_machine, number, write_between

PARTS: dict[str, tuple[tuple[Callable[[int], list[Row]], int], ...]] = {
    # First, while the memory of this process is as an application has it.
    "archives": ((measure_archives, 9),),
    "startup": (
        (measure_imports, 15),
        (measure_help, 15),
        (measure_agent, 15),
        (measure_oneshot, 15),
        (measure_rows, 15),
    ),
    "streaming": ((measure_chunks, 15), (measure_contract, 15), (measure_crowd, 9)),
    "crowds": ((measure_first_chunk, 9), (measure_crowds, 9)),
    "tools": ((measure_tools, 15),),
    "memory": ((measure_building, 3),),
    "context": ((measure_deciding, 9), (measure_compacting, 9)),
    "turns": ((measure_turns, 25), (measure_first_turns, 9)),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="only these parts")
    parser.add_argument("--quick", action="store_true", help="a third of the runs")
    parser.add_argument("--page", action="store_true", help=f"write the table of {PAGE.name}")
    options = parser.parse_args()
    rows: list[Row] = []
    for part in options.parts or PARTS:
        for function, runs in PARTS[part]:
            for row in function(max(3, runs // 3) if options.quick else runs):
                rows.append(row)
                print(draw(row), flush=True)
    return conclude(rows, page=options.page)


def conclude(rows: list[Row], *, page: bool, figures: str = "figures") -> int:
    """Write the table of the page, if it is asked for, and name the bars that were not held."""
    if page:
        write_page(rows, figures)
    missed = [row for row in rows if not row.held]
    for row in missed:
        print(f"not held: {row.what}", file=sys.stderr)
    return 1 if missed else 0


def draw(row: Row) -> str:
    figures = ", ".join(f"{name} {number(value)} {row.unit}" for name, value in row.figures.items())
    ratios = ", ".join(
        f"{value:.2f} of {name}" + (f" (bar {row.bars[name]:.2f})" if name in row.bars else "")
        for name, value in row.ratios.items()
    )
    mark = "  " if row.held else "! "
    return f"{mark}{row.what}: {figures}" + (f"; {ratios}" if ratios else "")


def write_page(rows: list[Row], figures: str = "figures") -> None:
    """Write the table between the marks of this name."""
    lines = ["| what | figures (median) | ratio | bar |", "| --- | --- | --- | --- |"]
    for row in rows:
        measured = ", ".join(
            f"{name} {number(value)} {row.unit}" for name, value in row.figures.items()
        )
        ratios = ", ".join(f"{value:.2f} of {name}" for name, value in row.ratios.items())
        bars = ", ".join(f"≤ {bar:.2f} of {name}" for name, bar in row.bars.items())
        lines.append(f"| {row.what} | {measured} | {ratios} | {bars} |")
    write_between([describe_machine(), "", *lines], figures)


if __name__ == "__main__":
    sys.exit(main())
