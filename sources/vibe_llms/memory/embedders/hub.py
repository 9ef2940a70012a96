"""Models of Hugging Face's hub: found in its cache on this disk, or fetched from it.

This is the only module that imports the package huggingface_hub. The package asks its hub again
and again, without a network for more than a minute, and shows progress bars. So embedders search
the disk first, and fetch only from a hub that answers; see `vibe_llms.memory.embedders.local`.

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

from vibe_llms.exceptions import ConfigurationError, ModelUnavailable, PackageMissing

_HUB = "huggingface_hub"


class Extra(Struct, frozen=True):
    """An extra of ours, its main package, and the modules without which it counts as missing."""

    name: str
    package: str
    modules: tuple[str, ...]


class Packages(Struct, frozen=True):
    """The packages of an extra, imported only where they are needed.

    `row` is what needs them, `purpose` what for, and `table` where the configuration says so.
    """

    extra: Extra
    row: str
    purpose: str
    table: str

    @property
    def is_installed(self) -> bool:
        """Whether the main package is installed; nothing is imported."""
        return importlib.util.find_spec(self.extra.modules[0]) is not None

    def check(self) -> None:
        """`PackageMissing` if the main package is not installed."""
        if not self.is_installed:
            raise self._missing()

    def load(self, name: str) -> Any:
        """A module; `PackageMissing` if it is not installed."""
        try:
            return importlib.import_module(name)
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            if isinstance(error, ModuleNotFoundError) and error.name in self.extra.modules:
                raise self._missing() from error
            raise ConfigurationError(
                f"the package {name} is installed and cannot be used: {shorten(error)}",
                table=self.table,
            ) from error

    def _missing(self) -> PackageMissing:
        command = f"python -m pip install 'vibe-llms[{self.extra.name}]'"
        return PackageMissing(self.purpose, package=self.extra.package, command=command)


class Wanted(Struct, frozen=True):
    """The files of a model that are fetched, as patterns of paths, and those that are not."""

    allow: tuple[str, ...]
    ignore: tuple[str, ...] = ()


class Hub:
    """The hub of the environment, and its cache."""

    def __init__(self, packages: Packages) -> None:
        self._packages = packages

    @property
    def address(self) -> str:
        """Where models come from."""
        return str(self._load().constants.ENDPOINT)

    @property
    def is_offline(self) -> bool:
        """Whether the environment keeps the package from its hub, with `HF_HUB_OFFLINE`."""
        return bool(self._load().constants.HF_HUB_OFFLINE)

    def find_folder(self, name: str, wanted: Wanted, *, cache: str | None = None) -> Path | None:
        """The folder of a model that is on this disk, whole; no server is asked.

        `ModelUnavailable` if it cannot be a model.
        """
        hub = self._load()
        try:
            found = hub.snapshot_download(
                name,
                cache_dir=cache,
                local_files_only=True,
                # Of what it fetched itself it knows what is missing.
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
        """The folder of a model, fetched from the hub; blocks until it is whole.

        `report` is called with the bytes that have arrived and those that are known to come, from
        threads of the hub's package.
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
    """A progress bar that draws nothing and reports the bytes of all files together."""

    class Counter(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            # Of two bars in bytes, one counts what the network carries and one what is on the disk.
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
    """No progress bars within the block: a library must not print on its own."""
    disable()
    try:
        yield
    finally:
        if shown:
            enable()


def shorten(error: BaseException) -> str:
    """The words of an error on one line, for a message of ours."""
    return " ".join(str(error).split())[:500] or type(error).__name__
