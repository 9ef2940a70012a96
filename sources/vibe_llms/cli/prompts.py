"""The line that a person types: editing, several lines, completion, and the history of lines."""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from vibe_llms.cli.offers import Offer
from vibe_llms.cli.terminal import divert, note, send
from vibe_llms.exceptions import StorageError
from vibe_llms.files import LARGEST_SETTINGS, opened, read_descriptor
from vibe_llms.messages.contents import repair_text
from vibe_llms.redaction import redact
from vibe_llms.storage.files import make_folder, storage_errors, write_new

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

_PROMPT, _FURTHER_PROMPT = "> ", "… "
_QUOTES = '"""'
_MULTI = re.compile(r"[/!]multi(?: +(\S+))?\s*")
_LEAST_FOR_HELP = 3
_PATH_COMMANDS = ("/file", "/export")
# What keys of other services begin with; those of models are known to `redact`.
_KEY = re.compile(r"\b(ghp|gho|ghs|github_pat|glpat|gsk|xai|hf|AKIA|AIza|xox[abp])[-\w]{16,}")


class Prompts(Protocol):
    """Where the lines of the REPL come from."""

    async def read(self, draft: str = "", *, edit: bool = False) -> str:
        """What the person typed, one line or several.

        A `draft` is there to begin with; with `edit` it is opened in the editor, and what that
        leaves is taken as typed. `KeyboardInterrupt` for Ctrl-C where there is nothing to clear,
        `EOFError` for Ctrl-D.
        """
        ...


class TerminalPrompts:
    """Lines edited at the terminal."""

    def __init__(
        self,
        history_file: Path | None,
        commands: Mapping[str, str] = MappingProxyType({}),
        offer: Callable[[str, str], Awaitable[Iterable[Offer]]] | None = None,
    ) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        self._session: PromptSession[str] = PromptSession(
            history=produce_history(history_file),
            key_bindings=_produce_bindings(),
            completer=produce_completer(commands, offer),
            complete_while_typing=False,
            enable_history_search=True,
            tempfile_suffix=".md",
            # Where the answers go into a file, the prompt is still seen.
            output=create_output(always_prefer_tty=True),
        )

    async def read(self, draft: str = "", *, edit: bool = False) -> str:
        """What the person typed; `\"\"\"` opens and closes a block, as do `/multi` and `/end`.

        A block is never a command, whatever it begins with.
        """
        line = await self._read_line(draft, edit=edit)
        if found := _MULTI.fullmatch(line):
            end = f"end {found[1]}" if found[1] else "end"
            return await self._read_block([], lambda typed: typed.strip() in (f"/{end}", f"!{end}"))
        if line.lstrip().startswith(_QUOTES):
            first = line.lstrip().removeprefix(_QUOTES)
            if first.rstrip().endswith(_QUOTES):
                return _as_text(first.rstrip().removesuffix(_QUOTES))
            return await self._read_block([first], lambda typed: typed.rstrip().endswith(_QUOTES))
        return line

    async def _read_line(self, draft: str, *, edit: bool) -> str:
        def open_editor() -> None:
            self._session.default_buffer.open_in_editor(validate_and_handle=True)

        return await self._prompt(_PROMPT, default=draft, pre_run=open_editor if edit else None)

    async def _read_block(self, lines: list[str], ends: Callable[[str], bool]) -> str:
        while True:
            try:
                lines.append(await self._prompt(_FURTHER_PROMPT))
            except (EOFError, KeyboardInterrupt):
                note("(the block is dropped)", dim=True)
                return ""
            if ends(lines[-1]):
                last = lines.pop().rstrip()
                if last.endswith(_QUOTES):
                    lines.append(last.removesuffix(_QUOTES))
                return _as_text("\n".join(lines))

    async def _prompt(self, prompt: str, **options: Any) -> str:
        with print_above():
            return await self._session.prompt_async(prompt, **options)


def _as_text(block: str) -> str:
    block = block.strip("\n")
    # A second slash says that it is no command.
    return f"/{block}" if block.startswith("/") else block


@contextmanager
def print_above() -> Iterator[None]:
    """Print what any thread writes to the terminal above the prompt."""
    from prompt_toolkit.application import run_in_terminal

    loop = asyncio.get_running_loop()
    queue: deque[tuple[TextIO, str]] = deque()

    def drain() -> None:
        while queue:
            stream, text = queue.popleft()
            with suppress(OSError):
                send(stream, text)

    def put(stream: TextIO, text: str, _: bool) -> None:
        queue.append((stream, text))
        loop.call_soon_threadsafe(lambda: run_in_terminal(drain) if queue else None)

    try:
        with divert(put):
            yield
    finally:
        drain()


def produce_history(file: Path | None) -> History:
    """The lines of earlier times, in a file that only its owner can read; none without a file.

    A line that begins with a space, or that holds what looks like a key, is not kept.
    """
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if file is None:
        return InMemoryHistory()
    try:
        with storage_errors(file):
            make_folder(file.parent)
            with suppress(FileExistsError):
                write_new(file, b"", durable=False)
            with opened(file, os.O_RDWR | os.O_NOFOLLOW) as descriptor:
                read_descriptor(descriptor, LARGEST_SETTINGS * 16)
    except StorageError as error:
        note(f"note: what you type is not kept for next time: {error}")
        return InMemoryHistory()

    class PrivateHistory(FileHistory):
        def store_string(self, string: str) -> None:
            if not is_worth_keeping(string):
                return
            try:
                super().store_string(repair_text(string))
            except OSError as error:
                note(f"note: what you type is not kept for next time: {error.strerror}")

    return PrivateHistory(str(file))


def is_worth_keeping(line: str) -> bool:
    """Whether a line may stand in the history file."""
    return not line.startswith(" ") and redact(line) == line and _KEY.search(line) is None


def produce_completer(
    commands: Mapping[str, str],
    offer: Callable[[str, str], Awaitable[Iterable[Offer]]] | None = None,
) -> Completer:
    """Completes commands, each shown with its description, and their arguments.

    `offer` gives the values for a command and the words behind it so far; paths are completed
    behind `/file` and `/export`.
    """
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    def choose(offers: Iterable[Offer], begun: str) -> Iterable[Completion]:
        for value, help_ in offers:
            # A title is easier to remember than an id.
            told = len(begun) >= _LEAST_FOR_HELP and begun.lower() in help_.lower()
            if value.startswith(begun) or told:
                yield Completion(value, start_position=-len(begun), display_meta=help_)

    class CommandCompleter(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterable[Completion]:
            text = document.text_before_cursor
            name, space, rest = text.partition(" ")
            if name in _PATH_COMMANDS and space:
                yield from PathCompleter(expanduser=True).get_completions(
                    Document(rest), complete_event
                )
            elif text.startswith("/") and not space:
                yield from choose(commands.items(), text)

        async def get_completions_async(
            self, document: Document, complete_event: Any
        ) -> AsyncGenerator[Completion, None]:
            for completion in self.get_completions(document, complete_event):
                yield completion
            name, space, rest = document.text_before_cursor.partition(" ")
            if name in commands and space and offer is not None:
                words, _, begun = rest.rpartition(" ")
                for completion in choose(await offer(name, words), begun):
                    yield completion

    return CommandCompleter()


def _produce_bindings() -> Any:
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @bindings.add("c-j")
    @bindings.add("escape", "enter")
    def _new_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-o")
    def _open_editor(event: Any) -> None:
        event.current_buffer.open_in_editor()

    @bindings.add("c-c")
    def _clear(event: Any) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings
