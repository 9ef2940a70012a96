"""Any model answers memory's questions: with a schema or in words, asked again where it must be."""

from __future__ import annotations

import msgspec
import pytest

from tests.fakes import clients, ollama_clients, openai
from tests.fakes.anthropic import FakeAnthropic
from tests.fakes.models import QUICK, says
from tests.fakes.ollama import FakeOllama
from tests.fakes.openai_clients import MODELS, produce_openai_client
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import ModelNotFound, OutputCut, OutputInvalid, ProviderError
from vibe_llms.conversations.asking import ModelAsker
from vibe_llms.memory.extraction import ExtractedFact, Findings
from vibe_llms.memory.reconciliation import Decisions, FactDecision
from vibe_llms.messages.canisters import StopReason, Usage
from vibe_llms.messages.controls import ControlRange, Controls
from vibe_llms.providers.limits import Limiter
from vibe_llms.testing import Part, Script, ScriptedModel, ScriptedReply, scripted_model
from vibe_llms.testing.wires import (
    anthropic_replies,
    chat_completions_replies,
    ollama_replies,
    responses_replies,
)

GOOD = '{"facts": [{"statement": "The user likes tea", "topics": ["tea"]}]}'
FOUND = Findings((ExtractedFact("The user likes tea", topics=("tea",)),))


def model_of(*texts: str | ScriptedReply, stream: StreamSettings = QUICK) -> ScriptedModel:
    replies = tuple(says(one) if isinstance(one, str) else one for one in texts)
    return scripted_model(Script(replies), stream=stream)


async def test_a_model_without_schemas_is_asked_in_words() -> None:
    model = model_of(f"```json\n{GOOD}\n```")
    asker = ModelAsker(model, output_tokens=77)
    assert await asker.ask("Find facts.", "I like tea.", Findings) == FOUND
    (request,) = model.requests
    texts = [message["contents"][0]["text"] for message in request["messages"]]
    assert texts[0] == "Find facts."
    assert "JSON Schema" in texts[1]
    assert texts[2] == "I like tea."
    assert request["controls"] == {"output-tokens": 77}
    assert request["tools"] == []


async def test_a_model_with_schemas_is_sent_one() -> None:
    model = model_of(GOOD)
    taken = {"response-schema": ControlRange(), "output-tokens": ControlRange()}
    model.attributes = msgspec.structs.replace(model.attributes, controls=taken)
    asker = ModelAsker(model)
    assert await asker.ask("Find facts.", "I like tea.", Findings) == FOUND
    (request,) = model.requests
    assert len(request["messages"]) == 2
    assert request["controls"]["response-schema"]["title"] == "Findings"


async def test_what_does_not_fit_is_asked_for_again_and_all_of_it_is_counted() -> None:
    usage = Usage(10, output_tokens=5)
    bad = ScriptedReply(parts=(Part(text="I would rather not."),), usage=usage)
    good = ScriptedReply(parts=(Part(text=GOOD),), usage=usage)
    asker = ModelAsker(model_of(bad, bad, good))
    assert await asker.ask("", "I like tea.", Findings) == FOUND
    assert asker.usage == Usage(30, output_tokens=15)
    asker = ModelAsker(model_of(bad, bad, bad, good))
    with pytest.raises(OutputInvalid):
        await asker.ask("x", "I like tea.", Findings)
    assert asker.usage == Usage(30, output_tokens=15)


async def test_an_answer_that_is_cut_or_fails_is_an_error_of_the_provider() -> None:
    cut = ScriptedReply(parts=(Part(text=GOOD[:9]),), stop_reason=StopReason.LENGTH)
    with pytest.raises(OutputCut):
        await ModelAsker(model_of(cut)).ask("x", "y", Findings)
    failing = ScriptedReply(parts=(Part(error="overloaded"),))
    with pytest.raises(ProviderError):
        await ModelAsker(model_of(failing)).ask("x", "y", Findings)


async def test_the_settings_of_a_session_hold_here_too() -> None:
    limiter = Limiter("script", requests=9)
    asked: list[str] = []

    def access_limiter(model: object) -> Limiter:
        asked.append("limiter")
        return limiter

    model = model_of(GOOD)
    asker = ModelAsker(
        model, access_controls=lambda _: Controls(temperature=0.1), access_limiter=access_limiter
    )
    await asker.ask("x", "I like tea.", Findings)
    assert model.requests[0]["controls"] == {"output-tokens": 2000, "temperature": 0.1}
    assert asked == ["limiter"]


async def test_such_a_conversation_has_no_other_models() -> None:
    asker = ModelAsker(model_of(GOOD))
    with pytest.raises(ModelNotFound, match="'x/y'"):
        await asker._settings.services.access_model("x/y")


async def test_the_interface_of_anthropic_takes_the_questions(
    fake_anthropic: FakeAnthropic,
) -> None:
    fake_anthropic.replies = [anthropic_replies.text_reply(GOOD)]
    client = clients.produce_client(fake_anthropic.url)
    asker = ModelAsker(await client.access_model("claude-opus-5"))
    assert await asker.ask("Find facts.", "I like tea.", Findings) == FOUND
    await client.close()
    assert fake_anthropic.refusals == []
    assert asker.usage.total_tokens > 0


async def test_the_interface_of_ollama_takes_questions(fake_ollama: FakeOllama) -> None:
    fake_ollama.replies = [ollama_replies.text_reply("no JSON"), ollama_replies.text_reply(GOOD)]
    client = ollama_clients.produce_client(fake_ollama.url)
    asker = ModelAsker(await client.access_model("qwen3:8b"))
    assert await asker.ask("Find facts.", "I like tea.", Findings) == FOUND
    await client.close()
    assert fake_ollama.refusals == []
    assert len(fake_ollama.chats) == 2


@pytest.mark.parametrize("interface", ["chat", "responses"])
async def test_the_interfaces_of_openai_take_questions(interface: str) -> None:
    decided = '{"decisions": [{"number": 1, "event": "NONE"}]}'
    with openai.FakeOpenAI() as server:
        server.replies = [
            chat_completions_replies.chat_reply(text)
            if interface == "chat"
            else responses_replies.response_reply(responses_replies.message(text))
            for text in (GOOD, decided)
        ]
        client = produce_openai_client(interface, server.url)
        asker = ModelAsker(await client.access_model(MODELS[interface]))
        assert await asker.ask("Find facts.", "I like tea.", Findings) == FOUND
        assert await asker.ask("Decide.", "1. tea", Decisions) == Decisions(
            (FactDecision(1, "NONE"),)
        )
        await client.close()
        assert server.refusals == []
