"""A real server on a loopback port, for the tests of the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.server.described import Recorded
from vibe_llms.base.configuration import Configuration, Places, load_configuration
from vibe_llms.opening import open_session
from vibe_llms.server.application import Application
from vibe_llms.server.exchanges import Receive, Scope, Send
from vibe_llms.server.running import RunningServer
from vibe_llms.server.settings import read_server_settings
from vibe_llms.session.core import Session
from vibe_llms.storage.users import UserFile, find_users


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check each response of a test against the OpenAPI document."""
    complaints: list[str] = []
    answer = Application.__call__

    async def check(one: Application, scope: Scope, receive: Receive, send: Send) -> None:
        recorded = Recorded(scope["method"], scope["path"])

        async def record(message: MutableMapping[str, Any]) -> None:
            recorded.take(message)
            await send(message)

        await answer(one, scope, receive, record)
        complaints.extend(recorded.compare())

    monkeypatch.setattr(Application, "__call__", check)
    yield
    assert complaints == []


class Served:
    """A server that runs, its users, and clients for it."""

    def __init__(
        self, configuration: Configuration, running: RunningServer, log: list[str]
    ) -> None:
        self.configuration = configuration
        self.users: UserFile = find_users(configuration)
        self.running = running
        self.url = running.url
        self.log = log
        self.keys: dict[str, str] = {}

    def key(self, user: str = "local") -> str:
        """The key of a user, who is made first if there is none."""
        if user not in self.keys:
            self.keys[user] = self.users.add(user)
        return self.keys[user]

    def openai(self, user: str = "local") -> openai.AsyncOpenAI:
        """The official client."""
        return openai.AsyncOpenAI(
            api_key=self.key(user), base_url=f"{self.url}/v1", max_retries=0, timeout=30
        )

    def anthropic(self, user: str = "local") -> anthropic.AsyncAnthropic:
        """The official client of Anthropic's interface."""
        return anthropic.AsyncAnthropic(
            api_key=self.key(user), base_url=self.url, max_retries=0, timeout=30
        )

    def http(self, user: str = "local") -> httpx2.AsyncClient:
        """A plain client."""
        headers = {"authorization": f"Bearer {self.key(user)}"}
        return httpx2.AsyncClient(base_url=self.url, headers=headers, timeout=30)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A session in the home of the user `local`, as the command has it."""
        async with open_session(configuration=self.configuration) as session:
            yield session


class _Appending(logging.Handler):
    """Adds what the server warns of to its log, as the command does."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self._lines = log

    def emit(self, record: logging.LogRecord) -> None:
        """Add a line."""
        self._lines.append(record.getMessage())


@asynccontextmanager
async def serving(home: Path, *, keys: bool = True, **tables: Any) -> AsyncIterator[Served]:
    """A server with a home, and with tables of the configuration."""
    server = {"port": 0, **tables.pop("server", {})}
    configuration = load_configuration(Places.under(home), overrides={"server": server, **tables})
    opened, log = asyncio.Event(), list[str]()
    running = RunningServer(
        configuration,
        read_server_settings(configuration),
        keys=keys,
        log=log.append,
        opened=opened.set,
    )
    task = asyncio.create_task(running.serve())
    warnings = _Appending(log)
    for name in ("vibe_llms.server", "vibe_llms.storage"):
        logging.getLogger(name).addHandler(warnings)
    try:
        await opened.wait()
        yield Served(configuration, running, log)
    finally:
        running.end()
        await task
        for name in ("vibe_llms.server", "vibe_llms.storage"):
            logging.getLogger(name).removeHandler(warnings)


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    """A server with the settings that come with the library."""
    async with serving(home) as server:
        yield server
