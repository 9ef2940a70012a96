"""One conversation's folder: its lines and its details, read, appended to, copied and mended.

`messages.jsonl` only ever grows, by one write and one synchronisation at a time, under the folder's
lock. Whoever holds the lock heals a torn end; readers stop at the last newline.
"""

from __future__ import annotations

import os
import re
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct

from vibe_llms.configuration import StorageSettings
from vibe_llms.events import Notice
from vibe_llms.exceptions import (
    ArchiveDamaged,
    ConversationMoved,
    ConversationNotFound,
    FormatNewer,
    StorageError,
    VibeLlmsError,
)
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.codecs import LineUnreadable, decode_canister, encode_canister
from vibe_llms.messages.contents import repair_text
from vibe_llms.storage.files import (
    explain,
    read_relative,
    read_within,
    replace_file,
    storage_errors,
    synchronise,
    synchronise_folder,
    write_all,
    write_new,
)
from vibe_llms.storage.interfaces import FORMAT, Details, Gap, Origin
from vibe_llms.storage.locks import locked

MESSAGES = "messages.jsonl"
METADATA = "metadata.toml"
_IDENTITY = re.compile(r"[0-9a-z][0-9a-z_-]{0,63}")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_IDENTITY_LENGTH = 12
_APPEND = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_TAIL_BYTES = 64 * 1024
_LINES: msgspec.json.Decoder[Canister] = msgspec.json.Decoder(Canister)
#: Only what a newer version wrote, or somebody else, has these in it; the codec knows them.
_NOT_PLAIN = (b'"?"', b'"source_line"')


def produce_conversation_identity() -> str:
    """A new identity: 12 random characters of base32, 60 bits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(_IDENTITY_LENGTH))


def is_conversation_identity(text: str) -> bool:
    """Whether a text may name a conversation's folder; nothing else ever becomes a path.

    >>> is_conversation_identity("abcd2345wxyz"), is_conversation_identity("../etc")
    (True, False)
    """
    return bool(_IDENTITY.fullmatch(text))


class _Seen(Struct, frozen=True):
    """The file as this process left it: while it is so, its last line need not be read again."""

    device: int
    inode: int
    size: int
    modified: int
    last: str

    @classmethod
    def of(cls, status: os.stat_result, last: str) -> Self:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, last)


class ConversationFolder:
    """The folder of one conversation; remembers where its own last append ended."""

    def __init__(self, path: Path, settings: StorageSettings) -> None:
        self.path = path
        self._settings = settings
        self._durable = settings.durability == "safe"
        self._seen: _Seen | None = None
        self._told = 0

    @property
    def identity(self) -> str:
        """The identity of the conversation."""
        return self.path.name

    def write_first(self, folder: Path, details: Details, canisters: Sequence[Canister]) -> None:
        """Fill a new folder, which still has another name."""
        write_new(folder / MESSAGES, self._encode(canisters), durable=self._durable)
        write_new(folder / METADATA, encode_details(details), durable=self._durable)

    def copy_first(self, folder: Path, details: Details, lines: bytes) -> None:
        """Fill a new folder, which still has another name, with lines of another."""
        write_new(folder / MESSAGES, lines, durable=self._durable)
        write_new(folder / METADATA, encode_details(details), durable=self._durable)

    def append(self, canisters: Sequence[Canister], *, after: str | None) -> Sequence[Notice]:
        """Add lines by one write and one synchronisation; notices tell what was healed before."""
        lines = self._encode(canisters)
        # Written out, since every message comes by here.
        try:
            with locked(self.path, seconds=self._settings.lock_seconds) as folder:
                descriptor = os.open(MESSAGES, _APPEND, dir_fd=folder)
                try:
                    size, last, notices = self._find_end(descriptor)
                    if after is not None and last != after:
                        raise ConversationMoved(
                            "another process has gone on with this conversation; go on in a fork",
                            path=str(self.path),
                        )
                    self._write(descriptor, size, lines)
                    with suppress(OSError):
                        last = canisters[-1].identity if canisters else last
                        self._seen = _Seen.of(os.fstat(descriptor), last)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise self._explain(error) from error
        return notices

    def read(
        self, *, lenient: bool = False
    ) -> tuple[list[Canister], Sequence[Gap], Sequence[Notice]]:
        """All canisters.

        A line in the middle that cannot be read is an `ArchiveDamaged`, or with `lenient` a gap;
        an incomplete last line is passed over and told.
        """
        with self._errors():
            data = read_within(self.path, MESSAGES)
        end = complete_size(data)
        gaps: list[Gap] = []
        canisters = _decode_plain(data[:end])
        if canisters is None:
            canisters, gaps = self._decode(data[:end].split(b"\n")[:-1], lenient=lenient)
        self._told = len(data) - end
        notices = [self._torn(self._told)] if self._told else []
        return canisters, gaps, notices

    def read_lines(self, up_to: str | None) -> bytes:
        """The lines up to and including a canister, or all of them, as they are."""
        with self._errors():
            data = read_within(self.path, MESSAGES)
        end = complete_size(data)
        if up_to is None:
            return data[:end]
        wanted = msgspec.json.encode(repair_text(up_to))[1:-1]
        offset = 0
        for number, line in enumerate(data[:end].split(b"\n")[:-1], 1):
            start, offset = offset, offset + len(line) + 1
            if wanted not in line:
                continue
            try:
                found = decode_canister(line).identity
            except LineUnreadable as error:
                raise self._damaged(Gap(number, start, len(line), str(error))) from error
            if found == up_to:
                return data[:offset]
        raise ConversationNotFound(f"{self.identity} has no message {up_to}")

    def read_details(self) -> Details:
        """What is kept besides the lines."""
        with self._errors():
            data = read_within(self.path, METADATA)
        return decode_details(self._parse(data), str(self.path / METADATA))

    def revise(self, changes: Mapping[str, Any]) -> Details:
        """Replace some of the details, under the lock; what a newer version wrote stays."""
        with self._errors(), locked(self.path, seconds=self._settings.lock_seconds) as folder:
            tree = self._parse(read_relative(folder, METADATA))
            decode_details(tree, str(self.path / METADATA))
            for key, change in changes.items():
                value = change(tree.get(key)) if callable(change) else change
                if value in ("", [], None):
                    tree.pop(key, None)
                else:
                    tree[key] = value
            data = _encode_tree(tree)
            details = decode_details(self._parse(data), str(self.path / METADATA))
            replace_file(self.path / METADATA, data, durable=self._durable)
        return details

    def repair(self) -> Sequence[Gap]:
        """Write the lines that can be read anew and keep the old file beside; the gaps are told."""
        with self._errors(), locked(self.path, seconds=self._settings.lock_seconds):
            self._refuse_newer()
            data = read_within(self.path, MESSAGES)
            lines = data[: complete_size(data)].split(b"\n")[:-1]
            _, gaps = self._decode(lines, lenient=True)
            if gaps:
                bad = {gap.line for gap in gaps}
                good = [line + b"\n" for number, line in enumerate(lines, 1) if number not in bad]
                write_new(self.path / f"messages.damaged-{_stamp()}.jsonl", data, durable=True)
                replace_file(self.path / MESSAGES, b"".join(good))
        return gaps

    def _encode(self, canisters: Sequence[Canister]) -> bytes:
        lines = [encode_canister(canister) for canister in canisters]
        for line in lines:
            if len(line) >= self._settings.line_bytes:
                raise StorageError(
                    f"a message of {len(line)} bytes is longer than line-bytes allows "
                    f"({self._settings.line_bytes})",
                    path=str(self.path),
                )
        return b"".join(line + b"\n" for line in lines)

    def _decode(self, lines: Sequence[bytes], *, lenient: bool) -> tuple[list[Canister], list[Gap]]:
        canisters: list[Canister] = []
        gaps: list[Gap] = []
        offset = 0
        for line in lines:
            try:
                canisters.append(decode_canister(line))
            except LineUnreadable as error:
                gap = Gap(len(canisters) + len(gaps) + 1, offset, len(line), str(error))
                if not lenient:
                    raise self._damaged(gap) from error
                gaps.append(gap)
            offset += len(line) + 1
        return canisters, gaps

    def _write(self, descriptor: int, size: int, lines: bytes) -> None:
        self._seen = None
        try:
            write_all(descriptor, lines)
            if self._durable:
                synchronise(descriptor)
        except OSError:
            # If this fails too, the next writer heals the end.
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise

    def _find_end(self, descriptor: int) -> tuple[int, str, Sequence[Notice]]:
        """Where the next line begins and whose line stands before it; heals a torn end."""
        status = os.fstat(descriptor)
        if self._seen is not None and self._seen == _Seen.of(status, self._seen.last):
            return self._seen.size, self._seen.last, ()
        self._refuse_newer()
        size, tail = self._heal(descriptor, status.st_size)
        notices: Sequence[Notice] = ()
        if size < status.st_size:
            torn = status.st_size - size
            # Whoever read it has been told.
            notices = () if torn == self._told else (self._torn(torn),)
            self._told = 0
        if not size:
            return 0, "", notices
        try:
            return size, decode_canister(tail).identity, notices
        except LineUnreadable as error:
            raise ArchiveDamaged(
                f"the last line cannot be read ({error}); run: vibe-llms doctor --repair",
                path=str(self.path / MESSAGES),
            ) from error

    def _heal(self, descriptor: int, size: int) -> tuple[int, bytes]:
        """Set an incomplete end aside; gives the size that is left, and the last line."""
        length = min(size, _TAIL_BYTES)
        while True:
            start = size - length
            data = os.pread(descriptor, length, start)
            end = complete_size(data)
            line = data[:end].rpartition(b"\n")[0].rpartition(b"\n")
            # Enough was read where a newline stands before the last line that is complete.
            if start == 0 or line[1]:
                break
            length = min(size, length * 4)
        if start + end < size:
            torn = self.path / f"messages.torn-{_stamp()}"
            write_new(torn, data[end:], durable=self._durable)
            if self._durable:
                synchronise_folder(self.path)
            os.ftruncate(descriptor, start + end)
        return start + end, line[2]

    def _refuse_newer(self) -> None:
        # What else may be wrong with the details is no reason not to keep a message.
        with suppress(ArchiveDamaged):
            self.read_details()

    def _damaged(self, gap: Gap) -> ArchiveDamaged:
        return ArchiveDamaged(
            f"this line, at byte {gap.offset}, cannot be read ({gap.reason}). "
            f"Look at what can be: vibe-llms show {self.identity} --lenient; "
            "mend it: vibe-llms doctor --repair",
            path=str(self.path / MESSAGES),
            line=gap.line,
            offset=gap.offset,
        )

    def _torn(self, size: int) -> Notice:
        return Notice(
            "repair",
            f"{self.identity}: the last {size} bytes were no whole message, as after a crash; "
            "they are set aside beside messages.jsonl with the next message",
        )

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            return tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ArchiveDamaged(
                f"this is not valid TOML ({error}); mend it by hand, it was left as it is",
                path=str(self.path / METADATA),
            ) from error

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explain(error) from error

    def _explain(self, error: OSError) -> VibeLlmsError:
        if not isinstance(error, FileNotFoundError):
            return explain(error, self.path)
        if os.path.isdir(self.path):
            return ArchiveDamaged(
                "the folder lacks this file; restore it from a backup",
                path=str(self.path / (error.filename or "")),
            )
        return ConversationNotFound(f"there is no conversation {self.identity}")


def _decode_plain(data: bytes) -> list[Canister] | None:
    """All canisters at a stroke, where every line is as this version writes it; else nothing."""
    if any(mark in data for mark in _NOT_PLAIN):
        return None
    try:
        canisters = _LINES.decode_lines(data)
    except (ValueError, RecursionError):
        return None
    return canisters if len(canisters) == data.count(b"\n") else None


def complete_size(data: bytes) -> int:
    """The number of bytes up to the end of the last line that is complete.

    A last line with NUL bytes is not complete: so ends what a power cut left unwritten.
    """
    end = data.rfind(b"\n") + 1
    start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    return start if b"\0" in data[start:end] else end


def encode_details(details: Details) -> bytes:
    """The text of `metadata.toml`."""
    tree: dict[str, Any] = {"format": details.format, "created": details.created}
    if details.name:
        tree["name"] = details.name
    if details.model:
        tree["model"] = details.model
    if details.tags:
        tree["tags"] = list(details.tags)
    if details.forked_from is not None:
        tree["forked-from"] = msgspec.to_builtins(details.forked_from)
    return _encode_tree(tree)


def decode_details(tree: Mapping[str, Any], path: str) -> Details:
    """The details of parsed TOML; `FormatNewer` where a newer version wrote it."""
    version = tree.get("format", FORMAT)
    if isinstance(version, int) and version > FORMAT:
        raise FormatNewer(
            f"a newer version of vibe-llms wrote this (format {version}, known is {FORMAT}); "
            "install that version to open it",
            path=path,
        )
    known = {
        key.replace("-", "_"): value
        for key, value in tree.items()
        if key in ("format", "created", "name", "model", "tags", "forked-from")
    }
    try:
        return msgspec.convert(known, Details)
    except msgspec.ValidationError as error:
        raise ArchiveDamaged(
            f"{error}; mend it by hand, it was left as it is", path=path
        ) from error


def _encode_tree(tree: Mapping[str, Any]) -> bytes:
    import tomli_w

    return repair_text(tomli_w.dumps(tree)).encode()


def fork_details(parent: Details, origin: Origin, name: str) -> Details:
    """The details of a fork made now."""
    return Details(
        created=datetime.now(UTC),
        name=name,
        model=parent.model,
        tags=parent.tags,
        forked_from=origin,
    )


def survey_folders(root: Path) -> Iterator[str]:
    """The identities of all conversations; what is unfinished or foreign is passed over."""
    with storage_errors(root):
        try:
            names = os.listdir(root)
        except FileNotFoundError:
            return
    yield from (name for name in names if is_conversation_identity(name))


def _stamp() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
