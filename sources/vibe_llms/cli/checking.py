"""Everything that is wrong with the configuration, each with its line, not the first alone.

What is wrong is taken out of a copy of the settings, and the rest is checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from vibe_llms.cli.running import bound_import
from vibe_llms.configuration import (
    Configuration,
    Layer,
    Places,
    assemble,
    find_places,
    parse_settings,
    read_layers,
    read_settings,
)
from vibe_llms.credentials import read_keys
from vibe_llms.ensembles.core import ENSEMBLES, access_ensemble
from vibe_llms.ensembles.interfaces import EnsembleConfiguration
from vibe_llms.events import ignore_events
from vibe_llms.exceptions import ConfigurationError
from vibe_llms.memory.settings import read_memory_settings
from vibe_llms.providers.rows import PROVIDERS, Providers
from vibe_llms.storage.interfaces import Diagnosis

_MOST = 100


def survey_problems() -> tuple[Configuration | None, Sequence[Diagnosis]]:
    """What is wrong in the files, and the configuration as it is without that.

    There is none where the file is no TOML, of which only the first fault is known.
    """
    try:
        places = find_places()
        layers = read_layers(places)
    except ConfigurationError as error:
        return None, [_describe(error, error.file)]
    found: list[Diagnosis] = []
    while True:
        try:
            configuration = assemble(places, layers)
            break
        except ConfigurationError as error:
            found.append(_locate(error, places))
            less = _without(layers, _path_of(error))
            if less == layers or len(found) == _MOST:
                return None, sorted(found, key=_order)
            layers = less
    for check in (_check_memory, _check_keys, _check_providers, _check_ensembles):
        found += [_locate(wrong, places) for wrong in check(configuration)]
    # What breaks one row may be met at others too.
    return configuration, sorted(dict.fromkeys(found), key=_order)


def find_line(text: str, path: Sequence[str]) -> int:
    r"""The line of a TOML text at which the value at a path begins, counted from 1; 0 for none.

    >>> find_line("[a]\nx = 1\nb = [\n  1,\n]\n", ["a", "b"])
    3
    """
    lines = text.splitlines(keepends=True)

    def read(count: int) -> tuple[int, Any]:
        # A beginning that ends within a value is none; some lines less are.
        while count:
            try:
                return count, parse_settings("".join(lines[:count]).encode(), Path("config"))
            except ConfigurationError:
                count -= 1
        return 0, {}

    low, high = 0, len(lines)
    if not _holds(read(high)[1], path):
        return 0
    while low < high:
        middle = (low + high) // 2
        if _holds(read(middle)[1], path):
            high = middle
        else:
            low = middle + 1
    return read(low - 1)[0] + 1


def _check_memory(configuration: Configuration) -> Iterator[ConfigurationError]:
    yield from _repeat(configuration, ("memory",), read_memory_settings)


def _check_keys(configuration: Configuration) -> Iterator[ConfigurationError]:
    try:
        read_keys(configuration.places.keys_file)
    except ConfigurationError as error:
        yield error


def _check_providers(configuration: Configuration) -> Iterator[ConfigurationError]:
    def check(changed: Configuration) -> None:
        Providers(changed, ignore_events, import_guard=bound_import).check(name)

    for name in _survey_enabled(configuration, PROVIDERS):
        yield from _repeat(configuration, (PROVIDERS, name), check)


def _check_ensembles(configuration: Configuration) -> Iterator[ConfigurationError]:
    def check(changed: Configuration) -> None:
        row = changed.row(ENSEMBLES, name)
        access_ensemble(row, EnsembleConfiguration(changed, row.settings))

    for name in _survey_enabled(configuration, ENSEMBLES):
        yield from _repeat(configuration, (ENSEMBLES, name), check)


def _survey_enabled(configuration: Configuration, table: str) -> Sequence[str]:
    rows: Mapping[str, Any] = configuration.tree.get(table, {})
    return [name for name, row in rows.items() if row.get("enabled", True) is not False]


def _repeat(
    configuration: Configuration,
    needed: Sequence[str],
    check: Callable[[Configuration], object],
) -> Iterator[ConfigurationError]:
    """What a check finds, each taken out before the next is looked for.

    It ends where what it needs was taken out, or where something is missed only for that reason.
    """
    gone: list[Sequence[str]] = []
    while len(gone) < _MOST and _holds(configuration.tree, needed):
        try:
            check(configuration)
            return
        except ConfigurationError as error:
            path = tuple(_path_of(error))
            if any(tuple(one[: len(path)]) == path for one in gone):
                return
            yield error
        gone.append(path)
        layers = _without(configuration.layers, path)
        if layers == configuration.layers:
            return
        try:
            configuration = assemble(configuration.places, layers)
        except ConfigurationError:
            return


def _path_of(error: ConfigurationError) -> Sequence[str]:
    return error.path or [part for part in (*error.table.split("."), error.key) if part]


def _without(layers: Sequence[Layer], path: Sequence[str]) -> tuple[Layer, ...]:
    """The layers without the value at a path, in those of them that have it."""
    return tuple(
        msgspec.structs.replace(layer, tree=_drop(layer.tree, path))
        # What is shipped is right; a row of it may be needed still.
        if number and _holds(layer.tree, path)
        else layer
        for number, layer in enumerate(layers)
    )


def _drop(tree: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    key, *rest = path
    if not rest or not isinstance(tree[key], dict):
        return {name: value for name, value in tree.items() if name != key}
    return {**tree, key: _drop(tree[key], rest)}


def _holds(tree: object, path: Sequence[str]) -> bool:
    """Whether there is a value at a path, as far as the path leads through tables."""
    for key in path:
        if not isinstance(tree, dict):
            return True
        if key not in tree:
            return False
        tree = tree[key]
    return True


def _order(problem: Diagnosis) -> tuple[str, int]:
    file, _, line = problem.path.rpartition(":")
    return (file, int(line)) if line.isdecimal() else (problem.path, 0)


def _locate(error: ConfigurationError, places: Places) -> Diagnosis:
    if error.file != str(places.configuration_file):
        return _describe(error, error.file)
    text = read_settings(places.configuration_file).decode("utf-8", "replace")
    line = 0
    path = _path_of(error)
    while path and not (line := find_line(text, path)):
        path = path[:-1]
    return _describe(error, f"{error.file}:{line}" if line else error.file)


def _describe(error: ConfigurationError, place: str) -> Diagnosis:
    names = [f"[{error.table}]" if error.table else "", error.key]
    head = " ".join(name for name in names if name)
    text = f"{head}: {error.message}" if head else error.message
    return Diagnosis("configuration", place, text)
