"""A model by a part of its name."""

from __future__ import annotations

import pytest

from vibe_llms.base.exceptions import ModelNotFound
from vibe_llms.providers.matching import match_model, suggest_models

_KNOWN = [
    ("openai", "gpt-5"),
    ("openai", "gpt-5-mini"),
    ("chat", "gpt-5"),
    ("chat", "gpt-5.5"),
    ("anthropic", "claude-sonnet-5"),
    ("anthropic", "claude-opus-5"),
]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        # A whole name counts before a part, and of two rows the first.
        ("gpt-5", ("openai", "gpt-5")),
        ("GPT-5", ("openai", "gpt-5")),
        ("mini", ("openai", "gpt-5-mini")),
        ("gpt-5.5", ("chat", "gpt-5.5")),
        ("Sonnet", ("anthropic", "claude-sonnet-5")),
        ("claude-opus-5", ("anthropic", "claude-opus-5")),
        ("gpt-4", None),
        ("", None),
    ],
)
def test_a_name_means_the_one_model_that_has_it(name: str, found: tuple[str, str] | None) -> None:
    assert match_model(name, _KNOWN) == found


def test_a_part_that_several_have_is_refused_with_their_names() -> None:
    expected = r"'claude' matches anthropic/claude-sonnet-5 or anthropic/claude-opus-5; write more"
    with pytest.raises(ModelNotFound, match=expected):
        match_model("claude", _KNOWN)
    many = [("row", f"model-{number}") for number in range(30)]
    with pytest.raises(ModelNotFound, match="row/model-5 or 24 more; write more"):
        match_model("model", many)


def test_close_names_are_suggested() -> None:
    assert suggest_models("gtp-5", _KNOWN)[0] == "openai/gpt-5"
    assert suggest_models("claude-sonet-5", _KNOWN)[0] == "anthropic/claude-sonnet-5"
    assert suggest_models("nonesuch", _KNOWN) == []
