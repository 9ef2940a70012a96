"""What somebody writes in an editor: kept in a file of its own until it is stored.

    STATE/edits/SCOPE__IDENTITY/entry.md   the text as the editor has it
    STATE/edits/SCOPE__IDENTITY/base       what the entry said when it was begun

A draft is left by whatever ends an edit before it is stored, and taken up by the next one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from vibe_llms.attachments import read_text
from vibe_llms.configuration import Places
from vibe_llms.exceptions import ArchiveLocked, RequestError
from vibe_llms.files import LARGEST_FILE, read_file
from vibe_llms.memory.entries import LARGEST_BYTES, Entry, Scope
from vibe_llms.memory.traces import holds
from vibe_llms.storage.files import make_folder, replace_file, storage_errors
from vibe_llms.storage.locks import locked

_FOLDER = "edits"
_TEXT = "entry.md"
_BASE = "base"


class Draft:
    """What is written of one entry."""

    def __init__(self, places: Places, entry: Entry) -> None:
        self.folder = places.state / _FOLDER / f"{entry.scope}__{entry.identity}"
        self.path = self.folder / _TEXT

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from it; `RequestError` where one edits the entry already."""
        with ExitStack() as stack:
            with storage_errors(self.folder):
                make_folder(self.folder)
                try:
                    stack.enter_context(locked(self.folder, seconds=0))
                except ArchiveLocked as error:
                    raise RequestError(
                        f"this entry is being edited already, in {self.path}; end that first"
                    ) from error
            yield

    def begin(self, content: str) -> None:
        """Write what is to be edited."""
        with storage_errors(self.path):
            replace_file(self.folder / _BASE, content.encode())
            replace_file(self.path, f"{content}\n".encode())

    def settle(self, content: str) -> None:
        """Take what the entry says now as what was known when this was begun."""
        with storage_errors(self.path):
            replace_file(self.folder / _BASE, content.encode())

    @property
    def base(self) -> str | None:
        """What the entry said when this was begun; none where nothing was."""
        with suppress(OSError):
            return read_file(self.folder / _BASE, LARGEST_BYTES).decode("utf-8", "replace")
        return None

    def is_left(self, content: str) -> bool:
        """Whether something was written that the entry, which says this, neither says nor said."""
        with suppress(OSError):
            known = {text.strip().encode() for text in ("", content, self.base or "")}
            return read_file(self.path, LARGEST_FILE).strip() not in known
        return False

    def read(self) -> str:
        """What is written; `RequestError` where it is no text that an entry could have."""
        try:
            data = read_file(self.path, LARGEST_BYTES)
        except FileNotFoundError:
            raise RequestError("the editor has left no file") from None
        except OSError as error:
            raise RequestError(f"what the editor left cannot be read: {error.strerror}") from error
        text = read_text(data)
        if text is None:
            raise RequestError("what the editor left is no text in UTF-8")
        return text.strip()

    def drop(self) -> None:
        """Give it up, and what the editor has put beside it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def forget_drafts(places: Places, wanted: str, *, scope: Scope | None = None) -> int:
    """Remove the drafts that hold folded words, or those of a scope; how many did."""
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
