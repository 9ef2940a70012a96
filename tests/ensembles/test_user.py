"""The tool with which a model asks the user, in a turn that someone attends."""

from __future__ import annotations

import pytest

from tests.fakes.models import model_of, says
from vibe_llms import ElicitationAnswer, ElicitationRequest, Elicitor, open_session
from vibe_llms.invocation.questions import decline
from vibe_llms.messages.canisters import ResultCanister
from vibe_llms.testing import Part, ScriptedReply


async def ask(elicitor: Elicitor | None, arguments: dict[str, object] | str) -> ResultCanister:
    """The result of a call of the tool."""
    call = ScriptedReply(parts=(Part(invocation="user/ask", arguments=arguments),))
    async with open_session(elicitor=elicitor) as session:
        conversation = await session.begin(
            model_of(call, says("Fine.")), ensembles=["user"], save=False
        )
        turn = await conversation.converse("Go on.")
    assert turn.text == "Fine."
    (result,) = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    return result


async def test_the_answer_of_the_user_is_the_result() -> None:
    asked: list[ElicitationRequest] = []

    def answer(request: ElicitationRequest) -> ElicitationAnswer:
        asked.append(request)
        return ElicitationAnswer("accept", {"answer": "Green."})

    result = await ask(answer, {"question": "Which color?"})
    assert (result.text, result.failed) == ("Green.", False)
    ((field,),) = [one.fields for one in asked]
    assert (asked[0].ensemble, asked[0].message) == ("the model", "Which color?")
    assert (field.kind, field.required) == ("text", True)


async def test_choices_are_offered_once_each() -> None:
    asked: list[ElicitationRequest] = []

    def answer(request: ElicitationRequest) -> ElicitationAnswer:
        asked.append(request)
        return ElicitationAnswer("decline")

    result = await ask(answer, {"question": "Which?", "choices": ["red", "", "blue", "red"]})
    assert (result.text, result.failed) == ("The user declined to answer.", True)
    assert asked[0].fields[0].choices == (("red", "red"), ("blue", "blue"))


@pytest.mark.parametrize("elicitor", [None, decline])
async def test_without_a_user_the_model_is_told(elicitor: Elicitor | None) -> None:
    result = await ask(elicitor, {"question": "Which?"})
    assert (result.text, result.failed) == ("No user can be asked now.", True)


@pytest.mark.parametrize("arguments", ["{", {}, {"question": 3}])
async def test_wrong_arguments_are_not_asked(arguments: dict[str, object] | str) -> None:
    def answer(_: ElicitationRequest) -> ElicitationAnswer:
        raise AssertionError("the user is asked")

    assert "not valid" in (await ask(answer, arguments)).text
