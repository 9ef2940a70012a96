"""What the conversion of a canister needs, whoever it is for: texts, issuer, notices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any, TypeVar

import msgspec

from vibe_llms.events import Notice
from vibe_llms.messages.canisters import Canister, DocumentCanister
from vibe_llms.messages.contents import (
    Content,
    Issuer,
    NativePayload,
    Reference,
    TextualContent,
    repair_text,
)
from vibe_llms.providers.interfaces import Model

T = TypeVar("T")

#: Members of a call that only number it, and values that say what holds anyway: a model that is
#: not sent them misses nothing.
_NUMBERING = frozenset({"id", "status"})
_USUAL: tuple[object, ...] = (None, {"type": "direct"})
_MEMBERS = msgspec.json.Decoder(dict[str, Any])
_SCHEME = re.compile(r"(?!file:)[a-z][a-z0-9+.-]+:", re.IGNORECASE)
_ABSOLUTE = re.compile(r"[/~]|\\\\|[a-z]:[/\\]|file:", re.IGNORECASE)
_KINDS = {"image": "an image", "audio": "a sound", "video": "a video", "file": "a file"}


class Conversion:
    """One canister on its way to the wire of `model`, whose provider's module is `module`.

    `texts` holds the bytes of its texts that are references, `notices` gathers what of it is not
    sent as it is.
    """

    def __init__(
        self, canister: Canister, model: Model, module: str, texts: Mapping[str, bytes]
    ) -> None:
        self.model = model
        self.origin = canister.identity
        self.notices: list[Notice] = []
        self._issuer = Issuer(module, model.provider, model.name)
        self._provenance = getattr(canister, "provenance", None)
        self._texts = texts

    @property
    def own(self) -> bool:
        """Whether the canister is of a reply of this very model."""
        origin = self._provenance
        return origin is not None and self._issuer == Issuer(
            origin.module, origin.row, origin.model
        )

    def text(self, data: str | Reference) -> str:
        """The text, also of a reference, fit for the wire."""
        if isinstance(data, Reference):
            return self._texts[data.hash].decode("utf-8", "replace")
        return repair_text(data)

    def issued(self, native: NativePayload | None) -> bool:
        """Whether there is a payload, and it came from this very model."""
        return native is not None and native.issuer == self._issuer

    def read(self, native: NativePayload | None, decoder: msgspec.json.Decoder[T]) -> T | None:
        """A payload of this very model; nothing where another made it, or it is no such thing."""
        if native is None or not self.issued(native):
            return None
        try:
            return decoder.decode(native.data)
        except (ValueError, RecursionError):
            return None

    def leave_out(self, what: str, how: str = "left out") -> None:
        """Tell that something of the canister is not sent as it is."""
        address = f"{self.model.provider}/{self.model.name}"
        self.notices.append(Notice("conversion", f"{what} is {how} for {address}", self.origin))

    def leave_out_sources(self, content: TextualContent) -> None:
        """Note that the sources which another model named for its words are not sent."""
        if content.citations and not self.own:
            self.leave_out("what another model told of the sources of its words")

    def leave_out_members(self, native: NativePayload) -> None:
        """Note that what another model said of a call is not sent, if it said anything."""
        try:
            members = _MEMBERS.decode(native.data)
        except (ValueError, RecursionError):
            members = {"": native}
        if any(key not in _NUMBERING and value not in _USUAL for key, value in members.items()):
            self.leave_out("what another model told of a call besides its arguments")

    def describe(self, content: Content, what: str = "") -> str:
        """A content in words, for a model that cannot be sent it; tells that it is so."""
        name = name_content(content)
        self.leave_out(what or name, "described in words")
        return f"[{name}, not shown to this model]"


def name_document(canister: DocumentCanister) -> tuple[str, str]:
    """The title and the source of a document as they are sent; each may be empty.

    Of a path only the last part is sent: its folders are private. A source
    that is no address is taken for a path, a title only where it is an absolute one.

    >>> name_document(DocumentCanister(title="n.txt", source="/home/ada/acme/n.txt"))
    ('n.txt', '')
    >>> name_document(DocumentCanister(title="TCP/IP", source="https://example.org/tcp.html"))
    ('TCP/IP', 'https://example.org/tcp.html')
    """
    title, source = (repair_text(text).strip() for text in (canister.title, canister.source))
    if _ABSOLUTE.match(title):
        title = _strip_folders(title)
    if not _SCHEME.match(source):
        source = _strip_folders(source)
        # The title of a file that was attached is its name.
        source = "" if source == title else source
    return title, source


def name_file(content: Content) -> str:
    """The name of a file, without its folders; empty where it has none."""
    return _strip_folders(repair_text(getattr(content, "name", "")))


def _strip_folders(path: str) -> str:
    """The last part of a path of any system."""
    return PureWindowsPath(path).name if "/" in path or "\\" in path else path


def name_content(content: Content) -> str:
    """A content in a few words, for people and for models that are not sent it."""
    kind = str(content.__struct_config__.tag)
    name = _strip_folders(getattr(content, "name", ""))
    mimetype = repair_text(getattr(content, "mimetype", ""))
    label = _KINDS.get(kind, f"a content of kind {getattr(content, 'label', '') or kind!r}")
    parts = (label, repr(name) if name else "", mimetype)
    return repair_text(" ".join(part for part in parts if part))
