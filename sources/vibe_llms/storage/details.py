"""Codec for `metadata.toml`, the details of a conversation besides its lines."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from vibe_llms.base.exceptions import ArchiveDamaged, FormatNewer, RequestError
from vibe_llms.base.files import LARGEST_SETTINGS, describe_size, parse_toml
from vibe_llms.base.folders import read_within
from vibe_llms.messages.contents import repair_text
from vibe_llms.storage.interfaces import FORMAT, Details, Origin

METADATA = "metadata.toml"
_KEYS = (
    *("format", "created", "name", "model", "agent", "tags"),
    *("forked-from", "superseded-by", "root"),
)


def encode_details(details: Details, others: Mapping[str, Any] = {}) -> bytes:
    """Return the text of `metadata.toml`, with other keys that are not details."""
    tree: dict[str, Any] = {"format": details.format, "created": details.created}
    if details.name:
        tree["name"] = details.name
    if details.model:
        tree["model"] = details.model
    if details.agent:
        tree["agent"] = details.agent
    if details.tags:
        tree["tags"] = list(details.tags)
    if details.forked_from is not None:
        tree["forked-from"] = msgspec.to_builtins(details.forked_from)
    if details.superseded_by:
        tree["superseded-by"] = details.superseded_by
    if details.root:
        tree["root"] = details.root
    return encode_tree({**tree, **others})


# msgspec 0.22 crashes if two threads use a type for the first time at once, so use it here first.
msgspec.json.Decoder(Details)


def decode_details(tree: Mapping[str, Any], path: str) -> Details:
    """Return the details in parsed TOML, or raise `FormatNewer` if a newer version wrote it."""
    version = tree.get("format", FORMAT)
    if isinstance(version, int) and version > FORMAT:
        raise FormatNewer(
            f"written by a newer version of vibe-llms (format {version}, supported is "
            f"{FORMAT}); install that version to open it",
            path=path,
        )
    known = {key.replace("-", "_"): value for key, value in tree.items() if key in _KEYS}
    try:
        return msgspec.convert(known, Details)
    except msgspec.ValidationError as error:
        raise ArchiveDamaged(
            f"{error}; fix it by hand (the file was not changed)", path=path
        ) from error


def read_details(folder: Path) -> Details:
    """Return the details of the conversation in a folder."""
    place = str(folder / METADATA)
    return decode_details(parse_tree(read_within(folder, METADATA, LARGEST_SETTINGS), place), place)


def refuse_newer(folder: Path) -> None:
    """Raise `FormatNewer` if a newer version wrote the conversation in a folder."""
    # Other problems with the details do not prevent storing a message.
    with suppress(ArchiveDamaged, FileNotFoundError):
        read_details(folder)


def parse_tree(data: bytes, path: str) -> dict[str, Any]:
    """Return the parsed text of a file, or raise `ArchiveDamaged` if it is not valid TOML."""
    try:
        return parse_toml(data)
    except ValueError as error:
        raise ArchiveDamaged(
            f"this is not valid TOML ({error}); fix it by hand (the file was not changed)",
            path=path,
        ) from error


def encode_tree(tree: Mapping[str, Any]) -> bytes:
    """Return the text of a tree, including keys of newer versions.

    Raises a `RequestError` if the text exceeds the limit of readers.
    """
    import tomli_w

    data = repair_text(tomli_w.dumps(tree)).encode()
    if len(data) > LARGEST_SETTINGS:
        raise RequestError(
            "the name and the tags of a conversation would have "
            f"{describe_size(len(data))}, and the limit is "
            f"{describe_size(LARGEST_SETTINGS)}; nothing was changed"
        )
    return data


def describe_changes(
    *,
    name: str | None = None,
    model: str | None = None,
    superseded_by: str | None = None,
    add_tags: Sequence[str] = (),
    remove_tags: Sequence[str] = (),
) -> Mapping[str, Any]:
    """Return the changes of `Archive.revise` by file key: new values or functions of old values."""
    changes: dict[str, Any] = {}
    if name is not None:
        changes["name"] = name
    if model is not None:
        changes["model"] = model
    if superseded_by is not None:
        changes["superseded-by"] = superseded_by
    if add_tags or remove_tags:
        changes["tags"] = lambda tags: sorted({*(tags or ()), *add_tags} - {*remove_tags})
    return changes


def change_details(data: bytes, changes: Mapping[str, Any], path: str) -> tuple[bytes, Details]:
    """Return the text of a changed `metadata.toml` and its details. Newer fields are kept."""
    tree = parse_tree(data, path)
    decode_details(tree, path)
    for key, change in changes.items():
        value = change(tree.get(key)) if callable(change) else change
        if value in ("", [], None):
            tree.pop(key, None)
        else:
            tree[key] = value
    changed = encode_tree(tree)
    return changed, decode_details(parse_tree(changed, path), path)


def fork_details(parent: Details, origin: Origin, name: str) -> Details:
    """Return the details of a fork created now."""
    # Forks of earlier versions know only their parents.
    before = parent.forked_from or origin
    return Details(
        created=datetime.now(UTC),
        name=name,
        model=parent.model,
        agent=parent.agent,
        tags=parent.tags,
        forked_from=origin,
        root=parent.root or before.conversation,
    )
