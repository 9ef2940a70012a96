"""`Exchange`: one HTTP request and its response, with limits and disconnect handling."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from vibe_llms.base.offloading import LOOP_BYTES, offload
from vibe_llms.messages.identities import produce_identity
from vibe_llms.runs.interfaces import RequestKey
from vibe_llms.runs.rates import RateReport
from vibe_llms.server.bodies import BodyRoom
from vibe_llms.server.dialects import find_dialect
from vibe_llms.server.failures import ClientFailure, Rejected
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.request_limits import check_counts
from vibe_llms.server.settings import ServerSettings
from vibe_llms.storage.logins import Login

T = TypeVar("T")

JSON = b"application/json"
_KEY = re.compile(rb"[\x21-\x7e]{1,255}")
#: Seconds of silence after which a stream sends this comment, which clients skip.
_SILENT_SECONDS = 15.0
_COMMENT = b": waiting\n\n"
#: Seconds for a client to read the last event of a failed stream.
_END_SECONDS = 1.0
#: Bodies that are too long are received up to this size, and for this number of seconds.
_DISCARDED_BYTES, _DISCARD_SECONDS = 1024 * 1024, 2.0
#: Longer bodies are joined and hashed in a thread.
_LONG_BYTES = 1024 * 1024
EVENTS = b"text/event-stream; charset=utf-8"
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
#: The three parts of ASGI.
Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


#: Keys in the state of a request: a future that is done when the connection is lost, and a flag
#: that is present if the whole body has arrived.
LOST, ARRIVED = "lost", "arrived"
#: Headers that must not repeat, because a proxy might read the other value.
_SINGLE = frozenset(
    (
        *(b"host", b"origin", b"authorization", b"x-api-key", b"api-key", b"content-type"),
        *(b"cookie", b"sec-fetch-site"),
    )
)


class Disconnected(Exception):
    """The client closed the connection, so there is nobody to answer."""


class HttpExchange:
    """A request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, room: BodyRoom) -> None:
        self.scope = scope
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.dialect = find_dialect(self.path, self.headers)
        self.request_id = f"req_{produce_identity()}"
        #: Texts that fill the placeholders of the endpoint's path.
        self.arguments: Sequence[str] = ()
        self.user = ""
        #: Login whose cookie identified the user.
        self.login: Login | None = None
        #: Request members for controls that have different names there.
        self.controls: Mapping[str, str] = {}
        #: Conversation of the request, if known.
        self.conversation = ""
        self.logged = True
        #: Key of the client's own provider; never stored.
        self.provider_key = self.headers.get(b"x-provider-key", b"").decode("latin-1").strip()
        #: The client's idempotency key, known after the body was read.
        self.request_key: RequestKey | None = None
        #: Headers sent with every response.
        self.headers_sent: Headers = ((self.dialect.request_id, self.request_id.encode()),)
        #: Value of `Cache-Control` in the response; replies belong to one user.
        self.caching = b"no-store"
        #: Unsupported features of the request, named in a header and in the log.
        self.omissions = Omissions()
        #: Use of the user's limits, filled by reservations.
        self.rates = RateReport()
        #: Status that was sent, or 0.
        self.status = 0
        #: True if part of the body was not received.
        self.unread = False
        self._room = room
        self._size = 0
        #: Encodes a failure that occurs during a stream.
        self._fail: Callable[[ClientFailure], bytes] | None = None
        self._receive = receive
        self._send = send

    @property
    def argument(self) -> str:
        """The text of the first placeholder in the path, such as the name of a model."""
        return self.arguments[0] if self.arguments else ""

    @property
    def query(self) -> Mapping[str, str]:
        """Query parameters; the last one of a name counts."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1")))

    def check_headers(self, settings: ServerSettings) -> None:
        """Raise `Rejected` if the headers are too long or contradict each other."""
        size = sum(len(name) + len(value) for name, value in self.scope["headers"])
        if size > settings.header_bytes:
            raise Rejected(
                f"the headers have {size} bytes, and the limit is {settings.header_bytes}",
                status=431,
                code="headers_too_large",
            )
        names = [name for name, _ in self.scope["headers"] if name in _SINGLE]
        if len(names) > len({*names}):
            raise Rejected("a header is repeated", code="duplicate_header")

    @property
    def media_type(self) -> str:
        """Lowercase media type of the body without parameters, or an empty string."""
        header = self.headers.get(b"content-type", b"").decode("latin-1")
        return header.partition(";")[0].strip().lower()

    async def read(self, settings: ServerSettings) -> bytes:
        """Receive a JSON body; `Rejected` if its declared type is another."""
        kind = self.media_type
        if kind and kind != "application/json" and not kind.endswith("+json"):
            raise Rejected(
                f"the body must be JSON, not {kind}", status=415, code="unsupported_media_type"
            )
        return await self.receive(settings)

    async def decode(self, read: Callable[[bytes], T], settings: ServerSettings) -> T:
        """Decode the body with `read`, and enforce the limits of the settings."""
        body = await self.read(settings)

        def work() -> T:
            request = read(body)
            check_counts(request, settings)
            return request

        return await self.offload(work)

    async def offload(self, work: Callable[[], T]) -> T:
        """Do work on the request: on the event loop if the body is small, else in a thread."""
        return await offload(self._size > LOOP_BYTES, work)

    async def _discard(self) -> None:
        """Receive a body that is refused for a while: a client that sends may not read why."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                while self.unread:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    self.unread = message.get("more_body", False)

    async def check_length(self, most: int, key: str) -> None:
        """Raise `Rejected` if the body is declared to be too long; `key` is the setting."""
        self.unread = True
        declared = self.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > most:
            if int(declared) <= _DISCARDED_BYTES and b"expect" not in self.headers:
                await self._discard()
            raise _too_large(most, key)

    async def receive_parts(
        self, most: int, key: str, settings: ServerSettings
    ) -> AsyncIterator[bytes]:
        """Receive the body in parts, which are not kept.

        Raises `Rejected` if it is too long, or if nothing arrives for some time.
        """
        await self.check_length(most, key)
        size = 0
        while self.unread:
            try:
                async with asyncio.timeout(settings.receive_seconds):
                    message = await self._receive()
            except TimeoutError as error:
                raise Rejected(
                    f"nothing arrived for {settings.receive_seconds:g} s", status=408
                ) from error
            if message["type"] == "http.disconnect":
                raise Disconnected
            part: bytes = message.get("body", b"")
            size += len(part)
            self.unread = message.get("more_body", False)
            if size > most:
                await self._discard()
                raise _too_large(most, key)
            yield part

    async def receive(self, settings: ServerSettings) -> bytes:
        """Receive the body; `Rejected` if it is too long or too slow.

        It counts against the room for bodies until `close`.
        """
        most, key = settings.body_bytes, "body-bytes"
        await self.check_length(most, key)
        parts: list[bytes] = []
        try:
            # Most bodies arrive with their headers, and need no timer.
            arrived = ARRIVED in self.scope["state"]
            async with nullcontext() if arrived else asyncio.timeout(settings.receive_seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    part: bytes = message.get("body", b"")
                    if self._size + len(part) > most:
                        raise _too_large(most, key)
                    self._room.reserve(self.user, len(part))
                    self._size += len(part)
                    parts.append(part)
                    if not message.get("more_body", False):
                        self.unread = False
                        large = self._size > _LONG_BYTES
                        body = await offload(large, b"".join, parts)
                        self.request_key = await offload(large, self._read_key, body)
                        return body
        except TimeoutError as error:
            raise Rejected(
                f"the body did not arrive within {settings.receive_seconds:g} s", status=408
            ) from error

    def reserve(self, size: int) -> None:
        """Count bytes that are loaded for the request like those of its body."""
        self._room.reserve(self.user, size)
        self._size += size

    def close(self) -> None:
        """Release the room of the body after the request."""
        self._room.release(self.user, self._size)

    def _read_key(self, body: bytes) -> RequestKey | None:
        key = self.headers.get(b"idempotency-key")
        if key is None:
            return None
        if not _KEY.fullmatch(key):
            raise Rejected("Idempotency-Key must have 1 to 255 visible characters")
        digest = hashlib.sha256(b"\0".join([self.method.encode(), self.path.encode(), body]))
        return RequestKey(key.decode("ascii"), digest.digest())

    async def reply(
        self, body: bytes, *, status: int = 200, media_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Send a whole response."""
        if status != 304:
            # For 304, it would be the length of the cached body.
            headers = ((b"content-length", str(len(body)).encode()), *headers)
        await self.start(status, media_type, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def fail(self, failure: ClientFailure, headers: Headers = ()) -> None:
        """Send an error in the format of the client's dialect."""
        body = self.dialect.encode_failure(failure, self.request_id)
        await self.reply(body, status=failure.status, headers=headers)

    async def start(self, status: int, media_type: bytes, headers: Headers = ()) -> None:
        """Send the head of a response."""
        self.status = status
        told = self.omissions.headers
        caching = (b"cache-control", self.caching)
        head = [(b"content-type", media_type), caching, *headers, *self.headers_sent, *told]
        if self.rates.state is not None:
            head += self.dialect.rate_headers(self.rates.state)
        await self._send({"type": "http.response.start", "status": status, "headers": head})

    async def stream(
        self, parts: AsyncIterator[bytes], fail: Callable[[ClientFailure], bytes] | None = None
    ) -> None:
        """Send events as they arrive, and comments during silence; wait while the client is slow.

        The head is sent with the first event. With `fail`, a failure during the stream becomes the
        last event: the result of `fail`, or if that is empty, an error in the client's dialect.
        Without `fail`, the connection is closed, and the client resumes with its cursor.
        """
        self._fail = fail
        with _Comments(self._send_comment) as comments:
            async for part in parts:
                comments.silent = False
                if not self.status:
                    await self._start_events()
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
        self._fail = None
        await self._send({"type": "http.response.body", "body": b""})

    async def _start_events(self) -> None:
        await self.start(200, EVENTS)

    async def _send_comment(self) -> None:
        if not self.status:
            await self._start_events()
        await self._send({"type": "http.response.body", "body": _COMMENT, "more_body": True})

    async def end_stream(self, failure: ClientFailure) -> bool:
        """End a stream with a failure; return False if that was not possible."""
        if self._fail is None:
            return False
        last = self._fail(failure) or self.dialect.write_failure(failure, self.request_id)
        try:
            # Don't wait for a client that does not read.
            async with asyncio.timeout(_END_SECONDS):
                await self._send({"type": "http.response.body", "body": last})
        except TimeoutError:
            return False
        return True

    def until_disconnect(self) -> UntilDone:
        """Cancel the block when the client disconnects, and raise `Disconnected`."""
        return UntilDone(self.scope["state"][LOST], Disconnected())


class _Comments:
    """Sender of comments during the silence of a stream.

    Proxies close silent connections, and a vanished client is only noticed when data is sent.
    """

    def __init__(self, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.silent = True
        self._send = send
        self._comment: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._wait(_SILENT_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._send_if_silent)

    def _send_if_silent(self) -> None:
        if self.silent and (self._comment is None or self._comment.done()):
            self._comment = asyncio.create_task(self._send())
        self.silent = True
        self._wait(_SILENT_SECONDS / 2)


class UntilDone(AbstractAsyncContextManager[None]):
    """A block that is cancelled when a future is done, and then raises an error."""

    def __init__(self, future: asyncio.Future[None], error: Exception) -> None:
        self._future = future
        self._error = error
        self._task: asyncio.Task[Any] | None = None
        self._done = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._future.add_done_callback(self._cancel)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._future.remove_done_callback(self._cancel)
        # The callback may already have been scheduled.
        task, self._task = self._task, None
        cancelled = self._done and isinstance(error, asyncio.CancelledError)
        if cancelled and task is not None and not task.uncancel():
            raise self._error from None

    def _cancel(self, _: asyncio.Future[None]) -> None:
        if self._task is not None:
            self._done = True
            self._task.cancel()


def _too_large(most: int, key: str) -> Rejected:
    return Rejected(
        f"the body is larger than {most:,} bytes ({key})", status=413, code="request_too_large"
    )
