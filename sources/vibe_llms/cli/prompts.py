"""The line that a person types: editing, several lines, completion, and the history of lines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vibe_llms.cli.terminal import note
from vibe_llms.exceptions import StorageError
from vibe_llms.messages.contents import repair_text
from vibe_llms.redaction import redact
from vibe_llms.storage.files import make_folder, storage_errors

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

_PROMPT, _FURTHER_PROMPT = "> ", "… "
_QUOTES = '"""'
_MEMORY_WORDS = ("on", "off", "search ", "add ", "rm ")
# What keys of other services begin with; those of models are known to `redact`.
_KEY = re.compile(r"\b(ghp|gho|ghs|github_pat|glpat|gsk|xai|hf|AKIA|AIza|xox[abp])[-\w]{16,}")


class Prompts(Protocol):
    """Where the lines of the REPL come from."""

    async def read(self) -> str:
        """What the person typed, one line or several.

        `KeyboardInterrupt` for Ctrl-C where there is nothing to clear, `EOFError` for Ctrl-D.
        """
        ...


class TerminalPrompts:
    """Lines edited at the terminal."""

    def __init__(
        self,
        history_file: Path | None,
        commands: Iterable[str] = (),
        survey_addresses: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import create_output

        self._session: PromptSession[str] = PromptSession(
            history=produce_history(history_file),
            key_bindings=_produce_bindings(),
            completer=produce_completer(commands, survey_addresses),
            complete_while_typing=False,
            enable_history_search=True,
            tempfile_suffix=".md",
            # Where the answers go into a file, the prompt is still seen.
            output=create_output(always_prefer_tty=True),
        )

    async def read(self) -> str:
        """What the person typed; a line of three quotes opens and closes a block."""
        line = await self._session.prompt_async(_PROMPT)
        if not line.lstrip().startswith(_QUOTES):
            return line
        lines = [line.lstrip().removeprefix(_QUOTES)]
        while not lines[-1].rstrip().endswith(_QUOTES):
            try:
                lines.append(await self._session.prompt_async(_FURTHER_PROMPT))
            except (EOFError, KeyboardInterrupt):
                note("(the block is dropped)", dim=True)
                return ""
        lines[-1] = lines[-1].rstrip().removesuffix(_QUOTES)
        return "\n".join(lines).strip("\n")


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
            os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
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
    commands: Iterable[str], survey_addresses: Callable[[], Iterable[str]]
) -> Completer:
    """Completes commands, the models of `/model`, the paths of `/file`, the words of `/memory`."""
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    class CommandCompleter(Completer):
        def get_completions(self, document: Document, complete_event: Any) -> Iterable[Completion]:
            text = document.text_before_cursor
            name, space, rest = text.partition(" ")
            if name == "/file" and space:
                yield from PathCompleter(expanduser=True).get_completions(
                    Document(rest), complete_event
                )
            elif name == "/model" and space:
                yield from _offer(survey_addresses(), rest)
            elif name == "/memory" and space:
                yield from _offer(_MEMORY_WORDS, rest)
            elif text.startswith("/") and not space:
                yield from _offer(commands, text)

    def _offer(choices: Iterable[str], begun: str) -> Iterable[Completion]:
        for choice in choices:
            if choice.startswith(begun):
                yield Completion(choice, start_position=-len(begun))

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
