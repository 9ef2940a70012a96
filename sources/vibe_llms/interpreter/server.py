"""The MCP server: `execute_code` and `restart`, a kernel for each conversation."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vibe_llms.base.meta import CONVERSATION_KEY, __version__
from vibe_llms.interpreter.kernels import Kernel, KernelLost, KernelResult
from vibe_llms.interpreter.outputs import OutputPiece
from vibe_llms.interpreter.settings import Limits

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolResult, ContentBlock, Tool

_SWEEP_SECONDS = 10.0
_SHOWN_FILE_BYTES = 32 * 1024
_REMEMBERED = 1000
_LISTED_MS = 24 * 3600 * 1000


class _Slot:
    """A conversation's kernel, and the number of callers that wait for it."""

    def __init__(self) -> None:
        self.kernel: Kernel | None = None
        self.lock = asyncio.Lock()
        self.used = time.monotonic()
        self.waiting = 0


class KernelsBusy(Exception):
    """All kernels, up to the maximum, are running code."""


class Kernels:
    """The kernels of all conversations, up to a maximum."""

    def __init__(self, limits: Limits, *, spaces: bool) -> None:
        self._limits = limits
        self._spaces = spaces
        self._slots: dict[str, _Slot] = {}
        self._lost: dict[str, str] = {}

    async def execute(self, conversation: str, code: str) -> KernelResult:
        """Run code in a conversation's kernel, one call after the other."""
        slot = await self._take_slot(conversation)
        slot.waiting += 1
        try:
            async with slot.lock:
                notes: list[OutputPiece] = []
                if slot.kernel is None or slot.kernel.lost:
                    kernel = await self._start(slot)
                    if reason := self._lost.pop(conversation, ""):
                        text = f"[a new interpreter; the previous one was stopped: {reason}]"
                        notes.append(OutputPiece("note", text))
                    if kernel.gaps:
                        notes.append(
                            OutputPiece("note", f"[no cage here: {', '.join(kernel.gaps)}]")
                        )
                assert slot.kernel is not None
                answer = await slot.kernel.execute(code)
                if slot.kernel.lost:
                    self._remember(conversation, slot.kernel.lost)
                return KernelResult((*notes, *answer.pieces), answer.failed)
        finally:
            slot.waiting -= 1
            slot.used = time.monotonic()

    async def restart(self, conversation: str) -> None:
        """Drop a conversation's kernel; the next call starts another."""
        self._lost.pop(conversation, None)
        slot = self._slots.pop(conversation, None)
        if slot is not None and slot.kernel is not None:
            await slot.kernel.end("it was restarted")

    async def sweep(self) -> None:
        """End kernels that have not been used for a long time, until cancelled."""
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._limits.idle_seconds))
            oldest = time.monotonic() - self._limits.idle_seconds
            for conversation, slot in list(self._slots.items()):
                if slot.used < oldest and not slot.waiting:
                    await self._vacate(conversation, "it was idle for too long")

    async def close(self) -> None:
        """End all kernels."""
        slots, self._slots = self._slots, {}
        kernels = [slot.kernel for slot in slots.values() if slot.kernel is not None]
        await asyncio.gather(*(kernel.end("the server is stopping") for kernel in kernels))

    async def _take_slot(self, conversation: str) -> _Slot:
        while conversation not in self._slots and len(self._slots) >= self._limits.kernels:
            idle = {name: slot for name, slot in self._slots.items() if not slot.waiting}
            if not idle:
                raise KernelsBusy
            oldest = min(idle, key=lambda name: idle[name].used)
            await self._vacate(oldest, "other conversations needed its slot")
        return self._slots.setdefault(conversation, _Slot())

    async def _start(self, slot: _Slot) -> Kernel:
        kernel = Kernel(self._limits, spaces=self._spaces)
        await kernel.start()
        slot.kernel = kernel
        return kernel

    async def _vacate(self, conversation: str, reason: str) -> None:
        slot = self._slots.pop(conversation)
        if slot.kernel is not None:
            self._remember(conversation, slot.kernel.lost or reason)
            await slot.kernel.end(reason)

    def _remember(self, conversation: str, reason: str) -> None:
        self._lost[conversation] = reason
        while len(self._lost) > _REMEMBERED:
            del self._lost[next(iter(self._lost))]


class Interpreter:
    """The tools of the server, for every transport."""

    def __init__(self, limits: Limits, *, spaces: bool, shared: bool) -> None:
        self._limits = limits
        self._spaces = spaces
        self._shared = shared
        self._single = 0
        self.kernels = Kernels(limits, spaces=spaces)

    async def call(
        self, name: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> CallToolResult:
        """Return the result of a call; errors become a failed result."""
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
                return _fail("The argument `code` is missing or not a string.")
            case "restart":
                await self.kernels.restart(conversation)
                return _succeed([OutputPiece("note", "[the next call starts a new interpreter]")])
            case _:
                return _fail(f"Tool {name!r} not found; use execute_code or restart.")

    async def _execute(self, conversation: str, code: str, *, alone: bool) -> CallToolResult:
        try:
            answer = await self.kernels.execute(conversation, code)
        except KernelLost as error:
            return _fail(f"The interpreter could not be started: {error}.")
        except KernelsBusy:
            return _fail(f"All {self._limits.kernels} interpreters are busy; try again later.")
        finally:
            if alone:
                await self.kernels.restart(conversation)
        return _succeed(answer.pieces, failed=answer.failed)

    def describe(self) -> Sequence[Tool]:
        """Return the declarations of the tools."""
        from mcp_types import Tool, ToolAnnotations

        marks = ToolAnnotations(
            read_only_hint=False,
            destructive_hint=True,
            idempotent_hint=False,
            # Without a network of its own, the code reaches the network of this machine.
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
                description="Delete all names and files of execute_code.",
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
    """Return the server of the official package, with the tools of an interpreter."""
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
        # The list changes only with the command that starts the server and with the version.
        cache_hints={"tools/list": CacheHint(ttl_ms=_LISTED_MS)},
    )


async def sweep_while(kernels: Kernels, work: Any) -> None:
    """Serve until the work ends, sweep meanwhile, and end all kernels."""
    sweeping = asyncio.create_task(kernels.sweep())
    try:
        await work
    finally:
        sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await sweeping
        await kernels.close()


def _fail(text: str) -> CallToolResult:
    return _succeed([OutputPiece("note", text)], failed=True)


def _succeed(pieces: Sequence[OutputPiece], *, failed: bool = False) -> CallToolResult:
    from mcp_types import CallToolResult

    shown = pieces or [OutputPiece("note", "[no output]")]
    blocks = [block for piece in shown for block in _nativize(piece)]
    return CallToolResult(content=blocks, is_error=failed)


def _nativize(piece: OutputPiece) -> Sequence[ContentBlock]:
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
