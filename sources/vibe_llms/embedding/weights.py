"""Pinned weights: their files are verified by size and SHA-256, and fetched from the hub.

A file has its final name only once it is verified. Until then it is a partial file, which the next
attempt continues. No token is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import Configuration, shipped_folder
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ModelUnavailable,
    ProviderOverloaded,
    ProviderUnreachable,
    RateLimited,
    RequestForbidden,
)
from vibe_llms.base.files import LARGEST_SETTINGS, opened, parse_toml, read_file, read_parts
from vibe_llms.base.folders import (
    make_folder,
    open_or_make,
    storage_errors,
    synchronise,
    synchronise_folder,
    write_all,
)
from vibe_llms.base.locks import locked
from vibe_llms.base.network.guard import AddressGuard
from vibe_llms.base.network.offline import permit_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

PARTIAL = ".part"
_PROVIDER = "onnx"
_HUB = "https://huggingface.co"
_LOCK_SECONDS = 1.0
_REDIRECTS = 5
_PARTIAL_CONTENT, _NOT_SATISFIABLE, _TOO_MANY = 206, 416, 429
_SERVER_ERRORS = 500


class PinnedFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a repository: its path, its size in bytes, and its SHA-256."""

    path: str
    size: int
    sha256: str


class PinnedWeights(Struct, frozen=True, forbid_unknown_fields=True):
    """The files of a model at one commit of its repository."""

    name: str
    repository: str
    revision: str
    files: Sequence[PinnedFile]


def read_weights() -> PinnedWeights:
    """Read the pinned weights that come with the library."""
    tree = parse_toml(read_file(shipped_folder() / "weights.toml", LARGEST_SETTINGS))
    return msgspec.convert(tree, PinnedWeights)


def hub_address(environment: Mapping[str, str] | None = None) -> str:
    """Return the address of the hub: `HF_ENDPOINT`, or Hugging Face's own."""
    address = (os.environ if environment is None else environment).get("HF_ENDPOINT") or _HUB
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        valid = valid and parts.port != 0 and not parts.query and not parts.username
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(
            "HF_ENDPOINT is not the http or https URL of a server; correct it or unset it"
        )
    return address.rstrip("/")


def is_complete(folder: Path, file: PinnedFile) -> bool:
    """Return True if a file is there and verified; raise `StorageError` if it cannot be read."""
    path = folder / file.path
    with storage_errors(path):
        try:
            return path.stat().st_size == file.size and digest(path, file.size) == file.sha256
        except (FileNotFoundError, NotADirectoryError):
            return False


def digest(path: Path, limit: int) -> str:
    """Return the SHA-256 of a file of at most `limit` bytes."""
    found = hashlib.sha256()
    with opened(path) as descriptor:
        for part in read_parts(descriptor, limit):
            found.update(part)
    return found.hexdigest()


class WeightsFetcher:
    """Fetches pinned files into a folder; `report` gets the path, the bytes there, and the size."""

    def __init__(
        self,
        weights: PinnedWeights,
        folder: Path,
        configuration: Configuration,
        report: Callable[[str, int, int], None],
        *,
        hub: str,
    ) -> None:
        self._weights = weights
        self._folder = folder
        self._offline = configuration.offline
        self._stream = configuration.stream
        self._report = report
        self._hub = hub

    def address_of(self, file: PinnedFile) -> str:
        """Return the URL of a file."""
        parts = (self._weights.repository, "resolve", self._weights.revision, file.path)
        return "/".join((self._hub, *map(quote, parts)))

    def check_offline(self) -> None:
        """Raise `ModelUnavailable` if requests to the hub are forbidden."""
        variable = os.environ.get("HF_HUB_OFFLINE", "").upper()
        if variable in ("1", "ON", "YES", "TRUE"):
            raise ModelUnavailable(
                f"{self._weights.name} is missing or incomplete, and HF_HUB_OFFLINE is set",
                provider=_PROVIDER,
                code="offline",
            )
        try:
            permit_request(self._hub, f"fetching {self._weights.name}", offline=self._offline)
        except RequestForbidden as error:
            raise ModelUnavailable(
                f"{self._weights.name} is missing or incomplete, and requests are forbidden",
                provider=_PROVIDER,
                code="offline",
            ) from error

    def instruct(self) -> Sequence[str]:
        """Return instructions for copying the files by hand, as lines."""
        lines = ["copy these files by hand, and run the command again to verify them:"]
        for file in self._weights.files:
            lines.append(f"from {self.address_of(file)}")
            lines.append(f"  to {self._folder / file.path}")
            lines.append(f"  with {file.size} bytes, SHA-256 {file.sha256}")
        return lines

    async def fetch(self, files: Sequence[PinnedFile]) -> None:
        """Fetch files, continuing partial ones, and verify them."""
        self.check_offline()
        with storage_errors(self._folder):
            make_folder(self._folder)
            with locked(self._folder, seconds=_LOCK_SECONDS):
                async with self._open_client() as client:
                    for file in files:
                        await self._fetch_file(client, file)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import httpx2

        try:
            yield
        except httpx2.TooManyRedirects as error:
            raise self._refuse(f"more than {_REDIRECTS} redirects") from error
        except httpx2.HTTPError as error:
            words = " ".join(str(error).split())[:300] or type(error).__name__
            raise ProviderUnreachable(
                f"{self._weights.name} could not be fetched from {self._hub}: {words}; run the "
                "command again to continue",
                provider=_PROVIDER,
                code="unreachable",
            ) from error

    def _open_client(self) -> httpx2.AsyncClient:
        import httpx2

        async def admit(url: str) -> None:
            if self._hub.startswith("https:") and not url.startswith("https:"):
                raise self._refuse("it redirects to an address that is not https")

        try:
            guard = AddressGuard(
                f"fetching {self._weights.name}", offline=self._offline, admit=admit
            )
            guard.connect(self._hub)
        except (ImportError, OSError, ValueError, httpx2.InvalidURL) as error:
            raise ConfigurationError(
                "the proxies or certificates named in the environment (HTTPS_PROXY, SSL_CERT_FILE "
                f"and related variables) cannot be used: {error}"
            ) from error
        return httpx2.AsyncClient(
            transport=guard,
            timeout=httpx2.Timeout(self._stream.idle_seconds, connect=self._stream.connect_seconds),
            follow_redirects=True,
            max_redirects=_REDIRECTS,
        )

    async def _fetch_file(self, client: httpx2.AsyncClient, file: PinnedFile) -> None:
        path = self._folder / file.path
        partial = path.with_name(path.name + PARTIAL)
        make_folder(path.parent)
        for attempt in range(self._stream.retries + 1):
            last = attempt == self._stream.retries
            try:
                with self._translated():
                    await self._continue(client, file, partial)
                break
            except (RateLimited, ProviderOverloaded) as error:
                wait = 1.0 if error.retry_after is None else error.retry_after
                if last or wait > self._stream.retry_wait_seconds:
                    raise
                await asyncio.sleep(wait)
            except ProviderUnreachable:
                # A connection that broke is continued; a hub that cannot be reached is not.
                if last or not partial.exists() or not partial.stat().st_size:
                    raise
        if await asyncio.to_thread(digest, partial, file.size) != file.sha256:
            partial.unlink()
            raise self._refuse(
                f"{file.path} has another SHA-256 than the pinned one, so it was deleted. A mirror "
                "or a proxy may have changed it"
            )
        os.replace(partial, path)
        synchronise_folder(path.parent)

    async def _continue(self, client: httpx2.AsyncClient, file: PinnedFile, partial: Path) -> None:
        descriptor = open_or_make(str(partial))
        try:
            there = os.fstat(descriptor).st_size
            if there > file.size:
                os.ftruncate(descriptor, 0)
                there = 0
            self._report(file.path, there, file.size)
            if there == file.size:
                return
            headers = {"accept-encoding": "identity"}
            if there:
                headers["range"] = f"bytes={there}-"
            async with client.stream("GET", self.address_of(file), headers=headers) as response:
                self._check_status(response, file)
                start = self._find_start(response, file, there)
                os.ftruncate(descriptor, start)
                os.lseek(descriptor, start, os.SEEK_SET)
                there = start
                async for part in response.aiter_raw():
                    if there + len(part) > file.size:
                        os.ftruncate(descriptor, 0)
                        raise self._refuse(f"{file.path} is longer than its pinned size")
                    await asyncio.to_thread(write_all, descriptor, part)
                    there += len(part)
                    self._report(file.path, there, file.size)
            if there < file.size:
                raise ProviderUnreachable(
                    f"{file.path} ended after {there} of {file.size} bytes; run the command again "
                    "to continue",
                    provider=_PROVIDER,
                )
            synchronise(descriptor)
        finally:
            os.close(descriptor)

    def _check_status(self, response: Any, file: PinnedFile) -> None:
        status = response.status_code
        if status in (200, _PARTIAL_CONTENT, _NOT_SATISFIABLE):
            return
        if status == _TOO_MANY or status >= _SERVER_ERRORS:
            busy = RateLimited if status == _TOO_MANY else ProviderOverloaded
            error = busy(
                f"{self._hub} is busy (status {status}); try again later",
                provider=_PROVIDER,
                status=status,
            )
            with suppress(ValueError):
                error.retry_after = max(float(response.headers.get("retry-after", "")), 0.0)
            raise error
        raise self._refuse(f"{file.path} was answered with status {status}", status)

    def _find_start(self, response: Any, file: PinnedFile, there: int) -> int:
        """Return the position of the body in the file; raise an error if its size is wrong."""
        status, headers = response.status_code, response.headers
        if status == _PARTIAL_CONTENT:
            wanted = f"bytes {there}-{file.size - 1}/{file.size}"
            if headers.get("content-range", "").strip() != wanted:
                raise self._refuse(f"{file.path} was not continued at byte {there}", status)
            return there
        if status == _NOT_SATISFIABLE:
            raise self._refuse(f"{file.path} is shorter than its pinned size", status)
        length = headers.get("content-length")
        if length is not None and length != str(file.size):
            raise self._refuse(f"{file.path} has {length} bytes, not {file.size}", status)
        return 0

    def _refuse(self, message: str, status: int | None = None) -> ModelUnavailable:
        return ModelUnavailable(
            f"{self._weights.name} could not be fetched from {self._hub}: {message}",
            provider=_PROVIDER,
            status=status,
            code="load",
        )
