"""`memory edit`: changes an entry to a given text or in an editor, and loses neither version.

The text in the editor is a draft until it is stored. The next edit continues a draft that could not
be stored:

    STATE/edits/SCOPE__ID/entry.md   the text in the editor
    STATE/edits/SCOPE__ID/base       the entry when the edit began
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import click

from vibe_llms.base.configuration import Places, find_places
from vibe_llms.base.exceptions import ArchiveLocked, MemoryInvalid, RequestError, VibeLlmsError
from vibe_llms.base.files import LARGEST_FILE, read_file
from vibe_llms.base.folders import make_folder, replace_file, storage_errors
from vibe_llms.base.locks import locked
from vibe_llms.cli.completion import complete_facts
from vibe_llms.cli.memory.common import (
    ask_before_secrets,
    encode_entry,
    keeping,
    only_scope_option,
    print_json,
    progress,
    secrets_option,
    short_identity,
    visible_scopes,
    with_memory,
    words_argument,
)
from vibe_llms.cli.programs import find_editor, run_editor
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note
from vibe_llms.conversations.attachments import read_text
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import LARGEST_BYTES, Entry, Scope
from vibe_llms.memory.settings import MemorySettings
from vibe_llms.memory.text_search import holds

_FOLDER = "edits"
_TEXT = "entry.md"
_BASE = "base"


@click.command("edit", short_help="Change an entry.")
@click.argument("identity", metavar="ID", shell_complete=complete_facts)
@words_argument("text", required=False)
@only_scope_option
@secrets_option
@json_option
@with_memory
async def edit(
    memory: Memory,
    settings: MemorySettings,
    identity: str,
    text: str | None,
    scope: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Change an entry to TEXT, or in your editor; - reads standard input.

    If saving fails, your text is offered again at the next edit. A copy that another program made
    becomes an entry of its own. Text that looks like a password,
    a key or a card number is stored only if you confirm it, or with --yes.
    """
    entry = await memory.access(identity, scopes=await visible_scopes(memory, settings, scope))
    if text is not None:
        changed = await _revise(memory, entry, text, yes=yes)
    else:
        changed = await _edit(memory, entry, yes=yes)
    if as_json:
        print_json(encode_entry(changed))
    elif changed.content == entry.content and not entry.copy_of:
        note("nothing to change")
    else:
        note(f"changed {short_identity(changed)}")


async def _revise(memory: Memory, entry: Entry, words: str, *, yes: bool) -> Entry:
    if words.strip() == entry.content and not entry.copy_of:
        return entry
    with keeping(lambda: "nothing was changed"):
        return await _store(memory, entry, words, yes=yes)


async def _store(memory: Memory, entry: Entry, words: str, *, yes: bool) -> Entry:
    async def revise(keep_secrets: bool) -> Entry:
        with progress("changing"):
            return await memory.revise(
                entry.identity, scopes=[entry.scope], content=words, keep_secrets=keep_secrets
            )

    return await ask_before_secrets(revise, yes=yes)


async def _edit(memory: Memory, entry: Entry, *, yes: bool) -> Entry:
    command = f"vibe-llms memory edit {short_identity(entry)}"
    editor = find_editor(f"give the text: {command} TEXT")
    draft = Draft(find_places(), entry)
    with ExitStack() as stack:
        with keeping(lambda: "nothing was changed"):
            stack.enter_context(draft.lock())
            if draft.is_left(entry.content):
                note(f"note: continuing an earlier edit that was not saved: {draft.path}")
                if draft.base != entry.content:
                    shown = f"vibe-llms memory show {short_identity(entry)}"
                    note(f"note: the entry has changed since; to see it: {shown}")
                draft.rebase(entry.content)
            else:
                draft.begin(entry.content)
        try:
            run_editor(editor, draft.path)
            changed = await _store_edited(memory, entry, draft.read(), yes=yes)
        except VibeLlmsError as error:
            words = f"nothing was changed: {error}"
            if draft.is_left(entry.content):
                words += f"; your text is kept in {draft.path}; to continue: {command}"
            else:
                draft.drop()
            # Change the message only: the class decides the exit status.
            error.args = (words,)
            raise
        draft.drop()
    return changed


async def _store_edited(memory: Memory, entry: Entry, words: str, *, yes: bool) -> Entry:
    if not words:
        raise MemoryInvalid(
            f"the text is empty; to delete the entry: vibe-llms memory rm {short_identity(entry)}"
        )
    now = await memory.access(entry.identity, scopes=[entry.scope])
    if now.content not in (entry.content, words):
        raise RequestError("the entry has changed since, so it was not overwritten")
    if now.content == words and not now.copy_of:
        return now
    return await _store(memory, entry, words, yes=yes)


class Draft:
    """The draft of one entry."""

    def __init__(self, places: Places, entry: Entry) -> None:
        self.folder = places.state / _FOLDER / f"{entry.scope}__{entry.identity}"
        self.path = self.folder / _TEXT

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the draft; raise `RequestError` if another process edits the entry."""
        with ExitStack() as stack:
            with storage_errors(self.folder):
                make_folder(self.folder)
                try:
                    stack.enter_context(locked(self.folder, seconds=0))
                except ArchiveLocked as error:
                    raise RequestError(
                        f"this entry is already being edited in {self.path}"
                    ) from error
            yield

    def begin(self, content: str) -> None:
        """Start a draft with the content of the entry."""
        with storage_errors(self.path):
            replace_file(self.folder / _BASE, content.encode(), LARGEST_BYTES)
            replace_file(self.path, f"{content}\n".encode(), LARGEST_BYTES)

    def rebase(self, content: str) -> None:
        """Make the present content of the entry the base of the draft."""
        with storage_errors(self.path):
            replace_file(self.folder / _BASE, content.encode(), LARGEST_BYTES)

    @property
    def base(self) -> str | None:
        """Content of the entry when the edit began; None without a draft."""
        with suppress(OSError):
            return read_file(self.folder / _BASE, LARGEST_BYTES).decode("utf-8", "replace")
        return None

    def is_left(self, content: str) -> bool:
        """Return True if a draft differs from the entry, both now and when the edit began."""
        with suppress(OSError):
            known = {text.strip().encode() for text in ("", content, self.base or "")}
            return read_file(self.path, LARGEST_FILE).strip() not in known
        return False

    def read(self) -> str:
        """Read the draft; raise `RequestError` if it is not a valid text."""
        try:
            data = read_file(self.path, LARGEST_BYTES)
        except FileNotFoundError:
            raise RequestError("the editor left no file") from None
        except OSError as error:
            raise RequestError(f"cannot read the edited file: {error.strerror}") from error
        text = read_text(data)
        if text is None:
            raise RequestError("the edited file is not UTF-8 text")
        return text.strip()

    def drop(self) -> None:
        """Delete the draft and other files of the editor."""
        shutil.rmtree(self.folder, ignore_errors=True)


def forget_drafts(places: Places, wanted: str, *, scope: Scope | None = None) -> int:
    """Delete the drafts that contain folded words, or those of a scope; return their number."""
    gone = 0
    with suppress(FileNotFoundError):
        for folder in sorted((places.state / _FOLDER).iterdir()):
            texts = [
                read_file(path, LARGEST_BYTES).decode("utf-8", "replace")
                for path in folder.iterdir()
                if path.is_file()
            ]
            of_scope = folder.name.startswith(f"{scope}__")
            if of_scope if scope is not None else holds(wanted, texts):
                shutil.rmtree(folder)
                gone += 1
    return gone
