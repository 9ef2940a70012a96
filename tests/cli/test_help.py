"""The command `help`, the other way round of `--help`."""

from __future__ import annotations

import pytest

from tests.cli.command import invoke
from vibe_llms.cli.commands import COMMANDS


@pytest.mark.parametrize("path", [[], ["list"], ["keys"], ["keys", "set"], ["config", "check"]])
def test_help_prints_what_the_option_prints(path: list[str]) -> None:
    outcome = invoke("help", *path)
    assert outcome == invoke(*path, "--help")
    assert outcome.status == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (["lst"], "vibe-llms has no command 'lst'; did you mean 'list'?"),
        (["nonesuch"], "vibe-llms has no command 'nonesuch'."),
        (["keys", "sett"], "vibe-llms keys has no command 'sett'; did you mean 'set'?"),
        (["list", "x"], "vibe-llms list has no command 'x'."),
    ],
)
def test_help_for_what_there_is_not_is_bad_usage(path: list[str], words: str) -> None:
    outcome = invoke("help", *path)
    assert outcome.status == 2
    assert words in outcome.error


def test_a_prompt_may_begin_with_the_word() -> None:
    for words in (["help", "me", "with", "this"], ["help me with this"]):
        assert invoke(*words).output.startswith("I am **scripted")


def test_the_words_of_help_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cli.test_completion import names

    assert names("vibe-llms help ", monkeypatch) == list(COMMANDS)
    assert names("vibe-llms help keys s", monkeypatch) == ["set"]
    assert names("vibe-llms help list s", monkeypatch) == []
