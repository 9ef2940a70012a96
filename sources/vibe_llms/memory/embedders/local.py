"""`LocalEmbedder`: what embedders share whose model runs in this process.

The model is loaded when it is first needed, on a thread of its own: from a folder, from the cache
of Hugging Face's hub, or from the hub if it answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol, TypeAlias, TypeVar

import msgspec

from vibe_llms.exceptions import (
    ModelUnavailable,
    ProviderError,
    ProviderUnreachable,
    ReplyTimeout,
    RequestForbidden,
    SessionClosed,
)
from vibe_llms.files import describe_download, opened
from vibe_llms.memory.cross_loop_lock import CrossLoopLock
from vibe_llms.memory.embedders.core import EMBEDDERS, EmbedderConfiguration
from vibe_llms.memory.embedders.hub import Extra, Hub, Packages
from vibe_llms.network.offline import permit_request, requests_forbidden
from vibe_llms.providers.http_transport import HttpTransport
from vibe_llms.providers.round_trip import fetch
from vibe_llms.providers.transport import Outgoing

T = TypeVar("T")
#: Pairs of texts to raw logits, on one thread at a time.
Scorer: TypeAlias = Callable[[Sequence[tuple[str, str]]], list[float]]

#: So long a hub may take to answer before it counts as out of reach.
PROBE_SECONDS = 5.0
#: Progress of a download is reported after this many bytes, or a tenth of it.
_PROGRESS_BYTES = 1_000_000
#: The work can be cancelled between batches of so many texts.
_HEAP = 256
_PART_BYTES = 64 * 1024


class LoadedModel(Protocol):
    """A model in memory; to be used on one thread at a time."""

    @property
    def longest_tokens(self) -> int | None:
        """The number of tokens of a text that count, if the model says it."""
        ...

    def encode(self, texts: Sequence[str], *, question: bool) -> Sequence[array[float]]:
        """A vector of length 1 for each text."""
        ...

    def cuts(self, texts: Sequence[str]) -> bool:
        """Whether any of the texts is too long, so that the model cuts it."""
        ...


class LocalEmbedder(ABC):
    """A model of the hub by its name, or one of a folder by its path.

    `changes` are settings that change its vectors, for their name.
    """

    #: The first batch may have to fetch the model, and large ones are slow without a GPU.
    timeout_seconds: float | None = 1800.0
    #: What has to be installed.
    extra: ClassVar[Extra]
    #: What the names of its vectors begin with.
    prefix: ClassVar[str]
    #: The organization on the hub of a model that is named without one.
    organization: ClassVar[str]

    def __init__(
        self,
        name: str,
        configuration: EmbedderConfiguration,
        changes: Sequence[str] = (),
    ) -> None:
        whole = configuration.configuration
        self._row = name
        purpose = f"embedding texts in this process, as [embedders.{name}] does,"
        self._packages = Packages(self.extra, name, purpose, f"{EMBEDDERS}.{name}")
        self._hub = Hub(self._packages)
        self._offline = whole.offline
        self._stream = msgspec.structs.replace(
            whole.stream,
            connect_seconds=PROBE_SECONDS,
            first_byte_seconds=PROBE_SECONDS,
            reply_seconds=PROBE_SECONDS,
            retries=0,
        )
        self._notify = configuration.notify
        model = configuration.model
        if not model:
            raise whole.error(
                f"it names no model; write {name}/MODEL, or give it a default-model",
                *(EMBEDDERS, name, "default-model"),
            )
        self._folder: Path | None = None
        if model.startswith(("/", "~")):
            self._folder = Path(os.path.expanduser(model))
            mark = digest_files(self._folder, self._list_files(self._folder))
            self._name = f"{self._folder.name}@{mark}" if mark else model
        else:
            self._name = model if "/" in model else f"{self.organization}{model}"
        self.model = " ".join([self.prefix + self._name.removeprefix(self.prefix), *changes])
        self._loaded: LoadedModel | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._loading = CrossLoopLock()
        self._closed = False
        self._reported = False

    async def inquire(self) -> None:
        """Raise if the package is missing, or weights that cannot be fetched; loads nothing."""
        self._packages.check()
        folder = self._folder or await self._do(self._find)
        if folder is not None:
            self._check_folder(folder)
        else:
            await self._probe()

    async def load(self) -> None:
        """Load the model; fetch it first if it is not on this disk."""
        await self._load()

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """A vector for each text; only the beginning of an overlong text counts."""
        loaded = await self._load()
        vectors: list[array[float]] = []
        for start in range(0, len(texts), _HEAP):
            heap = texts[start : start + _HEAP]
            if not self._reported and await self._do(partial(loaded.cuts, heap)):
                self._reported = True
                self._notify(
                    f"{self.model}: a text is longer than the {loaded.longest_tokens} tokens that "
                    "the model reads; its beginning counts"
                )
            vectors += await self._do(partial(loaded.encode, heap, question=question))
        return vectors

    async def close(self) -> None:
        """Free the model's memory; what is being computed is computed to its end."""
        self._closed = True
        self._loaded = None
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    @abstractmethod
    def _list_files(self, folder: Path) -> Iterable[Path]:
        """The files of a folder that its vectors depend on; none if it has no weights."""

    @abstractmethod
    def _check_folder(self, folder: Path) -> None:
        """`ModelUnavailable` if a folder holds no model that may be loaded."""

    @abstractmethod
    def _find_folder(self) -> Path | None:
        """The folder of the model in the hub's cache."""

    @abstractmethod
    def _fetch_folder(self, report: Callable[[int, int], None]) -> Path:
        """The folder of the model, fetched; see `Hub.fetch_folder`."""

    @abstractmethod
    def _open(self, folder: Path) -> LoadedModel:
        """The model of a folder, which is checked first. Takes seconds."""

    @abstractmethod
    def _download_command(self) -> str:
        """What fetches the model in a shell."""

    async def _load(self) -> LoadedModel:
        async with self._loading:
            if self._loaded is None:
                self._packages.check()
                folder = self._folder or await self._do(self._find) or await self._fetch()
                return await self._do(partial(self._keep_loaded, folder))
            return self._loaded

    def _keep_loaded(self, folder: Path) -> LoadedModel:
        """Load the model, unless an earlier caller that was cancelled has loaded it since."""
        loaded = self._loaded
        if loaded is None:
            loaded = self._open(folder)
            self._loaded = None if self._closed else loaded
        return loaded

    def _find(self) -> Path | None:
        """The folder of the model on this disk; `None` if it is missing or incomplete."""
        folder = self._find_folder()
        if folder is None:
            return None
        try:
            self._check_folder(folder)
        except ModelUnavailable:
            if self._is_kept_from_hub():
                raise
            return None
        return folder

    async def _fetch(self) -> Path:
        await self._probe()
        self._notify(f"{self.model}: fetching the model, once, from {self._hub.address}")
        loop, reported = asyncio.get_running_loop(), 0

        def report(done: int, total: int) -> None:
            nonlocal reported
            if done - reported >= max(_PROGRESS_BYTES, total // 10):
                reported = done
                words = f"{self.model}: {describe_download(done, total)}"
                # The loop may have ended: a download continues when its callers are cancelled.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._notify, words)

        return await self._do(partial(self._fetch_folder, report))

    async def _probe(self) -> None:
        """Raise at once if the hub cannot be reached: its package would try for minutes."""
        address = self._hub.address
        name = self._name
        remedy = (
            "; it is not on this disk, or not whole. Fetch it where there is a network, "
            f"{self._download_command()}, or "
            f'give the path of a folder that holds it: embedder = "{self._row}//path/to/folder"'
        )
        if self._hub.is_offline:
            message = f"{name} would have to be fetched, and HF_HUB_OFFLINE is set{remedy}"
            raise ModelUnavailable(message, provider=self._row, code="offline")
        try:
            permit_request(address, f"fetching {name}", offline=self._offline)
        except RequestForbidden as error:
            message = f"{name} would have to be fetched, and requests are forbidden{remedy}"
            raise ModelUnavailable(message, provider=self._row, code="offline") from error
        transport = HttpTransport(
            self._row,
            address,
            dict,
            connect_seconds=PROBE_SECONDS,
            idle_seconds=PROBE_SECONDS,
            offline=self._offline,
        )
        try:
            await fetch(
                transport,
                Outgoing("GET", f"/api/models/{name}"),
                provider=self._row,
                settings=self._stream,
                read_error=lambda status, *_: ProviderError(
                    f"it answered {status}", provider=self._row
                ),
            )
        except (ProviderUnreachable, ReplyTimeout) as error:
            raise ProviderUnreachable(
                f"{address} does not answer, and {name} would have to be fetched{remedy}",
                provider=self._row,
                code="unreachable",
            ) from error
        except ProviderError:
            # It answers: what it says of the model the package understands, which has the tokens.
            pass
        finally:
            await transport.close()

    def _is_kept_from_hub(self) -> bool:
        return self._offline or requests_forbidden() or self._hub.is_offline

    async def _do(self, work: Callable[[], T]) -> T:
        """Run work on the model's thread, without blocking the event loop."""
        if self._closed:
            raise SessionClosed("this embedder was closed")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="vibe-llms embeddings")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def digest_files(folder: Path, paths: Iterable[Path]) -> str:
    """A few characters that identify files of a folder; empty if there are none.

    Of large files the beginning, the end and the size are read: other weights differ everywhere.
    """
    found = hashlib.sha256()
    files = sorted(paths)
    for path in files:
        try:
            with opened(path) as file:
                size = os.fstat(file).st_size
                beginning = os.pread(file, _PART_BYTES, 0)
                end = os.pread(file, _PART_BYTES, max(size - _PART_BYTES, 0))
        except OSError:
            return ""
        name = path.relative_to(folder).as_posix()
        found.update(msgspec.json.encode([name, size]) + beginning + end)
    return found.hexdigest()[:12] if files else ""
