"""An entry as a value, and as the text of its file: Markdown with YAML front matter."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.exceptions import MemoryDamaged, MemoryInvalid
from vibe_llms.memory.front_matter import read_plain
from vibe_llms.memory.names import name_copy, name_identity, name_original
from vibe_llms.messages.contents import repair_text

_RULE = "---"
#: Beginning of the names of files written by the library, and of their copies.
_OURS = re.compile(r"\d{8}T\d{6}Z__")
_IDENTITY = re.compile(r"[0-9a-z][0-9a-z_-]{0,63}")
#: Identities of entries written by others; recalled lines contain them.
_IDENTITY_BY_HAND = re.compile(r"[0-9A-Za-z._:-]{1,128}")
#: Maximum size of the front matter, in characters.
_FRONT_BYTES = 64 * 1024
#: Maximum size of an entry's file.
LARGEST_BYTES = 4 * 1024 * 1024
#: Maximum nesting of front matter values; the C loader has no limit.
_DEEPEST = 50
_NESTING = "[{-?:"
_FIRST_YEAR, _LAST_YEAR = 2, 9998
#: Minimum length of a beginning or end of an identity that names an entry, in characters.
SHORTEST_PART = 4


class Role(StrEnum):
    """Kind of an entry: a fact, what a user or a model said, or a summary."""

    FACT = "memory"
    USER = "user"
    ASSISTANT = "assistant"
    SUMMARY = "summary"


#: Roles of what someone said.
SPOKEN = (Role.USER, Role.ASSISTANT)


class Scope(Struct, frozen=True, order=True):
    """Owner of an entry: one user, one conversation, or everyone.

    >>> str(Scope.of_user("ada"))
    'user-ada'
    """

    kind: str = "global"
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind in ("user", "conversation"):
            check_identity(self.name, self.kind)
        elif self.kind != "global" or self.name:
            raise MemoryInvalid(
                f"{self.kind}-{self.name} is not a scope; "
                "use global, user-NAME, or conversation-IDENTITY"
            )

    @staticmethod
    def of_user(name: str) -> Scope:
        """Return the scope of a user's conversations; raise `MemoryInvalid` for a bad name."""
        return Scope("user", name)

    @staticmethod
    def of_conversation(identity: str) -> Scope:
        """Return the scope of one conversation."""
        return Scope("conversation", identity)

    @staticmethod
    def parse(text: str) -> Scope:
        """Return the scope named by a folder; raise `MemoryInvalid` for other names."""
        kind, dash, name = text.partition("-")
        if kind == "global" and not dash:
            return GLOBAL
        if kind in ("user", "conversation") and dash:
            return Scope(kind, name)
        raise MemoryInvalid(
            f"{text!r} is not a scope; use global, user-NAME, or conversation-IDENTITY"
        )

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}" if self.name else self.kind


GLOBAL = Scope()


class Entry(Struct, frozen=True, kw_only=True):
    """One remembered item.

    `importance` ranges from 0 to 1. `speaker` is the name of who said it, if known; `conversation`
    and `turn` are the identities of the conversation and the canister that it came from. A deleted
    entry is `replaced_by` a newer one; `merged_from` names the entries that were deleted for this
    one, since it contains them. `further` are front matter members by others, and `lines` their
    text; both are kept. `copy_of` is the identity of the original if another program copied the
    file; it is not written, since the name of the file shows it.
    """

    content: str
    identity: str
    role: Role = Role.FACT
    scope: Scope = GLOBAL
    created: datetime
    importance: Annotated[float, Meta(ge=0, le=1)] = 0.5
    category: str = ""
    topics: tuple[str, ...] = ()
    speaker: str = ""
    conversation: str = ""
    turn: str = ""
    replaced_by: str = ""
    merged_from: tuple[str, ...] = ()
    further: Mapping[str, Any] = {}
    lines: str = ""
    copy_of: str = ""


# msgspec 0.22 crashes if two threads are the first to use a type, so it is used here first.
msgspec.json.Decoder(Entry)


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
    "merged_from": "merged_from",
}
_DEFAULTS = Entry(content="", identity="", created=datetime.min.replace(tzinfo=UTC))


def check_identity(name: str, of: str) -> str:
    """Return the name if it can name a folder; otherwise raise `MemoryInvalid`."""
    if not _IDENTITY.fullmatch(name):
        raise MemoryInvalid(
            f"{name!r} is not a valid name of a {of}: use up to 64 lowercase letters, digits, - "
            "and _, with a letter or digit first"
        )
    return name


def check_entry(entry: Entry) -> Entry:
    """Return the entry with repaired texts and a time zone; raise `MemoryInvalid` if it is invalid.

    The result can be written, and reads back unchanged.
    """
    content = repair_text(entry.content).strip()
    if not content:
        raise MemoryInvalid("an empty text cannot be remembered")
    members = {name: getattr(entry, name) for name in entry.__struct_fields__}
    # Writing a copy makes it an entry of its own.
    members["copy_of"] = ""
    members |= {name: repair_text(value) for name, value in members.items() if type(value) is str}
    if isinstance(entry.topics, list | tuple):
        members["topics"] = tuple(
            repair_text(topic) if isinstance(topic, str) else topic for topic in entry.topics
        )
    try:
        checked = msgspec.convert({**members, "content": content}, Entry)
    except msgspec.ValidationError as error:
        raise MemoryInvalid(f"not a valid entry: {error}") from error
    if taken := sorted(_NAMES.keys() & map(str, checked.further)):
        raise MemoryInvalid(f"{', '.join(taken)}: reserved, so not allowed in `further`")
    try:
        checked = _check_time(checked)
    except OverflowError as error:
        raise MemoryInvalid(f"not a valid entry: {error}") from error
    if len(encode_entry(checked)) > LARGEST_BYTES:
        raise MemoryInvalid(f"the entry is longer than {LARGEST_BYTES >> 20} MiB; shorten it")
    return checked


def words_of(entry: Entry) -> Sequence[str]:
    """Return the texts of an entry that come from a user, a model, or a file."""
    return (entry.content, entry.category, *entry.topics)


def encode_entry(entry: Entry) -> bytes:
    """Return the text of an entry's file; raise `MemoryInvalid` if YAML cannot express a member."""
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
                    value = str(value)
            front[name] = value
    try:
        head = _dump(front)
        if entry.lines:
            head += entry.lines
        elif entry.further:
            head += _dump({str(name): value for name, value in entry.further.items()})
            _load(head)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise MemoryInvalid(f"cannot be written as front matter: {words}") from error
    if len(head) > _FRONT_BYTES:
        raise MemoryInvalid("the front matter would be longer than 64 KiB; shorten its values")
    return f"{_RULE}\n{head}{_RULE}\n\n{repair_text(entry.content).strip()}\n".encode()


def decode_entry(data: bytes, scope: Scope, path: str, *, modified: float | None = None) -> Entry:
    """Parse the text of an entry's file; raise `MemoryDamaged` if it is not an entry.

    A file written by hand may lack `id` and `created_at`. If `modified` is given, in seconds since
    1970, it becomes the time, and the name of the file the identity.
    """
    if len(data) > LARGEST_BYTES:
        raise MemoryDamaged(f"longer than {LARGEST_BYTES >> 20} MiB", path=path)
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise MemoryDamaged("not UTF-8 text", path=path) from error
    name = os.path.basename(path)
    lines = text.split("\n")
    if lines[0].rstrip() != _RULE:
        raise MemoryDamaged("no front matter between two lines `---` at the beginning", path=path)
    try:
        end = next(number for number, line in enumerate(lines[1:], 1) if line.rstrip() == _RULE)
    except StopIteration:
        raise MemoryDamaged("the front matter does not end with a line `---`", path=path) from None
    head = "\n".join(lines[1:end])
    if len(head) > _FRONT_BYTES:
        raise MemoryDamaged("the front matter is longer than 64 KiB", path=path)
    front, kept = _read_front(head, path)
    known: dict[str, Any] = {}
    further: dict[str, Any] = {}
    for member, value in front.items():
        if (attribute := _NAMES.get(member)) is None:
            further[str(member)] = value
        elif value is not None:
            known[attribute] = _plain(value)
    if modified is not None and not _OURS.match(name):
        known |= _complete(known, name, modified)
    try:
        entry = msgspec.convert(
            {
                **known,
                "content": "\n".join(lines[end + 1 :]).strip(),
                "scope": scope,
                "further": further,
                "lines": kept,
            },
            Entry,
            strict=False,
        )
        if not _IDENTITY_BY_HAND.fullmatch(entry.identity):
            raise MemoryDamaged(
                "front matter: `id` must be 1 to 128 letters, digits, or . _ : -", path=path
            )
        if copy := name_copy(name, entry.identity):
            entry = msgspec.structs.replace(entry, identity=copy, copy_of=entry.identity)
        return _check_time(entry)
    except (msgspec.ValidationError, OverflowError) as error:
        raise MemoryDamaged(f"front matter: {_name_as_written(error)}", path=path) from error


def _read_front(head: str, path: str) -> tuple[Mapping[Any, Any], str]:
    """Return the members of front matter, and the lines of foreign ones.

    Raise `MemoryDamaged` if it has none.
    """
    if (plain := read_plain(head, _NAMES)) is not None:
        return plain
    import yaml

    try:
        front = _load(head)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise MemoryDamaged(
            f"the front matter is not valid YAML: {_describe(error)}", path=path
        ) from error
    if not isinstance(front, dict):
        raise MemoryDamaged("the front matter must be a mapping", path=path)
    further = {str(name): value for name, value in front.items() if name not in _NAMES}
    return front, _keep(head, further) if further or "#" in head else ""


def _complete(known: Mapping[str, Any], name: str, modified: float) -> dict[str, Any]:
    """Return the members missing from a file written by hand."""
    missing: dict[str, Any] = {}
    if "identity" not in known:
        # Identity of the original; a copy gets its own below.
        missing["identity"] = name_identity(name_original(name))
    if "created" not in known:
        missing["created"] = datetime.fromtimestamp(modified, UTC)
    return missing


def _describe(error: Exception) -> str:
    """Describe a YAML error with its position; the front matter starts on line 2 of the file."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())
    return f"line {mark.line + 2}, column {mark.column + 1}: {problem}"


def _name_as_written(error: Exception) -> str:
    """Describe an error with the names used in the file."""
    words = str(error)
    for name, attribute in _NAMES.items():
        words = words.replace(f"`{attribute}`", f"`{name}`")
        words = words.replace(f"`$.{attribute}`", f"`{name}`")
    return words


def _check_time(entry: Entry) -> Entry:
    """Add a time zone if missing; raise `OverflowError` if the time is out of range."""
    if not _FIRST_YEAR <= entry.created.year <= _LAST_YEAR:
        # In some zones, the first and the last year are shorter.
        raise OverflowError(f"the year of `created_at` must be from {_FIRST_YEAR} to {_LAST_YEAR}")
    if entry.created.tzinfo is None:
        return msgspec.structs.replace(entry, created=entry.created.replace(tzinfo=UTC))
    return entry


def _dump(front: Mapping[str, Any]) -> str:
    import yaml

    return str(
        yaml.dump(dict(front), Dumper=_dumper(), allow_unicode=True, sort_keys=False, width=10**6)
    )


@lru_cache(maxsize=1)
def _dumper() -> Any:
    """Return a safe dumper that escapes line ends, which YAML would change."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = None if text.isprintable() else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)

    Dumper.add_representer(str, represent)
    return Dumper


def _load(head: str) -> Any:
    """Parse YAML; raise errors of the package, or `ValueError` for excessive nesting."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    # Only these characters nest, and most files contain few of them.
    if "*" in head or sum(map(head.count, _NESTING)) > _DEEPEST:
        depth = 0
        for event in yaml.parse(head, loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.AliasEvent):
                raise ValueError("aliases (*) are not allowed")  # noqa: TRY004
            if depth > _DEEPEST:
                raise ValueError(f"values are nested more than {_DEEPEST} levels deep")
    return yaml.load(head, loader)  # noqa: S506 (both loaders are the safe ones)


def _keep(head: str, further: Mapping[str, Any]) -> str:
    """Return the front matter lines that are not ours, unchanged, with comments.

    Return an empty string if they share lines with ours; then their values are written again.
    """
    import yaml

    kept: list[str] = []
    foreign = True
    for line in head.split("\n"):
        if line.startswith("#"):
            kept.append(line)
            continue
        if line[:1] not in ("", " ", "\t", "-", "\r"):
            foreign = line.partition(":")[0].strip() not in _NAMES
        if foreign and (line.strip() or kept):
            # An empty line may belong to a multi-line text.
            kept.append(line)
    text = "".join(f"{line}\n" for line in kept)
    try:
        found = _load(text) or {}
    except (yaml.YAMLError, ValueError):
        return ""
    same = isinstance(found, dict) and {str(name): one for name, one in found.items()} == further
    return text if same else ""


def _plain(value: Any) -> Any:
    """Convert a YAML value for the codec, adding a zone to times."""
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return value


def is_part(part: str, identity: str) -> bool:
    """Return True if a text is the beginning or end of an identity, or begins its last group.

    Lists print only the last group.
    """
    whole, last = identity.startswith(part) or identity.endswith(part), identity.rpartition("-")[2]
    return whole or last.startswith(part)
