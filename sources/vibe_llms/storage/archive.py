"""Archive in a folder: conversations, contents, and the index derived from them.

Every method runs its blocking work in a worker thread. No other module does so.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import (
    ContentMissing,
    ConversationMoved,
    ConversationNotFound,
    StorageError,
    VibeLlmsError,
)
from vibe_llms.base.files import find_distrust, limit_descriptors
from vibe_llms.base.folders import (
    TEMPORARY,
    make_folder,
    new_folder,
    read_parts,
    refuse_link,
    remove_folder,
    storage_errors,
    synchronise_folder,
)
from vibe_llms.base.futures import ShieldedFuture, ShieldedWork
from vibe_llms.base.locks import locked
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import Reference
from vibe_llms.storage.appending import MESSAGES
from vibe_llms.storage.batches import FolderBatch
from vibe_llms.storage.changes import Changes
from vibe_llms.storage.contents import ContentStore
from vibe_llms.storage.conversations import (
    ConversationFolder,
    is_conversation_identity,
    survey_folders,
)
from vibe_llms.storage.deposits import GRACE_SECONDS, concerns_contents, references_of
from vibe_llms.storage.details import describe_changes
from vibe_llms.storage.interfaces import (
    Appended,
    ConversationVersions,
    Details,
    Finding,
    Relative,
    Report,
    Restored,
    Summary,
    UploadedFile,
    ignore,
)
from vibe_llms.storage.mounts import find_network_mount
from vibe_llms.storage.resolving import Named, find_conversation
from vibe_llms.storage.search import DOOMED, Index
from vibe_llms.storage.threads import DiskThreads
from vibe_llms.storage.transfer import NewConversation, StoredConversation
from vibe_llms.storage.uploads import UploadFolder
from vibe_llms.storage.versions import survey_versions

T = TypeVar("T")

CONVERSATIONS = "conversations"
CONTENT = "content"
FILES = "files"
INDEX = "index.sqlite3"
#: Anything that looks like a hash counts, because a newer version may write hashes elsewhere.
_HASH = re.compile(rb"[0-9a-f]{64}")
_HASH_OVERLAP = 63
#: Initial number of conversations that stay open, with up to two descriptors each. The number
#: doubles, up to `most_open`, when a closed conversation is used again.
OPEN_FOLDERS = 16
_MOST_OPEN = 1024
#: Maximum number of appends that wait for the disk at once. The disk syncs them together. With more
#: threads they wait for each other: for 1,000 concurrent conversations, 32 threads completed half
#: as many turns per second as 8.
_THREADS = 8
#: A write without a sync takes microseconds. After a write that took longer than this, for example
#: because the disk was busy, appends avoid the event loop for a while.
_SLOW_SECONDS = 0.01
_SPARED_SECONDS = 10.0


class DirectoryArchive:
    """Conversations and contents in one folder of the user.

    `report` is called, in a thread, while many conversations are indexed.
    """

    def __init__(
        self,
        folder: Path,
        settings: StorageSettings = StorageSettings(),
        *,
        report: Report = ignore,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.conversations = folder / CONVERSATIONS
        self.contents = ContentStore(folder / CONTENT, settings)
        self.uploads = UploadFolder(folder / FILES, durable=settings.durability == "safe")
        self._changes = Changes(folder)
        self._folders: OrderedDict[str, ConversationFolder] = OrderedDict()
        self._threads = DiskThreads("vibe-llms archive", _THREADS)
        self._open_folders = OPEN_FOLDERS
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._trusted = False
        self._report = report
        self._is_due = False
        self._is_verifying = False
        self._indices: list[Index] = []
        self._remote: bool | None = None
        self._slow_until = 0.0

    async def create(
        self, identity: str, details: Details, canisters: Sequence[Canister]
    ) -> tuple[Canister, ...]:
        """Create a conversation with its first canisters, and return them as kept in memory."""
        return await self._in_thread(self.create_now, identity, details, canisters)

    def append(
        self, identity: str, canisters: Sequence[Canister], *, after: str | None
    ) -> Coroutine[Any, Any, Appended]:
        """Add canisters; see `vibe_llms.storage.interfaces.Archive`."""
        return ShieldedWork(partial(self._begin_append, identity, canisters, after))

    def _begin_append(
        self, identity: str, canisters: Sequence[Canister], after: str | None
    ) -> ShieldedFuture[Appended]:
        try:
            if self._append_at_once(identity, canisters, after):
                return _completed((tuple(canisters), ()))
        except VibeLlmsError as error:
            return _completed(error)
        return self._threads.run_shielded(self.append_now, identity, canisters, after)

    async def retract(self, identity: str, *, after: str, last: str) -> None:
        """Delete canisters at the end; see `vibe_llms.storage.interfaces.Archive`."""
        folder = self.access_folder(identity)
        await self._in_thread(partial(folder.retract, after=after, last=last))

    async def restore(self, identity: str, *, lenient: bool = False) -> Restored:
        """Return a conversation. With `lenient`, tolerate damage and report the gaps."""
        return await self._in_thread(self.restore_now, identity, lenient)

    async def fork(
        self, identity: str, target: str, details: Details, *, at: str | None = None
    ) -> None:
        """Create a conversation from the lines of another, up to the canister `at` inclusive."""
        await self._in_thread(self.fork_now, identity, target, details, at)

    async def revise(
        self,
        identity: str,
        *,
        name: str | None = None,
        model: str | None = None,
        superseded_by: str | None = None,
        add_tags: Sequence[str] = (),
        remove_tags: Sequence[str] = (),
    ) -> Details:
        """Change the details of a conversation."""
        changes = describe_changes(
            name=name,
            model=model,
            superseded_by=superseded_by,
            add_tags=add_tags,
            remove_tags=remove_tags,
        )
        return await self._in_thread(self.access_folder(identity).revise, changes)

    async def remove(self, *identities: str, last: str | None = None) -> None:
        """Permanently delete conversations and their index entries; see `Archive.remove`."""
        await self._in_thread(partial(self.remove_now, *identities, last=last))

    async def resolve(self, text: str) -> str:
        """Return the identity of the conversation that a text refers to; see `Archive.resolve`."""
        return await self._in_thread(self.resolve_now, text)

    async def survey(
        self,
        *,
        limit: int | None = None,
        tag: str = "",
        superseded: bool = False,
        after: str = "",
    ) -> Sequence[Summary]:
        """Return conversations, most recent first; see `vibe_llms.storage.interfaces.Archive`."""
        summaries = await self._in_thread(self.survey_now, limit, tag, superseded, after)
        self._verify_later()
        return summaries

    async def count(self, *, tag: str = "", superseded: bool = False) -> int:
        """Return the number of conversations that `survey` lists without a limit."""
        return await self._in_thread(self.count_now, tag, superseded)

    async def survey_versions(
        self, before: ConversationVersions | None = None
    ) -> ConversationVersions:
        """Return the versions of all conversations, or `before` if nothing has changed since."""
        return await self._in_thread(self.survey_versions_now, before)

    async def survey_family(self, identity: str) -> Sequence[Relative]:
        """Return all conversations that were forked from the same one, oldest first."""
        family = await self._in_thread(self.survey_family_now, identity)
        self._verify_later()
        return family

    async def search(
        self, text: str, *, limit: int = 20, superseded: bool = False
    ) -> Sequence[Finding]:
        """Return the messages that contain all words of a text, best match first."""
        findings = await self._in_thread(self.search_now, text, limit, superseded)
        self._verify_later()
        return findings

    async def load(self, reference: Reference) -> bytes:
        """Return the bytes of a reference, checked against its hash."""
        return await self._in_thread(self.contents.load, reference)

    async def load_all(self, references: Sequence[Reference]) -> Mapping[str, bytes]:
        """Return the bytes of references, keyed by hash."""
        return await self._in_thread(
            lambda: {one.hash: self.contents.load(one) for one in references}
        )

    async def put(self, data: bytes, mimetype: str = "") -> Reference:
        """Store bytes. They may be collected if no message refers to them within an hour."""
        return await self._in_thread(self._put_now, data, mimetype)

    async def upload(
        self,
        data: bytes,
        name: str,
        mimetype: str = "",
        *,
        identity: str = "",
        purpose: str = "",
        expires: str | None = None,
    ) -> UploadedFile:
        """Store bytes as a file, which is kept until it is removed, and replace one with its id.

        The id is `identity`, 32 hexadecimal digits, or else the hash of the bytes.
        """
        return await self._in_thread(
            lambda: self.upload_now(
                data, name, mimetype, identity=identity, purpose=purpose, expires=expires
            )
        )

    async def survey_files(self) -> Sequence[UploadedFile]:
        """Return the uploaded files, newest first."""
        return await self._in_thread(self.uploads.survey)

    async def access_file(self, identity: str) -> UploadedFile:
        """Return an uploaded file by its id, or raise `ContentMissing`."""
        return await self._in_thread(self.uploads.access, identity)

    async def remove_file(self, identity: str) -> UploadedFile:
        """Delete an uploaded file. Its bytes stay while a message needs them."""
        return await self._in_thread(self.remove_file_now, identity)

    async def collect(self) -> Sequence[str]:
        """Delete contents that no conversation or file refers to, and return their hashes."""
        return await self._in_thread(self.collect_now)

    async def survey_identities(self) -> Sequence[str]:
        """Return the identities of all conversations, including superseded and unreadable ones."""
        return await self._in_thread(lambda: sorted(survey_folders(self.conversations)))

    async def export_conversation(self, identity: str) -> StoredConversation:
        """Return a conversation as it is stored; see `TransferableArchive`."""
        return await self._in_thread(lambda: self.access_folder(identity).export())

    async def import_conversation(self, identity: str, stored: StoredConversation) -> None:
        """Make a conversation identical to another archive's; see `TransferableArchive`."""
        await self._in_thread(self.import_now, identity, stored)

    async def create_batch(
        self, conversations: Sequence[NewConversation]
    ) -> Mapping[str, StorageError]:
        """Make conversations together; see `BatchArchive`."""
        return await self._in_thread(self.create_batch_now, conversations)

    async def find_contents(self, digests: Collection[str]) -> Mapping[str, Reference]:
        """Return the references of stored contents among these hashes, keyed by hash."""
        return await self._in_thread(self.contents.find, digests)

    async def import_file(self, file: UploadedFile) -> None:
        """Keep the record of a file whose bytes are stored."""
        await self._in_thread(self.uploads.keep, file)

    async def close(self) -> None:
        """Close the files that stay open between appends. The archive remains usable.

        Waits for a background check of all files, if one has begun.
        """
        self._folders.clear()
        self._changes.close()
        await self._threads.close()
        while self._indices:
            self._indices.pop().close()

    def _in_thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return self._threads.run(function, *arguments)

    # The methods below block. Other parts of the archive also call them, off the event loop.

    def prepare(self) -> None:
        """Create the folders, and refuse an archive that other users can change."""
        with storage_errors(self.folder):
            for folder in (self.conversations, self.contents.folder):
                refuse_link(folder)
                make_folder(folder)
        self._refuse_foreign()

    def access_folder(self, identity: str) -> ConversationFolder:
        """Return the folder of an identity, or raise `ConversationNotFound` if it is invalid."""
        folder = self._folders.get(identity)
        if folder is not None:
            with suppress(KeyError):
                self._folders.move_to_end(identity)
            return folder
        if not is_conversation_identity(identity):
            raise ConversationNotFound(
                f"{identity!r} is not the identity of a conversation; see: vibe-llms list"
            )
        self._refuse_foreign()
        with storage_errors(self.conversations):
            refuse_link(self.conversations)
        folder = ConversationFolder(self.conversations / identity, self.settings, self._changes)
        self._folders[identity] = folder
        if self._closed.pop(identity, self) is None:
            self._open_folders = min(2 * self._open_folders, most_open())
        with suppress(KeyError):
            while len(self._folders) > self._open_folders:
                self._closed[self._folders.popitem(last=False)[0]] = None
            while len(self._closed) > _MOST_OPEN:
                self._closed.popitem(last=False)
        return folder

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Prevent `collect` from deleting contents within the block."""
        with self._locked(shared=True):
            yield

    def create_now(
        self, identity: str, details: Details, canisters: Sequence[Canister]
    ) -> tuple[Canister, ...]:
        """See `create`."""
        folder = self.access_folder(identity)
        if self._concerns_contents(canisters):
            with self.sharing():
                stored, kept = self._deposit(canisters)
                self._write_first(folder, details, stored)
            return kept
        if not os.path.isdir(self.conversations):
            self.prepare()
        self._write_first(folder, details, canisters)
        return tuple(canisters)

    def _write_first(
        self, folder: ConversationFolder, details: Details, canisters: Sequence[Canister]
    ) -> None:
        with self._appearing(folder.path) as temporary:
            folder.write_first(temporary, details, canisters)

    def append_now(
        self, identity: str, canisters: Sequence[Canister], after: str | None
    ) -> Appended:
        """See `append`."""
        folder = self.access_folder(identity)
        if not self._concerns_contents(canisters):
            return tuple(canisters), tuple(folder.append(canisters, after=after))
        with self.sharing():
            stored, kept = self._deposit(canisters)
            notices = folder.append(stored, after=after)
        return kept, tuple(notices)

    def _append_at_once(
        self, identity: str, canisters: Sequence[Canister], after: str | None
    ) -> bool:
        """Append on the event loop unless it may take time. Return False if nothing was done."""
        if self._durable or identity not in self._folders or self._is_remote():
            return False
        begun = time.monotonic()
        if begun < self._slow_until or self._concerns_contents(canisters):
            return False
        try:
            return self.access_folder(identity).append_at_once(canisters, after=after)
        finally:
            if (now := time.monotonic()) - begun > _SLOW_SECONDS:
                self._slow_until = now + _SPARED_SECONDS

    def _is_remote(self) -> bool:
        if self._remote is None:
            self._remote = bool(find_network_mount(self.folder))
        return self._remote

    def restore_now(self, identity: str, lenient: bool = False) -> Restored:
        """See `restore`."""
        folder = self.access_folder(identity)
        details = folder.read_details()
        canisters, gaps, notices = folder.read(lenient=lenient)
        return Restored(identity, details, tuple(canisters), tuple(gaps), tuple(notices))

    def fork_now(self, identity: str, target: str, details: Details, at: str | None = None) -> None:
        """See `fork`."""
        parent, child = self.access_folder(identity), self.access_folder(target)
        with self.sharing():
            parent.read_details()
            with (
                parent.opened_until(at) as (lines, size),
                self._appearing(child.path) as temporary,
            ):
                child.copy_first(temporary, details, lines, size)

    def import_now(self, identity: str, stored: StoredConversation) -> None:
        """See `import_conversation`."""
        folder = self.access_folder(identity)
        with self.sharing():
            if folder.path.is_dir():
                folder.receive(stored)
            else:
                with self._appearing(folder.path) as temporary:
                    folder.receive_first(temporary, stored)

    def create_batch_now(
        self, conversations: Sequence[NewConversation]
    ) -> Mapping[str, StorageError]:
        """See `create_batch`."""
        errors: dict[str, StorageError] = {}
        with self.sharing(), ExitStack() as contents, ExitStack() as made:
            batch = FolderBatch(self.contents, contents, made, durable=self._durable)
            for one in conversations:
                try:
                    folder = self.access_folder(one.identity)
                    batch.prepare(folder, one, self._changes)
                except StorageError as error:
                    errors[one.identity] = error
            batch.finish(self.conversations)
        return {**errors, **batch.errors}

    def remove_now(self, *identities: str, last: str | None = None) -> None:
        """See `remove`."""
        try:
            for identity in identities:
                self._remove(identity, last)
        finally:
            with self._indexed() as index:
                index.clean()

    def _remove(self, identity: str, last: str | None) -> None:
        folder = self.access_folder(identity)
        with storage_errors(folder.path):
            try:
                with locked(folder.path, seconds=self.settings.lock_seconds):
                    if last is not None:
                        folder.require_last(last)
                    # On a full disk it is deleted without a mark. Lists notice the missing folder.
                    with suppress(OSError):
                        self._changes.mark(identity)
                    self._discard(folder.path)
            except FileNotFoundError as error:
                raise ConversationNotFound(f"conversation {identity} not found") from error
        self._folders.pop(identity, None)

    def resolve_now(self, text: str) -> str:
        """See `resolve`."""
        self.prepare()
        self._finish_removals()
        identities = list(survey_folders(self.conversations))
        if text in identities:
            return text
        with self._indexed() as index:
            current = index.survey()
        return find_conversation(
            text, identities, [Named(one.identity, one.name, one.title) for one in current]
        )

    def survey_now(
        self,
        limit: int | None = None,
        tag: str = "",
        superseded: bool = False,
        after: str = "",
    ) -> Sequence[Summary]:
        """See `survey`."""
        return self._ask(
            lambda index: index.survey(limit=limit, tag=tag, superseded=superseded, after=after)
        )

    def count_now(self, tag: str = "", superseded: bool = False) -> int:
        """See `count`."""
        return self._ask(lambda index: index.count(tag=tag, superseded=superseded))

    def survey_versions_now(self, before: ConversationVersions | None) -> ConversationVersions:
        """See `survey_versions`."""
        self.prepare()
        with storage_errors(self.conversations):
            return survey_versions(self.conversations, self._changes, before)

    def survey_family_now(self, identity: str) -> Sequence[Relative]:
        """See `survey_family`."""
        return self._ask(lambda index: index.survey_family(identity))

    def search_now(self, text: str, limit: int = 20, superseded: bool = False) -> Sequence[Finding]:
        """See `search`."""
        return self._ask(lambda index: index.search(text, limit=limit, superseded=superseded))

    def verify_now(self) -> None:
        """Check all files for changes by other programs, and index them.

        `survey` and `search` do so after their answer, unless it was done in the last 10 seconds.
        """
        self._ask(lambda index: index.verify())

    def collect_now(self, *, grace_seconds: float = GRACE_SECONDS) -> Sequence[str]:
        """Delete contents that no conversation or file refers to, and return their hashes.

        Contents younger than the grace period are kept, unless a deleted conversation used them.
        Only the archive's lock is taken.
        """
        with self._locked(shared=False), storage_errors(self.folder):
            self._finish_removals()
            used = self._used_hashes()
            before = time.time() - grace_seconds
            unused = [
                digest
                for digest in self.contents.survey()
                if digest not in used and _changed(self.contents.folder / digest) < before
            ]
            for digest in unused:
                self.contents.remove(digest)
            for path in self.survey_remains():
                if _changed(path) < before:
                    if path.is_dir() and not path.is_symlink():
                        remove_folder(path)
                    else:
                        path.unlink(missing_ok=True)
        return unused

    def discard_index(self) -> None:
        """Delete the index. The next list rebuilds it."""
        with storage_errors(self.folder):
            self._index().discard()

    def survey_remains(self) -> Iterator[Path]:
        """Yield the leftovers of interrupted writes, which are not part of the archive."""
        for root in (self.conversations, self.contents.folder):
            for folder in (root, *_folders_in(root)):
                for entry in _entries_of(folder):
                    if entry.name.startswith(TEMPORARY):
                        yield Path(entry.path)

    @property
    def _durable(self) -> bool:
        return self.settings.durability == "safe"

    def _refuse_foreign(self) -> None:
        if self._trusted:
            return
        with storage_errors(self.folder):
            try:
                status = os.stat(self.folder)
            except FileNotFoundError:
                return
        if problem := find_distrust(status, self.folder):
            raise StorageError(problem, path=str(self.folder))
        self._trusted = True

    def _put_now(self, data: bytes, mimetype: str) -> Reference:
        with self.sharing():
            return self.contents.put(data, mimetype)

    def upload_now(
        self,
        data: bytes,
        name: str,
        mimetype: str,
        *,
        identity: str = "",
        purpose: str = "",
        expires: str | None = None,
    ) -> UploadedFile:
        """See `upload`."""
        with self.sharing():
            reference = self.contents.put(data, mimetype)
            file = UploadedFile(
                id=identity or reference.hash,
                name=name,
                mimetype=mimetype,
                size=reference.size,
                created=datetime.now(UTC).isoformat(),
                hash=reference.hash,
                purpose=purpose,
                expires=expires,
            )
            self.uploads.keep(file)
        return file

    def remove_file_now(self, identity: str) -> UploadedFile:
        """See `remove_file`."""
        file = self.uploads.remove(identity)
        # The next collection deletes the bytes if nothing else needs them.
        with suppress(OSError):
            os.utime(self.contents.folder / file.hash, (0, 0))
        return file

    def _concerns_contents(self, canisters: Sequence[Canister]) -> bool:
        limit = self.settings.inline_bytes
        return any(concerns_contents(canister, limit) for canister in canisters)

    def _deposit(
        self, canisters: Sequence[Canister]
    ) -> tuple[tuple[Canister, ...], tuple[Canister, ...]]:
        stored: list[Canister] = []
        kept: list[Canister] = []
        for canister in canisters:
            one, other = self.contents.deposit(canister)
            for reference in references_of(one):
                if not self.contents.holds(reference):
                    raise ContentMissing(
                        f"the message refers to {reference.hash[:12]}…, which is not in the "
                        "store; store it first: await archive.put(data)"
                    )
            stored.append(one)
            kept.append(other)
        return tuple(stored), tuple(kept)

    def _used_hashes(self) -> set[str]:
        """Return all hashes in uploads and in files of conversations, even files set aside."""
        used = _hashes_in(self.uploads.folder)
        for folder in _folders_in(self.conversations):
            used |= _hashes_in(folder)
        return used

    @contextmanager
    def _locked(self, *, shared: bool) -> Iterator[None]:
        self.prepare()
        folder = self.contents.folder
        with (
            storage_errors(folder),
            locked(folder, seconds=self.settings.lock_seconds, shared=shared),
        ):
            yield

    @contextmanager
    def _appearing(self, path: Path) -> Iterator[Path]:
        """Yield a temporary folder. After the block, move it durably to `path`, or remove it."""
        with storage_errors(path):
            try:
                with new_folder(path, durable=self._durable) as temporary:
                    yield temporary
                    if not os.path.lexists(path):
                        self._changes.mark(path.name)
            except FileExistsError as error:
                raise ConversationMoved("it already exists", path=str(path)) from error
            if self._durable:
                try:
                    synchronise_folder(path.parent)
                except OSError:
                    with suppress(OSError):
                        self._discard(path)
                    raise

    def _discard(self, path: Path) -> None:
        # The rename ensures that a crash does not leave half of a conversation.
        doomed = path.with_name(f"{DOOMED}{os.urandom(12).hex()}")
        os.rename(path, doomed)
        if self._durable:
            synchronise_folder(path.parent)
        self._finish_removal(doomed)

    def _finish_removals(self, names: Iterable[str] | None = None) -> None:
        """Delete the remains of deleted conversations after a crash, where possible."""
        if names is None:
            with storage_errors(self.conversations):
                names = os.listdir(self.conversations)
        for name in names:
            if name.startswith(DOOMED):
                with suppress(OSError):
                    self._finish_removal(self.conversations / name)

    def _finish_removal(self, doomed: Path) -> None:
        last = _changed(doomed / MESSAGES)
        # If its files cannot be read, its contents are collected later.
        with suppress(OSError):
            for digest in _hashes_in(doomed):
                # Newer contents may belong to a message that is not written yet.
                path = self.contents.folder / digest
                if _changed(path) <= last:
                    with suppress(FileNotFoundError):
                        os.utime(path, (0, 0))
        remove_folder(doomed)

    def _ask(self, question: Callable[[Index], T]) -> T:
        self.prepare()
        with self._indexed() as index:
            answer = question(index)
            self._is_due = index.is_due
            self._finish_removals(index.doomed)
        return answer

    @contextmanager
    def _indexed(self) -> Iterator[Index]:
        """Yield the index. One index stays open between answers."""
        try:
            index = self._indices.pop()
        except IndexError:
            index = self._index()
        try:
            yield index
        finally:
            if self._indices:
                index.close()
            else:
                self._indices.append(index)

    def _verify_later(self) -> None:
        """Check all files in the background when that is due."""
        if self._is_due and not self._is_verifying:
            self._is_due, self._is_verifying = False, True
            self._in_thread(self._verify)

    def _verify(self) -> None:
        # On failure, the next answer tries again and reports the problem.
        try:
            with suppress(StorageError):
                self.verify_now()
        finally:
            self._is_verifying = False

    def _index(self) -> Index:
        return Index(self.folder / INDEX, self.conversations, self.contents, self._report)


def _completed(outcome: Appended | VibeLlmsError) -> ShieldedFuture[Appended]:
    """Return a completed future with the outcome of an append."""
    future: ShieldedFuture[Appended] = ShieldedFuture()
    if isinstance(outcome, VibeLlmsError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return future


def most_open() -> int:
    """Return the limit of open conversations, which use up to a quarter of the descriptors."""
    return max(OPEN_FOLDERS, min(_MOST_OPEN, limit_descriptors() // 8))


def _hashes_in(folder: Path) -> set[str]:
    """Return every hash in any file of a folder, or raise an `OSError` if lines are unreadable."""
    found: set[str] = set()
    for entry in _entries_of(folder):
        if entry.name == MESSAGES or entry.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError):
                before = b""
                for part in read_parts(folder, entry.name):
                    found.update(digest.decode() for digest in _HASH.findall(before + part))
                    before = part[-_HASH_OVERLAP:]
    return found


def _entries_of(folder: Path) -> Sequence[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return ()


def _folders_in(root: Path) -> Sequence[Path]:
    return [Path(entry.path) for entry in _entries_of(root) if entry.is_dir(follow_symlinks=False)]


def _changed(path: Path) -> float:
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return float("inf")
