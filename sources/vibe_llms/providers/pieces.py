"""Encoded history: bytes that are ready to be sent, with slots for images and files.

Media stay references: their bytes are read and encoded when a request is assembled, and released
after it is sent.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import (
    Content,
    ReasoningContent,
    Reference,
    TextualContent,
    repair_text,
)
from vibe_llms.providers.interfaces import Loader

_ENCODER = msgspec.json.Encoder()
# Text of at least this size is sent without being copied into something larger.
_RUN_BYTES = 64 * 1024


class Slot(Struct, frozen=True, gc=False):
    """Place of bytes within encoded JSON, to be filled as base64 or as a JSON string.

    `before` and `after` are the JSON around it within its block. `instead` is the block that
    replaces it if it is left out, and `label` names it. `origin` is the identity of its canister.
    `prefix` comes before the data within the JSON string, such as the `data:image/png;base64,` of a
    data URI.
    """

    data: bytes | Reference
    encoding: Literal["base64", "text"]
    before: bytes
    after: bytes
    instead: bytes
    label: str
    origin: str = ""
    prefix: bytes = b""

    @property
    def encoded_size(self) -> int:
        """Size of the filled block in bytes; for text, the minimum."""
        size = self.data.size if isinstance(self.data, Reference) else len(self.data)
        filled = (size + 2) // 3 * 4 if self.encoding == "base64" else size
        return len(self.before) + len(self.prefix) + filled + len('""') + len(self.after)

    async def fill(self, load: Loader) -> bytes:
        """Return the whole block."""
        data = self.data
        if isinstance(data, Reference):
            data = (await load([data]))[data.hash]
        if self.encoding == "base64":
            text = base64.b64encode(data) + b'"'
        else:
            text = encode_json(data.decode("utf-8", "replace"))[1:]
        return b"".join((self.before, b'"', self.prefix, text, self.after))


_TEXTS = (TextualContent, ReasoningContent)

Fragment: TypeAlias = bytes | Slot
#: JSON object of a request, in fragments.
Block: TypeAlias = tuple[Fragment, ...]


def interleave(blocks: Iterable[Block]) -> list[Fragment]:
    """Return the fragments of blocks as members of a JSON array, without its brackets."""
    fragments: list[Fragment] = []
    for block in blocks:
        if fragments:
            fragments.append(b",")
        fragments += block
    return fragments


def append_member(block: Block, member: bytes) -> Block:
    """Return the block, a JSON object, with one more member; `member` is its name and value.

    >>> append_member((b'{"a":1}',), b'"b":2')
    (b'{"a":1,"b":2}',)
    """
    last = block[-1]
    added = b"," + member + b"}"
    if isinstance(last, Slot):
        marked: Fragment = msgspec.structs.replace(
            last, after=last.after[:-1] + added, instead=last.instead[:-1] + added
        )
    else:
        marked = last[:-1] + added
    return (*block[:-1], marked)


class Baked:
    """Growing run of encoded JSON whose parts never change; adding costs only the addition.

    Additions are joined with the rest when they reach a quarter of it. A long history is thus sent
    in a few large pieces without copying, and each byte is copied only a few times in all.
    """

    def __init__(self, start: bytes = b"") -> None:
        self._joined: list[Fragment] = []
        self._run = start
        self._recent: list[bytes] = []
        self._recent_size = 0
        self.count = 0

    def append(self, fragments: Iterable[Fragment]) -> None:
        """Add one member of an array, in fragments."""
        recent, size = self._recent, self._recent_size
        if self.count:
            recent.append(b",")
            size += 1
        self.count += 1
        for part in fragments:
            if isinstance(part, Slot):
                self._join_recent()
                self._joined += [self._run, part]
                self._run = b""
                recent, size = self._recent, 0
            else:
                recent.append(part)
                size += len(part)
        self._recent_size = size
        if size >= max(_RUN_BYTES, len(self._run) // 4):
            self._join_recent()

    def fragments(self) -> list[Fragment]:
        """Return all fragments."""
        # Joined once: the next turn adds only a few parts to the result.
        recent = b"".join(self._recent)
        self._recent = [recent] if recent else []
        return [*self._joined, self._run, recent]

    def _join_recent(self) -> None:
        self._run = b"".join([self._run, *self._recent])
        self._recent, self._recent_size = [], 0


def fit(
    fragments: Sequence[Fragment], limit: int | None, keep: AbstractSet[str] = frozenset()
) -> tuple[Sequence[Fragment], list[Slot], int]:
    """Fit the fragments into a number of bytes; replace the oldest media by text first.

    Return the fragments, the replaced slots, and the size in bytes. It can still be too large,
    because the media of the canisters in `keep` stay.
    """
    size = sum(part.encoded_size if isinstance(part, Slot) else len(part) for part in fragments)
    if limit is None or size <= limit:
        return fragments, [], size
    fitted = list(fragments)
    left_out: list[Slot] = []
    for index, fragment in enumerate(fragments):
        if size <= limit:
            break
        if isinstance(fragment, Slot) and fragment.origin not in keep:
            fitted[index] = fragment.instead
            size += len(fragment.instead) - fragment.encoded_size
            left_out.append(fragment)
    return fitted, left_out, size


async def fill(fragments: Iterable[Fragment], load: Loader) -> list[bytes]:
    """Return the fragments as parts of a body; `load` fills their slots."""
    parts: list[bytes] = []
    run: list[bytes] = []
    for fragment in fragments:
        if isinstance(fragment, Slot):
            parts += [b"".join(run), await fragment.fill(load)]
            run = []
        elif len(fragment) >= _RUN_BYTES:
            parts += [b"".join(run), fragment]
            run = []
        else:
            run.append(fragment)
    parts.append(b"".join(run))
    return [part for part in parts if part]


async def load_texts(canisters: Iterable[Canister], load: Loader) -> Mapping[str, bytes]:
    """Load all texts that these canisters have by reference; return their bytes by hash."""
    references = [
        content.data
        for canister in canisters
        for content in canister.contents
        if isinstance(content, _TEXTS) and not isinstance(content.data, str)
    ]
    return await load(references) if references else {}


async def with_texts(canisters: Sequence[Canister], load: Loader) -> Sequence[Canister]:
    """Return the same canisters with all of their texts loaded."""
    texts = await load_texts(canisters, load)
    if not texts:
        return canisters

    def write(content: Content) -> Content:
        if isinstance(content, _TEXTS) and not isinstance(content.data, str):
            data = texts[content.data.hash].decode("utf-8", "replace")
            return msgspec.structs.replace(content, data=data)
        return content

    return [
        msgspec.structs.replace(one, contents=tuple(map(write, one.contents)))
        if one.contents
        else one
        for one in canisters
    ]


def encode_json(value: object) -> bytes:
    """Encode a value as compact JSON; lone surrogates become U+FFFD."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        import json

        return repair_text(json.dumps(value, ensure_ascii=False, separators=(",", ":"))).encode()


def compact(raw: bytes) -> bytes:
    """Return the JSON without white space between its parts; raise `ValueError` if it is invalid.

    No value changes: numbers and escapes stay as they were written.
    """
    return msgspec.json.format(raw, indent=-1)
