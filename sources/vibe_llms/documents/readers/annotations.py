"""Additions to the pages of a PDF: form fields, comments, marked text, and links."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from vibe_llms.documents.readers.drawings import describe_comment

#: Maximum number of annotations per page, and maximum characters of each.
_MOST = 2000
_LONGEST = 20_000
_MOST_OPTIONS = 1000
#: Values of a checked box that only tell that it is checked.
_CHECKED = frozenset({"", "yes", "on", "true", "1", "checked", "x", "ja", "oui", "si", "sí"})
_ADDRESS = re.compile(r"(?:https?://|mailto:)\S{1,2000}", re.IGNORECASE)
_DATE = re.compile(r"(?:D:)?(\d{4})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d)?)?")
#: Labels of annotations by the end of their kind's name in PDFium.
_MARKED = {
    "HIGHLIGHT": "Highlighted",
    "UNDERLINE": "Underlined",
    "SQUIGGLY": "Underlined",
    "STRIKEOUT": "Struck out",
    "REDACT": "Marked for removal",
}
_COMMENTS = {
    **dict.fromkeys(("TEXT", "LINE", "SQUARE", "CIRCLE", "POLYGON", "POLYLINE", "INK"), "Comment"),
    "FREETEXT": "Text box",
    "CARET": "Insertion",
    "STAMP": "Stamp",
    "FILEATTACHMENT": "File",
}


class _Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float


class PageAnnotations:
    """Reader of the annotations of a document's pages. `raw` has the functions of PDFium."""

    def __init__(self, document: Any, raw: Any) -> None:
        self._document = document
        self._raw = raw
        self._kinds = {
            getattr(raw, f"FPDF_ANNOT_{name}"): name
            for name in (*_MARKED, *_COMMENTS, "LINK", "WIDGET")
        }

    def read(self, page: Any, text_page: Any, text: str) -> str:
        """Return the additions to a page as paragraphs. `text` is the text of the page."""
        if self._raw.FPDFPage_GetAnnotCount(page) <= 0:
            return ""
        fields: list[str] = []
        comments: list[str] = []
        links: dict[str, list[str]] = {}
        radios: dict[str, str] = {}
        empty = 0
        for annotation in self._survey(page):
            match kind := self._kinds.get(self._raw.FPDFAnnot_GetSubtype(annotation), ""):
                case "WIDGET":
                    field = self._read_field(annotation, radios)
                    empty += field is None
                    fields += [field] if field else []
                case "LINK":
                    address = self._read_address(annotation)
                    if _ADDRESS.fullmatch(address) and address not in text:
                        words = self._read_marked(annotation, text_page)
                        links.setdefault(address, []).append(words)
                case "":
                    pass
                case _:
                    comments += filter(None, [self._read_comment(annotation, kind, text_page)])
        fields += [f"- {name}: {value}" for name, value in radios.items() if value]
        empty += sum(not value for value in radios.values())
        if fields and empty:
            fields.append(f"- ({empty} empty)")
        lines = [
            "- " + ": ".join(filter(None, [" ".join(filter(None, words)).rstrip(": "), address]))
            for address, words in links.items()
        ]
        return "\n\n".join(
            "\n".join([head, *group] if head else group)
            for head, group in (("Form fields:", fields), ("", comments), ("Links:", lines))
            if group
        )

    def _survey(self, page: Any) -> Iterator[Any]:
        for index in range(min(self._raw.FPDFPage_GetAnnotCount(page), _MOST)):
            if annotation := self._raw.FPDFPage_GetAnnot(page, index):
                try:
                    yield annotation
                finally:
                    self._raw.FPDFPage_CloseAnnot(annotation)

    def _read_field(self, annotation: Any, radios: dict[str, str]) -> str | None:
        """Return the line of a form field, "" for other kinds, or `None` if the field is empty.

        `radios` collects the value of each group of radio buttons.
        """
        raw, form = self._raw, self._document.formenv
        if form is None:
            return ""
        kind = raw.FPDFAnnot_GetFormFieldType(form, annotation)
        name = self._call(raw.FPDFAnnot_GetFormFieldAlternateName, form, annotation)
        name = name or self._call(raw.FPDFAnnot_GetFormFieldName, form, annotation)
        name = f"{name or 'field'}{self._describe_flags(annotation)}"
        if kind == raw.FPDF_FORMFIELD_CHECKBOX:
            checked = bool(raw.FPDFAnnot_IsChecked(form, annotation))
            value = self._call(raw.FPDFAnnot_GetFormFieldExportValue, form, annotation)
            about = "" if value.lower() in _CHECKED else f" ({value})"
            return f"- [{'x' if checked else ' '}] {name}{about}"
        if kind == raw.FPDF_FORMFIELD_RADIOBUTTON:
            value = self._call(raw.FPDFAnnot_GetFormFieldExportValue, form, annotation)
            checked = bool(raw.FPDFAnnot_IsChecked(form, annotation))
            radios[name] = (value or "checked") if checked else radios.get(name, "")
            return ""
        if kind == raw.FPDF_FORMFIELD_SIGNATURE:
            signed = bool(raw.FPDFAnnot_HasKey(annotation, b"V"))
            return f"- {name}: ({'signed' if signed else 'not signed'})"
        if kind in (raw.FPDF_FORMFIELD_PUSHBUTTON, raw.FPDF_FORMFIELD_UNKNOWN):
            return ""
        value = self._call(raw.FPDFAnnot_GetFormFieldValue, form, annotation)
        if kind == raw.FPDF_FORMFIELD_TEXTFIELD:
            flags = raw.FPDFAnnot_GetFormFieldFlags(form, annotation)
            value = "(a password)" if value and flags & raw.FPDF_FORMFLAG_TEXT_PASSWORD else value
        else:
            value = ", ".join(self._survey_selected(annotation)) or value
        return f"- {name}: {value}" if value else None

    def _survey_selected(self, annotation: Any) -> Iterator[str]:
        raw, form = self._raw, self._document.formenv
        for index in range(min(raw.FPDFAnnot_GetOptionCount(form, annotation), _MOST_OPTIONS)):
            if raw.FPDFAnnot_IsOptionSelected(form, annotation, index):
                yield self._call(raw.FPDFAnnot_GetOptionLabel, form, annotation, index)

    def _read_comment(self, annotation: Any, kind: str, text_page: Any) -> str:
        """Return the line of a comment or of marked text, or "" if it is empty."""
        contents, author, modified = (
            self._call(self._raw.FPDFAnnot_GetStringValue, annotation, key)
            for key in (b"Contents", b"T", b"M")
        )
        label = _COMMENTS.get(kind, "")
        if kind in _MARKED:
            marked = self._read_marked(annotation, text_page)
            if not (marked or contents):
                return ""
            label = f'{_MARKED[kind]} "{marked}"'
        elif not contents:
            return ""
        elif linked := self._raw.FPDFAnnot_GetLinkedAnnot(annotation, b"IRT"):
            self._raw.FPDFPage_CloseAnnot(linked)
            label = "Reply"
        label += self._describe_flags(annotation)
        return describe_comment(contents, author, _read_date(modified), label=label)

    def _read_marked(self, annotation: Any, text_page: Any) -> str:
        """Return the words of the page that an annotation covers."""
        raw = self._raw
        boxes: list[_Box] = []
        points = raw.FS_QUADPOINTSF()
        for index in range(min(raw.FPDFAnnot_CountAttachmentPoints(annotation), _MOST)):
            if raw.FPDFAnnot_GetAttachmentPoints(annotation, index, points):
                across = [getattr(points, f"x{corner}") for corner in range(1, 5)]
                up = [getattr(points, f"y{corner}") for corner in range(1, 5)]
                boxes.append(_Box(min(across), min(up), max(across), max(up)))
        if not boxes:
            area = raw.FS_RECTF()
            if raw.FPDFAnnot_GetRect(annotation, area):
                boxes = [_Box(area.left, area.bottom, area.right, area.top)]
        texts = [text_page.get_text_bounded(*box) for box in boxes]
        return " ".join(" ".join(texts).split())[:_LONGEST]

    def _read_address(self, annotation: Any) -> str:
        raw = self._raw
        link = raw.FPDFAnnot_GetLink(annotation)
        action = raw.FPDFLink_GetAction(link) if link else None
        if not action:
            return ""
        size = raw.FPDFAction_GetURIPath(self._document, action, None, 0)
        buffer = ctypes.create_string_buffer(min(size, _LONGEST))
        raw.FPDFAction_GetURIPath(self._document, action, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def _describe_flags(self, annotation: Any) -> str:
        raw = self._raw
        hidden = raw.FPDF_ANNOT_FLAG_HIDDEN | raw.FPDF_ANNOT_FLAG_NOVIEW
        return " (hidden)" if raw.FPDFAnnot_GetFlags(annotation) & hidden else ""

    def _call(self, function: Callable[..., int], *arguments: Any) -> str:
        """Return the text that a function writes into a UTF-16 buffer."""
        size = function(*arguments, None, 0)
        if size <= 2 or size > 2 * _LONGEST:
            return ""
        buffer = (ctypes.c_ushort * (size // 2))()
        function(*arguments, buffer, size)
        return " ".join(bytes(buffer).decode("utf-16-le", "replace").rstrip("\0").split())


def _read_date(text: str) -> str:
    """Return the time of an annotation as ISO 8601, or "" if it is invalid.

    >>> _read_date("D:20260131102030+01'00'"), _read_date("yesterday")
    ('2026-01-31T10:20:30', '')
    """
    if not (found := _DATE.match(text)):
        return ""
    year, month, day, hour, minute, second = found.groups()
    return f"{year}-{month}-{day}" + (f"T{hour}:{minute}:{second or '00'}" if hour else "")
