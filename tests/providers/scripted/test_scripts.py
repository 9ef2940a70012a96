"""Scripts: replies in order or by pattern, made in Python or read from TOML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vibe_llms.base.exceptions import ProviderOverloaded, RateLimited, ReplyCut, ScriptInvalid
from vibe_llms.messages.canisters import StopReason, Usage
from vibe_llms.providers.scripted.scripts import (
    FAULTS,
    Part,
    Script,
    ScriptedReply,
    produce_fault,
    produce_script,
    read_script,
)

EVERYTHING = """
[[replies]]
parts = [
  { reasoning = "Let me look." },
  { text = ["It ", "is "] },
  { text = "blue. " },
  { delay-seconds = 0.01 },
  { invocation = "look", arguments = { where = "up", deep = [1, { a = true }] } },
  { invocation = "look", arguments = '{"where": ' },
]
usage = { uncached-input-tokens = 1, cache-read-tokens = 2, cache-write-tokens = 3, output_tokens = 4, reasoning-tokens = 5 }
stop-reason = "length"

[[replies]]
when = 'forks?'
parts = [ { text = "A fork." } ]

[[replies]]
parts = [ { error = "rate-limited", message = "slowly", retry-after-seconds = 0.5 } ]

[[replies]]
parts = [ { text = "Hal" }, { cut = true } ]
"""  # noqa: E501


def test_a_script_in_toml_says_everything(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    path.write_text(EVERYTHING)
    first, forks, limited, cut = read_script(path).replies
    assert first.parts == (
        Part(reasoning="Let me look."),
        Part(text=("It ", "is ")),
        Part(text="blue. "),
        Part(delay_seconds=0.01),
        Part(invocation="look", arguments={"where": "up", "deep": [1, {"a": True}]}),
        Part(invocation="look", arguments='{"where": '),
    )
    assert first.usage == Usage(1, 2, 3, 4, 5)
    assert type(first.usage) is Usage
    assert first.reason == StopReason.LENGTH
    assert forks.when == "forks?"
    error = produce_fault(limited.parts[0], "row")
    assert isinstance(error, RateLimited)
    assert (str(error), error.retry_after) == ("row: slowly", 0.5)
    assert isinstance(produce_fault(cut.parts[1], "row"), ReplyCut)
    assert produce_fault(cut.parts[0], "row") is None


def test_a_reply_ends_as_its_parts_say() -> None:
    assert ScriptedReply.from_chunks("a").reason == StopReason.FINISHED
    assert ScriptedReply(parts=()).reason == StopReason.FINISHED
    assert ScriptedReply(parts=(Part(invocation="f"),)).reason == StopReason.INVOCATIONS
    assert ScriptedReply(parts=(), stop_reason="novel").reason == "novel"


def test_a_pattern_answers_whenever_it_fits_and_the_others_one_after_the_other() -> None:
    one, two = ScriptedReply.from_chunks("1"), ScriptedReply.from_chunks("2")
    forks = ScriptedReply(parts=(Part(text="fork"),), when=r"\bfork")
    script = Script((one, forks, two))
    assert [script.choose("x", position) for position in range(2)] == [one, two]
    assert script.choose("what is a FORK?", 0) is forks
    assert script.choose("forks", 5) is forks
    with pytest.raises(ScriptInvalid, match=r"no reply to request 3 \('what now'\)"):
        script.choose("what now", 2)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_an_error_of_its_kind(name: str) -> None:
    error = produce_fault(Part(error=name, message="m", retry_after_seconds=2), "row")
    assert type(error) is FAULTS[name]
    assert str(error).startswith("row: m")
    if isinstance(error, RateLimited | ProviderOverloaded):
        assert error.retry_after == 2


WRONG: dict[str, tuple[str, str]] = {
    "no TOML": ("[[replies", "not valid TOML"),
    "no replies": ("", "required field `replies`"),
    "unknown key": ("replies = []\ncolour = 1", "unknown field `colour`"),
    "replies that are no list": ("replies = 5", r"Expected `array`, got `int` - at `\$.replies`"),
    "a reply that is no table": ("replies = [5]", r"at `\$.replies\[0\]`"),
    "a reply without parts": ("[[replies]]\nwhen = 'a'", r"`parts` - at `\$.replies\[0\]`"),
    "an unknown part": (
        "[[replies]]\nparts = [{ text = 'a' }, { song = 'la' }]",
        r"unknown field `song` - at `\$.replies\[0\].parts\[1\]`",
    ),
    "text of a wrong type": ("[[replies]]\nparts = [{ text = 5 }]", r"parts\[0\].text"),
    "underscore": ("[[replies]]\nparts = [{ delay_seconds = 1 }]", "unknown field"),
    "a wrong pattern": (
        "replies = [{ parts = [] }, { when = '(', parts = [] }]",
        "reply 2: '\\(' is not a regular expression",
    ),
    "an unknown error": (
        "[[replies]]\nparts = [{ error = 'headache' }]",
        "reply 1: unknown error 'headache'; the errors are context-overflow,",
    ),
    "unknown usage": (
        "[[replies]]\nparts = []\nusage = { tokens = 1 }",
        r"unknown field `tokens` - at `\$.replies\[0\].usage`",
    ),
    "usage that is none": ("[[replies]]\nparts = []\nusage = 5", r"replies\[0\].usage"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_script_that_cannot_be_read_says_where(tmp_path: Path, name: str) -> None:
    text, message = WRONG[name]
    path = tmp_path / "script.toml"
    path.write_text(text)
    with pytest.raises(ScriptInvalid, match=message) as caught:
        read_script(path)
    assert str(path) in str(caught.value)


def test_a_script_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ScriptInvalid, match="cannot be read: No such file"):
        read_script(tmp_path / "none.toml")


def test_a_script_of_python_says_what_is_wrong_when_it_is_played() -> None:
    with pytest.raises(ScriptInvalid, match="unknown error 'headache'"):
        produce_fault(Part(error="headache"), "row")
    with pytest.raises(ScriptInvalid, match="not a regular expression"):
        Script((ScriptedReply(parts=(), when="("),)).choose("x", 0)


def test_plain_data_is_not_changed_by_reading_it() -> None:
    tree: dict[str, Any] = {"replies": [{"parts": [], "usage": {"output-tokens": 1}}]}
    before = repr(tree)
    assert produce_script(tree, "here").replies[0].usage == Usage(output_tokens=1)
    assert repr(tree) == before
