"""Model files: how they are found, and the metadata in their heads.

Source: `docs/gguf.md` of ggml, versions 2 and 3 of the format.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from vibe_llms.base.exceptions import ModelNotFound
from vibe_llms.base.files import opened
from vibe_llms.providers.llamacpp.templates import THINK_END

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# Types of values: their numbers in the file, and their formats in `struct`.
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_TOKENS = "tokenizer.ggml.tokens"
_TEMPLATE = "tokenizer.chat_template"
#: Architectures that only help another model, or do not converse.
_NO_MODELS = ("clip",)


class GgufInvalid(ValueError):
    """Error for a file that is not a complete GGUF model; the message follows the file's name."""


class Facts(Struct, frozen=True):
    """Facts about a model from the head of its file.

    `templates` come with the model; `default` is the general one. `thinks` is True if the
    vocabulary has marks of reasoning. `token_bytes` is the memory that each token of the context
    takes, if known.
    """

    architecture: str = ""
    title: str = ""
    context_tokens: int | None = None
    templates: Mapping[str, str] = {}
    thinks: bool = False
    token_bytes: int | None = None


def locate_model(name: str, folder: str) -> Path:
    """Return the path of a model's file; raise `ModelNotFound` if a relative name has no folder."""
    path = os.path.expanduser(name)
    if os.path.isabs(path):
        return Path(path)
    if not folder:
        raise ModelNotFound(
            f"{name!r} is not an absolute path; write one, or set models-folder in the row"
        )
    return Path(os.path.expanduser(folder)) / path


def survey_files(folder: str) -> Sequence[str]:
    """List the models in a folder and its subfolders; a split model is listed by its first file."""
    root = os.path.expanduser(folder)
    names: list[str] = []
    for place, folders, files in os.walk(root):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        for file in files:
            first = "-of-" not in file or "-00001-of-" in file
            if file.lower().endswith(SUFFIX) and first and not file.startswith("."):
                names.append(os.path.relpath(os.path.join(place, file), root))
    return sorted(names)


def read_facts(path: Path) -> Facts:
    """Read the facts in the head of a file, or raise `GgufInvalid`."""
    try:
        with opened(path) as file:
            start = os.read(file, 24)
            if start[:4] != _MAGIC:
                raise GgufInvalid(f"is not a GGUF file: it begins with {start[:4]!r}")
            with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as data:
                return _collect(_read_members(data))
    except OSError as error:
        raise GgufInvalid(f"cannot be read: {error.strerror}") from error
    except (struct.error, UnicodeDecodeError) as error:
        raise GgufInvalid(f"is cut off or damaged: {error}") from error


def _collect(members: Iterator[tuple[str, Any]]) -> Facts:
    found = dict(members)
    architecture = str(found.get("general.architecture", ""))
    kind = str(found.get("general.type", "model"))
    if architecture in _NO_MODELS or kind != "model":
        what = kind if kind != "model" else architecture
        raise GgufInvalid(f"is not a chat model: its kind is {what!r}")
    context = found.get(f"{architecture}.context_length")
    words = (found.get("general.name"), found.get("general.size_label"))
    templates = {
        name.removeprefix(_TEMPLATE).lstrip(".") or "default": str(text)
        for name, text in found.items()
        if name.startswith(_TEMPLATE) and isinstance(text, str)
    }
    return Facts(
        architecture,
        " ".join(str(word) for word in words if word),
        context if isinstance(context, int) and context > 0 else None,
        templates,
        bool(found.get(_TOKENS)),
        _count_token_bytes(found, architecture),
    )


def _count_token_bytes(found: Mapping[str, Any], architecture: str) -> int | None:
    """Return the bytes of the keys and values of one token, as 16-bit numbers in every layer."""

    def read(name: str) -> int:
        value = found.get(f"{architecture}.{name}")
        return value if isinstance(value, int) and value > 0 else 0

    heads = read("attention.head_count")
    length = read("embedding_length") // heads if heads else 0
    key = read("attention.key_length") or length
    value = read("attention.value_length") or length
    size = read("block_count") * (read("attention.head_count_kv") or heads) * (key + value) * 2
    return size or None


def _read_members(data: mmap.mmap) -> Iterator[tuple[str, Any]]:
    """Yield the members of the head; arrays are None, the vocabulary True if it marks reasoning."""
    _, version, _, count = struct.unpack_from("<4sIQQ", data)
    if version not in _VERSIONS:
        raise GgufInvalid(f"has version {version} of the GGUF format; {_VERSIONS} can be read")
    at = 24
    for _ in range(count):
        name, at = _read_string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        value, end = _read_value(data, kind, at + 4)
        if end > len(data):
            raise GgufInvalid(f"is cut off or damaged: it ends within {name!r}")
        if name == _TOKENS:
            mark = THINK_END.encode()
            value = data.find(struct.pack("<Q", len(mark)) + mark, at, end) >= 0
        at = end
        yield name, value


def _read_value(data: mmap.mmap, kind: int, at: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _read_string(data, at)
    if kind == _ARRAY:
        return None, _pass_array(data, at)
    form = f"<{_number(kind)}"
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def _read_string(data: mmap.mmap, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<Q", data, at)
    return struct.unpack_from(f"{min(size, len(data))}s", data, at + 8)[0].decode(), at + 8 + size


def _pass_array(data: mmap.mmap, at: int) -> int:
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind == _ARRAY:
        raise GgufInvalid("has nested arrays, which the format does not allow")
    if kind != _STRING:
        return at + int(count) * struct.calcsize(f"<{_number(kind)}")
    read = struct.Struct("<Q").unpack_from
    for _ in range(count):
        at += 8 + int(read(data, at)[0])
    return at


def _number(kind: int) -> str:
    if kind not in _NUMBERS:
        raise GgufInvalid(f"is damaged: it has a value of the unknown type {kind}")
    return _NUMBERS[kind]
