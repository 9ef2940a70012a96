"""Models of Hugging Face's hub: found in its cache on this disk, or fetched.

Only this module imports huggingface_hub. That package contacts its hub repeatedly, for more than a
minute without a network, and shows progress bars. So embedders search the disk first, and fetch
only from a hub that answers; see `vibe_llms.embedding.local`.

Source: huggingface_hub 2.4.0.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from vibe_llms.base.exceptions import ConfigurationError, ModelUnavailable, PackageMissing

_HUB = "huggingface_hub"


class Extra(Struct, frozen=True):
    """An extra of vibe-llms: its name, main package, and required modules."""

    name: str
    package: str
    modules: tuple[str, ...]


class Packages(Struct, frozen=True):
    """Packages of an extra, imported only where they are needed.

    `row` needs them for `purpose`; `table` is the place in the configuration that asks for it.
    """

    extra: Extra
    row: str
    purpose: str
    table: str

    @property
    def is_installed(self) -> bool:
        """True if the main package is installed; nothing is imported."""
        return importlib.util.find_spec(self.extra.modules[0]) is not None

    def check(self) -> None:
        """Raise `PackageMissing` if the main package is not installed."""
        if not self.is_installed:
            raise self._missing()

    def load(self, name: str) -> Any:
        """Import a module; raise `PackageMissing` if it is not installed."""
        try:
            return importlib.import_module(name)
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            if isinstance(error, ModuleNotFoundError) and error.name in self.extra.modules:
                raise self._missing() from error
            raise ConfigurationError(
                f"the package {name} is installed but cannot be imported: {shorten(error)}",
                table=self.table,
            ) from error

    def _missing(self) -> PackageMissing:
        command = f"python -m pip install 'vibe-llms[{self.extra.name}]'"
        return PackageMissing(self.purpose, package=self.extra.package, command=command)


class Wanted(Struct, frozen=True):
    """Path patterns of a model's files to fetch, and of files to skip."""

    allow: tuple[str, ...]
    ignore: tuple[str, ...] = ()


class Hub:
    """The hub set by the environment, and its cache."""

    def __init__(self, packages: Packages) -> None:
        self._packages = packages

    @property
    def address(self) -> str:
        """Address from which models are fetched."""
        return str(self._load().constants.ENDPOINT)

    @property
    def is_offline(self) -> bool:
        """True if `HF_HUB_OFFLINE` is set, which keeps the package from its hub."""
        return bool(self._load().constants.HF_HUB_OFFLINE)

    def find_folder(self, name: str, wanted: Wanted, *, cache: str | None = None) -> Path | None:
        """Return the folder of a complete model on this disk, without asking a server.

        Return `None` if it is missing; raise `ModelUnavailable` if the name cannot be a model.
        """
        hub = self._load()
        try:
            found = hub.snapshot_download(
                name,
                cache_dir=cache,
                local_files_only=True,
                # The package knows which of these files are missing from its own downloads.
                allow_patterns=list(wanted.allow),
                ignore_patterns=list(wanted.ignore),
            )
        except hub.errors.LocalEntryNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._refuse(f"{name!r} cannot be found: {shorten(error)}") from error
        return Path(found)

    def fetch_folder(
        self,
        name: str,
        wanted: Wanted,
        report: Callable[[int, int], None],
        *,
        cache: str | None = None,
    ) -> Path:
        """Fetch a model from the hub and return its folder; blocks until complete.

        `report` is called with the bytes received and the bytes known to come, from threads of the
        hub's package.
        """
        hub = self._load()
        bars = hub.utils
        shown = not bars.are_progress_bars_disabled()
        http = [module.HTTPError for one in ("httpx", "httpx2") if (module := sys.modules.get(one))]
        with switched_off(bars.disable_progress_bars, bars.enable_progress_bars, shown):
            try:
                found = hub.snapshot_download(
                    name,
                    cache_dir=cache,
                    allow_patterns=list(wanted.allow),
                    ignore_patterns=list(wanted.ignore),
                    tqdm_class=_count_bytes(hub.utils.tqdm, report),
                )
            except (OSError, ValueError, RuntimeError, *http) as error:
                raise self._refuse(
                    f"{name} could not be fetched from {self.address}: {shorten(error)}"
                ) from error
        return Path(found)

    def _load(self) -> Any:
        return self._packages.load(_HUB)

    def _refuse(self, message: str) -> ModelUnavailable:
        return ModelUnavailable(message, provider=self._packages.row, code="load")


def _count_bytes(base: type[Any], report: Callable[[int, int], None]) -> type[Any]:
    """Return a class of invisible progress bars that report the bytes of all files together."""

    class Counter(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            # Of two bars in bytes, one counts network traffic and one bytes on disk.
            transfer = str(options.get("name", "")).endswith(".transfer")
            self._counts = options.get("unit") == "B" and not transfer
            self._arrived = options.get("initial", 0)
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts:
                self._arrived += n or 0
                report(int(self._arrived), int(self.total or 0))
            return None

    return Counter


@contextmanager
def switched_off(
    disable: Callable[[], None], enable: Callable[[], None], shown: bool
) -> Iterator[None]:
    """Disable progress bars within the block: a library must not print on its own."""
    disable()
    try:
        yield
    finally:
        if shown:
            enable()


def shorten(error: BaseException) -> str:
    """Return an error's text on one line, for a message."""
    return " ".join(str(error).split())[:500] or type(error).__name__
