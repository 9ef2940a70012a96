"""The measure of growth, run as its docstring says, on few rows; and what the page shows of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "documentation" / "explanation"
SCRIPT = ROOT / ".auxiliary" / "benchmarks" / "postgres.py"
OPERATIONS = [
    "append, median",
    "append, 99 of 100",
    "list",
    "search, common word",
    "search, less common word",
    "search, rare word",
    "open",
    "open in a folder",
    "recall, rows of others",
    "first recall, own rows",
    "recall, own rows",
]
MOST = 1_000_000


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What the script prints, and its exit status."""
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=250)


def read_rows(text: str) -> dict[str, list[str]]:
    """The cells of a table by the first of their line."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first: [cell.strip() for cell in cells] for first, *cells in lines}


def write_figures(folder: Path, last: float) -> Path:
    """Figures of two sizes; at the larger one, each is `last`."""
    figures = {name: {"1000": 1.0, str(MOST): last} for name in OPERATIONS}
    path = folder / "figures.json"
    path.write_text(json.dumps({"machine": "Measured here", "minutes": 1, "figures": figures}))
    return path


@pytest.mark.slow
def test_every_operation_is_measured_and_kept_and_drawn(tmp_path: Path) -> None:
    done = run("--most", "100", "--quick", "--out", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    figures = json.loads((tmp_path / "growth.json").read_bytes())["figures"]
    assert [*figures] == OPERATIONS
    assert all(values["100"] > 0 for values in figures.values())
    rows = read_rows(done.stdout)
    assert rows["append, 99 of 100"][-1] == "≤ 10 ms: for 1,000,000"
    drawn = [*ET.parse(tmp_path / "growth.svg").iter("{http://www.w3.org/2000/svg}text")]
    named = {one.text for one in drawn}
    assert named > {*OPERATIONS} - {"append, median", "open in a folder", "first recall, own rows"}


def test_the_table_says_which_bars_were_reached_and_how_much_a_tenfold_costs(
    tmp_path: Path,
) -> None:
    done = run("--figures", str(write_figures(tmp_path, 8.0)), "--out", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert read_rows(done.stdout)["list"] == ["1", "8", "x 2.00", "≤ 20 ms: reached"]


def test_a_bar_that_was_not_reached_is_named(tmp_path: Path) -> None:
    done = run("--figures", str(write_figures(tmp_path, 30.0)), "--out", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["not reached: append, 99 of 100", "not reached: list"]
    assert read_rows(done.stdout)["list"][-1] == "≤ 20 ms: not reached"


def test_the_page_shows_the_figures_that_are_kept_beside_it(tmp_path: Path) -> None:
    done = run("--figures", str(PAGES / "growth.json"), "--out", str(tmp_path))
    page = (PAGES / "performance.md").read_text("utf-8")
    _, _, rest = page.partition("<!-- figures of growth: begin -->\n")
    assert rest.partition("<!-- figures of growth: end -->")[0] == done.stdout
    assert (PAGES / "growth.svg").read_text("utf-8") == (tmp_path / "growth.svg").read_text("utf-8")
