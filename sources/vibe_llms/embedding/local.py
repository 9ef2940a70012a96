"""`LocalEmbedder`: base of embedders whose model runs in this process.

The model is loaded on first use, in a thread of its own: from a folder, from the cache of Hugging
Face's hub, or from the hub if it answers.
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

from vibe_llms.base.cross_loop_lock import CrossLoopLock
from vibe_llms.base.exceptions import (
    ModelUnavailable,
    ProviderError,
    ProviderUnreachable,
    ReplyTimeout,
    RequestForbidden,
    SessionClosed,
)
from vibe_llms.base.files import describe_download, opened
from vibe_llms.base.network.offline import permit_request, requests_forbidden
from vibe_llms.embedding.core import EMBEDDERS, EmbedderConfiguration
from vibe_llms.embedding.hub import Extra, Hub, Packages
from vibe_llms.providers.http_transport import HttpTransport
from vibe_llms.providers.round_trip import fetch
from vibe_llms.providers.transport import Outgoing

T = TypeVar("T")
#: Maps pairs of texts to raw logits; not thread-safe.
Scorer: TypeAlias = Callable[[Sequence[tuple[str, str]]], list[float]]

#: Timeout for a hub to answer before it counts as unreachable.
PROBE_SECONDS = 5.0
#: Minimum bytes between progress reports of a download; large ones report every tenth.
_PROGRESS_BYTES = 1_000_000
#: Texts per batch; the work can be cancelled between batches.
_HEAP = 256
_PART_BYTES = 64 * 1024


class LoadedModel(Protocol):
    """A model in memory; not thread-safe."""

    @property
    def longest_tokens(self) -> int | None:
        """Number of tokens of a text that the model reads, if known."""
        ...

    def encode(self, texts: Sequence[str], *, question: bool) -> Sequence[array[float]]:
        """Return a unit vector for each text."""
        ...

    def cuts(self, texts: Sequence[str]) -> bool:
        """Return True if the model would cut any of the texts."""
        ...


class LocalEmbedder(ABC):
    """Embedder with a model of the hub by its name, or of a folder by its path.

    `changes` are settings that change its vectors, for their name.
    """

    #: In seconds: the first batch may fetch the model, and large ones are slow without a GPU.
    timeout_seconds: float | None = 1800.0
    #: Required extra.
    extra: ClassVar[Extra]
    #: Prefix of the names of its vectors.
    prefix: ClassVar[str]
    #: Organization on the hub of models named without one.
    organization: ClassVar[str]

    def __init__(
        self,
        name: str,
        configuration: EmbedderConfiguration,
        changes: Sequence[str] = (),
    ) -> None:
        whole = configuration.configuration
        self._row = name
        purpose = f"embedding texts in this process ([embedders.{name}])"
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
                f"no model is set; use {name}/MODEL, or set default-model",
                EMBEDDERS,
                name,
                "default-model",
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
        """Raise if the package, or a model that cannot be fetched, is missing. Loads nothing."""
        self._packages.check()
        folder = self._folder or await self._run_in_thread(self._find)
        if folder is not None:
            self._check_folder(folder)
        else:
            await self._probe()

    async def load(self) -> None:
        """Load the model, fetching it first if it is not on this disk."""
        await self._load()

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """Return a vector for each text; only the beginning of an overlong text counts."""
        loaded = await self._load()
        vectors: list[array[float]] = []
        for start in range(0, len(texts), _HEAP):
            heap = texts[start : start + _HEAP]
            if not self._reported and await self._run_in_thread(partial(loaded.cuts, heap)):
                self._reported = True
                self._notify(
                    f"{self.model}: a text is longer than {loaded.longest_tokens} tokens; "
                    "only its beginning is used"
                )
            vectors += await self._run_in_thread(partial(loaded.encode, heap, question=question))
        return vectors

    async def close(self) -> None:
        """Free the model's memory, after any running computation."""
        self._closed = True
        self._loaded = None
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    @abstractmethod
    def _list_files(self, folder: Path) -> Iterable[Path]:
        """Return the files of a folder that its vectors depend on; none without weights."""

    @abstractmethod
    def _check_folder(self, folder: Path) -> None:
        """Raise `ModelUnavailable` if a folder contains no model that may be loaded."""

    @abstractmethod
    def _find_folder(self) -> Path | None:
        """Return the folder of the model in the hub's cache."""

    @abstractmethod
    def _fetch_folder(self, report: Callable[[int, int], None]) -> Path:
        """Fetch the model and return its folder; see `Hub.fetch_folder`."""

    @abstractmethod
    def _open(self, folder: Path) -> LoadedModel:
        """Check and load the model of a folder. Takes seconds."""

    @abstractmethod
    def _download_command(self) -> str:
        """Return the shell command that fetches the model."""

    async def _load(self) -> LoadedModel:
        async with self._loading:
            if self._loaded is None:
                self._packages.check()
                folder = (
                    self._folder or await self._run_in_thread(self._find) or await self._fetch()
                )
                return await self._run_in_thread(partial(self._keep_loaded, folder))
            return self._loaded

    def _keep_loaded(self, folder: Path) -> LoadedModel:
        """Load the model, unless an earlier, cancelled caller has loaded it since."""
        loaded = self._loaded
        if loaded is None:
            loaded = self._open(folder)
            self._loaded = None if self._closed else loaded
        return loaded

    def _find(self) -> Path | None:
        """Return the folder of the model on this disk, or `None` if missing or incomplete."""
        folder = self._find_folder()
        if folder is None:
            return None
        try:
            self._check_folder(folder)
        except ModelUnavailable:
            if self._is_hub_disallowed():
                raise
            return None
        return folder

    async def _fetch(self) -> Path:
        await self._probe()
        self._notify(f"{self.model}: downloading the model once from {self._hub.address}")
        loop, reported = asyncio.get_running_loop(), 0

        def report(done: int, total: int) -> None:
            nonlocal reported
            if done - reported >= max(_PROGRESS_BYTES, total // 10):
                reported = done
                words = f"{self.model}: {describe_download(done, total)}"
                # The loop may have ended: a download continues when its callers are cancelled.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._notify, words)

        return await self._run_in_thread(partial(self._fetch_folder, report))

    async def _probe(self) -> None:
        """Raise at once if the hub cannot be reached: its package would try for minutes."""
        address = self._hub.address
        name = self._name
        remedy = (
            ". Download it with a network connection, "
            f"{self._download_command()}, or "
            f'set the path of a folder that contains it: embedder = "{self._row}//path/to/folder"'
        )
        if self._hub.is_offline:
            message = f"{name} is missing or incomplete, and HF_HUB_OFFLINE is set{remedy}"
            raise ModelUnavailable(message, provider=self._row, code="offline")
        try:
            permit_request(address, f"fetching {name}", offline=self._offline)
        except RequestForbidden as error:
            message = f"{name} is missing or incomplete, and requests are forbidden{remedy}"
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
                read_error=lambda status, *_: ProviderError(f"status {status}", provider=self._row),
            )
        except (ProviderUnreachable, ReplyTimeout) as error:
            raise ProviderUnreachable(
                f"{name} is missing or incomplete, and {address} does not answer{remedy}",
                provider=self._row,
                code="unreachable",
            ) from error
        except ProviderError:
            # The hub answers. Its package has the tokens and understands errors about the model.
            pass
        finally:
            await transport.close()

    def _is_hub_disallowed(self) -> bool:
        return self._offline or requests_forbidden() or self._hub.is_offline

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        """Run work on the model's thread, without blocking the event loop."""
        if self._closed:
            raise SessionClosed("this embedder is closed")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="vibe-llms embeddings")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def digest_files(folder: Path, paths: Iterable[Path]) -> str:
    """Return a short digest of files in a folder, or an empty string if there are none.

    Only the beginning, end, and size of large files count: other weights differ everywhere.
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
