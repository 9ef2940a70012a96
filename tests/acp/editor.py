"""A client of the Agent Client Protocol that checks every line it gets against the schema."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.acp.schema import check_sent
from vibe_llms.acp.lines import InputLines, OutputLines
from vibe_llms.acp.options import LaunchOptions
from vibe_llms.acp.running import serve_streams

SECONDS = 30.0


class Failure(Exception):
    """An error that the agent answered."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: Any = error.get("data")


class Editor:
    """The client's side: its requests, the agent's updates, and the agent's requests."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._methods: dict[Any, str] = {}
        self._answers: dict[Any, asyncio.Future[Any]] = {}
        self._news = asyncio.Event()
        #: All messages of the agent, its updates as (session, update), its requests, its notes.
        self.messages: list[dict[str, Any]] = []
        self.updates: list[tuple[str, dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []
        self.notes: list[str] = []
        #: Answers to the agent's requests by method, which are sent at once.
        self.replies: dict[str, Callable[[Any], Any]] = {}
        #: Lines that do not follow the protocol.
        self.problems: list[BaseException] = []

    def receive(self, line: bytes) -> None:
        try:
            message = json.loads(line.decode("utf-8"))
            check_sent(message, self._methods)
            self._take(message)
        except (AssertionError, ValueError, KeyError) as error:
            self.problems.append(error)
        self._news.set()

    def _take(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        match message:
            case {"method": "session/update", "params": params}:
                self.updates.append((params["sessionId"], params["update"]))
            case {"method": str(method), "id": identity, "params": params}:
                self.asked.append(message)
                if method in self.replies:
                    self.answer(identity, self.replies[method](params))
            case {"result": result, "id": identity} if identity in self._answers:
                self._answers.pop(identity).set_result(result)
            case {"error": error, "id": identity} if identity in self._answers:
                self._answers.pop(identity).set_exception(Failure(error))

    def send(self, message: Any) -> None:
        self.send_line(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def send_line(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            message = json.loads(line.decode("utf-8", "replace"))
            self._methods[message["id"]] = message["method"]
        self._send(line + b"\n")

    def answer(self, identity: Any, result: Any) -> None:
        self.send({"id": identity, "result": result})

    def notify(self, method: str, **params: Any) -> None:
        self.send({"method": method, "params": params})

    def begin(self, method: str, **params: Any) -> asyncio.Future[Any]:
        """Send a request, whose answer is awaited later."""
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        self.send({"id": number, "method": method, "params": params})
        return self._answers[number]

    async def call(self, method: str, **params: Any) -> Any:
        """Send a request and return its result; `Failure` is its error."""
        answer = self.begin(method, **params)
        return await asyncio.wait_for(answer, SECONDS)

    async def initialize(self, **abilities: Any) -> Any:
        return await self.call("initialize", protocolVersion=1, clientCapabilities=abilities)

    async def open(self, cwd: Any = "/", **params: Any) -> str:
        """Begin a session; its id."""
        opened = await self.call("session/new", cwd=str(cwd), **{"mcpServers": [], **params})
        identity: str = opened["sessionId"]
        return identity

    def prompt(self, session: str, text: str) -> asyncio.Future[Any]:
        """Send a message; the answer comes when its turn ends."""
        block = {"type": "text", "text": text}
        return self.begin("session/prompt", sessionId=session, prompt=[block])

    async def say(self, session: str, text: str) -> str:
        """Send a message and wait for its turn; the stop reason."""
        done = await asyncio.wait_for(self.prompt(session, text), SECONDS)
        reason: str = done["stopReason"]
        return reason

    async def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Wait until something holds after one of the agent's lines; return it."""
        async with asyncio.timeout(SECONDS):
            while not (found := condition()):
                self._news.clear()
                await self._news.wait()
        return found

    async def wait_for(self, kind: str) -> dict[str, Any]:
        """Wait for an update of a kind; return the last one."""
        found: dict[str, Any] = await self.wait_until(
            lambda: self.of(kind)[-1:] and self.of(kind)[-1]
        )
        return found

    async def wait_for_request(self, method: str) -> dict[str, Any]:
        """Wait for a request of the agent; return it."""
        found: dict[str, Any] = await self.wait_until(
            lambda: next((one for one in self.asked if one["method"] == method), None)
        )
        return found

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The updates of a kind so far."""
        return [update for _, update in self.updates if update["sessionUpdate"] == kind]

    def text(self, kind: str = "agent_message_chunk") -> str:
        """The text of the chunks so far."""
        return "".join(one["content"].get("text", "") for one in self.of(kind))

    def forget(self) -> None:
        """Forget the updates so far."""
        self.updates.clear()


@contextlib.asynccontextmanager
async def editing(
    options: LaunchOptions = LaunchOptions(), **abilities: Any
) -> AsyncIterator[Editor]:
    """An editor with an agent in this process, which is initialized. It ends without an error, and
    every line follows the protocol.
    """
    async with connecting(options) as editor:
        await editor.initialize(**abilities)
        yield editor


@contextlib.asynccontextmanager
async def connecting(options: LaunchOptions = LaunchOptions()) -> AsyncIterator[Editor]:
    """An editor with an agent in this process, before `initialize`."""
    theirs, ours = os.pipe()
    back, forth = os.pipe()
    ended = asyncio.Event()
    writer = OutputLines(ours, lambda: None)
    editor = Editor(writer.write)
    over = asyncio.Event()
    InputLines(back, receive=editor.receive, refuse=over.set, end=over.set, longest=10**9)
    agent = asyncio.create_task(serve_streams(theirs, forth, options, editor.notes.append, ended))
    try:
        yield editor
    finally:
        await writer.close(SECONDS)
        os.close(ours)
        await asyncio.wait_for(agent, SECONDS)
        os.close(forth)
        await asyncio.wait_for(over.wait(), SECONDS)
        os.close(theirs)
        os.close(back)
    assert not editor.problems, editor.problems[0]
