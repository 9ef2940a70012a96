"""Reading of forms with one file: bodies of the type `multipart/form-data`."""

from __future__ import annotations

from collections.abc import Mapping
from email.errors import HeaderParseError
from email.header import decode_header, make_header

from msgspec import Struct

from vibe_llms.messages.contents import repair_text
from vibe_llms.server.failures import Rejected

FORM = "multipart/form-data"
#: Maximum number of parts, as many as no client needs.
_MOST_PARTS = 100
_FILE = "file"


class FormFile(Struct, frozen=True):
    """The file of a form. `mimetype` is empty if the client does not name it."""

    data: bytes
    name: str
    mimetype: str


class UploadedForm(Struct, frozen=True):
    """A form: its text fields, and the part `file`."""

    fields: Mapping[str, str]
    file: FormFile


class _Part:
    """One part while it is read."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.data: list[bytes] = []


class _PartReader:
    """Collector of the parts that the parser finds."""

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.ended = False
        self._name = self._value = b""

    def on_part_begin(self) -> None:
        if len(self.parts) == _MOST_PARTS:
            raise Rejected(f"the form has more than {_MOST_PARTS} parts")
        self.parts.append(_Part())

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        self.parts[-1].headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1].data.append(data[start:end])

    def on_end(self) -> None:
        self.ended = True


def read_form(body: bytes, content_type: bytes) -> UploadedForm:
    """Read a form; `Rejected` says what is wrong with it."""
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != FORM.encode() or not boundary:
        raise Rejected(
            f"send the file in the part {_FILE} of a body of the type {FORM}; boundary=…",
            status=415,
            code="unsupported_media_type",
        )
    reader = _PartReader()
    names = ("part_begin", "header_field", "header_value", "header_end", "part_data", "end")
    callbacks = {f"on_{name}": getattr(reader, f"on_{name}") for name in names}
    parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
    try:
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Rejected(f"the body is not a valid form: {error}") from error
    if not reader.ended:
        raise Rejected("the body is not a valid form: it ends before its last boundary")
    return _produce_form(reader.parts)


def _produce_form(parts: list[_Part]) -> UploadedForm:
    from python_multipart.multipart import parse_options_header

    fields: dict[str, str] = {}
    file: FormFile | None = None
    for part in parts:
        _, options = parse_options_header(part.headers.get(b"content-disposition", b""))
        name, data = _decode(options.get(b"name", b"")), b"".join(part.data)
        if name != _FILE:
            fields[name] = _decode(data)
            continue
        if file is not None:
            raise Rejected("send one file in each request", param=_FILE)
        kind = part.headers.get(b"content-type", b"").decode("latin-1")
        shown = _decode(options.get(b"filename", b""))
        if shown.startswith("=?"):
            # .NET encodes names with other letters like headers of mail.
            shown = _decode_header(shown)
        file = FormFile(data, shown, kind.partition(";")[0].strip().lower())
    if file is None:
        raise Rejected(
            f"the form has no part {_FILE}", param=_FILE, code="missing_required_parameter"
        )
    return UploadedForm(fields, file)


def _decode_header(text: str) -> str:
    try:
        return repair_text(str(make_header(decode_header(text))))
    except (HeaderParseError, LookupError, UnicodeDecodeError):
        return text


def _decode(text: bytes) -> str:
    return repair_text(text.decode("utf-8", "replace"))
