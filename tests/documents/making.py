"""Small files of each format, written by hand, for the tests of the readers."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence


def make_pdf(
    pages: Sequence[str],
    *,
    title: str = "",
    outline: Sequence[tuple[str, int]] = (),
) -> bytes:
    """A PDF with lines of text on each page; `outline` has titles with the index of a page."""
    objects: list[bytes] = []

    def add(body: bytes | str) -> int:
        objects.append(body.encode("latin-1") if isinstance(body, str) else body)
        return len(objects)

    font = add("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    tree = add("")
    numbers = []
    for text in pages:
        lines = " ".join(f"({_escape(line)}) Tj T*" for line in text.split("\n")) if text else ""
        content = f"BT /F1 12 Tf 14 TL 50 750 Td {lines} ET".encode("latin-1")
        stream = add(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
        resources = f"<< /Font << /F1 {font} 0 R >> >>"
        numbers.append(
            add(
                f"<< /Type /Page /Parent {tree} 0 R /MediaBox [0 0 612 792] "
                f"/Resources {resources} /Contents {stream} 0 R >>"
            )
        )
    kids = " ".join(f"{number} 0 R" for number in numbers)
    objects[tree - 1] = f"<< /Type /Pages /Kids [{kids}] /Count {len(numbers)} >>".encode()
    marks = ""
    if outline:
        root = len(objects) + len(outline) + 1
        first = len(objects) + 1
        for index, (name, page) in enumerate(outline):
            after = f"/Next {first + index + 1} 0 R" if index + 1 < len(outline) else ""
            target = f"/Dest [{numbers[page]} 0 R]"
            add(f"<< /Title ({_escape(name)}) /Parent {root} 0 R {target} {after} >>")
        add(f"<< /First {first} 0 R /Last {root - 1} 0 R /Count {len(outline)} >>")
        marks = f"/Outlines {root} 0 R"
    catalog = add(f"<< /Type /Catalog /Pages {tree} 0 R {marks} >>")
    about = add(f"<< /Title ({_escape(title)}) >>")
    return assemble_pdf(objects, f"/Root {catalog} 0 R /Info {about} 0 R")


def assemble_pdf(objects: Sequence[bytes], trailer: str) -> bytes:
    """A PDF from the bodies of its objects, which count from 1."""
    data = io.BytesIO()
    data.write(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(data.tell())
        data.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = data.tell()
    data.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    data.writelines(b"%010d 00000 n \n" % offset for offset in offsets)
    data.write(f"trailer\n<< /Size {len(objects) + 1} {trailer} >>\n".encode())
    data.write(b"startxref\n%d\n%%%%EOF\n" % start)
    return data.getvalue()


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def make_zip(files: Mapping[str, str | bytes]) -> bytes:
    """A ZIP file with these files."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()
