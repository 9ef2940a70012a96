"""Connections: what is not waited for, and what says whose requests they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.openai import FakeOpenAI, stream
from tests.fakes.openai_clients import produce_openai_model
from vibe_llms import open_session
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.credentials import Credential
from vibe_llms.base.exceptions import CredentialRefused, ProviderUnreachable
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.testing.wires.chat_completions_replies import chunk

INTERFACES = ["chat", "responses"]
HI = [UserCanister.from_text("Hi")]


async def test_a_server_without_a_key_that_does_not_run_is_not_waited_for() -> None:
    model = await produce_openai_model(
        "chat",
        stream=StreamSettings(retries=2),
        credential=Credential("chat", kind="none"),
    )
    client: Any = model.client
    async with asyncio.timeout(10):
        with pytest.raises(ProviderUnreachable):
            await client.survey_models()
    row = {
        "module": "vibe_llms.providers.openai.chat_completions",
        "base-url": "http://127.0.0.1:9/v1",
        "credential": "none",
    }
    own = ("vllm", "lmstudio", "llamacpp-server")
    rows: dict[str, Any] = {name: {"base-url": "http://127.0.0.1:9/v1"} for name in own}
    async with open_session(configuration={"providers": {"mine": row, **rows}}) as session:
        names = [f"{model.provider}/{model.name}" for model in await session.survey_models()]
        assert names == ["scripted/demo"]
        # No key, so none of them is chosen for a user who asked for none.
        assert session.choose_model()[0] == "scripted/demo"
        with pytest.raises(ProviderUnreachable):
            await session.survey_models("mine")


@pytest.mark.parametrize("interface", INTERFACES)
async def test_headers_hold_the_key_the_organization_and_the_project(
    interface: str, fake_openai: FakeOpenAI
) -> None:
    model = await produce_openai_model(
        interface, fake_openai.url, organization="org_1", project="proj_1"
    )
    await model.converse(HI)
    headers = fake_openai.requests[0].headers
    assert headers["openai-organization"] == "org_1"
    assert headers["openai-project"] == "proj_1"
    assert headers["authorization"] == f"Bearer {fake_openai.key}"
    await model.client.close()
    fake_openai.key = "sk-another-key-0123456789"
    model = await produce_openai_model(interface, fake_openai.url)
    with pytest.raises(CredentialRefused):
        await model.converse(HI)
    await model.client.close()


@pytest.mark.parametrize("place", ["controls", "default_controls"])
async def test_a_reply_that_begins_with_a_stop_sequence_is_not_asked_for_again(
    place: str, fake_openai: FakeOpenAI
) -> None:
    fake_openai.replies = [stream([chunk({}, "stop")])]
    model = await produce_openai_model("chat", fake_openai.url, name="local")
    given = {"controls": Controls(), "default_controls": Controls(), place: Controls(stop=("H",))}
    context = TurnContext(default_controls=given["default_controls"])
    (reply,) = await model.converse(HI, controls=given["controls"], context=context)
    assert (getattr(reply, "text", ""), len(fake_openai.requests)) == ("", 1)
    await model.client.close()
