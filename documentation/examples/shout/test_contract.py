import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from vibe_llms_shout import ShoutProvider

from server import Server, Shouter
from vibe_llms import Event, open_session
from vibe_llms.base.exceptions import RequestRefused
from vibe_llms.testing import check_events, check_provider

KEY = "key-of-the-test"


@pytest.fixture
def address() -> Iterator[str]:
    with Server(("127.0.0.1", 0), Shouter) as server:
        server.key = KEY
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_it_keeps_the_contract_of_providers(address: str) -> None:
    settings = {"base-url": address}
    asyncio.run(check_provider(ShoutProvider, "loud", settings=settings, key=KEY, calls=True))


def test_an_error_within_a_reply_ends_the_turn(address: str, tmp_path: Path) -> None:
    events: list[Event] = []
    row = {"module": "vibe_llms_shout", "base-url": address}

    async def work() -> None:
        async with open_session(
            home=tmp_path,
            configuration={"providers": {"shout": row}},
            keys={"shout": KEY},
            event_handler=events.append,
        ) as session:
            conversation = await session.begin("shout/loud")
            await conversation.converse("Do not whisper")

    with pytest.raises(RequestRefused, match="this is not a library"):
        asyncio.run(work())
    check_events(events)
