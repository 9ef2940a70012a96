"""A Jupyter kernel in a cage.

Code that exceeds a limit is interrupted. If it does not stop, it is killed with all processes that
it started, its state is lost, and the next call says so.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import inspect
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from vibe_llms.interpreter import inside
from vibe_llms.interpreter.cage import CagePlan
from vibe_llms.interpreter.outputs import OutputPiece, Outputs
from vibe_llms.interpreter.plans import prepare_folder, produce_plan
from vibe_llms.interpreter.processes import end_tree, measure_memory, send, survey_tree
from vibe_llms.interpreter.settings import Limits

if TYPE_CHECKING:
    from jupyter_client.asynchronous.client import AsyncKernelClient

_MESSAGE_BYTES = 8 * 1024 * 1024
_WATCH_SECONDS = 0.1
_IDLE_WATCH_SECONDS = 1.0
_ASK_SECONDS = 0.5
_INTERRUPTS = 4
#: Code that runs the function of a file with its arguments, and leaves no names behind.
_BOUND = "(lambda names: (exec({source!r}, names), names['bound'](*{arguments!r})))({{}})"


class KernelLost(Exception):
    """The kernel has ended; the message says why."""


class KernelResult(Struct, frozen=True):
    """The result of a call; `failed` is True if an error of the code or a limit ended it."""

    pieces: Sequence[OutputPiece]
    failed: bool


class _Answer(Struct, frozen=True):
    """A message from the cage."""

    started: int = 0
    gaps: tuple[str, ...] = ()
    sealed: bool = False
    files: tuple[dict[str, Any], ...] = ()


class Kernel:
    """A kernel. One task at a time may call its methods; any task may call `end`."""

    def __init__(self, limits: Limits, *, spaces: bool) -> None:
        self._limits = limits
        self._spaces = spaces
        self._folder = ""
        self._others: frozenset[int] = frozenset()
        self._cage: asyncio.subprocess.Process | None = None
        self._client: AsyncKernelClient | None = None
        self._context: Any = None
        self._watching: asyncio.Task[None] | None = None
        self._lost: asyncio.Event = asyncio.Event()
        self._reason = ""
        self._busy = False
        self._stopping: asyncio.Task[None] | None = None
        # CPU time before the first call does not count.
        self._began = math.inf
        self._lock = asyncio.Lock()
        self.gaps: Sequence[str] = ()

    @property
    def lost(self) -> str:
        """Reason for the end of the kernel; empty while it runs."""
        return self._reason

    async def start(self) -> None:
        """Start the kernel in its own cage; raise `KernelLost` with the reason if that fails."""
        started = False
        try:
            async with asyncio.timeout(self._limits.start_seconds):
                await self._start()
            started = True
        except TimeoutError as error:
            await self.end("it did not start in time")
            raise KernelLost(self._reason) from error
        finally:
            if not started:
                await self.end("it could not be started")

    async def execute(self, code: str) -> KernelResult:
        """Run code, and return its output and files; the answer says if the kernel has ended."""
        outputs = Outputs(self._limits.output_bytes)
        self._busy = True
        self._began = _computed(await self._survey())
        running = asyncio.ensure_future(self._run(code, outputs))
        try:
            await self._await_or_lose(running, self._limits.call_seconds)
            if not running.done() and not self._reason:
                outputs.failed = True
                outputs.note(f"[stopped: it did not finish within {self._limits.call_seconds:g} s]")
                await self._stop(running)
            if not self._reason and running.done():
                running.result()
            if outputs.full and not self._reason:
                outputs.note("[the running code was interrupted; names and files are kept]")
            if not self._reason:
                outputs.pieces += await self._collect()
        except KernelLost as error:
            await self.end(str(error))
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.ensure_future(self._stop(running)))
            raise
        finally:
            self._busy = False
            running.cancel()
            # The outcome has been reported.
            await asyncio.gather(running, return_exceptions=True)
        if self._reason:
            outputs.failed = True
            outputs.note(f"[the interpreter was stopped: {self._reason}; names and files are lost]")
        return KernelResult(outputs.pieces, outputs.failed)

    async def end(self, reason: str = "it was stopped") -> None:
        """End the kernel with all processes that it started; safe to call twice."""
        self._reason = self._reason or reason
        self._lost.set()
        async with self._lock:
            if self._watching is not None and self._watching is not asyncio.current_task():
                self._watching.cancel()
            if self._client is not None:
                self._client.stop_channels()
                self._context.destroy(linger=0)
                self._client = None
            if self._cage is not None:
                await self._end_cage(self._cage)
                self._cage = None
            if self._folder:
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
                self._folder = ""

    async def _end_cage(self, cage: asyncio.subprocess.Process) -> None:
        assert cage.stdin is not None
        if self._spaces:
            # Killing the init of a process namespace ends its processes; the cage waits for it.
            for process in (await self._survey())[1:2]:
                send(process, 9)
        else:
            await asyncio.to_thread(end_tree, cage.pid)
        cage.stdin.close()
        await cage.wait()
        _CAGES.discard(cage.pid)
        if not self._spaces:
            # If the cage was killed first, its children have become children of this process.
            await asyncio.to_thread(end_tree, os.getpid(), spared=self._others | _CAGES)

    async def _start(self) -> None:
        import zmq
        import zmq.asyncio
        from jupyter_client.asynchronous.client import AsyncKernelClient

        self._folder = tempfile.mkdtemp(prefix="vibe-llms-")
        plan = produce_plan(self._folder, self._limits, spaces=self._spaces)
        connection = prepare_folder(plan)
        await self._start_cage(plan)
        self._context = zmq.asyncio.Context()
        self._context.setsockopt(zmq.MAXMSGSIZE, _MESSAGE_BYTES)
        self._context.setsockopt(zmq.LINGER, 0)
        client = AsyncKernelClient(context=self._context)
        client.load_connection_info(cast("Any", {**connection, "ip": f"{plan.channels}/k"}))
        client.start_channels(stdin=False, hb=False, control=False)
        self._client = client
        self._watching = asyncio.create_task(self._watch())
        getting_ready = asyncio.ensure_future(self._prepare(client))
        await self._await_or_lose(getting_ready)
        if self._reason:
            raise KernelLost(self._reason)
        getting_ready.result()

    async def _prepare(self, client: AsyncKernelClient) -> None:
        await self._await_ready(client)
        await self._ask("seal")
        await self._bound()

    async def _await_or_lose(
        self, work: asyncio.Future[None], seconds: float | None = None
    ) -> None:
        """Wait until some work is done, the kernel is lost, or the given seconds have passed."""
        lost = asyncio.ensure_future(self._lost.wait())
        waited_for: tuple[asyncio.Future[Any], ...] = (work, lost)
        try:
            await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            if self._reason or not seconds:
                work.cancel()
                await asyncio.wait([work])

    async def _start_cage(self, plan: CagePlan) -> None:
        # Other children of this process do not belong to the kernel.
        self._others = frozenset(one.identity for one in survey_tree(os.getpid())[1:])
        self._cage = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "vibe_llms.interpreter.cage",
            msgspec.json.encode(plan).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            limit=4 * self._limits.file_bytes + _MESSAGE_BYTES,
            start_new_session=True,
        )
        _CAGES.add(self._cage.pid)
        self.gaps = (await self._read_answer()).gaps

    async def _ask(self, words: str) -> _Answer:
        """Send a command to the cage, and return its answer."""
        assert self._cage is not None
        assert self._cage.stdin is not None
        try:
            self._cage.stdin.write(f"{words}\n".encode())
            await self._cage.stdin.drain()
        except OSError as error:
            raise KernelLost("it has stopped") from error
        return await self._read_answer()

    async def _read_answer(self) -> _Answer:
        assert self._cage is not None
        assert self._cage.stdout is not None
        try:
            return msgspec.json.decode(await self._cage.stdout.readline(), type=_Answer)
        except (msgspec.DecodeError, ValueError) as error:
            raise KernelLost(self._reason or "it has stopped") from error

    async def _await_ready(self, client: AsyncKernelClient) -> None:
        """Wait until both of its channels carry messages."""
        while not self._reason:
            asked = client.kernel_info()
            with suppress(Empty):
                while True:
                    message = await client.get_iopub_msg(timeout=_ASK_SECONDS)
                    if _ends(message, asked):
                        return
        raise KernelLost(self._reason)

    async def _run(self, code: str, outputs: Outputs, *, silent: bool = False) -> None:
        """Send code to the kernel, and read its messages until it is idle again."""
        client = self._client
        if client is None:
            raise KernelLost(self._reason)
        asked = client.execute(code, silent=silent, allow_stdin=False)
        waited_for, silences = [asked], 0
        while True:
            message = await self._receive(client)
            if message is None:
                # A flood of output may push out the message that the request has ended. Requests
                # are handled in order, so a later one shows it; in a long silence, such requests
                # become rare.
                silences += 1
                if silences.bit_count() == 1:
                    waited_for.append(client.kernel_info())
                continue
            silences = 0
            if any(_ends(message, one) for one in waited_for):
                return
            if (message.get("parent_header") or {}).get("msg_id") != asked:
                continue
            if outputs.full:
                continue
            outputs.take(str(message.get("msg_type")), message.get("content") or {})
            if outputs.full:
                outputs.failed = True
                running = asyncio.current_task()
                assert running is not None
                self._stopping = asyncio.create_task(self._stop(running))

    async def _receive(self, client: AsyncKernelClient) -> dict[str, Any] | None:
        try:
            message = await client.get_iopub_msg(timeout=_ASK_SECONDS)
        except Empty:
            return None
        except (ValueError, TypeError, KeyError, AssertionError, IndexError) as error:
            # Messages without a valid signature, or that are not Jupyter's.
            raise KernelLost(f"it sent an invalid message: {error}") from error
        return message if isinstance(message, dict) else None

    async def _stop(self, running: asyncio.Future[None]) -> None:
        """Interrupt the running code; end the kernel if that does not help.

        It may take several interrupts: Python ignores exceptions that are raised while it frees an
        object.
        """
        for _ in range(_INTERRUPTS):
            await self._send("interrupt")
            await asyncio.wait([running], timeout=self._limits.grace_seconds / _INTERRUPTS)
            if running.done():
                return
        await self.end("it did not react to interrupts")

    async def _send(self, word: str) -> None:
        assert self._cage is not None
        assert self._cage.stdin is not None
        with suppress(OSError):
            self._cage.stdin.write(f"{word}\n".encode())
            await self._cage.stdin.drain()

    async def _collect(self) -> list[OutputPiece]:
        """Return the files that the code created or changed."""
        try:
            async with asyncio.timeout(self._limits.grace_seconds):
                reported = await self._ask(f"collect {self._limits.file_bytes}")
        except TimeoutError as error:
            raise KernelLost("its files could not be read") from error
        pieces: list[OutputPiece] = []
        for file in reported.files:
            name, size = str(file.get("name", "")), file.get("size", 0)
            with suppress(binascii.Error, ValueError, TypeError):
                if (data := file.get("data")) is not None:
                    pieces.append(OutputPiece("file", data=base64.b64decode(data), name=name))
                    continue
            pieces.append(
                OutputPiece("note", f"[the file {name} has {size:,} bytes, too many to return]")
            )
        return pieces

    async def _survey(self) -> list[Any]:
        return [] if self._cage is None else await asyncio.to_thread(survey_tree, self._cage.pid)

    async def _bound(self) -> None:
        """Limit the kernel's address space to its present size plus the memory that it may add.

        The kernel has to do that itself: other processes need privileges for it.
        """
        kernel = (await self._survey())[-1]
        addresses = kernel.virtual_bytes + self._limits.memory_bytes - kernel.resident_bytes
        outputs = Outputs(self._limits.output_bytes)
        code = _BOUND.format(
            source=inspect.getsource(inside), arguments=(addresses, self._limits.output_bytes)
        )
        await self._run(code, outputs, silent=True)
        if outputs.failed:
            raise KernelLost("its limits cannot be set")

    async def _watch(self) -> None:
        """Enforce the limits that the system does not, also while the kernel is idle."""
        while not self._reason:
            tree = await self._survey()
            self._check(tree)
            if not self._spaces and self._busy:
                await self._check_disk()
            await asyncio.sleep(_WATCH_SECONDS if self._busy else _IDLE_WATCH_SECONDS)

    def _check(self, tree: Sequence[Any]) -> None:
        limits = self._limits
        if self._cage is not None and self._cage.returncode is not None:
            self._lose("it exited")
        elif _computed(tree) - self._began > limits.most_cpu_seconds:
            self._lose(f"it used more than {limits.most_cpu_seconds:g} s of CPU time")
        elif sum(one.tasks for one in tree) > limits.processes + _OWN_TASKS:
            self._lose(f"it had more than {limits.processes} processes")
        elif (
            sum(one.resident_bytes for one in tree) > limits.memory_bytes
            and sum(map(measure_memory, tree)) > limits.memory_bytes
        ):
            self._lose(f"it used more than {limits.memory_bytes:,} bytes of memory")

    async def _check_disk(self) -> None:
        used = await asyncio.to_thread(_measure_folder, self._folder)
        if used > self._limits.disk_bytes:
            self._lose(f"it wrote more than {self._limits.disk_bytes:,} bytes")

    def _lose(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._lost.set()
        _ENDING.add(task := asyncio.ensure_future(self.end()))
        task.add_done_callback(_ENDING.discard)


#: Number of threads of the programs that make the cage.
_OWN_TASKS = 4
_CAGES: set[int] = set()
_ENDING: set[Awaitable[None]] = set()


def _computed(tree: Sequence[Any]) -> float:
    return float(sum(process.seconds for process in tree))


def _ends(message: dict[str, Any], asked: str) -> bool:
    """Return True if a message says that the kernel has finished a request."""
    return (
        message.get("msg_type") == "status"
        and (message.get("parent_header") or {}).get("msg_id") == asked
        and (message.get("content") or {}).get("execution_state") == "idle"
    )


def _measure_folder(folder: str) -> int:
    size = 0
    for path, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                size += os.lstat(os.path.join(path, name)).st_blocks * 512
    return size
