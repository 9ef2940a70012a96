"""Collects the messages of a kernel while it runs code, up to a limit."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from vibe_llms.interpreter.inside import FULL

#: Bytes counted for each message, since even short ones take time.
_MESSAGE_BYTES = 100
_OUTPUT = ("stream", "execute_result", "display_data", "update_display_data", "clear_output")
#: Escape sequences that a terminal would interpret.
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_TEXTS = ("text/markdown", "text/latex", "application/json", "image/svg+xml", "text/html")


class OutputPiece(Struct, frozen=True):
    """A part of the output: text of a stream, an image, or a file."""

    kind: str
    text: str = ""
    data: bytes = b""
    mimetype: str = ""
    name: str = ""


class Outputs:
    """The output of one call, in order; `full` once it has reached its limit."""

    def __init__(self, limit: int) -> None:
        self._room = limit
        self._limit = limit
        self.pieces: list[OutputPiece] = []
        self.failed = False
        self.full = False

    def take(self, kind: str, content: Mapping[str, Any]) -> None:
        """Add a message from the kernel; invalid ones are ignored."""
        if kind in _OUTPUT:
            self._spend(_MESSAGE_BYTES)
        match kind:
            case "stream":
                name = "stderr" if content.get("name") == "stderr" else "stdout"
                self._add_text(name, _text(content.get("text")))
            case "execute_result" | "display_data":
                self._add_value(content.get("data"))
            case "error":
                self.failed = True
                trace = content.get("traceback")
                lines = trace if isinstance(trace, list) else []
                reported = "\n".join(_text(line) for line in lines) or (
                    f"{_text(content.get('ename'))}: {_text(content.get('evalue'))}"
                )
                self._add_text("error", _COLOURS.sub("", reported))
            case _:
                pass

    def note(self, text: str) -> None:
        """Add a text that did not come from the code; it does not count against the limit."""
        self.pieces.append(OutputPiece("note", text))

    def _add_value(self, bundle: object) -> None:
        if not isinstance(bundle, Mapping):
            return
        if FULL in bundle:
            self._fill()
            return
        for mimetype in _PICTURES:
            if mimetype in bundle:
                self._add_picture(_text(bundle[mimetype]), mimetype)
                return
        mimetype = next((one for one in ("text/plain", *_TEXTS) if one in bundle), "")
        if mimetype == "text/plain" and "image/svg+xml" in bundle:
            mimetype = "image/svg+xml"
        if mimetype:
            self._add_text("value", _text(bundle[mimetype]))

    def _add_picture(self, text: str, mimetype: str) -> None:
        try:
            data = base64.b64decode(text, validate=False)
        except (binascii.Error, ValueError):
            return
        if self._spend(len(data)):
            self.pieces.append(OutputPiece("picture", data=data, mimetype=mimetype))

    def _add_text(self, kind: str, text: str) -> None:
        if not text or self.full:
            return
        data = text.encode("utf-8", "replace")
        text = data[: self._room].decode("utf-8", "ignore")
        last = self.pieces[-1] if self.pieces else None
        if last is not None and last.kind == kind and kind in ("stdout", "stderr"):
            # A list of parts would be faster, but the limit keeps this fast enough.
            self.pieces[-1] = OutputPiece(kind, last.text + text)
        elif text:
            self.pieces.append(OutputPiece(kind, text))
        self._spend(len(data))

    def _spend(self, size: int) -> bool:
        """Use up a number of bytes; return False if there is not enough room."""
        if size > self._room:
            self._fill()
        self._room = max(self._room - size, 0)
        return not self.full

    def _fill(self) -> None:
        if not self.full:
            self.full = True
            self.note(f"[the output reached its limit of {self._limit:,} bytes]")


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
