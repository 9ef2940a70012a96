"""The command `mcp serve`: offers conversations to an MCP client over standard input and output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)

from vibe_llms.agents.definitions import access_agent, survey_names
from vibe_llms.base.configuration import LOCAL, Configuration, load_configuration
from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import RequestError, VibeLlmsError
from vibe_llms.base.redaction import redact
from vibe_llms.cli.display import print_notices
from vibe_llms.cli.following import start_worker
from vibe_llms.cli.running import ENDINGS, signals
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.invocation.questions import decline
from vibe_llms.mcp_server.core import McpServer
from vibe_llms.mcp_server.offer import IDENTITY, choose_tools, produce_catalog
from vibe_llms.mcp_server.reading import resolve_conversation
from vibe_llms.mcp_server.states import StateSeal
from vibe_llms.mcp_server.stdio import MOST_BYTES, StdioConnection
from vibe_llms.memory.hook import MemoryHook
from vibe_llms.opening import open_session
from vibe_llms.providers.spending import spend
from vibe_llms.runs.interfaces import RunRecord
from vibe_llms.session.core import Session

_LOGGER = get_logger("vibe_llms.mcp_server")
_READ_BYTES = 64 * 1024
_SECRET_BYTES = 32


async def serve(names: Collection[str] | None, *, read_only: bool) -> None:
    """Serve a client until it closes the input, or a signal comes.

    Without `names`, all tools are offered.
    """
    offered = choose_tools(names, read_only=read_only)
    configuration = load_configuration()
    ended = asyncio.Event()
    with _own_output() as write, signals(dict.fromkeys((signal.SIGINT, *ENDINGS), ended.set)):
        async with _conversing(configuration) as access:
            seal = StateSeal(os.urandom(_SECRET_BYTES), LOCAL)
            server = McpServer(IDENTITY, produce_catalog(access, offered), seal, _describe_error)
            connection = StdioConnection(server, write)
            serving = asyncio.create_task(connection.serve(_read_lines()))
            ending = asyncio.create_task(ended.wait())
            await asyncio.wait([serving, ending], return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            serving.cancel()
            await asyncio.wait([serving, ending])
            if not serving.cancelled():
                serving.result()


class _LocalConverser:
    """The session of the user of this machine."""

    def __init__(self, session: Session) -> None:
        self.session = session
        configuration = session.configuration
        self.prompts: Sequence[str] = survey_names(configuration)
        self.agents: Sequence[str] = [
            # The variables of a prompt cannot be given here.
            name
            for name in self.prompts
            if not access_agent(configuration, name).needed
        ]

    @property
    def memory(self) -> MemoryHook:
        """The user's memory."""
        hook = self.session.access_memory()
        assert isinstance(hook, MemoryHook)
        return hook

    async def begin(self, name: str) -> Conversation:
        """Begin a conversation with an agent or a model."""
        agent = name if name in self.agents else None
        model = None if agent else name or None
        skills, memory = self.session.choose_skills(agent), self._uses_memory(agent)
        return await self.session.begin(model, agent=agent, memory=memory, skills=skills)

    async def resume(self, conversation: str, name: str) -> Conversation:
        """Resume a conversation."""
        identity = await resolve_conversation(self, conversation)
        agent = name if name in self.agents else None
        model = None if agent else name or None
        if agent is not None:
            model = self.session.access_agent(agent).model or None
        if not name:
            begun_with = (await self.session.archive.restore(identity)).details.agent
            agent = begun_with if begun_with in self.agents else None
        skills, memory = self.session.choose_skills(agent), self._uses_memory(agent)
        return await self.session.resume(
            identity, model=model, agent=agent, memory=memory, skills=skills
        )

    def _uses_memory(self, agent: str | None) -> bool:
        own = None if agent is None else self.session.access_agent(agent).memory
        return self.session.configuration.memory_enabled if own is None else own

    def check_message(self, text: str) -> None:
        """Accept messages of any length; a line of the protocol has a limit."""

    def describe_run_error(self, record: RunRecord) -> str:
        """Return the error of a failed run."""
        return redact(record.error)

    def following(self) -> nullcontext[None]:
        """Accept any number of waiting calls; the connection has a limit."""
        return nullcontext()

    def asking(self) -> AbstractAsyncContextManager[None]:
        """Count requests to providers against budgets."""
        spending = self.session.access_spending({})
        return nullcontext() if spending is None else spend(spending)


@asynccontextmanager
async def _conversing(
    configuration: Configuration,
) -> AsyncIterator[Callable[[], Awaitable[_LocalConverser]]]:
    """Yield a function that opens the session with its first call.

    At the end, another process goes on with runs that have not ended.
    """
    opened: list[_LocalConverser] = []
    lock = asyncio.Lock()
    async with AsyncExitStack() as stack:

        async def access() -> _LocalConverser:
            async with lock:
                if not opened:
                    session = await stack.enter_async_context(
                        open_session(
                            configuration=configuration,
                            event_handler=print_notices(),
                            # Tool servers may ask; runs let their users answer.
                            elicitor=decline,
                        )
                    )
                    if (runs := session.access_runs()).exists():
                        # Runs of an earlier connection may have been left.
                        runs.resume()
                    opened.append(_LocalConverser(session))
            return opened[0]

        yield access
        if opened and (runs := opened[0].session.access_runs()).exists():
            await runs.give_back()
            if await runs.are_left():
                start_worker(configuration)


def _describe_error(error: Exception) -> str:
    if isinstance(error, VibeLlmsError):
        return redact(str(error))
    _LOGGER.error("a tool failed", exc_info=error)
    return "the server failed; its log says why"


@contextmanager
def _own_output() -> Iterator[Callable[[bytes], Awaitable[None]]]:
    """Yield a function that writes to standard output, where nothing else can then write."""
    sys.stdout.flush()
    own = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def write_all(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(own, view) :]

    async def write(data: bytes) -> None:
        await asyncio.to_thread(write_all, data)

    try:
        yield write
    finally:
        sys.stdout.flush()
        os.dup2(own, sys.stdout.fileno())
        os.close(own)


def _read_lines() -> Callable[[], Awaitable[bytes]]:
    """Return a function that reads a line of standard input; an empty one at its end."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | Exception] = asyncio.Queue(1)

    def put(line: bytes | Exception) -> None:
        asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()

    def read_all() -> None:
        rest = b""
        try:
            while data := os.read(0, _READ_BYTES):
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    put(line + b"\n")
                if len(rest) > MOST_BYTES:
                    put(RequestError(f"a line is longer than {MOST_BYTES:,} bytes"))
                    return
            if rest:
                put(rest)
            put(b"")
        except RuntimeError:
            # The loop has ended.
            return

    async def read() -> bytes:
        line = await lines.get()
        if isinstance(line, Exception):
            raise line
        return line

    # A thread that reads cannot be interrupted.
    threading.Thread(target=read_all, daemon=True).start()
    return read
