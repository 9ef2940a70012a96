"""Names of tools on the wire: allowed, unlike each other, and the same every time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.providers.tool_names import assimilate_names, nativize_name

_ALLOWED = re.compile(r"[a-zA-Z0-9_-]{1,64}")
#: Names that are near to each other, and texts of all kinds.
_NAMES = st.text("ab_-/. é\ud800", min_size=1, max_size=70) | st.text(min_size=1, max_size=90)


@pytest.mark.parametrize(
    ("name", "native"),
    [
        ("now", "now"),
        ("time/now", "time__now"),
        ("get-weather_2", "get-weather_2"),
        ("a" * 64, "a" * 64),
    ],
)
def test_a_name_that_the_wire_allows_stays_as_it_is(name: str, native: str) -> None:
    assert nativize_name(name) == native


@pytest.mark.parametrize("name", ["a" * 65, "é", "a b", "a__b", "a/b/c", "_/a", "a/_b", "\ud800"])
def test_any_other_is_identified_by_a_hash(name: str) -> None:
    native = nativize_name(name)
    assert _ALLOWED.fullmatch(native)
    assert re.search(r"_[0-9a-f]{12}\Z", native)


@given(_NAMES, _NAMES)
def test_no_two_names_become_one(one: str, other: str) -> None:
    assert _ALLOWED.fullmatch(nativize_name(one))
    assert (nativize_name(one) == nativize_name(other)) == (one == other)


def test_the_names_that_are_offered_are_found_again() -> None:
    def now() -> str:
        return ""

    names = ["now", "a__b", "x" * 60]
    invokers = [Invoker.from_function(now, name=name) for name in names]
    found = assimilate_names(invokers)
    assert [found[nativize_name(name)] for name in names] == names
