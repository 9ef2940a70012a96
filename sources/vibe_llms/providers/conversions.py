"""What the conversion of a canister needs, whoever it is for: texts, issuer, notices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from vibe_llms.events import Notice
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import Content, Issuer, NativePayload, Reference, repair_text
from vibe_llms.providers.interfaces import Model

T = TypeVar("T")

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
        self._texts = texts

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

    def describe(self, content: Content, what: str = "") -> str:
        """A content in words, for a model that cannot be sent it; tells that it is so."""
        name = name_content(content)
        self.leave_out(what or name, "described in words")
        return f"[{name}, not shown to this model]"


def name_content(content: Content) -> str:
    """A content in a few words, for people and for models that are not sent it."""
    kind = str(content.__struct_config__.tag)
    name = getattr(content, "name", "")
    mimetype = repair_text(getattr(content, "mimetype", ""))
    label = _KINDS.get(kind, f"a content of kind {getattr(content, 'label', '') or kind!r}")
    parts = (label, repr(name) if name else "", mimetype)
    return repair_text(" ".join(part for part in parts if part))
