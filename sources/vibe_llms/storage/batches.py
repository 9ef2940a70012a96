"""Many new conversations in a folder archive, made durable together.

A sync takes the disk longer than everything else of a small file. So contents and conversations are
first written under temporary names, the system syncs all of them at once, and then they get their
names: the contents before the conversations that need them. After a power failure each conversation
is complete or missing.

Source: documentation/adr/0123-an-import-is-repeated-and-changes-nothing.md
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

from vibe_llms.base.exceptions import ConversationMoved, StorageError
from vibe_llms.base.folders import new_folder, storage_errors, synchronise_folder
from vibe_llms.storage.changes import Changes
from vibe_llms.storage.contents import ContentStore
from vibe_llms.storage.conversations import ConversationFolder
from vibe_llms.storage.transfer import NewConversation

#: Linux waits in `sync` until everything is on the disk; POSIX does not require that.
_SYNCS_TOGETHER = sys.platform == "linux"


class FolderBatch:
    """A batch of new conversations. The stacks' ends give contents and conversations their names.

    `errors` are those of conversations that could not be made.
    """

    def __init__(
        self, store: ContentStore, contents: ExitStack, conversations: ExitStack, *, durable: bool
    ) -> None:
        self.errors: dict[str, StorageError] = {}
        self._store = store
        self._contents = contents
        self._conversations = conversations
        self._durable = durable
        self._each = durable and not _SYNCS_TOGETHER

    def prepare(self, folder: ConversationFolder, new: NewConversation, changes: Changes) -> None:
        """Write a conversation and its contents under temporary names."""
        path = folder.path
        if os.path.lexists(path):
            raise ConversationMoved("it already exists", path=str(path))
        for deposit in new.deposits:
            self._store.prepare(deposit, self._contents, durable=self._each)
        with storage_errors(path), ExitStack() as stack:
            stack.enter_context(_Refusal(self.errors, path))
            temporary = stack.enter_context(new_folder(path, durable=self._each))
            folder.receive_first(temporary, new.stored, durable=self._each)
            changes.mark(path.name)
            self._conversations.push(stack.pop_all())

    def finish(self, root: Path) -> None:
        """Make everything durable, and give it its names."""
        with storage_errors(root):
            if self._durable and _SYNCS_TOGETHER:
                os.sync()
            self._contents.close()
            if self._durable:
                synchronise_folder(self._store.folder)
            self._conversations.close()
            if self._durable:
                synchronise_folder(root)


class _Refusal:
    """Record of a conversation that another process has made in the meantime."""

    def __init__(self, errors: dict[str, StorageError], path: Path) -> None:
        self._errors = errors
        self._path = path

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, FileExistsError):
            return False
        self._errors[self._path.name] = ConversationMoved("it already exists", path=str(self._path))
        return True
