"""Small files of each format, written by hand, for the tests of the readers."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from html import escape


def make_pdf(
    pages: Sequence[str],
    *,
    title: str = "",
    outline: Sequence[tuple[str, int]] = (),
    annotations: Sequence[str] = (),
    catalog: str = "",
) -> bytes:
    """A PDF with lines of text on each page; `outline` has titles with the index of a page.

    `annotations` are entries of dictionaries on the first page; those with `/FT` are form fields.
    `catalog` are other entries of the root.
    """
    objects: list[bytes] = []

    def add(body: bytes | str) -> int:
        objects.append(body.encode("latin-1") if isinstance(body, str) else body)
        return len(objects)

    font = add("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    tree = add("")
    numbers: list[int] = []
    resources = f"<< /Font << /F1 {font} 0 R >> >>"
    added = [add(f"<< /Type /Annot {one} >>") for one in annotations]
    for text in pages:
        lines = " ".join(f"({_escape(line)}) Tj T*" for line in text.split("\n")) if text else ""
        content = f"BT /F1 12 Tf 14 TL 50 750 Td {lines} ET".encode("latin-1")
        stream = add(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
        notes = f"/Annots [{' '.join(f'{one} 0 R' for one in added)}]" if not numbers else ""
        numbers.append(
            add(
                f"<< /Type /Page /Parent {tree} 0 R /MediaBox [0 0 612 792] "
                f"/Resources {resources} /Contents {stream} 0 R {notes} >>"
            )
        )
    fields = [one for one, text in zip(added, annotations, strict=True) if "/FT" in text]
    if fields:
        listed = " ".join(f"{one} 0 R" for one in fields)
        catalog += f"/AcroForm << /Fields [{listed}] /DR {resources} >>"
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
    root = add(f"<< /Type /Catalog /Pages {tree} 0 R {marks} {catalog} >>")
    about = add(f"<< /Title ({_escape(title)}) >>")
    return assemble_pdf(objects, f"/Root {root} 0 R /Info {about} 0 R")


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


_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_M = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
_KINDS = "http://schemas.openxmlformats.org/package/2006/content-types"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


_R = f'xmlns:r="{_OFFICE}"'
#: The names that parts of a DOCX file are written with.
WORD_NAMES = f"{_W} {_R}"


def make_docx(body: str, title: str = "", *, parts: Mapping[str, tuple[str, str]] = {}) -> bytes:
    """A DOCX file; the body is XML below `w:body`.

    `parts` are other files in `word/`: the kind of each, and its XML. The body refers to them as
    `x1`, `x2` and so on.
    """
    relations = make_relations(*((kind, path) for path, (kind, _) in parts.items()))
    return make_zip(
        {
            "word/_rels/document.xml.rels": relations,
            **{f"word/{path}": xml for path, (_, xml) in parts.items()},
            "[Content_Types].xml": (
                f'<Types xmlns="{_KINDS}"><Default Extension="xml" ContentType="application/xml"/>'
                '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.'
                'relationships+xml"/></Types>'
            ),
            "_rels/.rels": (
                f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="r1" '
                f'Type="{_OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>'
            ),
            "word/document.xml": f"<w:document {_W} {_M} {_R}><w:body>{body}</w:body></w:document>",
            "docProps/core.xml": (
                f'<p xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></p>'
            ),
        }
    )


def make_paragraph(text: str, style: str = "") -> str:
    """A paragraph of a DOCX file; the style is such as `Heading1`."""
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


def make_xlsx(
    sheets: Mapping[str, Sequence[Sequence[str | float]]],
    *,
    formats: Sequence[str] = (),
    states: Mapping[str, str] = {},
    xml: Mapping[str, str] = {},
    files: Mapping[str, str] = {},
) -> bytes:
    """An XLSX file with these cells.

    `formats` are the number formats that cells refer to by their style, from 1 on. `states` says
    which sheets are hidden. `xml` replaces what is in the `worksheet` of a sheet. `files` are added
    or replace others.
    """
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    entries, made = "", {}
    relations = f'<Relationship Id="s" Type="{_OFFICE}/styles" Target="styles.xml"/>'
    for number, (name, rows) in enumerate(sheets.items(), 1):
        state = f'state="{states[name]}"' if name in states else ""
        entries += f'<sheet name="{name}" sheetId="{number}" {state} r:id="r{number}"/>'
        relations += (
            f'<Relationship Id="r{number}" Type="{_OFFICE}/worksheet" '
            f'Target="worksheets/sheet{number}.xml"/>'
        )
        lines = ""
        for row, cells in enumerate(rows, 1):
            drawn = ""
            for column, cell in enumerate(cells):
                place = f"{chr(65 + column)}{row}"
                if isinstance(cell, str):
                    text = f"<is><t>{cell}</t></is>"
                    drawn += f'<c r="{place}" t="inlineStr">{text}</c>' if cell else ""
                else:
                    drawn += f'<c r="{place}"><v>{cell}</v></c>'
            lines += f'<row r="{row}">{drawn}</row>'
        inside = xml.get(name, f"<sheetData>{lines}</sheetData>")
        made[f"xl/worksheets/sheet{number}.xml"] = (
            f'<worksheet xmlns="{main}" xmlns:r="{_OFFICE}">{inside}</worksheet>'
        )
    codes = "".join(
        f'<numFmt numFmtId="{number}" formatCode="{escape(code, quote=True)}"/>'
        for number, code in enumerate(formats, 164)
    )
    styles = "".join(f'<xf numFmtId="{164 + number}"/>' for number in range(len(formats)))
    return make_zip(
        {
            "[Content_Types].xml": f'<Types xmlns="{_KINDS}"></Types>',
            "_rels/.rels": (
                f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="r1" '
                f'Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
            ),
            "xl/workbook.xml": (
                f'<workbook xmlns="{main}" xmlns:r="{_OFFICE}"><sheets>{entries}</sheets>'
                "</workbook>"
            ),
            "xl/_rels/workbook.xml.rels": (
                f'<Relationships xmlns="{_RELATIONS}">{relations}</Relationships>'
            ),
            "xl/styles.xml": (
                f'<styleSheet xmlns="{main}"><numFmts>{codes}</numFmts>'
                f'<cellXfs><xf numFmtId="0"/>{styles}</cellXfs></styleSheet>'
            ),
            **made,
            **files,
        }
    )


def make_relations(*targets: tuple[str, str]) -> str:
    """The relations of a file of Office: for each other file its kind and its path."""
    lines = "".join(
        f'<Relationship Id="x{number}" Type="{_OFFICE}/{kind}" Target="{path}"/>'
        for number, (kind, path) in enumerate(targets, 1)
    )
    return f'<Relationships xmlns="{_RELATIONS}">{lines}</Relationships>'


def make_chart(kind: str, title: str, series: Mapping[str, Mapping[str, str]]) -> str:
    """A chart of Office; each series has the values of its labels."""
    drawn = ""
    for name, points in series.items():
        texts = {"tx": [name], "cat": [*points], "val": [*points.values()]}
        drawn += "<c:ser>"
        for tag, values in texts.items():
            cached = "".join(
                f'<c:pt idx="{index}"><c:v>{value}</c:v></c:pt>'
                for index, value in enumerate(values)
            )
            drawn += f"<c:{tag}><c:strRef><c:strCache>{cached}</c:strCache></c:strRef></c:{tag}>"
        drawn += "</c:ser>"
    names = (
        'xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" '
        'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
    )
    head = f"<c:title><c:tx><c:rich><a:p><a:r><a:t>{title}</a:t></a:r></a:p></c:rich></c:tx>"
    return (
        f"<c:chartSpace {names}><c:chart>{head}</c:title><c:plotArea><c:{kind}>{drawn}</c:{kind}>"
        "</c:plotArea></c:chart></c:chartSpace>"
    )


def make_pptx(
    slides: Sequence[tuple[str, Sequence[str]]],
    notes: str = "",
    *,
    shapes: str = "",
    files: Mapping[str, str] = {},
) -> bytes:
    """A PPTX file: the title and the paragraphs of each slide.

    The notes, and the XML of other `shapes`, belong to the first. `files` are added or replace
    others.
    """
    drawing = "http://schemas.openxmlformats.org/drawingml/2006/main"
    names = (
        f'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" xmlns:a="{drawing}"'
    )
    made = {"[Content_Types].xml": f'<Types xmlns="{_KINDS}"></Types>'}
    entries, relations = "", ""
    for number, (title, lines) in enumerate(slides, 1):
        entries += f'<p:sldId id="{number}" r:id="r{number}"/>'
        relations += f'<Relationship Id="r{number}" Target="slides/slide{number}.xml"/>'
        boxes = [f'<p:nvSpPr><p:nvPr><p:ph type="title"/></p:nvPr></p:nvSpPr>{_draw([title])}']
        boxes.append(_draw(lines))
        drawn = "".join(f"<p:sp>{box}</p:sp>" for box in boxes)
        drawn += shapes if number == 1 else ""
        made[f"ppt/slides/slide{number}.xml"] = (
            f'<p:sld {names} xmlns:r="{_OFFICE}">{drawn}</p:sld>'
        )
    made["ppt/presentation.xml"] = (
        f'<p:presentation {names} xmlns:r="{_OFFICE}">{entries}</p:presentation>'
    )
    made["ppt/_rels/presentation.xml.rels"] = (
        f'<Relationships xmlns="{_RELATIONS}">{relations}</Relationships>'
    )
    if notes:
        made["ppt/slides/_rels/slide1.xml.rels"] = (
            f'<Relationships xmlns="{_RELATIONS}"><Relationship Id="n" '
            'Target="../notesSlides/notes1.xml"/></Relationships>'
        )
        made["ppt/notesSlides/notes1.xml"] = (
            f"<p:notes {names}><p:sp>{_draw([notes])}</p:sp></p:notes>"
        )
    return make_zip({**made, **files})


def _draw(lines: Sequence[str]) -> str:
    return "".join(f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in lines)


_OPEN = "urn:oasis:names:tc:opendocument:xmlns:"
#: The names that parts of OpenDocument files are written with.
OPEN_NAMES = " ".join(
    [
        *(
            f'xmlns:{one}="{_OPEN}{one}:1.0"'
            for one in ("text", "table", "office", "style", "chart", "presentation")
        ),
        f'xmlns:draw="{_OPEN}drawing:1.0"',
        'xmlns:dc="http://purl.org/dc/elements/1.1/"',
        'xmlns:xlink="http://www.w3.org/1999/xlink"',
    ]
)


def make_odt(
    body: str, *, kind: str = "text", styles: str = "", files: Mapping[str, str] = {}
) -> bytes:
    """An ODT or ODP file; the body is XML with the prefixes of the format.

    `styles` are those of the content, and `files` are added or replace others.
    """
    return make_zip(
        {
            "mimetype": f"application/vnd.oasis.opendocument.{kind}",
            "content.xml": (
                f"<office:document-content {OPEN_NAMES}><office:automatic-styles>{styles}"
                f"</office:automatic-styles><office:body>{body}</office:body>"
                "</office:document-content>"
            ),
            "meta.xml": (
                '<meta xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Open</dc:title></meta>'
            ),
            **files,
        }
    )


def make_epub(chapters: Sequence[str], title: str = "Book") -> bytes:
    """An EPUB book; the chapters are HTML bodies."""
    items = "".join(f'<item id="c{n}" href="c%20{n}.xhtml"/>' for n in range(len(chapters)))
    order = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    return make_zip(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": (
                '<container><rootfile full-path="O/package.opf"/></container>'
            ),
            "O/package.opf": f"<package><title>{title}</title>{items}{order}</package>",
            **{
                f"O/c {n}.xhtml": f"<html><body>{chapter}</body></html>"
                for n, chapter in enumerate(chapters)
            },
        }
    )
