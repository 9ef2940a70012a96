"""The script that plants mutants: what it makes of a module, and what it reports."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / ".auxiliary" / "scripts" / "mutate"
LITTLE = '''"""A little module."""

def take(numbers: list[int], least: int = 1) -> list[int]:
    """Numbers from the least on, up to the first negative one."""
    taken: list[int] = []
    for number in numbers:
        if number < 0:
            break
        if number >= least and number not in taken:
            taken.append(number)
    return taken
'''
TESTS = """from little import take

def test_take() -> None:
    assert take([1, 3, 3, 2, -1, 5], least=2) == [3, 2]
"""
#: Each operator, by a line that it changes and what it makes of it.
CHANGES = {
    "x = a < b": {"x = (a >= b)", "x = (a <= b)"},
    "x = not a": {"x = (a)"},
    "x = a and b": {"x = (a or b)"},
    "x = a - 3": {"x = (a + 3)", "x = a - 4"},
    "x = [a for a in b if a]": {"x = [a for a in b if True]"},
    "if a: x = b": {"if True: x = b", "if False: x = b"},
    "while a: x = b": {"while False: x = b"},
    "x = True": {"x = False"},
    "x(a, b=c)": {"x(a)", "pass"},
    "await x(a)": {"pass"},
    "x.a = b": {"pass"},
    "del x[a]": {"pass"},
    "try: x = a\nexcept (A, B): x = b": {
        "try: x = a\nexcept (A,): x = b",
        "try: x = a\nexcept (B,): x = b",
    },
    "try: x = a\nexcept A: x = b": {"try: x = a\nexcept (): x = b"},
    "for a in b: continue": {"for a in b: break"},
    "x = a; y = b": {"return\n    x = a; y = b"},
    "assert a == 1; import b": {"return\n    assert a == 1; import b"},
    'x: "a < b" = f"{a < b}"': set(),
}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize("line", CHANGES)
def test_each_operator_changes_what_it_should(script: dict[str, Any], line: str) -> None:
    indented = line.replace("\n", "\n    ")
    source = f'async def work():\n    """é"""\n    {indented}\n'.encode()
    planted = {
        mutant.plant(source).decode() for mutant in script["survey_mutants"]("little.py", source)
    }
    expected = {
        source.decode().replace(indented, one.replace("\n", "\n    ")) for one in CHANGES[line]
    }
    assert {compare(one) for one in planted} == {compare(one) for one in expected}
    for one in planted:
        compile(one, "little.py", "exec")


def compare(source: str) -> str:
    return "\n".join(line.strip() for line in source.splitlines())


def test_the_choice_depends_on_the_seed_and_not_on_other_functions(script: dict[str, Any]) -> None:
    survey, choose = script["survey_mutants"], script["choose"]
    mutants = survey("little.py", LITTLE.encode())
    moved = survey("little.py", b"def other(): pass\n" + LITTLE.encode())
    few = [mutant.name for mutant in choose(mutants, 4, seed=1)]
    assert few == [mutant.name for mutant in choose(moved, 4, seed=1)]
    assert few != [mutant.name for mutant in choose(mutants, 4, seed=2)]


@pytest.mark.slow
def test_it_reports_what_the_tests_catch(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "sources/little.py").write_text(LITTLE)
    (tmp_path / "tests/test_take.py").write_text(TESTS)
    (tmp_path / "mutate.toml").write_text(
        'seed = 9\nmutants = 2\npreloaded = ["pytest"]\n'
        '[tests]\n"little.py" = ["tests/test_take.py"]\n[[equivalent]]\nmodule = "little.py"\n'
        'mutant = "take: comparison: number < 0 -> (number >= 0)"\nreason = "for this test"\n'
    )
    report = subprocess.run(
        [sys.executable, SCRIPT, "--root", tmp_path, "--settings", tmp_path / "mutate.toml"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    survived, module, every = report.splitlines()
    assert survived == "survived: little.py:7: take: boundary: number < 0 -> (number <= 0)"
    assert module.split() == ["little.py", "2", "1", "50%"]
    assert every.split()[-3:] == ["2", "1", "50%"]
    assert (tmp_path / "sources/little.py").read_text() == LITTLE


def test_every_module_and_every_test_that_it_names_is_there(
    script: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert script["main"](["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 300
