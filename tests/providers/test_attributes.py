"""What is known of models: patterns, layers, and which controls a model takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ConfigurationError, ControlInvalid
from vibe_llms.messages.controls import ControlRange, Controls
from vibe_llms.providers import attributes
from vibe_llms.providers.attributes import (
    ModelAttributes,
    ModelsIntegrator,
    load_attributes,
    settle_controls,
    specificity,
)


def integrate(name: str, *layers: Mapping[str, Mapping[str, Any]]) -> ModelAttributes:
    return ModelsIntegrator(layers).integrate(name)


# Patterns.


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("", 0),
        (".*", 0),
        (".+", 0),
        ("abc", 3),
        ("abc.*", 3),
        ("a+b*c?", 1),
        ("a|bc", 1),
        ("[abc]d", 1),
        ("[^]]d", 1),
        ("[]a]d", 1),
        ("[(]d", 1),
        (r"a\(b|c", 1),
        (r"\)ab", 3),
        ("a(b|)c", 2),
        (r"a\.b", 3),
        (r"a\d+", 1),
        ("a{2}", 1),
        ("^abc$", 3),
        ("a(b|cd)e", 3),
        ("a(?:bc|d)e", 3),
        ("a(bc)?d", 2),
        ("a(bc)*d", 2),
        ("a(b(c|de))f", 4),
        ("claude-(opus|sonnet)-4-5.*", 15),
        ("(?i)(.*/)?qwen-?3([-:].*)?", 5),
    ],
)
def test_a_pattern_is_as_specific_as_the_characters_that_it_demands(
    pattern: str, count: int
) -> None:
    assert specificity(pattern) == count


@settings(deadline=None)
@given(st.text(alphabet="ab()|?*.+[]\\d", max_size=12))
def test_the_specificity_of_any_pattern_is_found(pattern: str) -> None:
    assert 0 <= specificity(pattern) <= len(pattern)


def test_the_most_specific_pattern_wins_key_by_key() -> None:
    layer = {
        "claude-opus-.*": {"context-tokens": 2, "output-tokens": 2},
        ".*": {"context-tokens": 1, "output-tokens": 1, "request-bytes": 1},
        "claude-opus-5": {"context-tokens": 3},
    }
    known = integrate("claude-opus-5", layer)
    assert (known.context_tokens, known.output_tokens, known.request_bytes) == (3, 2, 1)
    assert integrate("other", layer).context_tokens == 1


def test_of_two_equals_the_later_wins() -> None:
    layer = {"a.*": {"context-tokens": 1}, ".*a": {"context-tokens": 2}}
    assert integrate("aa", layer).context_tokens == 2
    assert integrate("aa", dict(reversed(layer.items()))).context_tokens == 1


def test_a_later_layer_wins_over_a_more_specific_pattern() -> None:
    assert integrate("abc", {"abc": {"title": "x"}}, {".*": {"title": "y"}}).title == "y"


def test_a_pattern_has_to_match_the_whole_name() -> None:
    assert integrate("claude-2", {"claude": {"title": "x"}}).title == ""


def test_controls_are_merged_one_by_one_and_can_be_taken_away() -> None:
    shipped: dict[str, dict[str, Any]] = {
        ".*": {"controls": {"effort": {"choices": ["low"]}, "seed": {}}},
        "ab": {"controls": {"effort": False, "top-k": {"minimum": 1}}},
    }
    assert integrate("ab", shipped).controls == {
        "seed": ControlRange(),
        "top-k": ControlRange(minimum=1),
    }
    own = {"ab": {"controls": {"effort": {"choices": ["max"]}}}}
    controls = integrate("ab", shipped, own).controls
    assert controls is not None
    assert controls["effort"] == ControlRange(choices=("max",))
    assert integrate("ab").controls is None


def test_what_a_row_says_of_an_unknown_model_adds_to_taking_everything() -> None:
    own = {"ab": {"controls": {"response-schema": {}, "seed": False, "top-p": {"maximum": 1}}}}
    attributes = integrate("ab", {}, own)
    assert attributes.surely_takes("response-schema")
    assert attributes.takes("output-tokens")
    assert not attributes.surely_takes("output-tokens")
    assert not attributes.takes("seed")
    assert attributes.controls is not None
    assert attributes.controls["top-p"] == ControlRange(maximum=1)
    # What is known of a model is all that it takes.
    shipped: Any = {"ab": {"controls": {"seed": {}}}}
    assert not integrate("ab", shipped, own).takes("output-tokens")


def test_the_control_of_the_output_ends_with_the_models_limit() -> None:
    bounds: dict[str, dict[str, Any]] = {
        ".*": {"output-tokens": 9, "controls": {"output-tokens": {"minimum": 1}, "seed": {}}},
        "own": {"controls": {"output-tokens": {"maximum": 5}}},
        "none": {"controls": {"output-tokens": False}},
    }
    for name, maximum in (("any", 9), ("own", 5)):
        controls = integrate(name, bounds).controls
        assert controls is not None
        assert controls["output-tokens"] == ControlRange(minimum=1, maximum=maximum)
    assert integrate("none", bounds).controls == {"seed": ControlRange()}
    # A server's limit counts too, and an unknown one bounds nothing.
    controls = ModelsIntegrator([bounds]).integrate("any", further={"output-tokens": 3}).controls
    assert controls is not None
    assert controls["output-tokens"].maximum == 3
    assert integrate("any", {".*": {"controls": {"output-tokens": {}}}}).controls == {
        "output-tokens": ControlRange()
    }


def test_what_a_server_said_lies_between_the_files_and_the_user() -> None:
    models = ModelsIntegrator(
        [{"a": {"title": "file", "context-tokens": 1}}, {"a": {"retires": "x"}}]
    )
    reported = {"title": "server", "context-tokens": 2, "retires": "y"}
    known = models.integrate("a", further=reported)
    assert (known.title, known.context_tokens, known.retires) == ("server", 2, "x")
    # It is remembered, until the server says something else.
    assert models.integrate("a") is known
    assert models.integrate("a", further={"title": "later"}).title == "later"
    assert models.integrate("a").title == "later"


@pytest.mark.parametrize(
    ("entry", "words"),
    [({"context-tokens": "many"}, "context-tokens"), ({"novel": 1}, "unknown field `novel`")],
)
def test_wrong_attributes_of_a_model_are_named(entry: dict[str, Any], words: str) -> None:
    models = ModelsIntegrator([{"a": entry}], "config.toml", "providers.x.models")
    with pytest.raises(ConfigurationError, match=words) as caught:
        models.integrate("a")
    assert "invalid attributes of 'a'" in str(caught.value)
    assert (caught.value.file, caught.value.table) == ("config.toml", "providers.x.models")


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(ConfigurationError, match="is not a regular expression") as caught:
        ModelsIntegrator([{"a(": {}}], "config.toml", "providers.x.models")
    assert caught.value.key == "a("


def test_contents_are_accepted_by_kind_or_by_type() -> None:
    known = ModelAttributes(accepts=("image", "application/pdf"))
    assert known.accept("image")
    assert known.accept("file", "application/pdf")
    assert not known.accept("file", "text/csv")
    assert not known.accept("file")
    assert not known.accept("audio", "")


# Files.


def test_the_users_attributes_lie_over_the_shipped_ones(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text(
        '[providers.anthropic.models."claude-opus-5"]\ncontext-tokens = 5\n'
        '[providers.anthropic.models."claude-opus-5".controls]\neffort = false\n'
    )
    models = load_attributes(load_configuration(), "anthropic", "anthropic")
    known = models.integrate("claude-opus-5")
    assert known.context_tokens == 5
    assert known.output_tokens == 128_000
    assert known.controls is not None
    assert "effort" not in known.controls
    # Another row of the same module has none of it.
    other = load_attributes(load_configuration(), "gateway", "anthropic")
    assert other.integrate("claude-opus-5").context_tokens == 1_000_000


def test_without_files_nothing_is_known() -> None:
    models = load_attributes(load_configuration(), "mine")
    assert models.integrate("anything") == ModelAttributes()


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (5, "models must be a table"),
        ({"a": 5}, "the attributes must be a table"),
        ({"a": {"context-tokens": "many"}}, "context-tokens"),
        ({"a": {"controls": {"seed": {"least": 1}}}}, "least"),
        ({"a": {"controls": {"seed": True}}}, "seed"),
        ({"a(": {}}, "is not a regular expression"),
    ],
)
def test_wrong_attributes_in_the_users_file_are_named(models: Any, words: str) -> None:
    configuration = load_configuration(overrides={"providers": {"mine": {"models": models}}})
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_attributes(configuration, "mine")
    assert caught.value.table.startswith("providers.mine")


# Controls.


TAKES = ModelAttributes(
    controls={
        "effort": ControlRange(choices=("low", "high")),
        "seed": ControlRange(minimum=1, maximum=9),
        "response-schema": ControlRange(),
        "stop": ControlRange(),
    }
)


def test_what_a_model_takes_is_kept_with_the_defaults_below_it() -> None:
    settled, left_out = settle_controls(
        Controls(effort="low", extras={"a": {"k": 1}}),
        Controls(effort="high", seed=5, extras={"a": {"l": 2}, "b": {}}),
        TAKES,
        "m",
    )
    assert settled == Controls(effort="low", seed=5, extras={"a": {"k": 1, "l": 2}, "b": {}})
    assert left_out == ()


@pytest.mark.parametrize(
    ("controls", "control", "words"),
    [
        (Controls(temperature=0.5), "temperature", "accepts: effort, response-schema, seed, stop"),
        (Controls(effort="much"), "effort", "one of low, high"),
        (Controls(seed=0), "seed", "at least 1"),
        (Controls(seed=10), "seed", "at most 9"),
        (Controls(seed="x"), "seed", "Expected `int"),  # type: ignore[arg-type]
        (Controls(response_schema={"a": object()}), "response-schema", "object is unsupported"),
        (Controls(response_schema={"a": {(1,): 2}}), "response-schema", "keys"),
    ],
)
def test_what_a_model_does_not_take_is_refused_or_left_out(
    controls: Controls, control: str, words: str
) -> None:
    with pytest.raises(ControlInvalid, match=words) as caught:
        settle_controls(controls, Controls(), TAKES, "m")
    assert (caught.value.control, caught.value.model) == (control, "m")
    settled, (reported,) = settle_controls(Controls(stop=("x",)), controls, TAKES, "m")
    assert settled == Controls(stop=("x",))
    assert reported.startswith(f"the configured control {control} = ")
    assert words in reported


def test_a_model_that_takes_none_says_so() -> None:
    with pytest.raises(ControlInvalid, match=r"\(it accepts: none\)"):
        settle_controls(Controls(seed=1), Controls(), ModelAttributes(controls={}), "m")


def test_where_nothing_is_known_every_control_is_sent() -> None:
    controls = Controls(temperature=9.0, seed=-5, response_schema={"a": "\ud800"})
    assert settle_controls(controls, Controls(), ModelAttributes(), "m") == (controls, ())


def test_a_control_of_the_call_counts_although_it_repeats_a_default() -> None:
    with pytest.raises(ControlInvalid):
        settle_controls(Controls(top_k=5), Controls(top_k=5), TAKES, "m")


CIRCLE: dict[str, Any] = {}
CIRCLE["again"] = CIRCLE


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (5, "it must be a table"),
        (["a"], "it must be a table"),
        ({"a": object()}, "object is unsupported"),
        ({"a": {(1,): 2}}, "keys"),
        (CIRCLE, "recursion"),
    ],
)
def test_extras_that_cannot_be_sent_are_refused(extra: Any, words: str) -> None:
    with pytest.raises(ControlInvalid, match=words) as caught:
        settle_controls(Controls(extras={"row": extra}), Controls(), ModelAttributes(), "m")
    assert (caught.value.control, caught.value.model) == ("extras", "m")


def test_extras_with_lone_surrogates_are_mended_when_they_are_sent() -> None:
    controls = Controls(extras={"row": {"a": "\ud800"}})
    assert settle_controls(controls, Controls(), ModelAttributes(), "m") == (controls, ())


def test_a_model_surely_takes_only_what_is_known_of_it() -> None:
    assert TAKES.surely_takes("response-schema")
    assert not TAKES.surely_takes("top-k")
    assert not ModelAttributes().surely_takes("response-schema")
    doubtful = ModelAttributes(controls={"response-schema": ControlRange(sure=False)})
    assert not doubtful.surely_takes("response-schema")
    schema = Controls(response_schema={"type": "object"})
    assert settle_controls(schema, Controls(), doubtful, "m") == (schema, ())


def test_patterns_of_several_files_are_taken_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "providers").mkdir()
    (tmp_path / "providers" / "one.toml").write_text(
        '[models."a.*"]\ncontext-tokens = 1\noutput-tokens = 1\n[models."b"]\ntitle = "b"\n'
    )
    (tmp_path / "providers" / "two.toml").write_text(
        '[models."a.*"]\noutput-tokens = 2\n[models.".*"]\ncontext-tokens = 5\n'
    )
    configuration = load_configuration()
    monkeypatch.setattr(attributes, "shipped_folder", lambda: tmp_path)
    models = load_attributes(configuration, "mine", "one", "two")
    assert models.integrate("ab") == ModelAttributes(context_tokens=1, output_tokens=2)
    assert models.integrate("b") == ModelAttributes(context_tokens=5, title="b")
