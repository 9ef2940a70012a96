"""Tests that run only on request are left out of no other run, and a test that hangs ends alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import APART, pytest_collection_modifyitems


@pytest.mark.parametrize("name", APART)
def test_separate_tests_run_only_when_they_are_asked_for(
    name: str, request: pytest.FixtureRequest
) -> None:
    ordinary = SimpleNamespace(nodeid="test_it", iter_markers=lambda: iter(()))
    apart = request.node
    apart.add_marker(name)
    for expression, left_out in (("", [apart]), ("storm", [apart]), (f"{name} and storm", [])):
        reported: list[Any] = []
        hook = SimpleNamespace(
            pytest_deselected=lambda items, reported=reported: reported.extend(items)
        )
        config: Any = SimpleNamespace(
            option=SimpleNamespace(markexpr=expression, nightly=False), hook=hook
        )
        items: Any = [ordinary, apart]
        pytest_collection_modifyitems(config, items)
        assert reported == left_out
        assert items == [one for one in (ordinary, apart) if one not in left_out]


def test_a_test_that_is_named_otherwise_in_every_process_ends_the_run(
    request: pytest.FixtureRequest,
) -> None:
    items: Any = [request.node, SimpleNamespace(nodeid=f"test_it[{object()}]")]
    with pytest.raises(pytest.UsageError, match="object at 0x"):
        pytest_collection_modifyitems(request.config, items)


HANGING = """
import asyncio, threading, time
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
async def opened():
    yield []
    print("closed")

async def wait_here():
    await asyncio.Event().wait()

async def test_task(opened):
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(wait_here())

def test_thread():
    thread = threading.Thread(target=time.sleep, args=[60], daemon=True)
    thread.start()
    thread.join()

@pytest.mark.timeout(60)
async def test_another(opened):
    assert opened == []
"""


def test_every_test_has_a_time_limit(request: pytest.FixtureRequest) -> None:
    assert float(request.config.getini("timeout")) == 120


def test_a_test_that_hangs_fails_with_its_stacks_and_the_others_run(tmp_path: Path) -> None:
    file = tmp_path / "test_hanging.py"
    file.write_text(HANGING)
    command = [sys.executable, "-m", "pytest", "-p", "tests.faults.waits", "-p", "no:randomly"]
    options = ["-n0", "-rA", "--timeout=2", "--rootdir", str(tmp_path), "-o", "anyio_mode=auto"]
    options += ["--basetemp", str(tmp_path / "temporary")]
    done = subprocess.run(
        [*command, *options, str(file)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        timeout=60,
        check=False,
    )
    outcomes = {name: word for word, name in re.findall(r"^([A-Z]+) .*::(\w+)", done.stdout, re.M)}
    assert outcomes == {"test_task": "FAILED", "test_thread": "FAILED", "test_another": "PASSED"}
    assert "in wait_here" in done.stdout
    assert done.stdout.count("\nclosed\n") == 2
