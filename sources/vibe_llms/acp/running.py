"""The agent as a program: its streams, signals, and the method `initialize`.

It answers `initialize` before it imports the rest, because an editor waits for the answer.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from vibe_llms.acp.failures import explain
from vibe_llms.acp.lines import InputLines, OutputLines, take_streams
from vibe_llms.acp.options import LaunchOptions
from vibe_llms.acp.peer import Method, Peer, Reply
from vibe_llms.acp.requests import INITIALIZE, ClientAbilities
from vibe_llms.acp.rpc import INVALID_REQUEST, LONGEST_LINE, RpcError, read_params
from vibe_llms.acp.updates import AgentInfo, InitializeResult
from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.base.meta import __version__

if TYPE_CHECKING:
    from vibe_llms.acp.agent import AcpAgent

VERSION = 1
#: Abilities of this agent. It needs no files and no terminals of the client.
_ABILITIES: Mapping[str, Any] = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
    "mcpCapabilities": {"http": True, "sse": True},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
}
_INTERRUPTED = 130
#: Seconds for calls that are being answered when the client has ended, and for the last lines.
_FINISH_SECONDS, _WRITE_SECONDS = 3.0, 2.0


class AgentProgram:
    """The methods of the agent; all but `initialize` are loaded when they are first needed."""

    def __init__(
        self, write: OutputLines, options: LaunchOptions, report: Callable[[str], object]
    ) -> None:
        self.peer = Peer(write, self.find_method, self._explain, report)
        self._options = options
        self._report = report
        self._abilities: ClientAbilities | None = None
        self._loading: asyncio.Task[AcpAgent] | None = None

    def find_method(self, name: str) -> Method | None:
        """Return the method with this name, or None."""
        if name == "initialize":
            return self._initialize
        if name not in METHODS:
            return None

        async def call(params: Raw) -> Reply:
            if self._loading is None:
                raise RpcError(INVALID_REQUEST, f"{name} came before initialize")
            agent = await asyncio.shield(self._loading)
            return await agent.methods[name](params)

        return call

    async def close(self) -> None:
        """End running turns, store what has arrived, answer open calls, and close everything."""
        if self._loading is not None:
            agent = await self._loading
            await agent.interrupt()
        await self.peer.finish(_FINISH_SECONDS)
        if self._loading is not None:
            await (await self._loading).close()

    async def _initialize(self, params: Raw) -> Reply:
        given = read_params(params, INITIALIZE)
        self._abilities = given.client_capabilities or ClientAbilities()
        result = InitializeResult(
            protocol_version=VERSION,
            agent_capabilities=_ABILITIES,
            agent_info=AgentInfo("vibe-llms", "vibe-llms", __version__),
            auth_methods=(),
        )
        return Reply(result, then=self._load)

    def _load(self) -> None:
        if self._loading is None:
            self._loading = asyncio.create_task(self._produce_agent())

    async def _produce_agent(self) -> AcpAgent:
        produce = await asyncio.to_thread(_import_agent)
        return produce(self.peer, self._abilities or ClientAbilities(), self._options, self._report)

    def _explain(self, error: Exception) -> RpcError:
        if not isinstance(error, VibeLlmsError | OSError):
            self._report("".join(traceback.format_exception(error)))
        return explain(error)


def _import_agent() -> type[AcpAgent]:
    from vibe_llms.acp.agent import AcpAgent

    return AcpAgent


#: Methods of `AcpAgent`.
METHODS = frozenset(
    {
        *("session/new", "session/load", "session/resume", "session/list", "session/close"),
        *("session/delete", "session/prompt", "session/cancel", "session/set_config_option"),
    }
)


async def serve(options: LaunchOptions, report: Callable[[str], object]) -> int:
    """Answer the client until it ends, or until a signal; return the exit status."""
    if sys.stdin.isatty():
        report(
            "vibe-llms acp waits for an editor that speaks the Agent Client Protocol on its "
            "standard input; Ctrl-C ends it"
        )
    ended = asyncio.Event()
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        ended.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    incoming, outgoing = take_streams()
    await serve_streams(incoming, outgoing, options, report, ended)
    return _INTERRUPTED if interrupted else 0


async def serve_streams(
    incoming: int,
    outgoing: int,
    options: LaunchOptions,
    report: Callable[[str], object],
    ended: asyncio.Event,
) -> None:
    """Answer the client over two descriptors until one of them is closed, or `ended` is set."""
    writer = OutputLines(outgoing, ended.set)
    program = AgentProgram(writer, options, report)
    InputLines(
        incoming,
        receive=program.peer.receive,
        refuse=lambda: program.peer.refuse_line(LONGEST_LINE),
        end=ended.set,
        longest=LONGEST_LINE,
    )
    await ended.wait()
    await program.close()
    await writer.close(_WRITE_SECONDS)
