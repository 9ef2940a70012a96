"""Budgets under concurrency: several processes at once, and one that is killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from tests.runs.spender import REPLIES, USED
from vibe_llms.base.configuration import Budget
from vibe_llms.runs.accounts import Account, Amount
from vibe_llms.runs.sqlite_budgets import SqliteBudgetStore

ROOT = Path(__file__).parents[2]
BUDGET = Budget(tokens=50 * USED, period="total")


def prepare(home: Path) -> None:
    home.mkdir(exist_ok=True)
    stalled = {"replies": [{"when": ".", "parts": [{"text": ["Yes ", "no "]}, {"stall": True}]}]}
    (home / "one.toml").write_text(tomli_w.dumps(REPLIES))
    (home / "stall.toml").write_text(tomli_w.dumps(stalled))
    configuration = {
        "budgets": {"tokens": BUDGET.tokens, "period": BUDGET.period, "wait-seconds": 120},
        "providers": {"scripted": {"scripts": {"one": "one.toml", "stall": "stall.toml"}}},
    }
    (home / "config.toml").write_text(tomli_w.dumps(configuration))


async def start(home: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.runs.spender", str(home), *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )


async def collect(processes: Sequence[asyncio.subprocess.Process]) -> list[int]:
    outputs = await asyncio.gather(*(process.communicate() for process in processes))
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [int(output) for output, _ in outputs]


async def test_200_requests_of_4_processes_never_spend_more_than_a_budget_for_50(
    tmp_path: Path,
) -> None:
    prepare(tmp_path)
    answered = sum(await collect([await start(tmp_path, "50") for _ in range(4)]))
    assert 45 <= answered <= 50
    store = SqliteBudgetStore(tmp_path / "server" / "runs.sqlite")
    try:
        (balance,) = await store.read([Account("local", BUDGET)])
    finally:
        await store.close()
    assert (balance.spent, balance.reserved) == (Amount(answered * USED), Amount())


async def test_what_a_killed_process_has_sent_is_charged_in_full(tmp_path: Path) -> None:
    prepare(tmp_path)
    process = await start(tmp_path, "stall")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begun\n"
    process.kill()
    await process.wait()
    store = SqliteBudgetStore(tmp_path / "server" / "runs.sqlite")
    try:
        (before,) = await store.read([Account("local", BUDGET)])
        await store.run(lambda database: database.execute("update reservations set until = 0"))
        (after,) = await store.read([Account("local", BUDGET)])
    finally:
        await store.close()
    assert before.spent == Amount()
    assert before.reserved.tokens > 2000
    assert (after.spent, after.reserved) == (before.reserved, Amount())
