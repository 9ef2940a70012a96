"""Parts shared by subcommands of `memory`: opening it, scopes, options, and printing entries."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TextIO, TypeVar

import click
import msgspec
from msgspec.structs import replace

from vibe_llms.base.configuration import LOCAL, Configuration, load_configuration
from vibe_llms.base.exceptions import MemoryInvalid, SecretRefused, StorageError
from vibe_llms.cli.progress import Waiting
from vibe_llms.cli.running import asynchronous, interruptible
from vibe_llms.cli.terminal import columns, is_terminal, note, shown, write, write_json
from vibe_llms.cli.text import cut
from vibe_llms.conversations.attachments import read_text
from vibe_llms.memory.core import Memory
from vibe_llms.memory.descriptions import MemoryEntry
from vibe_llms.memory.entries import GLOBAL, LARGEST_BYTES, Entry, Scope
from vibe_llms.memory.interfaces import MemoryStore
from vibe_llms.memory.long_work import EMBEDDING, READING, IndexingProgress, Stage
from vibe_llms.memory.recall import SHORT
from vibe_llms.memory.settings import MemorySettings, produce_memory, read_memory_settings
from vibe_llms.memory.stores import MEMORY_STORES
from vibe_llms.memory.tickets import TicketJournal
from vibe_llms.messages.hidden import one_line, visible
from vibe_llms.storage.backends import Backend, open_backend
from vibe_llms.storage.users import find_user_places

P = ParamSpec("P")
T = TypeVar("T")

_STAGES: Mapping[Stage, str] = {READING: "read", EMBEDDING: "embedded"}
#: Standard input or standard output.
STANDARD = "-"
#: Minimum number of characters of a text that are shown.
_MIN_ROOM = 20

scope_option = click.option(
    "--scope",
    metavar="SCOPE",
    help="Use this scope: global, user-NAME or conversation-ID (default: yours, by memory.user).",
)
only_scope_option = click.option(
    "--scope",
    metavar="SCOPE",
    help="Look only in this scope, which may be another user's.",
)
secrets_option = click.option(
    "-y", "--yes", is_flag=True, help="Store text that looks like a secret."
)


def with_memory(
    work: Callable[Concatenate[Memory, MemorySettings, P], Coroutine[Any, Any, T]],
) -> Callable[P, T]:
    """Make a command that runs with the user's memory and the settings of `[memory]`."""

    @asynchronous
    @functools.wraps(work)
    async def command(*arguments: P.args, **options: P.kwargs) -> T:
        configuration = load_configuration()
        settings = read_memory_settings(configuration)
        backend = open_backend(configuration)
        line = ProgressLine()
        _LINE.set(line)
        memory = produce_memory(
            configuration, settings, backend=backend, notify=print_note, report=line.report
        )
        try:
            return await work(memory, settings, *arguments, **options)
        except asyncio.CancelledError:
            if line.begun:
                note("interrupted; the next command continues the indexing")
            raise
        finally:
            with progress("finishing"):
                await memory.close()
                await backend.close()

    return command


def open_store(backend: Backend, user: str) -> MemoryStore:
    """Open the memory of a user; callers close it, and then the backend."""
    stores = MEMORY_STORES.produce(backend)
    places = find_user_places(backend.configuration.places, user)
    return stores.open_store(user, replace(backend.configuration, places=places))


@contextmanager
def opened_journal(configuration: Configuration) -> Iterator[TicketJournal]:
    """Open the journal of turns that are still to be remembered for the user."""
    stores = MEMORY_STORES.produce(open_backend(configuration))
    journal = stores.open_journal(LOCAL, configuration)
    try:
        yield journal
    finally:
        journal.close()
        stores.close()


def words_argument(name: str, *, required: bool = True) -> Callable[[Any], Any]:
    """Make an argument of words that form one text; `-` alone reads standard input.

    It is None without words.
    """

    def read(context: click.Context, _: click.Parameter, words: Sequence[str]) -> str | None:
        return read_words(words) if words and not context.resilient_parsing else None

    return click.argument(name, nargs=-1, required=required, callback=read)


class ProgressLine:
    """A line on a terminal with the current wait of a command, and the progress of an index."""

    def __init__(self) -> None:
        #: True if an index has reported progress.
        self.begun = False
        self._waiting = Waiting()
        self._loop = asyncio.get_running_loop()
        self._words = ""

    @contextmanager
    def during(self, words: str) -> Iterator[None]:
        """Show these words during the block."""
        self._words = words
        self._waiting.show(words)
        try:
            yield
        finally:
            self._words = ""
            self._waiting.clear()

    def report(self, progress: IndexingProgress) -> None:
        """Show the progress of an index; callable from any thread."""
        # The loop may be closed while another thread completes its part.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._show, progress)

    def _show(self, progress: IndexingProgress) -> None:
        begun, self.begun = self.begun, True
        count = f"{progress.done:,} of {progress.total:,} entries {_STAGES[progress.stage]}"
        if self._words:
            self._waiting.change(f"{self._words}: {count}")
        elif progress.done == progress.total:
            self._waiting.clear()
        elif begun:
            self._waiting.change(f"indexing: {count}")
        else:
            self._waiting.show(f"indexing: {count}")


#: Progress line of the running command.
_LINE: ContextVar[ProgressLine | None] = ContextVar("_LINE", default=None)


@contextmanager
def progress(words: str) -> Iterator[None]:
    """Show on a terminal what is waited for."""
    line = _LINE.get() or ProgressLine()
    with line.during(words):
        yield


@contextmanager
def keeping(describe: Callable[[], str]) -> Iterator[None]:
    """Prefix storage errors with a description of the completed work."""
    try:
        yield
    except StorageError as error:
        # Change the message only: the class decides the exit status.
        error.args = (f"{describe()}: {error}",)
        raise


async def ask_before_secrets(store: Callable[[bool], Awaitable[T]], *, yes: bool) -> T:
    """Await `store(keep_secrets)`; ask at a terminal if the text looks like a secret.

    Without a terminal, only --yes stores one. Raises `click.exceptions.Exit` if the answer is no.
    """
    try:
        return await store(yes)
    except SecretRefused as error:
        if not confirm_secret(error):
            note("nothing was stored")
            raise click.exceptions.Exit(1) from None
    return await store(True)


def confirm_secret(error: SecretRefused) -> bool:
    """Ask at the terminal whether to store a secret; without a terminal, raise the error."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        error.args = (f"{error}; to store it anyway: --yes",)
        raise error
    note(f"this looks like a secret: {error.masked}")
    note("memory is stored as plain text and sent to models")
    with interruptible():
        return click.confirm("Store it anyway?", err=True)


def scope_of(scope: str | None, settings: MemorySettings) -> Scope:
    """Return the given scope, or else the user's own."""
    return Scope.of_user(settings.user) if scope is None else Scope.parse(scope)


async def visible_scopes(
    store: Memory, settings: MemorySettings, scope: str | None = None
) -> Sequence[Scope]:
    """Return the scopes to search for an id: the given one, or all but those of other users."""
    if scope is not None:
        return [Scope.parse(scope)]
    own = scope_of(None, settings)
    there = await store.survey_scopes()
    return [one for one in there if one.kind != "user" or one == own]


def survey_latest(count: int) -> Sequence[Entry]:
    """Return the latest entries that the user can see, read directly from the store."""
    configuration = load_configuration()
    settings = read_memory_settings(configuration)
    stores = MEMORY_STORES.produce(open_backend(configuration))
    store = stores.open_store(LOCAL, configuration)
    entries: list[Entry] = []
    for scope in (scope_of(None, settings), GLOBAL):
        places = sorted(store.scan(scope), reverse=True)[:count]
        found = store.read_many(scope, places)
        entries += (entry for _, entry in found if isinstance(entry, Entry))
    stores.close()
    entries.sort(key=lambda entry: entry.created, reverse=True)
    return entries[:count]


def read_words(words: Sequence[str]) -> str:
    """Join words of the command line to a text; `-` alone reads standard input.

    Raises `MemoryInvalid` if standard input is not text.
    """
    if tuple(words) != (STANDARD,):
        return _decode(" ".join(words))
    with interruptible():
        data = sys.stdin.buffer.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise MemoryInvalid(f"standard input is longer than {LARGEST_BYTES >> 20} MiB")
    text = read_text(data)
    if text is None:
        raise MemoryInvalid("standard input is not UTF-8 text")
    return text.strip()


def _decode(text: str) -> str:
    """Decode the text as UTF-8, which a locale without UTF-8 does not do."""
    try:
        return os.fsencode(text).decode()
    except UnicodeError:
        return text


def short_identity(entry: Entry) -> str:
    """Return the short id of an entry."""
    return entry.identity[-SHORT:]


def local_time(time: datetime) -> str:
    """Format a time in the local time zone."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M")


def count_entries(number: int) -> str:
    """Return the number of entries as text."""
    return "1 entry" if number == 1 else f"{number} entries"


def describe_entry(entry: Entry, stream: TextIO | None = None, *, indent: str = "") -> str:
    """Describe an entry in one line, cut at the width of a terminal."""
    seen = sys.stdout if stream is None else stream
    begun = f"{indent}{short_identity(entry)}"
    head = f"{begun}  {local_time(entry.created)}  "
    if is_terminal(seen) and columns(seen) - len(head) < _MIN_ROOM:
        head = f"{begun} {entry.created.astimezone():%m-%d}  "
    speaker = f"{entry.speaker}: " if entry.speaker else ""
    if entry.copy_of:
        head += f"(copy of {entry.copy_of[-SHORT:]}) "
    return fit(f"{head}{one_line(f'{speaker}{entry.content}')}", seen, least=len(head))


def describe_deleted(entry: Entry) -> str:
    """Describe a deleted entry in a notice."""
    return fit(f"deleted {short_identity(entry)}: {one_line(entry.content)}", sys.stderr)


def fit(text: str, stream: TextIO, *, least: int = 0) -> str:
    """Fit a text to a stream: on a terminal, make it visible and cut it to one line.

    Even on a narrow terminal, `least` characters and a few more are kept.
    """
    if not is_terminal(stream):
        return text
    room = max(least + _MIN_ROOM, columns(stream))
    return cut(visible(text), room)


def print_entry(entry: Entry, *, indent: str = "") -> None:
    """Print an entry as one line."""
    write(sys.stdout, f"{describe_entry(entry, indent=indent)}\n")


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    write_json(json.dumps(value, ensure_ascii=False))


def encode_entry(entry: Entry) -> dict[str, Any]:
    """Encode an entry as JSON."""
    encoded: dict[str, Any] = msgspec.to_builtins(MemoryEntry.of(entry))
    return encoded


def print_note(text: str) -> None:
    """Print a note."""
    note(f"note: {shown(one_line(text))}")
