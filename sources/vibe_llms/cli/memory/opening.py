"""What the subcommands of `memory` share: the memory, whose it is, and how an entry is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import click
import msgspec

from vibe_llms.cli.terminal import note, one_line, shown, write
from vibe_llms.configuration import load_configuration
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Scope
from vibe_llms.memory.recall import SHORT
from vibe_llms.memory.settings import MemorySettings, produce_memory, read_memory_settings

scope_option = click.option(
    "--scope",
    metavar="SCOPE",
    help="global, user-NAME or conversation-ID; yours, user-NAME by [memory] user, if not given.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")


@asynccontextmanager
async def open_memory() -> AsyncIterator[tuple[Memory, MemorySettings]]:
    """The user's memory, and what `[memory]` says."""
    configuration = load_configuration()
    settings = read_memory_settings(configuration)
    store = produce_memory(configuration, settings, tell=tell)
    try:
        yield store, settings
    finally:
        await store.close()


def scope_of(scope: str | None, settings: MemorySettings) -> Scope:
    """The scope that is asked for, the user's own where none is."""
    return Scope.of_user(settings.user) if scope is None else Scope.parse(scope)


def short_identity(entry: Entry) -> str:
    """What an entry is called at the terminal."""
    return entry.identity[-SHORT:]


def local_time(time: datetime) -> str:
    """A time as people here read it."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M")


def print_entry(entry: Entry) -> None:
    """One line of an entry."""
    time = local_time(entry.created)
    speaker = f"{entry.speaker}: " if entry.speaker else ""
    words = shown(f"{speaker}{one_line(entry.content)}")
    write(sys.stdout, f"{short_identity(entry)}  {time}  {words}\n")


def print_json(value: Any) -> None:
    """A value for programs."""
    write(sys.stdout, json.dumps(value) + "\n")


def encode_entry(entry: Entry) -> dict[str, Any]:
    """An entry for programs."""
    encoded: dict[str, Any] = msgspec.to_builtins(entry)
    return {**encoded, "scope": str(entry.scope)}


def tell(text: str) -> None:
    """What a person should know, and nothing fails for."""
    note(f"note: {shown(one_line(text))}")
