"""The prompt of the REPL: editing, blocks of lines, completion, and the input history."""

from __future__ import annotations

import asyncio
import os
import re
import select
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from vibe_llms.base.exceptions import StorageError
from vibe_llms.base.files import LARGEST_SETTINGS, opened, read_descriptor
from vibe_llms.base.folders import make_folder, storage_errors, write_new
from vibe_llms.base.redaction import redact
from vibe_llms.cli.completion import Offer, choose
from vibe_llms.cli.terminal import divert, note, send
from vibe_llms.messages.contents import repair_text

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

_PROMPT, _FURTHER_PROMPT = "> ", "… "
_QUOTES = '"""'
_MULTI = re.compile(r"[/!]multi(?: +(\S+))?\s*")
_PATH_COMMANDS = ("/file", "/export")
_TYPED_BYTES = 4096
# Beginnings of other services' keys; `redact` knows those of models.
_KEY = re.compile(r"\b(ghp|gho|ghs|github_pat|glpat|gsk|xai|hf|AKIA|AIza|xox[abp])[-\w]{16,}")


class Block(str):
    """A text that is never taken for a command."""

    __slots__ = ()


class Prompts(Protocol):
    """The source of the lines of the REPL."""

    async def read(self, draft: str = "", *, edit: bool = False) -> str:
        """Read one or several lines from the user; a `Block` is never a command.

        The line starts with the `draft`; with `edit` it opens in the editor. Raises
        `KeyboardInterrupt` for Ctrl-C on an empty line, and `EOFError` for Ctrl-D.
        """
        ...

    def type_ahead(self, text: str) -> None:
        """Treat earlier input as if it were typed at the prompt; LF is Enter."""
        ...


class TerminalPrompts:
    """Lines that are typed at a terminal."""

    def __init__(
        self,
        history_file: Path | None,
        commands: Mapping[str, str] = MappingProxyType({}),
        offer: Callable[[str, str], Awaitable[Iterable[Offer]]] | None = None,
    ) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        self._typed = ""
        self._session: PromptSession[str] = PromptSession(
            history=produce_history(history_file),
            key_bindings=_produce_bindings(),
            completer=produce_completer(commands, offer),
            complete_while_typing=False,
            enable_history_search=True,
            tempfile_suffix=".md",
            # The prompt is visible even if answers are redirected to a file.
            output=create_output(always_prefer_tty=True),
        )

    async def read(self, draft: str = "", *, edit: bool = False) -> str:
        """Read a line, or a block enclosed by `\"\"\"` or by `/multi` and `/end`."""
        line = await self._read_line(draft, edit=edit)
        if found := _MULTI.fullmatch(line):
            end = f"end {found[1]}" if found[1] else "end"
            return await self._read_block([], lambda typed: typed.strip() in (f"/{end}", f"!{end}"))
        if line.lstrip().startswith(_QUOTES):
            first = line.lstrip().removeprefix(_QUOTES)
            if first.rstrip().endswith(_QUOTES):
                return _produce_block(first.rstrip().removesuffix(_QUOTES))
            return await self._read_block([first], lambda typed: typed.rstrip().endswith(_QUOTES))
        return line

    def type_ahead(self, text: str) -> None:
        """Treat earlier input as if it were typed at the prompt; LF is Enter."""
        self._typed += text

    async def _read_line(self, draft: str, *, edit: bool) -> str:
        def open_editor() -> None:
            self._session.default_buffer.open_in_editor(validate_and_handle=True)

        return await self._prompt(_PROMPT, default=draft, pre_run=open_editor if edit else None)

    async def _read_block(self, lines: list[str], ends: Callable[[str], bool]) -> str:
        while True:
            try:
                lines.append(await self._prompt(_FURTHER_PROMPT))
            except (EOFError, KeyboardInterrupt):
                note("(block discarded)", dim=True)
                return ""
            if ends(lines[-1]):
                last = lines.pop().rstrip()
                if last.endswith(_QUOTES):
                    lines.append(last.removesuffix(_QUOTES))
                return _produce_block("\n".join(lines))

    async def _prompt(self, prompt: str, **options: Any) -> str:
        self._take_typed_ahead()
        with print_above():
            return await self._session.prompt_async(prompt, **options)

    def _take_typed_ahead(self) -> None:
        """Take lines that were typed before the prompt, and let each Enter send its line.

        The terminal has made Enter a line feed, which would begin a new line at the prompt.
        """
        from prompt_toolkit.input.typeahead import store_typeahead
        from prompt_toolkit.input.vt100_parser import Vt100Parser
        from prompt_toolkit.key_binding import KeyPress

        given = self._session.app.input
        typed = b""
        if os.isatty(file := given.fileno()):
            while select.select([file], [], [], 0)[0] and (part := os.read(file, _TYPED_BYTES)):
                typed += part
        text, self._typed = self._typed + typed.decode("utf-8", "replace"), ""
        if not text:
            return
        keys: list[KeyPress] = []
        Vt100Parser(keys.append).feed(text.replace("\n", "\r"))
        store_typeahead(given, keys)


def _produce_block(text: str) -> Block:
    return Block(text.strip("\n"))


@contextmanager
def print_above() -> Iterator[None]:
    """Print output of other code above the prompt during the block."""
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
    """Open the input history, in a file that only its owner can read; without one, in memory.

    Lines that begin with a space or contain a key are not kept.
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
        note(f"note: the input history is not saved: {error}")
        return InMemoryHistory()

    class PrivateHistory(FileHistory):
        def store_string(self, string: str) -> None:
            if not is_worth_keeping(string):
                return
            try:
                super().store_string(repair_text(string))
            except OSError as error:
                note(f"note: the input history is not saved: {error.strerror}")

    return PrivateHistory(str(file))


def is_worth_keeping(line: str) -> bool:
    """Return True if a line may be stored in the history file."""
    return not line.startswith(" ") and redact(line) == line and _KEY.search(line) is None


def produce_completer(
    commands: Mapping[str, str],
    offer: Callable[[str, str], Awaitable[Iterable[Offer]]] | None = None,
) -> Completer:
    """Make a completer of commands and their arguments.

    `offer` returns the values for a command and the words after it; `/file` and `/export` take
    paths.
    """
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    def complete(offers: Iterable[Offer], begun: str) -> Iterable[Completion]:
        for value, text in choose(offers, begun):
            yield Completion(value, start_position=-len(begun), display_meta=text)

    class CommandCompleter(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterable[Completion]:
            text = document.text_before_cursor
            name, space, rest = text.partition(" ")
            if name in _PATH_COMMANDS and space:
                yield from PathCompleter(expanduser=True).get_completions(
                    Document(rest), complete_event
                )
            elif text.startswith("/") and not space:
                yield from complete(commands.items(), text)

        async def get_completions_async(
            self, document: Document, complete_event: Any
        ) -> AsyncGenerator[Completion, None]:
            for completion in self.get_completions(document, complete_event):
                yield completion
            name, space, rest = document.text_before_cursor.partition(" ")
            if name in commands and space and offer is not None:
                words, _, begun = rest.rpartition(" ")
                for completion in complete(await offer(name, words), begun):
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
