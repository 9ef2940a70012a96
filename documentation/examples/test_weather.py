import asyncio
from pathlib import Path

import pytest
from weather import advise

from vibe_llms import Event, RateLimited, open_session
from vibe_llms.testing import Part, ScriptedReply, check_events, scripted_model


def test_advice_follows_the_weather(tmp_path: Path) -> None:
    async def work() -> str:
        async with open_session(home=tmp_path) as session:
            return await advise(session, "scripted/script_weather.toml")

    assert asyncio.run(work()) == "A warm coat."


def test_a_busy_provider_is_reported(tmp_path: Path) -> None:
    busy = ScriptedReply(parts=(Part(error="rate-limited", retry_after_seconds=90),))

    async def work() -> None:
        async with open_session(home=tmp_path) as session:
            conversation = await session.begin(scripted_model(busy))
            await conversation.converse("Hello?")

    with pytest.raises(RateLimited, match="as the script says"):
        asyncio.run(work())


def test_requests_and_notices(tmp_path: Path) -> None:
    model = scripted_model(["Hel", "lo"])
    events: list[Event] = []

    async def work() -> None:
        async with open_session(home=tmp_path, event_handler=events.append) as session:
            conversation = await session.begin(model, supervisor="Be brief.")
            await conversation.converse("Hi!")

    asyncio.run(work())
    assert [message["role"] for message in model.requests[0]["messages"]] == ["supervisor", "user"]
    check_events(events)
