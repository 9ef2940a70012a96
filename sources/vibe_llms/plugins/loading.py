"""Lets Python import the module of a row that was installed on demand.

Python does not search the folder. The row's own module is imported from it first. Its dependencies
are imported from it only if the environment does not have them, so that no plugin replaces a
package of this library or of the program. Bytecode is neither read nor written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from vibe_llms.base.exceptions import RegistrationError
from vibe_llms.plugins.pins import Plugin, survey_own_modules
from vibe_llms.plugins.records import verify

if TYPE_CHECKING:
    from importlib.metadata import Distribution, DistributionFinder


def open_plugin(plugin: Plugin) -> None:
    """Make the row's module importable, after verifying the plugin's files.

    Raise `PluginMissing` if it is not installed, or `RegistrationError` if a file was changed or
    another module of this name is already loaded.
    """
    verify(plugin)
    top = plugin.module.partition(".")[0]
    _require_own(plugin, top)
    if not any(isinstance(one, _Finder) and one.folder == plugin.packages for one in sys.meta_path):
        names = {path.name.partition(".")[0] for path in plugin.packages.iterdir()}
        sys.meta_path.insert(0, _Finder(plugin.packages, {top}))
        sys.meta_path.append(_Finder(plugin.packages, names - {top} - survey_own_modules()))


def _require_own(plugin: Plugin, top: str) -> None:
    loaded = sys.modules.get(top)
    if loaded is None:
        return
    places = [getattr(loaded, "__file__", None) or "", *getattr(loaded, "__path__", ())]
    if not any(Path(place).is_relative_to(plugin.packages) for place in places):
        raise RegistrationError(
            f"another module {top!r} is already loaded, from {places[0] or 'elsewhere'}; a "
            "program can use only one of two rows with modules of the same name",
            table=f"providers.{plugin.row}",
            key="module",
        )


class _Loader(SourceFileLoader):
    """Loader that compiles the source itself, because bytecode next to it was not installed."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _Finder:
    """Finder of some top-level modules and their submodules in one plugin's folder."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.folder = folder
        self._names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module, or None if it is not one of these."""
        if fullname.partition(".")[0] not in self._names:
            return None
        places = [str(self.folder)] if path is None else list(path)
        for place in places:
            if Path(place).is_relative_to(self.folder):
                finder = FileFinder(
                    place, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_Loader, SOURCE_SUFFIXES)
                )
                if (spec := finder.find_spec(fullname)) is not None:
                    return spec
        return None

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        """Return the metadata of a package requested by name; entry points are not found."""
        from importlib.metadata import DistributionFinder, MetadataPathFinder

        if context.name is None:
            return []
        within = DistributionFinder.Context(name=context.name, path=[str(self.folder)])
        return MetadataPathFinder.find_distributions(within)
