"""Every reason has its words, and a line for a person shows neither too much nor a secret."""

from __future__ import annotations

from vibe_llms.memory.reports import REASONS, IngestionReport, Refusal, Why


def test_every_reason_has_words() -> None:
    assert set(REASONS) == set(Why)


def test_a_refusal_is_one_short_line() -> None:
    line = str(Refusal("word \n" * 100, Why.LONG, "turn"))
    assert "\n" not in line
    assert len(line) < 150
    assert str(Refusal("Hi!", Why.SHORT)) == (
        "not remembered: 'Hi!': it is too short to be understood on its own"
    )


def test_a_report_of_nothing_says_nothing() -> None:
    assert list(IngestionReport().describe()) == []
    assert not IngestionReport().changed


def test_a_report_lists_refusals_and_failures_last() -> None:
    report = IngestionReport(refused=(Refusal("Hi!", Why.SHORT),), failures=("no network",))
    assert list(report.describe())[-1] == "no network"
