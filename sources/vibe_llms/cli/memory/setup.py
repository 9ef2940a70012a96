"""`memory setup`: fetches the weights of the light embedder, and makes memory use it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from vibe_llms.base.configuration import Configuration, load_configuration
from vibe_llms.base.configuration_file import set_values
from vibe_llms.base.exceptions import (
    ModelUnavailable,
    ProviderOverloaded,
    ProviderUnreachable,
    RateLimited,
)
from vibe_llms.base.files import describe_download
from vibe_llms.cli.config_checks import check_change
from vibe_llms.cli.memory.common import print_json
from vibe_llms.cli.progress import Waiting
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note
from vibe_llms.embedding import weights as pinned
from vibe_llms.embedding.hub import Packages
from vibe_llms.embedding.onnx.package import EXTRA
from vibe_llms.embedding.weights import PinnedFile, WeightsFetcher, hub_address, is_complete
from vibe_llms.memory.settings import read_memory_settings

_KEY = ("memory", "embedder")


@click.command("setup", short_help="Fetch the light embedder and use it.")
@click.option("-y", "--yes", is_flag=True, help="Fetch and set without asking.")
@json_option
@asynchronous
async def set_up(yes: bool, as_json: bool) -> None:
    """Fetch the light embedder, verify it, and set `memory.embedder`.

    Its files are verified by pinned hashes. A partial download is continued, and files that you
    copied there are verified. Without a network it prints which files to copy where.
    """
    configuration = load_configuration()
    Packages(EXTRA, "onnx", "embedding texts in this process", "embedders.onnx").check()
    weights = pinned.read_weights()
    folder = configuration.places.data / "models" / weights.name
    address = f"onnx/{folder}"
    waiting = Waiting()
    fetcher = WeightsFetcher(
        weights,
        folder,
        configuration,
        lambda path, done, size: waiting.change(f"{path}: {describe_download(done, size)}"),
        hub=hub_address(),
    )
    waiting.show("verifying the files")
    try:
        missing = [
            one for one in weights.files if not await asyncio.to_thread(is_complete, folder, one)
        ]
    finally:
        waiting.clear()
    if missing:
        with _instructing(fetcher):
            fetcher.check_offline()
    changed = read_memory_settings(configuration).embedder != address
    if missing or changed:
        about = _describe(configuration, fetcher, missing, address if changed else "")
        if not confirm("Continue?", yes=yes, about=about):
            note("nothing was changed")
            raise click.exceptions.Exit(1)
    if missing:
        waiting.show(f"fetching {weights.name}")
        try:
            with _instructing(fetcher):
                await fetcher.fetch(missing)
        except asyncio.CancelledError:
            waiting.clear()
            note("interrupted; run the command again to continue")
            raise
        finally:
            waiting.clear()
    if changed:
        _set_embedder(configuration, address)
    if as_json:
        fetched = [one.path for one in missing]
        print_json({"folder": str(folder), "embedder": address, "fetched": fetched, "set": changed})
        return
    note(f"{weights.name} is complete and verified in {folder}")
    if changed:
        note("to index existing entries with it now, run: vibe-llms memory reindex")


@contextmanager
def _instructing(fetcher: WeightsFetcher) -> Iterator[None]:
    """Print how to copy the files by hand if they cannot be fetched."""
    try:
        yield
    except (ModelUnavailable, ProviderOverloaded, ProviderUnreachable, RateLimited):
        for line in fetcher.instruct():
            note(line)
        raise


def _describe(
    configuration: Configuration,
    fetcher: WeightsFetcher,
    missing: Sequence[PinnedFile],
    address: str,
) -> Sequence[str]:
    lines = [
        f"fetch {fetcher.address_of(one)} ({describe_download(one.size, 0)})" for one in missing
    ]
    if address:
        lines.append(f"set memory.embedder in {configuration.places.configuration_file}: {address}")
    return lines


def _set_embedder(configuration: Configuration, address: str) -> None:
    file = configuration.places.configuration_file
    set_values(file, {_KEY: address}, check_change)
    note(f"set memory.embedder in {file}")
    effective = read_memory_settings(load_configuration()).embedder
    if effective != address:
        note(f"note: the environment or another file still sets memory.embedder to {effective!r}")
