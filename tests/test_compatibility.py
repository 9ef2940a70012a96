"""The programs and suites that `.auxiliary/compatibility` runs: its tables are whole."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".auxiliary" / "compatibility"
SUITES: Mapping[str, Mapping[str, Any]] = tomllib.loads((FOLDER / "suites.toml").read_text())
KEYS = {
    *("base-path", "folder", "not-applicable", "npm", "options", "packages", "quick"),
    *("source", "tests"),
}


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_says_what_it_needs_and_what_it_runs(name: str) -> None:
    suite = SUITES[name]
    assert suite.keys() <= KEYS
    assert suite.get("packages") or suite.get("npm")
    if "source" not in suite:
        for test in suite["tests"]:
            assert (FOLDER / suite.get("folder", name) / test).is_file()
    for listed in suite.get("not-applicable", ()):
        assert listed.keys() == {"reason", "tests"}
        assert listed["reason"].endswith(".")


@pytest.mark.parametrize("name", SUITES)
def test_versions_are_pinned_but_those_of_the_tools_of_tests(name: str) -> None:
    for package in SUITES[name].get("packages", ()):
        assert re.search(r"==\d|^(http-snapshot|inline-snapshot|pytest|respx|rich|trio)", package)
    for package in SUITES[name].get("npm", ()):
        assert re.search(r"@\d+(\.\d+){2}$|^node@\d+$", package)


def test_each_program_is_a_suite_and_has_an_adapter() -> None:
    programs = {
        name.replace("-", "_") for name, one in SUITES.items() if one.get("folder") == "programs"
    }
    found = {path.stem for path in (FOLDER / "programs" / "adapters").glob("[a-z]*.py")}
    assert found == programs


def test_the_newest_versions_have_no_pins() -> None:
    unpin = runpy.run_path(str(FOLDER / "run"))["unpin"]
    assert unpin(["openai[aiohttp]==3.57.0", "pytest>=9", "@openai/codex@0.171.0", "node@22"]) == [
        "openai[aiohttp]",
        "pytest>=9",
        "@openai/codex",
        "node@22",
    ]


def test_continuous_integration_runs_suites_that_there_are() -> None:
    (line,) = re.findall(
        r"compatibility/run --quick (.*?) \|\|", (ROOT / ".ci" / "run").read_text()
    )
    assert {"anthropic", "codex", "openai"} <= set(line.split()) <= SUITES.keys()
