"""What servers ask: a person's answers, a model's words, folders; in both eras of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ensembles.mcp.servers import ASKING, ERAS, opened
from tests.fakes.models import model_of, says
from vibe_llms import open_session
from vibe_llms.base.exceptions import AnswerInvalid, EnsembleFailed, ModelNotFound
from vibe_llms.conversations.hosts import EnsembleHost
from vibe_llms.ensembles.mcp.answering import Answerer
from vibe_llms.ensembles.mcp.settings import McpSettings
from vibe_llms.invocation.approval import ApprovalRequest, Decision, Gatekeeper
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.invocation.limits import SharedLimits
from vibe_llms.invocation.questions import (
    ElicitationAnswer,
    ElicitationRequest,
    Elicitor,
    decline,
)
from vibe_llms.messages.canisters import Canister, InvocationCanister, StopReason, Turn, Usage
from vibe_llms.messages.controls import Controls
from vibe_llms.runs import AnswerRequested

pytestmark = pytest.mark.usefixtures("warm_process")

ACCEPTS = {"name": "Ada", "seats": 3}


def answering(answer: ElicitationAnswer, seen: list[ElicitationRequest] | None = None) -> Elicitor:
    def elicit(request: ElicitationRequest) -> ElicitationAnswer:
        if seen is not None:
            seen.append(request)
        return answer

    return elicit


def failing(reason: str) -> Any:
    async def ask_model(*_: Any) -> Turn:
        raise ModelNotFound(reason)

    return ask_model


@pytest.mark.parametrize("era", ERAS)
async def test_a_person_fills_in_the_form_of_a_server(era: str) -> None:
    seen: list[ElicitationRequest] = []
    answers = {
        "Ada 3 False beans": ElicitationAnswer("accept", ACCEPTS),
        "decline": ElicitationAnswer("decline"),
        "cancel": ElicitationAnswer("cancel"),
    }
    left = [*answers.values(), ElicitationAnswer("accept", {"name": "Ada", "seats": 77})]

    def elicit(request: ElicitationRequest) -> ElicitationAnswer:
        seen.append(request)
        return left.pop(0)

    async with opened(EnsembleHost(elicitor=elicit), command=ASKING, protocol=era) as ensemble:
        for text in answers:
            assert (await ensemble.invoke("book")).text == text
        # An answer that does not fit the form does not reach the server.
        with pytest.raises(EnsembleFailed, match="seats: at most 9"):
            await ensemble.invoke("book")
    for request in seen:
        assert (request.ensemble, request.message) == ("fake", "Book a table?")
        assert [field.name for field in request.fields] == ["name", "seats", "smoking", "meal"]
        assert request.fields[0].title == "Your name"


async def test_a_person_opens_an_address_or_does_not() -> None:
    seen: list[ElicitationRequest] = []
    left = [ElicitationAnswer("accept"), ElicitationAnswer("decline")]

    def elicit(request: ElicitationRequest) -> ElicitationAnswer:
        seen.append(request)
        return left.pop(0)

    host = EnsembleHost(elicitor=elicit)
    async with opened(host, command=ASKING, protocol="handshake") as ensemble:
        for action in ("accept", "decline"):
            output = await ensemble.invoke("visit", '{"address": "https://pay.example/1"}')
            assert output.text == action
        with pytest.raises(EnsembleFailed, match="only http and https URLs"):
            await ensemble.invoke("visit", '{"address": "file:///etc/passwd"}')
    assert [(one.message, one.url, one.fields) for one in seen] == 2 * [
        ("Please pay.", "https://pay.example/1", ())
    ]


@pytest.mark.parametrize("era", ERAS)
async def test_without_elicitation_the_server_gets_a_refusal(era: str) -> None:
    async with opened(command=ASKING, protocol=era) as ensemble:
        for tool in ("book", "think", "where"):
            try:
                output = await ensemble.invoke(tool)
            except EnsembleFailed:
                continue
            assert output.failed


@pytest.mark.parametrize("era", ERAS)
async def test_the_time_in_which_a_person_is_asked_does_not_count(era: str) -> None:
    async def elicit(_: ElicitationRequest) -> ElicitationAnswer:
        await asyncio.sleep(1.5)
        return ElicitationAnswer("accept", ACCEPTS)

    row = {"command": ASKING, "protocol": era, "call-seconds": 1}
    async with opened(EnsembleHost(elicitor=elicit), **row) as ensemble:
        assert (await ensemble.invoke("book")).text == "Ada 3 False beans"


async def test_an_elicitor_that_raises_fails_the_call_alone() -> None:
    async def elicit(_: ElicitationRequest) -> ElicitationAnswer:
        raise LookupError("no screen")

    async with opened(
        EnsembleHost(elicitor=elicit), command=ASKING, protocol="handshake"
    ) as ensemble:
        with pytest.raises(EnsembleFailed, match="calling book: "):
            await ensemble.invoke("book")
        assert (await ensemble.invoke("grow")).text == "grown"


@pytest.mark.parametrize("era", ERAS)
async def test_roots_come_from_the_row(era: str, tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    async with opened(command=ASKING, protocol=era, roots=[str(folder)]) as ensemble:
        assert (await ensemble.invoke("where")).text == folder.as_uri()


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_asks_a_model_that_its_row_names_if_it_is_allowed(era: str) -> None:
    asked: list[ApprovalRequest] = []
    left = [Decision.DENY, Decision.ALLOW]

    async def approve(request: ApprovalRequest) -> Decision:
        asked.append(request)
        return left.pop(0)

    said: list[Any] = []

    async def ask_model(
        address: str, canisters: Sequence[Canister], supervisor: str, controls: Controls
    ) -> Turn:
        said.append(
            (address, getattr(canisters[0], "text", ""), supervisor, controls.output_tokens)
        )
        return Turn(tuple(canisters), "Something.", None, Usage(), StopReason.FINISHED)

    host = EnsembleHost(ask_model=ask_model, admit=Gatekeeper(approve).admit)
    row = {"command": ASKING, "protocol": era, "sampling-model": "a/b", "sampling-tokens": 7}
    async with opened(host, **row) as ensemble:
        try:
            refused = (await ensemble.invoke("think")).text
        except EnsembleFailed as error:
            refused = str(error)
        assert 'sampling-approval = "allow"' in refused
        assert not said
        assert (await ensemble.invoke("think")).text == "a/b: Something."
    assert said == [("a/b", "Say something.", "Be brief.", 7)]
    for request in asked:
        assert request.invocation.name == "fake/sampling"
        assert request.invocation.parsed == {
            "model": "a/b",
            "system": "Be brief.",
            "messages": [{"user": ["Say something."]}],
        }
    assert len(asked) == 2


async def test_without_a_model_of_its_row_a_server_asks_none() -> None:
    answerer = Answerer("fake", McpSettings(), EnsembleHost(ask_model=failing("")), SharedLimits())
    assert answerer.callbacks() == {}


async def test_a_session_asks_the_model_and_keeps_nothing_of_it(home: Path) -> None:
    row = {"module": "vibe_llms.ensembles.mcp", "command": ASKING, "open-seconds": 60}
    sampling = {"sampling-model": "scripted/demo", "sampling-approval": "allow"}
    configuration = {"ensembles": {"fake": {**row, **sampling}}}
    async with open_session(configuration=configuration) as session:
        ensemble: Any = await session.open_ensemble("fake")
        assert (await ensemble.invoke("think")).text.startswith("scripted/demo: ")
        assert not await session.survey_conversations()


def sampling_of(**members: Any) -> Any:
    from mcp_types import CreateMessageRequestParams

    said = {"role": "user", "content": {"type": "text", "text": "hi"}}
    return CreateMessageRequestParams.model_validate(
        {"messages": [said], "maxTokens": 9, **members}
    )


@pytest.mark.parametrize(
    ("params", "words"),
    [
        (
            {"tools": [{"name": "a", "inputSchema": {"type": "object"}}]},
            "tools are not supported in sampling requests",
        ),
        ({"messages": []}, "the last message must be the user's"),
        (
            {"messages": [{"role": "assistant", "content": {"type": "text", "text": "hi"}}]},
            "the last message must be the user's",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": {"type": "tool_use", "id": "1", "name": "a", "input": {}},
                    }
                ]
            },
            "only text, images and audio",
        ),
        ({}, "the model did not answer: there is no a"),
    ],
)
async def test_what_cannot_be_asked_of_a_model_is_refused(
    params: dict[str, Any], words: str
) -> None:
    settings = McpSettings(sampling_model="a/b", sampling_approval="allow")
    host = EnsembleHost(ask_model=failing("there is no a"))
    refusal: Any = await Answerer("fake", settings, host, SharedLimits()).sample(
        None, sampling_of(**params)
    )
    assert words in refusal.message


async def test_pictures_are_described_for_approval() -> None:
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Decision:
        asked.append(request)
        return Decision.DENY

    settings = McpSettings(sampling_model="a/b")
    host = EnsembleHost(ask_model=failing(""), admit=Gatekeeper(approve).admit)
    picture = {"type": "image", "data": "UE5H", "mimeType": "image/png"}
    await Answerer("fake", settings, host, SharedLimits()).sample(
        None, sampling_of(messages=[{"role": "user", "content": picture}])
    )
    parsed: Any = asked[0].invocation.parsed
    assert parsed["messages"] == [{"user": ["[image/png, 3 bytes]"]}]


@pytest.mark.parametrize("era", ERAS)
async def test_in_a_run_the_user_of_the_run_answers(era: str, home: Path) -> None:
    home.mkdir()
    script = home / "book.toml"
    script.write_text(
        '[[replies]]\nparts = [ { invocation = "fake/book" } ]\n'
        '[[replies]]\nparts = [ { text = "Booked." } ]\n'
    )
    row = {
        "module": "vibe_llms.ensembles.mcp",
        "command": ASKING,
        "protocol": era,
        "open-seconds": 60,
        "approval": "allow",
    }
    scripts = {"scripted": {"scripts": {"book": str(script)}}}
    async with open_session(
        configuration={"ensembles": {"fake": row}, "providers": scripts}, elicitor=decline
    ) as session:
        conversation = await session.begin("scripted/book", ensembles=["fake"])
        run = await session.start(conversation, "Book.")
        async for _, event in run.events():
            if isinstance(event, AnswerRequested):
                assert (event.name, event.held) == ("fake/book", True)
                await run.answer(event.question, ElicitationAnswer("accept", ACCEPTS))
        turn = await run.result()
    assert turn.text == "Booked."
    assert any("Ada 3" in getattr(one, "text", "") for one in turn.canisters)


async def test_a_question_of_one_of_several_runs_is_not_shown_in_another() -> None:
    seen: list[ElicitationRequest] = []
    answerer = Answerer("fake", McpSettings(), EnsembleHost(elicitor=decline), SharedLimits())
    first, second = (
        InvocationContext(
            name, InvocationCanister(name="book"), lambda: None, ask=elicitor_of(seen)
        )
        for name in ("one", "other")
    )
    request = ElicitationRequest(ensemble="fake", message="Which?")
    with answerer.serve(first):
        assert (await answerer.ask(request)).action == "accept"
        with answerer.serve(second), pytest.raises(AnswerInvalid, match="several conversations"):
            await answerer.ask(request)
        assert (await answerer.ask(request)).action == "accept"
    assert (await answerer.ask(request)).action == "decline"
    assert len(seen) == 2


def elicitor_of(
    seen: list[ElicitationRequest],
) -> Callable[[ElicitationRequest], Awaitable[ElicitationAnswer]]:
    async def elicit(request: ElicitationRequest) -> ElicitationAnswer:
        seen.append(request)
        return ElicitationAnswer("accept")

    return elicit


async def test_a_conversation_goes_on_where_a_server_asked() -> None:
    from vibe_llms.testing import Part, ScriptedReply

    reply = ScriptedReply(parts=(Part(invocation="fake/book"),))
    row = {"module": "vibe_llms.ensembles.mcp", "command": ASKING, "open-seconds": 60}
    async with open_session(
        configuration={"ensembles": {"fake": row}},
        elicitor=answering(ElicitationAnswer("accept", ACCEPTS)),
    ) as session:
        conversation = await session.begin(
            model_of(reply, says("Booked.")), ensembles=["fake"], save=False
        )
        turn = await conversation.converse("Book.")
    assert turn.text == "Booked."
    assert any("Ada 3" in getattr(one, "text", "") for one in turn.canisters)
