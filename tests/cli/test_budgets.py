"""The command `budgets`: what users may spend, and have spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import invoke

ROWS = """\
[budgets]
tokens = 1_000_000
period = "total"

[budgets.users.anna]
money = 2.5
period = "month"

[agents.coder]
model = "scripted/demo"
budget = { tokens = 50_000, period = "week" }
"""


@pytest.fixture
def file(home: Path) -> Path:
    home.mkdir()
    path = home / "config.toml"
    path.write_text(ROWS)
    return path


def test_budgets_show_what_was_spent_and_is_left(file: Path) -> None:
    assert invoke("chat", "-A", "coder", "Hello").status == 0
    rows = {(row["user"], row["agent"]): row for row in invoke("budgets", "--json").json}
    assert set(rows) == {("local", ""), ("local", "coder"), ("anna", ""), ("anna", "coder")}
    spent = rows["local", ""]["spent"]
    assert spent > 0
    assert rows["local", "coder"]["spent"] == spent
    assert rows["local", "coder"]["left"] == 50_000 - spent
    assert (rows["local", ""]["ends"], rows["local", ""]["reserved"]) == (None, 0)
    anna = rows["anna", ""]
    assert (anna["unit"], anna["limit"], anna["left"]) == ("dollars", 2.5, 2.5)
    lines = invoke("budgets").output.splitlines()
    assert (
        lines[0].split()
        == (
            f"local {spent:,} of 1,000,000 tokens in total, 0 reserved, {1_000_000 - spent:,} left"
        ).split()
    )
    assert lines[2].startswith("anna ")
    assert "0.0 of 2.5 dollars a month" in lines[2] or "0 of 2.5 dollars a month" in lines[2]


def test_without_budgets_a_note_says_where_to_set_one(home: Path) -> None:
    outcome = invoke("budgets")
    assert (outcome.status, outcome.output) == (0, "")
    assert "no budgets; set one in [budgets]" in outcome.errors
    assert not (home / "server").exists()


def test_an_exceeded_budget_is_reported_with_the_time_to_wait(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text('[budgets]\ntokens = 3300\nperiod = "day"\n')
    outcome = invoke("chat", "-m", "scripted/demo", "x" * 4000)
    assert outcome.status == 75
    assert "the request alone exceeds it" in outcome.errors
