"""The tools of a conversation: offered, withheld, and offered again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from vibe_llms.base.exceptions import InvokerInvalid, RequestError
from vibe_llms.conversations.tools import Toolbox
from vibe_llms.ensembles.functions import FunctionEnsemble
from vibe_llms.invocation.ensembles import Ensemble
from vibe_llms.invocation.invokers import Invoker


def produce(*names: str) -> FunctionEnsemble:
    ensemble = FunctionEnsemble("sums")
    for name in names:
        ensemble.register(name=name)(lambda: None)
    return ensemble


def alone() -> None:
    """A tool of its own."""


@pytest.fixture
def toolbox() -> Toolbox:
    return Toolbox(own=(Invoker.from_function(alone),), ensembles=(produce("add", "take"),))


async def open_nothing(name: str) -> Sequence[Ensemble]:
    raise AssertionError(name)


def test_all_tools_are_offered(toolbox: Toolbox) -> None:
    assert list(toolbox.offered) == ["alone", "sums/add", "sums/take"]


async def test_a_tool_is_withheld_and_offered_again(toolbox: Toolbox) -> None:
    toolbox = toolbox.withhold("sums/add")
    assert list(toolbox.offered) == ["alone", "sums/take"]
    assert list(toolbox.all_tools) == ["alone", "sums/add", "sums/take"]
    toolbox = await toolbox.offer("sums/add", open_nothing)
    assert list(toolbox.offered) == ["alone", "sums/add", "sums/take"]


async def test_an_ensemble_is_withheld_as_a_whole(toolbox: Toolbox) -> None:
    toolbox = toolbox.withhold("sums").withhold("alone")
    assert not toolbox.offered
    toolbox = await toolbox.offer("sums/add", open_nothing)
    assert list(toolbox.offered) == ["sums/add"]
    toolbox = await toolbox.offer("sums", open_nothing)
    assert list(toolbox.offered) == ["sums/add", "sums/take"]


async def test_an_ensemble_is_opened_when_it_is_first_offered() -> None:
    toolbox = Toolbox()

    async def open_row(name: str) -> Sequence[Ensemble]:
        assert name == "sums"
        return [produce("add")]

    toolbox = await toolbox.offer("sums", open_row)
    assert list(toolbox.offered) == ["sums/add"]


async def test_what_is_missing_is_reported_with_what_exists(toolbox: Toolbox) -> None:
    words = "or ensemble 'sums/x' not found; known: sums, alone, sums/add, sums/take"
    with pytest.raises(RequestError, match=words):
        toolbox.withhold("sums/x")
    with pytest.raises(RequestError, match=words):
        await toolbox.offer("sums/x", open_nothing)


def test_an_ensemble_lists_its_tools_only_where_one_is_meant(toolbox: Toolbox) -> None:
    every = toolbox.all_tools
    assert toolbox.instruct(every.values()) == []
    (sums,) = toolbox.ensembles
    sums.instructions = "Sums only."  # type: ignore[attr-defined]
    assert toolbox.instruct(every.values()) == ["Sums only."]
    assert toolbox.instruct([every["alone"]]) == []
    sums.instructions = ""  # type: ignore[attr-defined]
    assert toolbox.instruct(every.values()) == []


def test_a_copy_has_a_life_of_its_own(toolbox: Toolbox) -> None:
    toolbox = toolbox.withhold("alone")
    other = toolbox.withhold("sums")
    assert list(toolbox.offered) == ["sums/add", "sums/take"]
    assert not other.offered


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvokerInvalid, match="two tools"):
        _ = Toolbox(ensembles=(produce("add"), produce("add"))).offered


async def test_tools_that_are_singled_out_stand_for_their_ensemble(toolbox: Toolbox) -> None:
    toolbox = toolbox.single_out(["sums/add"])
    assert list(toolbox.offered) == ["alone", "sums/add"]
    (sums,) = toolbox.ensembles
    assert isinstance(sums, FunctionEnsemble)
    sums.register(name="late")(lambda: None)
    assert list(toolbox.offered) == ["alone", "sums/add"]
    assert list(toolbox.withhold("sums/add").offered) == ["alone"]
    assert list(toolbox.withhold("sums").offered) == ["alone"]
    whole = await toolbox.offer("sums", open_nothing)
    assert list(whole.offered) == ["alone", "sums/add", "sums/take", "sums/late"]
    with pytest.raises(RequestError, match="'sums/x' not found"):
        toolbox.single_out(["sums/x"])
