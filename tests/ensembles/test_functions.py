"""Functions of a program as an ensemble."""

from __future__ import annotations

import pytest

from tests.fakes.models import model_of, says
from vibe_llms.base.exceptions import ArgumentsInvalid, InvokerInvalid
from vibe_llms.ensembles.functions import FunctionEnsemble
from vibe_llms.messages.canisters import ResultCanister
from vibe_llms.session.core import Session
from vibe_llms.testing import Part, ScriptedReply


@pytest.fixture
def sums() -> FunctionEnsemble:
    sums = FunctionEnsemble("sums")

    @sums.register(aliases=["plus"])
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    @sums.register(name="double", approval="ask")
    def twice(a: int) -> int:
        return 2 * a

    assert add(1, 2) == 3
    return sums


def test_functions_are_registered_under_the_name_of_the_ensemble(sums: FunctionEnsemble) -> None:
    assert [one.name for one in sums.invokers] == ["sums/add", "sums/double"]
    assert {one.ensemble for one in sums.invokers} == {"sums"}
    assert [one.approval for one in sums.invokers] == ["allow", "ask"]


@pytest.mark.parametrize("name", ["sums/add", "add", "plus", "Sums Add", "sums__add"])
def test_a_function_is_found_by_its_names(sums: FunctionEnsemble, name: str) -> None:
    assert sums.access(name).name == "sums/add"


def test_what_is_missing_is_reported_with_what_exists(sums: FunctionEnsemble) -> None:
    with pytest.raises(InvokerInvalid, match="no tool 'minus'; known tools: sums/add, sums/dou"):
        sums.access("minus")


def test_two_functions_of_one_name_are_refused(sums: FunctionEnsemble) -> None:
    with pytest.raises(InvokerInvalid, match="two tools are called 'sums/add'"):
        sums.register(name="add")(lambda: None)
    with pytest.raises(InvokerInvalid, match="two tools are called 'plus'"):
        sums.register(name="other", aliases=["plus"])(lambda: None)
    assert len(sums.invokers) == 2


async def test_a_function_can_be_called_without_a_model(sums: FunctionEnsemble) -> None:
    assert (await sums.invoke("add", '{"a": 2, "b": 3}')).text == "5"
    with pytest.raises(ArgumentsInvalid):
        await sums.invoke("add", '{"a": "2"}')


def test_the_tools_are_exported_for_others(sums: FunctionEnsemble) -> None:
    (add, _) = sums.export()
    assert add["type"] == "function"
    assert add["function"]["name"] == "sums/add"
    assert add["function"]["parameters"]["required"] == ["a"]


async def test_a_conversation_calls_them(sums: FunctionEnsemble, session: Session) -> None:
    call = ScriptedReply(parts=(Part(invocation="sums/add", arguments={"a": 2}),))
    conversation = await session.begin(model_of(call, says("3.")), ensembles=[sums], save=False)
    turn = await conversation.converse("2 and 1?")
    (result,) = (one for one in turn.canisters if isinstance(one, ResultCanister))
    assert (result.text, turn.text) == ("3", "3.")
    twin = await conversation.fork()
    assert [one.name for one in twin.invokers.values()] == ["sums/add", "sums/double"]


async def test_arguments_may_be_values(sums: FunctionEnsemble) -> None:
    (tool, *_) = sums.invokers
    written = await sums.invoke(tool.name, '{"a": 1, "b": 2}')
    assert (await sums.invoke(tool.name, {"a": 1, "b": 2})).text == written.text


def test_the_tools_are_described_with_their_aliases(sums: FunctionEnsemble) -> None:
    described = sums.describe()
    assert [one["name"] for one in described] == [one.name for one in sums.invokers]
    assert described[0]["aliases"] == list(sums.invokers[0].aliases)
    assert described[0]["arguments_schema"]["type"] == "object"
