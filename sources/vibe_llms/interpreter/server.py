"""The MCP server: `execute_code` and `restart`, a kernel for each conversation."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vibe_llms.interpreter.kernels import Answer, Kernel, KernelLost
from vibe_llms.interpreter.outputs import Piece
from vibe_llms.interpreter.settings import Limits
from vibe_llms.meta import CONVERSATION_KEY, __version__

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolResult, ContentBlock, Tool

_SWEEP_SECONDS = 10.0
_SHOWN_FILE_BYTES = 32 * 1024
_REMEMBERED = 1000
_LISTED_MS = 24 * 3600 * 1000


class _Seat:
    """A conversation's kernel, and the callers that wait for it."""

    def __init__(self) -> None:
        self.kernel: Kernel | None = None
        self.lock = asyncio.Lock()
        self.used = time.monotonic()
        self.waiting = 0


class KernelsBusy(Exception):
    """The maximum number of kernels exists, and all of them run code."""


class Kernels:
    """The kernels of all conversations, up to a maximum."""

    def __init__(self, limits: Limits, *, spaces: bool) -> None:
        self._limits = limits
        self._spaces = spaces
        self._seats: dict[str, _Seat] = {}
        self._lost: dict[str, str] = {}

    async def execute(self, conversation: str, code: str) -> Answer:
        """Run code in a conversation's kernel, one call after the other."""
        seat = await self._take_seat(conversation)
        seat.waiting += 1
        try:
            async with seat.lock:
                notes: list[Piece] = []
                if seat.kernel is None or seat.kernel.lost:
                    kernel = await self._start(seat)
                    if reason := self._lost.pop(conversation, ""):
                        text = f"[a new interpreter; the one before was ended: {reason}]"
                        notes.append(Piece("note", text))
                    if kernel.gaps:
                        notes.append(Piece("note", f"[no cage here: {', '.join(kernel.gaps)}]"))
                assert seat.kernel is not None
                answer = await seat.kernel.execute(code)
                if seat.kernel.lost:
                    self._remember(conversation, seat.kernel.lost)
                return Answer((*notes, *answer.pieces), answer.failed)
        finally:
            seat.waiting -= 1
            seat.used = time.monotonic()

    async def restart(self, conversation: str) -> None:
        """Drop a conversation's kernel; the next call starts another."""
        self._lost.pop(conversation, None)
        seat = self._seats.pop(conversation, None)
        if seat is not None and seat.kernel is not None:
            await seat.kernel.end("it was restarted")

    async def sweep(self) -> None:
        """End kernels that have not been used for a long time, as long as this runs."""
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._limits.idle_seconds))
            oldest = time.monotonic() - self._limits.idle_seconds
            for conversation, seat in list(self._seats.items()):
                if seat.used < oldest and not seat.waiting:
                    await self._vacate(conversation, "it was not used for a long time")

    async def close(self) -> None:
        """End all of them."""
        seats, self._seats = self._seats, {}
        kernels = [seat.kernel for seat in seats.values() if seat.kernel is not None]
        await asyncio.gather(*(kernel.end("the server ends") for kernel in kernels))

    async def _take_seat(self, conversation: str) -> _Seat:
        while conversation not in self._seats and len(self._seats) >= self._limits.kernels:
            idle = {name: seat for name, seat in self._seats.items() if not seat.waiting}
            if not idle:
                raise KernelsBusy
            oldest = min(idle, key=lambda name: idle[name].used)
            await self._vacate(oldest, "others needed its place")
        return self._seats.setdefault(conversation, _Seat())

    async def _start(self, seat: _Seat) -> Kernel:
        kernel = Kernel(self._limits, spaces=self._spaces)
        await kernel.start()
        seat.kernel = kernel
        return kernel

    async def _vacate(self, conversation: str, reason: str) -> None:
        seat = self._seats.pop(conversation)
        if seat.kernel is not None:
            self._remember(conversation, seat.kernel.lost or reason)
            await seat.kernel.end(reason)

    def _remember(self, conversation: str, reason: str) -> None:
        self._lost[conversation] = reason
        while len(self._lost) > _REMEMBERED:
            del self._lost[next(iter(self._lost))]


class Interpreter:
    """Implements the tools, for every transport."""

    def __init__(self, limits: Limits, *, spaces: bool, shared: bool) -> None:
        self._limits = limits
        self._spaces = spaces
        self._shared = shared
        self._single = 0
        self.kernels = Kernels(limits, spaces=spaces)

    async def call(
        self, name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> CallToolResult:
        """The result of a call; errors become a failed result."""
        known = meta.get(CONVERSATION_KEY)
        conversation = known if isinstance(known, str) else ""
        # Clients that share an address must not share a kernel.
        alone = not conversation and self._shared
        if alone:
            self._single += 1
            conversation = f"#{self._single}"
        match name:
            case "execute_code" if isinstance(code := arguments.get("code"), str):
                task = asyncio.ensure_future(self._execute(conversation, code, alone=alone))
                try:
                    return await asyncio.shield(task)
                except asyncio.CancelledError:
                    task.cancel()
                    raise
            case "execute_code":
                return _fail("The argument `code` is missing, or it is no text.")
            case "restart":
                await self.kernels.restart(conversation)
                return _succeed([Piece("note", "[the next call starts a new interpreter]")])
            case _:
                return _fail(f"There is no tool {name!r}, only execute_code and restart.")

    async def _execute(self, conversation: str, code: str, *, alone: bool) -> CallToolResult:
        try:
            answer = await self.kernels.execute(conversation, code)
        except KernelLost as error:
            return _fail(f"The interpreter could not be started: {error}.")
        except KernelsBusy:
            return _fail(
                f"All {self._limits.kernels} interpreters are busy; try again when one has ended."
            )
        finally:
            if alone:
                await self.kernels.restart(conversation)
        return _succeed(answer.pieces, failed=answer.failed)

    def describe(self) -> Sequence[Tool]:
        """The tools."""
        from mcp_types import Tool, ToolAnnotations

        marks = ToolAnnotations(
            read_only_hint=False,
            destructive_hint=True,
            idempotent_hint=False,
            # Without its own network, the code reaches what this machine reaches.
            open_world_hint=not self._spaces,
        )
        code = {"type": "string", "description": "Python code; the last expression is shown."}
        return [
            Tool(
                name="execute_code",
                description=self._describe_code(),
                input_schema={
                    "type": "object",
                    "properties": {"code": code},
                    "required": ["code"],
                    "additionalProperties": False,
                },
                annotations=marks,
            ),
            Tool(
                name="restart",
                description="Forget all that execute_code has defined, and its files.",
                input_schema={"type": "object", "properties": {}, "additionalProperties": False},
                annotations=marks,
            ),
        ]

    def _describe_code(self) -> str:
        limits = self._limits
        reach = " There is no network." if self._spaces else ""
        return (
            "Run Python code and see what it prints, shows and writes into its folder. Names and "
            f"files are kept for the next call of the same conversation.{reach} At most "
            f"{limits.call_seconds:g} s, {limits.memory_bytes >> 20} MB of memory and "
            f"{limits.output_bytes >> 20} MB of output."
        )


def produce_server(interpreter: Interpreter) -> Server[Any]:
    """The server of the official package, with the tools of an interpreter."""
    from mcp.server.caching import CacheHint
    from mcp.server.lowlevel import Server
    from mcp_types import ListToolsResult

    async def list_tools(_context: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=list(interpreter.describe()))

    async def call_tool(_context: Any, params: Any) -> CallToolResult:
        return await interpreter.call(params.name, params.arguments or {}, params.meta or {})

    return Server(
        "vibe-llms-python",
        version=__version__,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        # Only the command that starts it and the version change its tools.
        cache_hints={"tools/list": CacheHint(ttl_ms=_LISTED_MS)},
    )


async def sweep_while(kernels: Kernels, work: Any) -> None:
    """Serve to the end, and leave no kernel behind."""
    sweeping = asyncio.create_task(kernels.sweep())
    try:
        await work
    finally:
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        await kernels.close()


def _fail(text: str) -> CallToolResult:
    return _succeed([Piece("note", text)], failed=True)


def _succeed(pieces: Sequence[Piece], *, failed: bool = False) -> CallToolResult:
    from mcp_types import CallToolResult

    shown = pieces or [Piece("note", "[it printed and showed nothing]")]
    blocks = [block for piece in shown for block in _nativize(piece)]
    return CallToolResult(content=blocks, is_error=failed)


def _nativize(piece: Piece) -> Sequence[ContentBlock]:
    from mcp_types import (
        BlobResourceContents,
        EmbeddedResource,
        ImageContent,
        TextContent,
        TextResourceContents,
    )

    def text(words: str) -> TextContent:
        return TextContent(type="text", text=words)

    def picture(mimetype: str) -> ImageContent:
        data = base64.b64encode(piece.data).decode()
        return ImageContent(type="image", data=data, mime_type=mimetype)

    match piece.kind:
        case "stderr":
            return [text(f"[stderr]\n{piece.text}")]
        case "picture":
            return [picture(piece.mimetype)]
        case "file":
            about = text(f"[the code wrote {piece.name}, {len(piece.data):,} bytes]")
            mimetype = mimetypes.guess_type(piece.name)[0] or "application/octet-stream"
            if mimetype in ("image/png", "image/jpeg", "image/gif", "image/webp"):
                return [about, picture(mimetype)]
            uri = f"file:///{piece.name}"
            words = _read_text(piece.data)
            resource = (
                BlobResourceContents(
                    uri=uri, mime_type=mimetype, blob=base64.b64encode(piece.data).decode()
                )
                if words is None
                else TextResourceContents(uri=uri, mime_type=mimetype, text=words)
            )
            return [about, EmbeddedResource(type="resource", resource=resource)]
        case _:
            return [text(piece.text)]


def _read_text(data: bytes) -> str | None:
    if len(data) > _SHOWN_FILE_BYTES or b"\0" in data:
        return None
    with suppress(UnicodeDecodeError):
        return data.decode()
    return None
