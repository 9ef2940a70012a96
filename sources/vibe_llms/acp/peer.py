"""`Peer`: the other side of the connection. Requests of both sides, and their answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Raw, Struct, UnsetType

from vibe_llms.acp.rpc import (
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Call,
    RequestId,
    Response,
    RpcError,
    quote,
    read_line,
    read_params,
    write_call,
    write_error,
    write_result,
)

_CANCEL = "$/cancel_request"


class Reply(Struct, frozen=True):
    """A result, and work to do right after it was sent."""

    result: Struct
    then: Callable[[], object] = lambda: None


class Empty(Struct, frozen=True):
    """A result without members."""


#: Answers a request with these parameters, or handles a notification.
Method: TypeAlias = Callable[[Raw], Awaitable[Reply]]


class Output(Protocol):
    """Writer of lines."""

    def write(self, line: bytes) -> None:
        """Write a line, after all earlier ones."""
        ...

    async def drain(self) -> None:
        """Wait while the other side is too far behind."""
        ...


class CancelParams(Struct, frozen=True, rename="camel"):
    """Parameters of `$/cancel_request`."""

    request_id: RequestId


_CANCEL_DECODER = msgspec.json.Decoder(CancelParams)


class Peer:
    """The other side: `find_method` returns what answers its calls, or None.

    `explain` turns an error of a method into the one that the other side gets. `report` prints what
    the other side has no answer for.
    """

    def __init__(
        self,
        output: Output,
        find_method: Callable[[str], Method | None],
        explain: Callable[[Exception], RpcError],
        report: Callable[[str], object],
    ) -> None:
        self._output = output
        self._find_method = find_method
        self._explain = explain
        self._report = report
        self._numbers = itertools.count()
        #: Our requests that have no answer yet.
        self._asked: dict[int, asyncio.Future[Raw]] = {}
        #: Tasks of the other side's calls, and those of its requests by their ids.
        self._tasks: set[asyncio.Task[None]] = set()
        self._answering: dict[RequestId, asyncio.Task[None]] = {}

    def receive(self, line: bytes) -> None:
        """Handle a line: begin to answer a call, or pass a response on.

        Calls begin in the order of their lines.
        """
        try:
            message = read_line(line)
        except RpcError as error:
            self._output.write(write_error(None, error))
            return
        match message:
            case Response():
                self._take_response(message)
            case Call(method=method, params=params) if method == _CANCEL:
                self._begin(self._cancel(params))
            case Call(identity=UnsetType()):
                self._begin(self._notice(message))
            case Call(identity=identity):
                assert not isinstance(identity, UnsetType)
                task = self._begin(self._answer(message, identity))
                self._answering[identity] = task
                task.add_done_callback(lambda _: self._forget(identity, task))

    def refuse_line(self, longest: int) -> None:
        """Report a line that was too long to read."""
        error = RpcError(INVALID_REQUEST, f"the line has more than {longest:,} bytes")
        self._output.write(write_error(None, error))

    def notify(self, method: str, params: Struct) -> None:
        """Send a notification."""
        self._output.write(write_call(method, params))

    async def request(self, method: str, params: Struct) -> Raw:
        """Send a request and return its result; raises the `RpcError` of the other side.

        If this is cancelled, so is the request.
        """
        number = next(self._numbers)
        answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._output.write(write_call(method, params, number))
        try:
            return await answer
        except asyncio.CancelledError:
            self.notify(_CANCEL, CancelParams(number))
            raise
        finally:
            del self._asked[number]

    async def drain(self) -> None:
        """Wait while the other side is too far behind."""
        await self._output.drain()

    async def finish(self, seconds: float) -> None:
        """Wait for the calls that are being answered, then cancel those that are left.

        Our own requests get no answer any more.
        """
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(RpcError(INTERNAL_ERROR, "the client has ended"))
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=seconds)
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _forget(self, identity: RequestId, task: asyncio.Task[None]) -> None:
        if self._answering.get(identity) is task:
            del self._answering[identity]

    def _take_response(self, response: Response) -> None:
        identity = response.identity
        answer = self._asked.get(identity) if isinstance(identity, int) else None
        if answer is None or answer.done():
            # A late answer to a request that was cancelled.
            return
        if response.error is not None:
            answer.set_exception(response.error)
        else:
            answer.set_result(response.result)

    async def _answer(self, call: Call, identity: RequestId) -> None:
        try:
            reply = await self._run(call)
        except RpcError as error:
            self._output.write(write_error(identity, error))
        except asyncio.CancelledError:
            cancelled = RpcError(CANCELLED, "the request was cancelled")
            self._output.write(write_error(identity, cancelled))
        else:
            self._output.write(write_result(identity, reply.result))
            reply.then()

    async def _notice(self, call: Call) -> None:
        try:
            await self._run(call)
        except RpcError as error:
            self._report(f"the notification {quote(call.method)}: {error.message}")

    async def _run(self, call: Call) -> Reply:
        method = self._find_method(call.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"method {quote(call.method)} not found")
        try:
            return await method(call.params)
        except RpcError:
            raise
        except Exception as error:
            raise self._explain(error) from error

    async def _cancel(self, params: Raw) -> None:
        try:
            identity = read_params(params, _CANCEL_DECODER).request_id
        except RpcError as error:
            self._report(f"the notification {_CANCEL}: {error.message}")
            return
        if (task := self._answering.get(identity)) is not None:
            task.cancel()
