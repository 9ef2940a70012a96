"""Large media at Gemini's Files API: uploaded once, and sent by address while they are kept.

A file is named after the hash of its bytes, so that any process finds it again. Google keeps files
for 48 hours; one that would expire soon is uploaded again.

Source: https://ai.google.dev/gemini-api/docs/files, https://ai.google.dev/api/files, and `upload`
in `files.py` of the package google-genai 3.6.1 (2026-11).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from datetime import datetime
from typing import Protocol, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import (
    CredentialRefused,
    ModelUnavailable,
    ProviderError,
    ReplyMalformed,
    ReplyTimeout,
    RequestRefused,
)
from vibe_llms.messages.contents import Reference, repair_text
from vibe_llms.messages.events import Notice
from vibe_llms.providers.gemini.errors import ERRORS
from vibe_llms.providers.gemini.messages import MediaSlot
from vibe_llms.providers.http_errors import ErrorMap
from vibe_llms.providers.interfaces import Loader, Notifier
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.round_trip import JSON_HEADERS
from vibe_llms.providers.transport import Outgoing

T = TypeVar("T")

#: Seconds before its end from which a file is not relied on.
SPARE_SECONDS = 3600.0
#: Seconds between looks at a file that is being processed, at first and at most.
POLL_SECONDS, LONGEST_POLL_SECONDS = 0.5, 5.0
#: Longest name of a file, without its collection.
_LONGEST_NAME = 40


class _Status(Struct):
    message: str | None = None


class GeminiFile(Struct, rename="camel"):
    """A file as the server describes it. Source: `File` of google-genai 3.6.1."""

    name: str = ""
    uri: str = ""
    state: str | None = None
    expiration_time: datetime | None = None
    error: _Status | None = None

    @property
    def lasts(self) -> bool:
        """True if the file is kept for long enough to rely on it."""
        end = self.expiration_time
        return end is None or end.timestamp() - time.time() > SPARE_SECONDS


class _Answer(Struct):
    file: GeminiFile


_FILE = msgspec.json.Decoder(GeminiFile)
_ANSWER = msgspec.json.Decoder(_Answer)


class FileFetcher(Protocol):
    """Part of the client that uploads files."""

    @property
    def provider(self) -> str:
        """Name of the row."""
        ...

    async def fetch(
        self, outgoing: Outgoing, errors: ErrorMap, *, headers: dict[str, str] | None = None
    ) -> bytes:
        """Return the body of a response, and add its headers to `headers`."""
        ...

    def read(self, decode: Callable[[bytes], T], body: bytes, what: str) -> T:
        """Decode a body, or raise `ReplyMalformed`."""
        ...


class FileStore:
    """Files of a row at the server; `root` is the path of the API's version.

    Media of `upload_bytes` and more are uploaded; with 0, none is.
    """

    def __init__(
        self, client: FileFetcher, root: str, wait_seconds: float, upload_bytes: int
    ) -> None:
        self.upload_bytes = upload_bytes
        self._client = client
        self._root = root
        self._wait_seconds = wait_seconds
        self._known: dict[str, GeminiFile] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def forget(self) -> None:
        """Ask the server about each file again, because one of them was gone."""
        self._known.clear()

    async def provide(self, slot: MediaSlot, load: Loader, notify: Notifier) -> str:
        """Return the address of a medium at the server, which has it when this returns."""
        reference = slot.data
        if not isinstance(reference, Reference):
            reference = Reference.from_bytes(reference)
        async with self._locks.setdefault(reference.hash, asyncio.Lock()):
            known = self._known.get(reference.hash)
            if known is None or not known.lasts:
                known = await self._find(_name(reference.hash, slot.mimetype))
            if known is None or not known.lasts:
                data = slot.data
                if isinstance(data, Reference):
                    data = (await load([data]))[data.hash]
                size = f"{len(data) / 1e6:.1f} MB"
                text = f"{self._client.provider}: {slot.label} ({size}) is uploaded for 48 hours"
                notify(Notice("upload", text, slot.origin))
                known = await self._upload(
                    data, slot.mimetype, _name(reference.hash, slot.mimetype)
                )
            known = await self._wait(known, slot.label)
            self._known[reference.hash] = known
        return known.uri

    async def _find(self, name: str) -> GeminiFile | None:
        """Return the file of this name, or None; a missing file is answered with 403."""
        try:
            return await self._look(name)
        except (CredentialRefused, ModelUnavailable, RequestRefused):
            # If the key is wrong, the upload says so.
            return None

    async def _look(self, name: str) -> GeminiFile:
        outgoing = Outgoing("GET", f"{self._root}/files/{quote(name, safe='')}")
        return self._read(_FILE, await self._client.fetch(outgoing, ERRORS))

    async def _upload(self, data: bytes, mimetype: str, name: str) -> GeminiFile:
        try:
            return await self._send(data, mimetype, name)
        except ProviderError as error:
            if error.status not in (400, 403, 409):
                raise
        # The name is taken by a file that this key may not see, or that is about to expire.
        return await self._send(data, mimetype, "")

    async def _send(self, data: bytes, mimetype: str, name: str) -> GeminiFile:
        about = {"file": {"name": f"files/{name}"} if name else {}}
        headers = {
            **JSON_HEADERS,
            "x-goog-upload-protocol": "resumable",
            "x-goog-upload-command": "start",
            "x-goog-upload-header-content-length": str(len(data)),
            "x-goog-upload-header-content-type": mimetype,
        }
        start = Outgoing("POST", f"/upload{self._root}/files", (encode_json(about),), headers)
        heard: dict[str, str] = {}
        await self._client.fetch(start, ERRORS, headers=heard)
        address = urlsplit(heard.get("x-goog-upload-url", ""))
        if not address.path.startswith("/"):
            raise ReplyMalformed(
                "the server did not say where to upload a file", provider=self._client.provider
            )
        # The bytes go to the row's own server, whatever host the answer names.
        path = f"{address.path}?{address.query}" if address.query else address.path
        finish = {"x-goog-upload-command": "upload, finalize", "x-goog-upload-offset": "0"}
        body = await self._client.fetch(Outgoing("POST", path, (data,), finish), ERRORS)
        return self._read(_ANSWER, body).file

    async def _wait(self, file: GeminiFile, label: str) -> GeminiFile:
        """Return the file when the server has processed it."""
        pause, waited = POLL_SECONDS, 0.0
        while file.state not in (None, "ACTIVE", "STATE_UNSPECIFIED"):
            if file.state == "FAILED":
                reason = (file.error.message if file.error else "") or "no reason is given"
                raise RequestRefused(
                    f"the server cannot read {label}: {repair_text(reason)}",
                    provider=self._client.provider,
                )
            if waited >= self._wait_seconds:
                raise ReplyTimeout(
                    f"{label} is not processed after {self._wait_seconds:g} s (file-seconds)",
                    provider=self._client.provider,
                    limit="file-seconds",
                    seconds=self._wait_seconds,
                )
            await asyncio.sleep(pause)
            waited += pause
            pause = min(pause * 2, LONGEST_POLL_SECONDS)
            file = await self._look(file.name.removeprefix("files/"))
        if not file.uri:
            raise ReplyMalformed(
                "the server gave a file no address", provider=self._client.provider
            )
        return file

    def _read(self, decoder: msgspec.json.Decoder[T], body: bytes) -> T:
        return self._client.read(decoder.decode, body, "the file")


def _name(digest: str, mimetype: str) -> str:
    """Return the name of a file by its bytes and type, in the characters that names may have."""
    return hashlib.sha256(f"{digest} {mimetype}".encode()).hexdigest()[:_LONGEST_NAME]
