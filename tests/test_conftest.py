"""Tests that stand apart: left out of the ordinary run, and of no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import APART, pytest_collection_modifyitems


@pytest.mark.parametrize("name", APART)
def test_tests_that_stand_apart_run_only_where_they_are_asked_for(
    name: str, request: pytest.FixtureRequest
) -> None:
    ordinary = SimpleNamespace(nodeid="test_it", get_closest_marker=lambda name: None)
    apart = request.node
    apart.add_marker(name)
    for expression, left_out in (("", [apart]), ("storm", [apart]), (f"{name} and storm", [])):
        told: list[Any] = []
        hook = SimpleNamespace(pytest_deselected=lambda items, told=told: told.extend(items))
        config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=expression), hook=hook)
        items: Any = [ordinary, apart]
        pytest_collection_modifyitems(config, items)
        assert told == left_out
        assert items == [one for one in (ordinary, apart) if one not in left_out]


def test_a_test_that_is_named_otherwise_in_every_process_ends_the_run(
    request: pytest.FixtureRequest,
) -> None:
    items: Any = [request.node, SimpleNamespace(nodeid=f"test_it[{object()}]")]
    with pytest.raises(pytest.UsageError, match="object at 0x"):
        pytest_collection_modifyitems(request.config, items)
