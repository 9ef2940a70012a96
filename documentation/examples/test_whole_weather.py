import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from weather import advise

from vibe_llms import open_session
from vibe_llms.base.exceptions import ReplyCut, RequestForbidden
from vibe_llms.testing import FakeServer, Part, Script, ScriptedReply, fake_server, forbid_requests

CALL = ScriptedReply(parts=(Part(invocation="temperature", arguments={"city": "Oslo"}),))
ANSWER = ScriptedReply.from_chunks("A warm ", "coat.")
BUSY = ScriptedReply(parts=(Part(error="overloaded", retry_after_seconds=0.1),))
CUT = ScriptedReply(parts=(Part(text="A wa"), Part(cut="reset")))
MODELS = ["anthropic/claude-sonnet-5-5", "openai/gpt-6.1-sol", "openai-chat/gpt-5.5", "ollama/phi4"]


@pytest.fixture(autouse=True)
def offline() -> Iterator[None]:
    with forbid_requests():
        yield


def ask(server: FakeServer, model: str, home: Path) -> str:
    async def work() -> str:
        async with open_session(
            home=home, configuration=server.configuration, keys=server.keys
        ) as session:
            return await advise(session, model)

    return asyncio.run(work())


@pytest.mark.parametrize("model", MODELS)
def test_every_provider_is_asked_rightly(model: str, tmp_path: Path) -> None:
    with fake_server(Script((CALL, ANSWER))) as server:
        assert ask(server, model, tmp_path) == "A warm coat."
    assert server.refusals == []
    last = server.received[-1]
    assert [tool.name for tool in last.invokers] == ["temperature"]
    assert b"-4" in last.request.body


def test_who_is_busy_is_asked_again(tmp_path: Path) -> None:
    with fake_server(Script((BUSY, CALL, BUSY, ANSWER))) as server:
        assert ask(server, MODELS[0], tmp_path) == "A warm coat."
    assert len(server.received) == 4


def test_a_broken_connection_is_reported(tmp_path: Path) -> None:
    with fake_server(Script((CALL, CUT))) as server, pytest.raises(ReplyCut):
        ask(server, MODELS[0], tmp_path)


def test_nothing_leaves_this_machine(tmp_path: Path) -> None:
    async def work() -> None:
        async with open_session(home=tmp_path, keys={"openai": "sk-real"}) as session:
            await advise(session, "openai/gpt-6.1-sol")

    with pytest.raises(RequestForbidden, match=r"would go to api\.openai\.com"):
        asyncio.run(work())
