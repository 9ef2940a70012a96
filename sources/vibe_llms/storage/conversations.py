"""Folder of one conversation: read, append, copy, and repair its lines and its details.

`messages.jsonl` grows by one write and one sync at a time, under the folder's lock. Only a prompt
at its end that no model answered is ever deleted. The process that holds the lock repairs a torn
end; readers stop at the last newline.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import (
    ArchiveDamaged,
    ConversationMoved,
    ConversationNotFound,
    VibeLlmsError,
)
from vibe_llms.base.files import LARGEST_FILE, LARGEST_SETTINGS, describe_size, opened
from vibe_llms.base.folders import (
    READ,
    copy_new,
    date_file,
    explain,
    open_folder,
    read_parts,
    read_relative,
    read_within,
    replace_file,
    storage_errors,
    time_of,
    write_new,
)
from vibe_llms.base.locks import locked
from vibe_llms.base.offloading import LOOP_BYTES
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.codecs import LineUnreadable, decode_canister
from vibe_llms.messages.contents import repair_text
from vibe_llms.messages.events import Notice
from vibe_llms.storage.appending import (
    MESSAGES,
    LinesWriter,
    complete_size,
    describe_torn,
    produce_stamp,
    read_tail,
)
from vibe_llms.storage.changes import CHANGES, Changes
from vibe_llms.storage.details import (
    METADATA,
    change_details,
    encode_details,
    read_details,
    refuse_newer,
)
from vibe_llms.storage.interfaces import Details, Gap
from vibe_llms.storage.lines import (
    LineReader,
    decode_each,
    decode_parts,
    describe_damage,
    encode_line,
)
from vibe_llms.storage.transfer import StoredConversation

_IDENTITY = re.compile(r"[0-9a-z][0-9a-z_-]{0,63}")
#: One base32 character for each possible byte.
_ALPHABET = b"abcdefghijklmnopqrstuvwxyz234567" * 8
_IDENTITY_LENGTH = 12
_BACK_BYTES = 1024 * 1024


def produce_conversation_identity() -> str:
    """Return a new identity: 12 random characters of base32, 60 bits."""
    return os.urandom(_IDENTITY_LENGTH).translate(_ALPHABET).decode()


def derive_conversation_identity(*parts: bytes) -> str:
    """Return the identity that belongs to these parts: the same each time."""
    digest = hashlib.sha256(b"\0".join(parts)).digest()
    return digest[:_IDENTITY_LENGTH].translate(_ALPHABET).decode()


def is_conversation_identity(text: str) -> bool:
    """Return True if a text is a valid folder name for a conversation. Only these become paths.

    >>> is_conversation_identity("abcd2345wxyz"), is_conversation_identity("../etc")
    (True, False)
    """
    return bool(_IDENTITY.fullmatch(text))


class ConversationFolder:
    """Folder of one conversation, which remembers where its own last append ended."""

    def __init__(
        self, path: Path, settings: StorageSettings, changes: Changes | None = None
    ) -> None:
        self.path = path
        self._settings = settings
        self._durable = settings.durability == "safe"
        self._changes = changes or Changes(path.parent.parent)
        self.writer = LinesWriter(path, settings, self._changes)

    @property
    def identity(self) -> str:
        """Identity of the conversation."""
        return self.path.name

    def write_first(self, folder: Path, details: Details, canisters: Sequence[Canister]) -> None:
        """Fill a new folder, which still has a temporary name."""
        write_new(folder / MESSAGES, self._encode(canisters), durable=self._durable)
        write_new(folder / METADATA, encode_details(details), durable=self._durable)

    def copy_first(self, folder: Path, details: Details, lines: int, size: int) -> None:
        """Fill a new folder, which still has a temporary name, with the start of an open file."""
        copy_new(folder / MESSAGES, lines, size, durable=self._durable)
        write_new(folder / METADATA, encode_details(details), durable=self._durable)

    def export(self) -> StoredConversation:
        """Return the bytes of both files without a torn end. Writers wait in the meantime."""
        with self._errors(), locked(self.path, seconds=self._settings.lock_seconds, shared=True):
            lines = read_within(self.path, MESSAGES)
            metadata = read_within(self.path, METADATA, LARGEST_SETTINGS)
            changed = os.stat(self.path / MESSAGES, follow_symlinks=False).st_mtime_ns
        return StoredConversation(metadata, lines[: complete_size(lines)], time_of(changed))

    def receive(self, stored: StoredConversation) -> None:
        """Replace both files if the new lines begin with the old ones."""
        with self._errors(), locked(self.path, seconds=self._settings.lock_seconds):
            self._changes.mark(self.identity)
            refuse_newer(self.path)
            if not stored.lines.startswith(read_within(self.path, MESSAGES)):
                raise ConversationMoved("the conversation was continued here", path=str(self.path))
            replace_file(self.path / MESSAGES, stored.lines, LARGEST_FILE, durable=self._durable)
            replace_file(
                self.path / METADATA, stored.metadata, LARGEST_SETTINGS, durable=self._durable
            )
            date_file(self.path / MESSAGES, stored.updated)

    def receive_first(
        self, folder: Path, stored: StoredConversation, *, durable: bool | None = None
    ) -> None:
        """Fill a new folder, which still has a temporary name, with an exported conversation.

        Without `durable`, the settings decide whether it is synced.
        """
        durable = self._durable if durable is None else durable
        write_new(folder / MESSAGES, stored.lines, durable=durable)
        write_new(folder / METADATA, stored.metadata, durable=durable)
        date_file(folder / MESSAGES, stored.updated)

    def append(self, canisters: Sequence[Canister], *, after: str | None) -> Sequence[Notice]:
        """Add lines with one write and one sync, and return notices about repairs made before."""
        lines = self._encode(canisters)
        last = canisters[-1].identity if canisters else ""
        # Not factored out, because every message runs this.
        try:
            return self.writer.append(lines, last, after=after)
        except OSError as error:
            raise self._explain(error) from error

    def append_at_once(self, canisters: Sequence[Canister], *, after: str | None) -> bool:
        """Add lines if no waiting is needed. Otherwise change nothing and return False."""
        lines = self._encode(canisters)
        if not canisters or len(lines) > LOOP_BYTES:
            return False
        try:
            return self.writer.append_at_once(lines, canisters[-1].identity, after=after)
        except OSError as error:
            raise self._explain(error) from error

    def retract(self, *, after: str, last: str) -> None:
        """Delete the lines after a canister if `last` is still the last one."""
        with self._errors():
            self.writer.retract(lambda lines: self._find_end(lines, after), last)

    def read(
        self, *, lenient: bool = False
    ) -> tuple[list[Canister], Sequence[Gap], Sequence[Notice]]:
        """Return all canisters, the gaps, and the notices.

        An unreadable line in the middle raises `ArchiveDamaged`, or is a gap if `lenient`. An
        incomplete last line is skipped and reported.
        """
        with self._errors():
            gaps: list[Gap] = []
            longest = self._settings.line_bytes
            plain = decode_parts(read_parts(self.path, MESSAGES), longest)
            if plain is not None:
                canisters, torn = plain
            else:
                lines = LineReader(read_parts(self.path, MESSAGES), longest)
                canisters, gaps = decode_each(lines)
                if gaps and not lenient:
                    raise self._damaged(gaps[0])
                torn = lines.torn
        self.writer.reported = torn
        return canisters, gaps, [describe_torn(self.identity, torn)] if torn else []

    def require_last(self, last: str) -> None:
        """Raise `ConversationMoved` if `last` is not the last canister; needs the lock."""
        canisters, _, _ = self.read()
        self.writer.require_last(canisters[-1].identity if canisters else "", last)

    @contextmanager
    def opened_until(self, up_to: str | None) -> Iterator[tuple[int, int]]:
        """Yield the open file of lines, and its size up to a canister or up to a torn end.

        Of two lines with the same identity, which only an editor makes, the later one counts.
        """
        with ExitStack() as stack:
            with self._errors():
                folder = stack.enter_context(open_folder(self.path))
                lines = stack.enter_context(opened(MESSAGES, READ, folder=folder))
                size = self._find_end(lines, up_to)
            yield lines, size

    def _find_end(self, lines: int, up_to: str | None) -> int:
        size = os.fstat(lines).st_size
        if size > LARGEST_FILE:
            raise OSError(errno.EFBIG, f"the file is larger than {describe_size(LARGEST_FILE)}")
        end = read_tail(lines, size)[0]
        if up_to is None:
            return end
        gap: Gap | None = None
        wanted = msgspec.json.encode(repair_text(up_to))[1:-1]
        for offset, data in _read_back(lines, end) if wanted else ():
            place = len(data)
            while (place := data.rfind(wanted, 0, place)) >= 0:
                place = data.rfind(b"\n", 0, place) + 1
                line = data[place : data.index(b"\n", place)]
                try:
                    found = decode_canister(line).identity
                except LineUnreadable as error:
                    gap = Gap(0, offset + place, len(line), str(error))
                    continue
                if found == up_to:
                    return offset + place + len(line) + 1
        if gap is None:
            raise ConversationNotFound(f"{self.identity} has no message {up_to}")
        number = 1 + sum(data.count(b"\n") for _, data in _read_back(lines, gap.offset))
        raise self._damaged(msgspec.structs.replace(gap, line=number))

    def read_details(self) -> Details:
        """Return the details of the conversation."""
        with self._errors():
            return read_details(self.path)

    def revise(self, changes: Mapping[str, Any]) -> Details:
        """Replace some details under the lock. Fields of newer versions are kept."""
        with self._errors(), locked(self.path, seconds=self._settings.lock_seconds) as folder:
            self._changes.mark(self.identity)
            place = str(self.path / METADATA)
            data = read_relative(folder, METADATA, LARGEST_SETTINGS)
            data, details = change_details(data, changes, place)
            replace_file(self.path / METADATA, data, LARGEST_SETTINGS, durable=self._durable)
        return details

    def repair(self) -> Sequence[Gap]:
        """Rewrite the readable lines, keep the old file next to them, and return the gaps."""
        with self._errors(), locked(self.path, seconds=self._settings.lock_seconds):
            self._changes.mark(self.identity)
            refuse_newer(self.path)
            data = read_within(self.path, MESSAGES)
            lines = list(LineReader([data], self._settings.line_bytes))
            _, gaps = decode_each(lines)
            if gaps:
                bad = {gap.line for gap in gaps}
                good = [
                    line.data + b"\n"
                    for line in lines
                    if line.data is not None and line.number not in bad
                ]
                aside = self.path / f"messages.damaged-{produce_stamp()}.jsonl"
                write_new(aside, data, durable=True)
                replace_file(self.path / MESSAGES, b"".join(good), LARGEST_FILE)
        return gaps

    def _encode(self, canisters: Sequence[Canister]) -> bytes:
        longest, path = self._settings.line_bytes, str(self.path)
        return b"".join([encode_line(one, longest, path) + b"\n" for one in canisters])

    def _damaged(self, gap: Gap) -> ArchiveDamaged:
        return describe_damage(gap, self.identity, str(self.path / MESSAGES))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explain(error) from error

    def _explain(self, error: OSError) -> VibeLlmsError:
        if not isinstance(error, FileNotFoundError):
            named = error.filename in (MESSAGES, METADATA) or f"{error.filename}".endswith(CHANGES)
            part = error.filename if named else ""
            return explain(error, self.path / part)
        if os.path.isdir(self.path):
            return ArchiveDamaged(
                "this file is missing from the folder; restore it from a backup",
                path=str(self.path / (error.filename or "")),
            )
        return ConversationNotFound(f"conversation {self.identity} not found")


def _read_back(lines: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines with their offsets, from the offset `end` backward."""
    length = _BACK_BYTES
    while end:
        length = min(length, end)
        start = end - length
        data = os.pread(lines, length, start)
        if len(data) < length:
            raise OSError(errno.EIO, "the file was truncated while it was read")
        first = data.find(b"\n") + 1 if start else 0
        if start and first in (0, length):
            length *= 4
            continue
        yield start + first, data[first:]
        end, length = start + first, _BACK_BYTES


def survey_folders(root: Path) -> Iterator[str]:
    """Yield the identities of all conversations. Unfinished and foreign folders are skipped."""
    with storage_errors(root):
        try:
            names = os.listdir(root)
        except FileNotFoundError:
            return
    yield from (name for name in names if is_conversation_identity(name))
