"""What the subcommands of `memory` share: the memory, whose it is, and how an entry is printed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Any, TextIO, TypeVar

import click
import msgspec

from vibe_llms.attachments import read_text
from vibe_llms.cli.layout import cut
from vibe_llms.cli.running import interruptible
from vibe_llms.cli.terminal import (
    columns,
    is_terminal,
    note,
    one_line,
    shown,
    visible,
    write,
    write_json,
)
from vibe_llms.cli.waiting import Waiting
from vibe_llms.configuration import load_configuration
from vibe_llms.exceptions import MemoryDamaged, MemoryInvalid, SecretRefused, StorageError
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL, LARGEST_BYTES, Entry, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.recall import SHORT
from vibe_llms.memory.settings import MemorySettings, produce_memory, read_memory_settings

T = TypeVar("T")

#: What is waited for now.
#: Stands for standard input, or standard output.
STANDARD = "-"
#: So many characters of a text are shown at least.
_LEAST_ROOM = 20

scope_option = click.option(
    "--scope",
    metavar="SCOPE",
    help="global, user-NAME or conversation-ID; yours, user-NAME by [memory] user, if not given.",
)
only_scope_option = click.option(
    "--scope",
    metavar="SCOPE",
    help="Only there: global, user-NAME or conversation-ID; also what belongs to another user.",
)
secrets_option = click.option(
    "-y", "--yes", is_flag=True, help="Store it even if it looks like a secret."
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
        with progress("finishing"):
            await store.close()


@contextmanager
def progress(words: str) -> Iterator[Callable[[int], None]]:
    """Say on a terminal what is waited for; gives what may be told how much of it is done."""
    line = Waiting()
    line.show(words)
    try:
        yield lambda count: line.change(f"{words}: {count}")
    finally:
        line.clear()


@contextmanager
def keeping(describe: Callable[[], str]) -> Iterator[None]:
    """Where the disk fails, say first how things stand."""
    try:
        yield
    except StorageError as error:
        # Its kind stays, and with it the status.
        error.args = (f"{describe()}: {error}",)
        raise


async def ask_before_secrets(store: Callable[[bool], Awaitable[T]], *, yes: bool) -> T:
    """What `store(keep_secrets)` gives; asks at a terminal where it refuses a secret.

    Elsewhere only --yes keeps one. `click.exceptions.Exit` where the person says no.
    """
    try:
        return await store(yes)
    except SecretRefused as error:
        if not confirm_secret(error):
            note("nothing was stored")
            raise click.exceptions.Exit(1) from None
    return await store(True)


def confirm_secret(error: SecretRefused) -> bool:
    """Whether the user at the terminal wants a secret kept; raises the error without a terminal."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        error.args = (f"{error}; to store it anyway: --yes",)
        raise error
    note(f"this looks like a secret: {error.masked}")
    note("memory is kept as plain text and is sent to models")
    with interruptible():
        return click.confirm("Store it anyway?", err=True)


def scope_of(scope: str | None, settings: MemorySettings) -> Scope:
    """The scope that is asked for, the user's own where none is."""
    return Scope.of_user(settings.user) if scope is None else Scope.parse(scope)


async def visible_scopes(
    store: Memory, settings: MemorySettings, scope: str | None = None
) -> Sequence[Scope]:
    """Where an entry is looked for by its identity: in the scope that is asked for.

    Without one everywhere but in those of other users, of whom nothing is told.
    """
    if scope is not None:
        return [Scope.parse(scope)]
    own = scope_of(None, settings)
    there = await asyncio.to_thread(MemoryFiles(store.folder).survey_scopes)
    return [one for one in there if one.kind != "user" or one == own]


def survey_latest(count: int) -> Sequence[Entry]:
    """The latest entries that the user can see, read from their files alone."""
    configuration = load_configuration()
    settings = read_memory_settings(configuration)
    files = MemoryFiles(configuration.places.data / "memory")
    entries: list[Entry] = []
    for scope in (scope_of(None, settings), GLOBAL):
        for place in sorted(files.look(scope), reverse=True)[:count]:
            with suppress(FileNotFoundError, MemoryDamaged):
                entries.append(files.read(scope, place))
    entries.sort(key=lambda entry: entry.created, reverse=True)
    return entries[:count]


def read_words(words: Sequence[str]) -> str:
    """The text that words of the command line are; a dash alone is that of standard input.

    `MemoryInvalid` where that is no text.
    """
    if tuple(words) != (STANDARD,):
        return _decode(" ".join(words))
    with interruptible():
        data = sys.stdin.buffer.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise MemoryInvalid(f"standard input is longer than {LARGEST_BYTES >> 20} MiB")
    text = read_text(data)
    if text is None:
        raise MemoryInvalid("standard input is no text in UTF-8")
    return text.strip()


def _decode(text: str) -> str:
    """What a locale without UTF-8 has left undecoded, decoded."""
    try:
        return os.fsencode(text).decode()
    except UnicodeError:
        return text


def short_identity(entry: Entry) -> str:
    """What an entry is called at the terminal."""
    return entry.identity[-SHORT:]


def local_time(time: datetime) -> str:
    """A time as people here read it."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M")


def describe_entry(entry: Entry, stream: TextIO | None = None, *, indent: str = "") -> str:
    """An entry in one line, on a terminal in no more than fits into it."""
    seen = sys.stdout if stream is None else stream
    head = f"{indent}{short_identity(entry)}  {local_time(entry.created)}  "
    speaker = f"{entry.speaker}: " if entry.speaker else ""
    return fit(f"{head}{one_line(f'{speaker}{entry.content}')}", seen, least=len(head))


def describe_given_up(entry: Entry) -> str:
    """What to tell of an entry that was given up."""
    return fit(f"gave up {short_identity(entry)}: {one_line(entry.content)}", sys.stderr)


def fit(text: str, stream: TextIO, *, least: int = 0) -> str:
    """The text as a stream may have it; what a line of a terminal has no room for is cut.

    Some characters are left behind the `least` that are wanted, however narrow it is.
    """
    if not is_terminal(stream):
        return text
    room = max(least + _LEAST_ROOM, columns(stream))
    return cut(visible(text), room)


def print_entry(entry: Entry, *, indent: str = "") -> None:
    """One line of an entry."""
    write(sys.stdout, f"{describe_entry(entry, indent=indent)}\n")


def print_json(value: Any) -> None:
    """A value for programs."""
    write_json(json.dumps(value, ensure_ascii=False))


def encode_entry(entry: Entry) -> dict[str, Any]:
    """An entry for programs."""
    encoded: dict[str, Any] = msgspec.to_builtins(entry)
    identity = encoded.pop("identity")
    return {"id": identity, **encoded, "scope": str(entry.scope)}


def tell(text: str) -> None:
    """What a person should know, and nothing fails for."""
    note(f"note: {shown(one_line(text))}")
