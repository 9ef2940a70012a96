r"""Encodes a canister as one line of JSON, and decodes it, without loss.

A line ends only at the byte ``\n``. Roles, kinds, and fields of newer versions are kept at any
depth: the canister remembers its line and encodes to it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar, get_args

import msgspec
from msgspec import Raw, Struct, ValidationError

from vibe_llms.messages.canisters import (
    CANISTER_ROLES,
    Canister,
    UnknownCanister,
)
from vibe_llms.messages.contents import Content, UnknownContent, repair_text

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Canister] = msgspec.json.Decoder(Canister)
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_ARRAY = msgspec.json.Decoder(list[Raw])
#: Length in characters above which texts are searched individually for lone surrogates.
_LONG = 64 * 1024
# An escaped backslash, a surrogate pair, or a lone surrogate.
_SURROGATE_ESCAPES = rb"(?s)\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)"


C = TypeVar("C", bound=Canister)


class LineUnreadable(ValueError):
    """A stored line is neither a canister nor a possible line of a newer version."""


def encode_canister(canister: Canister) -> bytes:
    """Encode a canister as one line of JSON, without its newline.

    Lone surrogates become U+FFFD, because no file can contain them.
    """
    if canister.source_line is not None:
        return canister.source_line
    try:
        line = _ENCODER.encode(canister)
    except UnicodeEncodeError:
        line = _ENCODER.encode(repair_canister(canister))
    if any(type(content) is UnknownContent for content in canister.contents):
        line = _restore_unknown_contents(line)
    # A native payload may contain newlines between tokens, which end a line, and lone surrogates,
    # which cannot be read again.
    line = repair_escapes(line)
    return line.replace(b"\n", b" ") if b"\n" in line else line


def repair_escapes(data: bytes) -> bytes:
    r"""Replace escapes of lone surrogates in JSON by U+FFFD; other escapes stay unchanged.

    >>> repair_escapes(rb'"\ud83d\ude00 \ud800"')
    b'"\\ud83d\\ude00 \\ufffd"'
    """
    # Searching for one byte is much faster than for two or three.
    if b"\\" in data and (b"\\ud" in data or b"\\uD" in data):
        return re.sub(_SURROGATE_ESCAPES, lambda found: b"\\ufffd" if found[1] else found[0], data)
    return data


def decode_canister(line: bytes) -> Canister:
    """Decode a line; raises `LineUnreadable` if that is not possible."""
    try:
        canister = _DECODER.decode(line)
        # Not factored out, because opening a long conversation runs this for every line.
        if canister.source_line is None and type(canister) is not UnknownCanister:
            for content in canister.contents:
                if type(content) is UnknownContent:
                    break
            else:
                return canister
    except ValidationError:
        pass
    except (ValueError, RecursionError) as error:
        raise LineUnreadable(str(error)) from error
    try:
        return _decode_newer(line)
    except (ValueError, RecursionError) as error:
        raise LineUnreadable(str(error)) from error


def decode_plain(lines: bytes) -> list[Canister] | None:
    """Decode whole lines together, or return None if one is not in this version's own form.

    In that case, decode each line with `decode_canister`.
    """
    try:
        canisters = _DECODER.decode_lines(lines)
    except (ValueError, RecursionError):
        return None
    if len(canisters) != lines.count(b"\n"):
        return None
    # Not factored out, because opening a long conversation runs this for every line.
    for canister in canisters:
        if canister.source_line is not None or type(canister) is UnknownCanister:
            return None
        for content in canister.contents:
            if type(content) is UnknownContent:
                return None
    return canisters


def repair_canister(canister: C) -> C:
    """Replace every lone surrogate in the texts of a canister by U+FFFD.

    Returns the same object if there is nothing to replace.
    """
    if not any(map(_is_long, canister.contents)):
        try:
            # Ten times as fast as searching each short text; nearly every message passes.
            _ENCODER.encode(canister)
        except UnicodeEncodeError:
            pass
        else:
            return canister
    repaired = _repair(canister)
    return repaired if isinstance(repaired, type(canister)) else canister


def _is_long(content: Content) -> bool:
    data = getattr(content, "data", None)
    return type(data) is bytes or (type(data) is str and len(data) > _LONG)


def _repair(value: object) -> object:
    match value:
        case str():
            return repair_text(value)
        case tuple():
            items = tuple(_repair(item) for item in value)
            return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
        case Struct():
            changes = {
                name: repaired
                for name in value.__struct_fields__
                if (repaired := _repair(old := getattr(value, name))) is not old
            }
            return msgspec.structs.replace(value, **changes) if changes else value
        case _:
            return value


def _restore_unknown_contents(line: bytes) -> bytes:
    members = _OBJECT.decode(line)
    items = [
        bytes(fields["source"] if fields.get("kind") == Raw(b'"?"') else item)
        for item in _ARRAY.decode(members["contents"])
        for fields in [_OBJECT.decode(item)]
    ]
    members["contents"] = Raw(b"[" + b",".join(items) + b"]")
    return _ENCODER.encode(members)


def _decode_newer(line: bytes) -> Canister:
    members = _OBJECT.decode(line)
    for name in ("identity", "created"):
        if name not in members:
            raise LineUnreadable(f"{name!r} is missing")
    role = _read_tag(members, "role")
    if role in CANISTER_ROLES:
        known = _prune(members, CANISTER_ROLES[role])
    else:
        kept = {name: members[name] for name in ("identity", "created")}
        known = _ENCODER.encode({"role": "?", "label": role, **kept})
    # As in a payload, a newline can only be white space here.
    source_line = line.replace(b"\n", b" ") if b"\n" in line else line
    return msgspec.structs.replace(_DECODER.decode(known), source_line=source_line)


def _prune(members: dict[str, Raw], cls: type[Struct]) -> bytes:
    """Return the fields of a JSON object that this version knows, at every depth."""
    known: dict[str, Raw] = {}
    tag_field = cls.__struct_config__.tag_field
    if tag_field is not None:
        known[tag_field] = members[tag_field]
    for info in msgspec.structs.fields(cls):
        if info.encode_name in members and info.name != "source_line":
            known[info.encode_name] = Raw(_prune_value(members[info.encode_name], info.type))
    return _ENCODER.encode(known)


def _prune_value(raw: Raw, annotation: object) -> bytes:
    classes = list(_struct_classes(annotation))
    text = bytes(raw)
    if classes and text.startswith(b"["):
        return b"[" + b",".join(_prune_value(one, annotation) for one in _ARRAY.decode(raw)) + b"]"
    if not classes or not text.startswith(b"{"):
        return text
    members = _OBJECT.decode(raw)
    tag_field = classes[0].__struct_config__.tag_field
    if tag_field is None:
        return _prune(members, classes[0])
    tag = _read_tag(members, tag_field)
    cls = next((one for one in classes if one.__struct_config__.tag == tag), UnknownContent)
    if UnknownContent not in classes:
        if cls is UnknownContent:
            raise _FormUnknown(f"{tag_field} {tag!r} is unknown to this version")
        return _prune(members, cls)
    try:
        if cls is not UnknownContent:
            return _prune(members, cls)
    except _FormUnknown:
        # A known kind with its data in a place that only a newer version knows.
        pass
    return _ENCODER.encode(UnknownContent(label=tag, source=raw))


class _FormUnknown(ValueError):
    """A value has a form from a newer version."""


def _read_tag(members: dict[str, Raw], tag_field: str) -> str:
    tag = msgspec.json.decode(members[tag_field], type=str) if tag_field in members else ""
    if not tag:
        raise LineUnreadable(f"{tag_field!r} is missing")
    return tag


def _struct_classes(annotation: object) -> Iterator[type[Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        yield annotation
    for argument in get_args(annotation):
        yield from _struct_classes(argument)
