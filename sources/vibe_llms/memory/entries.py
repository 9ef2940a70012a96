"""What is remembered, as a value, and as the text of its file: Markdown with YAML front matter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import MemoryDamaged, MemoryInvalid
from vibe_llms.messages.contents import repair_text

_RULE = "---"
_IDENTITY = re.compile(r"[0-9a-z][0-9a-z_-]{0,63}")
#: The first lines of a file that may be its front matter.
_FRONT_BYTES = 64 * 1024


class Role(StrEnum):
    """What an entry is: a fact, what a person or a model said, or a summary."""

    FACT = "memory"
    USER = "user"
    ASSISTANT = "assistant"
    SUMMARY = "summary"


class Scope(Struct, frozen=True, order=True):
    """To whom an entry belongs: one user, one conversation, or everybody.

    >>> str(Scope.of_user("ada"))
    'user-ada'
    """

    kind: str = "global"
    name: str = ""

    @staticmethod
    def of_user(name: str) -> Scope:
        """What one user's conversations share. `MemoryInvalid` where the name may be no folder."""
        return Scope("user", check_identity(name, "user"))

    @staticmethod
    def of_conversation(identity: str) -> Scope:
        """What belongs to one conversation alone."""
        return Scope("conversation", check_identity(identity, "conversation"))

    @staticmethod
    def parse(text: str) -> Scope:
        """The scope of a folder's name; `MemoryInvalid` where it is none."""
        kind, dash, name = text.partition("-")
        if kind == "global" and not dash:
            return GLOBAL
        if kind in ("user", "conversation") and dash:
            return Scope(kind, check_identity(name, kind))
        raise MemoryInvalid(
            f"{text!r} is no scope; there are global, user-NAME and conversation-IDENTITY"
        )

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}" if self.name else self.kind


GLOBAL = Scope()


class Entry(Struct, frozen=True, kw_only=True):
    """One thing that is remembered.

    `importance` goes from 0 to 1. `speaker` is who said it, by name, where that is known;
    `conversation` and `turn` are the identities of the conversation and the canister that it came
    from. `replaced_by` is on what was given up for a newer entry. `further` are members of the
    front matter that others wrote; they survive.
    """

    content: str
    identity: str
    role: Role = Role.FACT
    scope: Scope = GLOBAL
    created: datetime
    importance: float = 0.5
    category: str = ""
    topics: tuple[str, ...] = ()
    speaker: str = ""
    conversation: str = ""
    turn: str = ""
    replaced_by: str = ""
    further: Mapping[str, Any] = {}


_NAMES = {
    "id": "identity",
    "role": "role",
    "created_at": "created",
    "importance": "importance",
    "category": "category",
    "topics": "topics",
    "speaker": "speaker",
    "conversation_id": "conversation",
    "turn": "turn",
    "replaced_by": "replaced_by",
}
_DEFAULTS = Entry(content="", identity="", created=datetime.min.replace(tzinfo=UTC))


def check_identity(name: str, of: str) -> str:
    """The name, if it may be the name of a folder; `MemoryInvalid` otherwise."""
    if not _IDENTITY.fullmatch(name):
        raise MemoryInvalid(
            f"{name!r} cannot be the name of a {of}: small letters and digits, then also - and _, "
            "at most 64"
        )
    return name


def encode_entry(entry: Entry) -> bytes:
    """The text of an entry's file."""
    import yaml

    front: dict[str, Any] = {}
    for name, attribute in _NAMES.items():
        value = getattr(entry, attribute)
        if name in ("id", "role", "created_at") or value != getattr(_DEFAULTS, attribute):
            match value:
                case datetime():
                    value = value.isoformat()
                case tuple():
                    value = list(value)
                case str():
                    value = repair_text(str(value))
            front[name] = value
    front.update({name: value for name, value in entry.further.items() if name not in front})
    head = yaml.safe_dump(front, allow_unicode=True, sort_keys=False, width=10**6)
    return f"{_RULE}\n{head}{_RULE}\n\n{repair_text(entry.content).strip()}\n".encode()


def decode_entry(data: bytes, scope: Scope, path: str) -> Entry:
    """The entry of a file's text; `MemoryDamaged` says what is wrong with it."""
    import yaml

    text = data.decode("utf-8", "replace").replace("\r\n", "\n").removeprefix("\ufeff")
    lines = text.split("\n")
    if lines[0].rstrip() != _RULE:
        raise MemoryDamaged("it does not begin with front matter between two lines ---", path=path)
    try:
        end = next(number for number, line in enumerate(lines[1:], 1) if line.rstrip() == _RULE)
    except StopIteration:
        raise MemoryDamaged("its front matter has no end: a line ---", path=path) from None
    head = "\n".join(lines[1:end])
    if len(head) > _FRONT_BYTES:
        raise MemoryDamaged("its front matter is longer than 64 KiB", path=path)
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        front = yaml.load(head, loader)  # noqa: S506 (both loaders are the safe ones)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise MemoryDamaged(f"its front matter is no YAML: {words}", path=path) from error
    if not isinstance(front, dict):
        raise MemoryDamaged("its front matter has no names with values", path=path)
    known = {
        attribute: _plain(front[name])
        for name, attribute in _NAMES.items()
        if front.get(name) is not None
    }
    further = {str(name): value for name, value in front.items() if name not in _NAMES}
    try:
        return msgspec.convert(
            {
                **known,
                "content": "\n".join(lines[end + 1 :]).strip(),
                "scope": scope,
                "further": further,
            },
            Entry,
            strict=False,
        )
    except msgspec.ValidationError as error:
        raise MemoryDamaged(f"its front matter: {error}", path=path) from error


def _plain(value: Any) -> Any:
    """A value of YAML as the codec takes it: times have a zone, and text stays text."""
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value
