"""Rows that pin packages, in the configuration of a test's home."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w

from tests.fakes.index import FakeIndex, make_wheel
from vibe_llms.base.configuration import load_configuration
from vibe_llms.plugins.pins import Plugin
from vibe_llms.providers.provider_pool import survey_plugins

ZEROS = "sha256:" + "0" * 64


def write_row(
    home: Path,
    requirements: Mapping[str, Sequence[str]],
    *,
    index: str = "",
    name: str = "mine",
    module: str = "plug",
    **settings: object,
) -> None:
    """Add a row to the configuration."""
    install: dict[str, object] = {"requirements": {k: list(v) for k, v in requirements.items()}}
    if index:
        install["index"] = index
    row = {"module": module, "credential": "none", **settings, "install": install}
    home.mkdir(exist_ok=True)
    with (home / "config.toml").open("a") as file:
        file.write(tomli_w.dumps({"providers": {name: row}}))


def read_row(name: str = "mine") -> Plugin:
    """What a row of the configuration pins."""
    return next(plugin for plugin in survey_plugins(load_configuration()) if plugin.row == name)


def offer(
    home: Path,
    index: FakeIndex,
    files: Mapping[str, str],
    *,
    version: str = "1.0",
    **row: str,
) -> Plugin:
    """A package `plug` in the index, and a row that pins it."""
    file, data = make_wheel("plug", version, files)
    digest = index.add(file, data)
    write_row(home, {f"plug=={version}": [digest]}, index=index.simple, **row)
    return read_row(row.get("name", "mine"))
