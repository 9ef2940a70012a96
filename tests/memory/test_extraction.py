"""What a model finds is held against the gate, and brought into bounds."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.fakes.askers import ScriptedAsker, finds
from vibe_llms.base.exceptions import OutputInvalid
from vibe_llms.memory.asking import Unanswered
from vibe_llms.memory.extraction import ExtractedFact, Extraction, extract, judge
from vibe_llms.memory.reports import Refusal, Why


async def test_the_question_holds_the_words_and_the_day_and_says_how_many() -> None:
    asker = ScriptedAsker(findings=[finds("The user likes tea")])
    found = await extract(
        asker, "I like tea.", most=2, seconds=9, when=datetime(2026, 3, 4, tzinfo=UTC)
    )
    assert found == Extraction((ExtractedFact("The user likes tea"),))
    ((_, supervisor, text),) = asker.asked
    assert "Write down at most 2" in supervisor
    assert text == "The user said on 2026-03-04:\n\nI like tea."


async def test_a_model_without_an_answer_finds_nothing_and_says_why() -> None:
    asker = ScriptedAsker(findings=[OutputInvalid("three times", provider="x")])
    found = await extract(asker, "I like tea.", most=3, seconds=9)
    why = "the model gave no valid answer (1 try)"
    assert found == Extraction(failure=Unanswered(why, final=True))


def test_no_more_than_were_asked_for_are_kept() -> None:
    said = "I like tea, cake, rum and figs."
    facts = [
        ExtractedFact(f"The user likes {what}") for what in ("tea", "gold", "cake", "rum", "figs")
    ]
    found = judge(facts, said, most=2)
    assert [one.statement for one in found.facts] == ["The user likes tea", "The user likes cake"]
    assert [(one.text, one.why) for one in found.refused] == [
        ("The user likes gold", Why.UNSUPPORTED),
        ("The user likes rum", Why.SURPLUS),
        ("The user likes figs", Why.SURPLUS),
    ]


def test_what_belongs_to_a_fact_is_brought_into_bounds() -> None:
    topics = ("  a \n b ", "", "x" * 41, "a b", "password: frog7", "c", "d", "e", "f")
    finding = ExtractedFact("  The user likes   tea ", 7.5, "very " * 20, topics)
    named = ExtractedFact("The user likes tea", 0.5, " food  and drink ", ())
    (settled,) = judge([finding], "I like tea", most=3).facts
    assert settled.statement == "The user likes tea"
    assert settled.importance == 1.0
    assert settled.category == ""
    assert judge([named], "I like tea", most=3).facts[0].category == "food and drink"
    assert settled.topics == ("a b", "password: [secret]", "c", "d", "e")
    low = judge([ExtractedFact("The user likes tea", -3)], "I like tea", most=3)
    assert low.facts[0].importance == 0.0


def test_a_refused_fact_shows_no_secret() -> None:
    found = judge([ExtractedFact("The user's password is frog7")], "my password is frog7", most=3)
    assert found.refused == (Refusal("The user's password is [secret]", Why.SECRET),)
