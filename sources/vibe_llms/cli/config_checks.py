"""Checks of the configuration: all problems are found, not only the first.

Each problem is removed from a copy of the settings, and the rest is checked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from vibe_llms.agents.definitions import AGENTS, access_agent, check_agent, survey_names
from vibe_llms.base.configuration import (
    ARCHIVE,
    Configuration,
    Layer,
    Places,
    assemble,
    find_places,
    parse_settings,
    read_layers,
    read_settings,
)
from vibe_llms.base.credentials import read_keys
from vibe_llms.base.exceptions import (
    ConfigurationError,
    CredentialMissing,
    ModelNotFound,
    PackageMissing,
)
from vibe_llms.cli.running import bound_import
from vibe_llms.conversations.hosts import ENSEMBLES, EnsembleConfiguration, access_ensemble
from vibe_llms.documents.settings import read_document_settings
from vibe_llms.embedding.core import EMBEDDERS
from vibe_llms.memory.settings import read_memory_settings
from vibe_llms.messages.controls import check_controls
from vibe_llms.messages.events import ignore_events
from vibe_llms.providers.provider_pool import PROVIDERS, Providers
from vibe_llms.server.settings import read_server_settings
from vibe_llms.storage.backends import open_backend
from vibe_llms.storage.interfaces import Diagnosis

_MAX_FINDINGS = 100


def survey_problems() -> tuple[Configuration | None, Sequence[Diagnosis]]:
    """List problems of the configuration files; also return the configuration without them.

    The configuration is None if a file is not valid TOML; then only the first problem is known.
    """
    try:
        places = find_places()
        layers = read_layers(places)
    except ConfigurationError as error:
        return None, [_describe(error, error.file)]
    return survey_layers(places, layers)


def check_change(tree: Mapping[str, Any]) -> None:
    """Raise the first problem that these settings would add to the user's file.

    Missing keys and packages are ignored, because they can be added later.
    """
    places = find_places()
    layers, file = read_layers(places), str(places.configuration_file)
    changed = [layer for layer in layers if layer.origin != file]
    changed.insert(1, Layer(file, dict(tree)))
    missing = (CredentialMissing, PackageMissing)
    before = {one.text for one in survey_layers(places, layers)[1]}
    after = survey_layers(places, tuple(changed), besides=missing)[1]
    if problem := next((one for one in after if one.text not in before), None):
        raise ConfigurationError(f"nothing was changed: {problem.text}")


def survey_layers(
    places: Places,
    layers: tuple[Layer, ...],
    *,
    besides: tuple[type[ConfigurationError], ...] = (),
) -> tuple[Configuration | None, Sequence[Diagnosis]]:
    """List problems of layers of settings; also return the configuration without them.

    Errors of the classes `besides` are ignored.
    """
    found: list[Diagnosis] = []
    while True:
        try:
            configuration = assemble(places, layers)
            check_controls(configuration)
            break
        except ConfigurationError as error:
            found.append(_locate(error, places))
            less = _without(layers, _path_of(error))
            if less == layers or len(found) == _MAX_FINDINGS:
                return None, sorted(found, key=_order)
            layers = less
    for check in (
        *(_check_archive, _check_memory, _check_server, _check_keys),
        *(_check_documents, _check_providers, _check_ensembles, _check_agents, _check_names),
    ):
        wrong = [one for one in check(configuration) if not isinstance(one, besides)]
        found += [_locate(one, places) for one in wrong]
    # One problem may be found at several rows.
    return configuration, sorted(dict.fromkeys(found), key=_order)


def find_line(text: str, path: Sequence[str]) -> int:
    r"""Return the line, from 1, at which a value of a TOML text begins; 0 if it is missing.

    >>> find_line("[a]\nx = 1\nb = [\n  1,\n]\n", ["a", "b"])
    3
    """
    lines = text.splitlines(keepends=True)

    def read(count: int) -> tuple[int, Any]:
        # Drop lines until the rest is valid TOML.
        while count:
            try:
                return count, parse_settings("".join(lines[:count]).encode(), Path("config"))
            except ConfigurationError:
                count -= 1
        return 0, {}

    low, high = 0, len(lines)
    if not _contains(read(high)[1], path):
        return 0
    while low < high:
        middle = (low + high) // 2
        if _contains(read(middle)[1], path):
            high = middle
        else:
            low = middle + 1
    return read(low - 1)[0] + 1


def _check_archive(configuration: Configuration) -> Iterator[ConfigurationError]:
    yield from _repeat(configuration, (ARCHIVE,), open_backend)


def _check_memory(configuration: Configuration) -> Iterator[ConfigurationError]:
    yield from _repeat(configuration, ("memory",), read_memory_settings)


def _check_server(configuration: Configuration) -> Iterator[ConfigurationError]:
    yield from _repeat(configuration, ("server",), read_server_settings)


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


def _check_agents(configuration: Configuration) -> Iterator[ConfigurationError]:
    def check(changed: Configuration) -> None:
        check_agent(changed, access_agent(changed, name), Providers(changed, ignore_events).locate)

    for name in survey_names(configuration):
        yield from _repeat(configuration, (AGENTS, name), check)


def _check_documents(configuration: Configuration) -> Iterator[ConfigurationError]:
    yield from _repeat(configuration, ("documents",), read_document_settings)


def _check_names(configuration: Configuration) -> Iterator[ConfigurationError]:
    """Yield errors for names of models and embedders that cannot exist; ask no server.

    A model without a provider is accepted: a server on this machine may have it.
    """
    tree = configuration.tree
    try:
        providers = Providers(configuration, ignore_events)
        rows = [row.name for table in (EMBEDDERS, PROVIDERS) for row in configuration.rows(table)]
    except ConfigurationError:
        # The wrong row is reported by its own check.
        return
    models = [
        (("default-model",), configuration.default_model),
        *((("aliases", alias), model) for alias, model in configuration.aliases.items()),
        *(
            ((ENSEMBLES, name, "sampling-model"), tree[ENSEMBLES][name].get("sampling-model", ""))
            for name in _survey_enabled(configuration, ENSEMBLES)
        ),
        *(
            ((PROVIDERS, name, "fallback"), model)
            for name in _survey_enabled(configuration, PROVIDERS)
            for model in _list_fallback(tree[PROVIDERS][name].get("fallback"))
        ),
    ]
    for path, model in models:
        if path[0] == "aliases" and model in configuration.aliases:
            yield configuration.error(
                f"{model!r} is also an alias; use the name of the model", *path
            )
        elif isinstance(model, str) and "/" in configuration.aliases.get(model, model):
            try:
                providers.locate(model)
            except ModelNotFound as error:
                yield configuration.error(str(error), *path)
    embedder = configuration.documents.get("embedder", "")
    if isinstance(embedder, str) and embedder and embedder.partition("/")[0] not in rows:
        yield configuration.error(
            f"embedder {embedder!r} not found; known embedders: {', '.join(rows)}",
            "documents",
            "embedder",
        )


def _list_fallback(value: object) -> Sequence[object]:
    """Return the models of a fallback; a value of another type is reported with its row."""
    return value if isinstance(value, list) else ()


def _survey_enabled(configuration: Configuration, table: str) -> Sequence[str]:
    rows: Mapping[str, Any] = configuration.tree.get(table, {})
    return [name for name, row in rows.items() if row.get("enabled", True) is not False]


def _repeat(
    configuration: Configuration,
    needed: Sequence[str],
    check: Callable[[Configuration], object],
) -> Iterator[ConfigurationError]:
    """Yield the errors of a check; remove the cause of each before checking again.

    It ends when a value that it needs was removed, or is missed because it was removed.
    """
    gone: list[Sequence[str]] = []
    while len(gone) < _MAX_FINDINGS and _contains(configuration.tree, needed):
        try:
            check(configuration)
            return
        except ConfigurationError as error:
            path = tuple(_path_of(error))
            if any(tuple(one[: len(path)]) == path for one in gone):
                return
            yield error
            if not path:
                # A package is missing: there is no value to remove.
                return
        gone.append(path)
        layers = _without(configuration.layers, path)
        if layers == configuration.layers:
            return
        try:
            configuration = assemble(configuration.places, layers)
            check_controls(configuration)
        except ConfigurationError:
            return


def _path_of(error: ConfigurationError) -> Sequence[str]:
    return error.path or [part for part in (*error.table.split("."), error.key) if part]


def _without(layers: Sequence[Layer], path: Sequence[str]) -> tuple[Layer, ...]:
    """Return the layers without the value at a path."""
    return tuple(
        msgspec.structs.replace(layer, tree=_drop(layer.tree, path))
        # The shipped layer is correct, and one of its rows may still be needed.
        if number and _contains(layer.tree, path)
        else layer
        for number, layer in enumerate(layers)
    )


def _drop(tree: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    key, *rest = path
    if not rest or not isinstance(tree[key], dict):
        return {name: value for name, value in tree.items() if name != key}
    return {**tree, key: _drop(tree[key], rest)}


def _contains(tree: object, path: Sequence[str]) -> bool:
    """Return True if a path leads to a value, or passes through one that is not a table."""
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
