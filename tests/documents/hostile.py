"""Documents that mean harm, or are damaged: each with what must come of it.

`survey()` gives all of them. They are made here, because most are too large or too odd to be kept.
"""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator

from msgspec import Struct

from tests.documents.making import (
    WORD_NAMES,
    assemble_pdf,
    make_docx,
    make_epub,
    make_odt,
    make_paragraph,
    make_pdf,
    make_pptx,
    make_xlsx,
    make_zip,
)

MEBIBYTE = 1024**2
DAMAGED = "it is damaged or"
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)


class Case(Struct, frozen=True):
    """A file, which may have to be made first, and its outcome.

    With `text`, the file is read, and its text has these words; otherwise `error` is a pattern of
    the error, or of the text where libraries may differ. `complete` says whether all of the text is
    read, if that is certain. `absent` must not be in the outcome.
    """

    label: str
    name: str
    data: bytes | Callable[[], bytes]
    error: str = ""
    text: str | None = None
    complete: bool | None = None
    absent: str = ""


def survey() -> Iterator[Case]:
    """All cases."""
    for make in (make_texts, make_tables, make_pages, make_pdfs, make_archives, make_mails):
        yield from make()


def make_texts() -> Iterator[Case]:
    noise = random.Random(1).randbytes(4096)
    yield Case("empty", "a.txt", b"", "it is empty")
    yield Case("blank", "a.txt", b" \n\t\n" * 100, "it has no text")
    yield Case("zeros", "a.txt", bytes(MEBIBYTE), "unknown format|not text")
    yield Case("noise", "a.txt", noise, "unknown format|not text")
    yield Case("latin", "a.txt", "Größe und Maß".encode("latin-1") * 20, text="Größe")
    yield Case("odd-utf16", "a.txt", "words".encode("utf-16") + b"\x41", text="words")
    yield Case("surrogates", "a.txt", b"before \xed\xa0\x80 after " * 9, text="before")
    yield Case("one-line", "a.txt", b"x" * 3 * MEBIBYTE, text="x" * 1000, complete=False)
    yield Case("escapes", "a.txt", b"red \x1b[31m\x1b]0;title\x07 text", text="red \x1b[31m")
    yield Case("name-newlines", "a\n\x1b[2Jb\r.txt", b"words", text="words")
    yield Case("name-long", "a" * 5000 + ".md", b"words", text="words")
    yield Case("name-odd", "..", b"words", text="words")
    yield Case("name-null", "a\0.pdf", b"words", text="words")
    yield Case("deep-json", "a.json", b"[" * 200_000, text="[[[")
    yield Case("many-headings", "a.md", b"# a\n" * 50_000, text="# a")
    yield Case("heading-spaces", "a.md", b"# " + b" \t" * 100_000 + b"x #", text="x")
    yield Case("heading-marks", "a.md", b"# " + b"[" * 50_000, text="[[[")
    yield Case("open-fence", "a.md", b"```\n# no\n" + b"~~~\n`````\n" * 9, text="# no")
    yield Case("large", "a.txt", lambda: bytes(65 * MEBIBYTE), "it is larger than 64 MiB")


def make_tables() -> Iterator[Case]:
    yield Case("csv-cell", "a.csv", b"a,b\n1," + b"x" * 900_000, text="x" * 1000)
    wide = b"a\n" * 400 + b"," * 300_000 + b"end"
    yield Case("csv-wide", "a.csv", wide, text="end")
    yield Case("csv-quote", "a.csv", b'a,b\n"never closed,' + b"x,\n" * 1000, text="never closed")
    yield Case("csv-null", "a.csv", b"a,b\nx\0y,z" + b" words" * 100, text="words")
    yield Case("csv-delimiters", "a.csv", b",;\t|" * 10_000, "no text|;")
    yield Case(
        "csv-ragged", "a.csv", b"".join(b"x," * (n % 50) + b"\n" for n in range(9999)), text="x"
    )
    corner = make_xlsx({"S": [["a"]]}).replace(b"", b"")
    yield Case("xlsx-corner", "a.xlsx", _patch(corner, "sheet1", b'r="A1"', b'r="XFD1048576"'))
    far = _patch(make_xlsx({"S": [["a", "b"]]}), "sheet1", b'r="B1"', b'r="XFD1048576"')
    yield Case("xlsx-far", "a.xlsx", far, text="b", complete=True)
    merged = '<sheetData><row r="1"><c r="A1"><v>1</v></c></row></sheetData>'
    merged += '<mergeCell ref="A1:XFD1048576"/>' * 200_000
    yield Case("xlsx-merged", "a.xlsx", make_xlsx({"S": []}, xml={"S": merged}), text="1")
    digits = (
        '<sheetData><row r="9999999999999"><c r="A1"><v>9e999</v></c><c r="ZZZZZZ9"><v>7</v></c>'
    )
    digits += f'<c r="B1"><v>{"9" * 100_000}</v></c></row></sheetData>'
    yield Case("xlsx-digits", "a.xlsx", make_xlsx({"S": []}, xml={"S": digits}), text="9999")
    lost = _patch(make_xlsx({"S": [["a"]]}), "workbook.xml.rels", b"sheet1.xml", b"sheet7.xml")
    yield Case("xlsx-lost", "a.xlsx", lost, "cannot be read|not a valid spreadsheet")
    yield Case("xlsx-cut", "a.xlsx", make_xlsx({"S": [["a"]]})[:-300], "damaged")
    shared = make_zip(
        {**_unzip(make_xlsx({"S": [["a"]]})), "xl/sharedStrings.xml": b"<sst><si><t>"}
    )
    yield Case("xlsx-strings", "a.xlsx", shared, "its XML is not valid")
    repeated = (
        '<office:spreadsheet><table:table table:name="S"><table:table-row '
        'table:number-rows-repeated="1048576"><table:table-cell office:value-type="string" '
        'table:number-columns-repeated="16384"><text:p>x</text:p></table:table-cell>'
        "</table:table-row></table:table></office:spreadsheet>"
    )
    ods = make_odt(repeated, kind="spreadsheet")
    yield Case("ods-repeated", "a.ods", ods, "its reader crashed|memory|took more|spreadsheet")


def make_pages() -> Iterator[Case]:
    many = 20_000
    yield Case("html-deep", "a.html", b"<html>" + b"<div>" * many + b"deep", text="deep")
    yield Case("html-inline", "a.html", b"<html>" + b"<b><i>" * 5000 + b"deep", text="deep")
    tables = b"<html>" + b"<table><tr><td>" * 2000 + b"core"
    yield Case("html-tables", "a.html", tables, text="core")
    lists = b"<html>" + b"<ul><li>" * 5000 + b"core"
    yield Case("html-lists", "a.html", lists, text="core")
    span = b'<html><table><tr><td colspan=999999999 rowspan="99999999999">x<td>y<tr><td>z</table>'
    yield Case("html-span", "a.html", span, text="| z |")
    yield Case("html-entities", "a.html", b"<html>&#x110000;&#0;&bogus;&amp;x" * 999, text="&x")
    attribute = b'<html><p title="' + b"x" * 3 * MEBIBYTE + b'">words'
    yield Case("html-attribute", "a.html", attribute, text="words")
    yield Case(
        "html-comment", "a.html", b"<html>words<!-- never closed " + b"x" * 9999, text="words"
    )
    yield Case("html-nulls", "a.html", b"<html><p>wor\0ds \xff\xfe more", text="more")
    for charset in (b"bogus", b"rot13", b"punycode", b"utf-16", b"zlib"):
        page = b"<html><meta charset=%s><p>words " % charset + b"more-" * 20_000
        yield Case(f"html-{charset.decode()}", "a.html", page, text="words")
    yield Case("html-pre", "a.html", b"<html><pre>" + b"`" * 500_000, text="```")
    options = b"<html><select>" + b"<option>x" * 10_000
    yield Case("html-options", "a.html", options, text="x")


def make_pdfs() -> Iterator[Case]:
    plain = make_pdf(["words"])
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] %s >>"
    catalog = b"<< /Type /Catalog /Pages 2 0 R >>"
    root = "/Root 1 0 R"
    font = (
        b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    )
    tree = b"<< /Type /Pages /Kids [%s] /Count %d >>"

    def with_content(content: bytes, more: bytes = b"", resources: bytes = font) -> bytes:
        stream = b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(content), more, content)
        one = page % (resources + b" /Contents 4 0 R")
        return assemble_pdf([catalog, tree % (b"3 0 R", 1), one, stream], root)

    yield Case("pdf-header", "a.pdf", b"%PDF-1.7\n", "not a valid PDF")
    yield Case("pdf-cut", "a.pdf", plain[: len(plain) // 2], "not a valid PDF|no text")
    yield Case("pdf-tail", "a.pdf", plain[:-20], text="words")
    yield Case("pdf-as-text", "a.txt", plain, text="words", complete=True)
    yield Case("pdf-as-docx", "a.docx", plain, text="words")
    cyclic = assemble_pdf([catalog, tree % (b"2 0 R 2 0 R", 2)], root)
    yield Case("pdf-cyclic-pages", "a.pdf", cyclic, "none of its pages can be read")
    lie = assemble_pdf([catalog, tree % (b"3 0 R", 100_000), page % b""], root)
    yield Case("pdf-count", "a.pdf", lie, "no text|not a valid PDF")
    kids = b"3 0 R " * 100_000
    content = b"BT /F1 12 Tf 50 700 Td (words) Tj ET"
    stream = b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content)
    one = page % (font + b" /Contents 4 0 R")
    endless = assemble_pdf([catalog, tree % (kids, 100_000), one, stream], root)
    yield Case("pdf-many-pages", "a.pdf", endless, text="words", complete=False)
    yield Case(
        "pdf-many-scans",
        "a.pdf",
        assemble_pdf([catalog, tree % (kids, 100_000), page % b""], root),
        "only the first|no text",
    )
    marks = b"<< /Title (x) /Parent 4 0 R /Next 5 0 R /First 5 0 R /Dest [3 0 R] >>"
    outlined = [
        b"<< /Type /Catalog /Pages 2 0 R /Outlines 4 0 R >>",
        *(tree % (b"3 0 R", 1), page % (font + b" /Contents 6 0 R")),
        *(b"<< /First 5 0 R /Last 5 0 R >>", marks, stream),
    ]
    yield Case("pdf-cyclic-outline", "a.pdf", assemble_pdf(outlined, root), text="words")
    flate = b"/Filter [/FlateDecode /FlateDecode]"

    def make_bomb() -> bytes:
        bomb = content + b" " * 100 * MEBIBYTE
        return with_content(zlib.compress(zlib.compress(bomb, 1), 1), flate)

    yield Case("pdf-bomb", "a.pdf", make_bomb, "crashed|memory|no text|took more|words")
    loop = plain.replace(b"/Root", b"/Prev 9 /Root", 1)
    yield Case("pdf-xref-loop", "a.pdf", loop, text="words")
    locked = b"<< /Filter /Unknown /V 9 /R 9 /O (x) /U (x) /P -4 >>"
    strange = assemble_pdf(
        [catalog, tree % (b"3 0 R", 1), page % b"", locked], f"{root} /Encrypt 4 0 R"
    )
    yield Case("pdf-handler", "a.pdf", strange, "not a valid PDF|password|security")
    huge = plain.replace(b"[0 0 612 792]", b"[0 0 1e38 9e99999]")
    yield Case("pdf-box", "a.pdf", huge, text="words")
    repeated = b"BT /F1 12 Tf 50 700 Td " + b"(words words words) Tj T* " * 60_000 + b"ET"
    yield Case("pdf-long-page", "a.pdf", with_content(repeated), text="words")
    form = b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 4 0 R >> >>"
    inside = b"/Resources << /XObject << /X 4 0 R >> >>"
    yield Case("pdf-cyclic-form", "a.pdf", with_content(b"/X Do", form, inside), "no text")
    broken = font.replace(b"/Helvetica", b"/Odd /FontDescriptor << /FontFile 4 0 R >>")
    yield Case("pdf-font", "a.pdf", with_content(content, resources=broken), text="words")
    nested = with_content(b"[" * 100_000 + b"(x)" + b"]" * 100_000)
    yield Case("pdf-deep-array", "a.pdf", nested, "no text|crashed")
    script = plain.replace(
        b"/Type /Catalog", b"/Type /Catalog /OpenAction << /S /Launch /F (/bin/sh) >>"
    )
    yield Case("pdf-launch", "a.pdf", script, text="words")


def make_archives() -> Iterator[Case]:
    files = _unzip(make_docx(make_paragraph("words")))
    size = struct.pack("<I", len(files["word/document.xml"]))
    # The size of a file stands in its head, and again in the list of files at the end.
    bomb = make_zip(files).replace(size, struct.pack("<I", 2**32 - 16))
    yield Case("docx-bomb", "a.docx", bomb, "it unpacks to more than")
    lying = make_zip(files).replace(size, struct.pack("<I", 5))
    yield Case("docx-lie", "a.docx", lying, "damaged")

    def make_fat() -> bytes:
        return make_zip({**files, "word/document.xml": b"<w>" + b" " * 4 * MEBIBYTE})

    yield Case("docx-fat", "a.docx", make_fat, "memory|crashed|damaged|not valid|took more")
    many = {**files, **{f"f/{number}": b"" for number in range(25_000)}}
    yield Case("docx-many", "a.docx", lambda: make_zip(many), "20,000 files")
    yield Case(
        "zip-in-zip",
        "a.zip",
        make_zip({"b.zip": make_zip({"c": bytes(MEBIBYTE)})}),
        "application/zip",
    )
    yield Case("docx-cut", "a.docx", make_docx(make_paragraph("words"))[:-100], "damaged")
    yield Case(
        "docx-lost", "a.docx", make_zip({"[Content_Types].xml": "", "word/x": ""}), "damaged"
    )
    yield Case("docx-text", "a.docx", b"only words", text="only words")
    yield Case(
        "docx-locked", "a.docx", OLE + "EncryptedPackage".encode("utf-16-le"), "it is encrypted"
    )
    yield Case("doc-old", "a.doc", OLE + "WordDocument".encode("utf-16-le"), "application/msword")
    deep = make_docx("<w:sdt><w:sdtContent>" * 50_000)
    yield Case("docx-deep-open", "a.docx", deep, "not valid|damaged")
    closed = "<w:sdt><w:sdtContent>" * 20_000 + "</w:sdtContent></w:sdt>" * 20_000
    yield Case("docx-deep", "a.docx", make_docx(closed), "nested|crashed|no text")
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    laughing = f'<!DOCTYPE x [<!ENTITY l0 "ha">{laughs}]><w>&l11;</w>'
    yield Case(
        "docx-laughs",
        "a.docx",
        make_zip({**files, "word/document.xml": laughing}),
        "damaged|not valid|crashed|memory",
    )
    outside = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>' + files[
        "word/document.xml"
    ].decode().replace("words", "words &e;")
    entity = make_zip({**files, "word/document.xml": outside})
    yield Case("docx-entity", "a.docx", entity, "damaged|not valid|words", absent="root:")
    up = make_zip({**files, "../../etc/x": b"y"})
    yield Case("docx-upwards", "a.docx", up, text="words")
    nested = "<w:tbl><w:tr><w:tc>" * 3000 + make_paragraph("core") + "</w:tc></w:tr></w:tbl>" * 3000
    yield Case("docx-tables", "a.docx", make_docx(nested), "nested|crashed|core")
    span = '<w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val="999999999"/></w:tcPr>'
    wide = make_docx(span + make_paragraph("x") + "</w:tc></w:tr></w:tbl>")
    yield Case("docx-span", "a.docx", wide, text="x")
    locked = bytearray(make_docx(make_paragraph("words")))
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = locked.find(mark)
        while start >= 0:
            locked[start + place] |= 1
            start = locked.find(mark, start + 4)
    yield Case("docx-flag", "a.docx", bytes(locked), "encrypted")
    slides = make_pptx([("Title", ["words"])])
    loop = _patch(slides, "presentation.xml.rels", b"slides/slide1.xml", b"presentation.xml")
    yield Case("pptx-loop", "a.pptx", loop, "no text")
    lost = _patch(slides, "presentation.xml.rels", b"slides/slide1.xml", b"slides/none.xml")
    yield Case("pptx-lost", "a.pptx", lost, "no text")
    bent = _patch(slides, "slide1.xml", b"</p:sld>", b"")
    yield Case("pptx-bent", "a.pptx", bent, "XML is not valid")
    spaces = make_odt('<text:p>a<text:s text:c="999999999"/>b</text:p>')
    yield Case("odt-spaces", "a.odt", spaces, text="b")
    lists = "<text:list><text:list-item>" * 20_000 + "<text:p>core</text:p>"
    lists += "</text:list-item></text:list>" * 20_000
    yield Case("odt-deep", "a.odt", make_odt(lists), text="core")
    cells = '<table:table><table:table-row><table:table-cell table:number-columns-repeated="{0}">'
    cells += "<text:p>x</text:p></table:table-cell></table:table-row></table:table>"
    yield Case("odt-columns", "a.odt", make_odt(cells.format(10**9)), text="| x |")
    frames = (
        "<text:p><draw:text-box>" * 500
        + "<text:p>core</text:p>"
        + "</draw:text-box></text:p>" * 500
    )
    yield Case("odt-frames", "a.odt", make_odt(frames), text="core")
    above = '<table:table><table:table-row><table:table-cell table:number-columns-spanned="{0}" '
    above += 'table:number-rows-spanned="{0}"><text:p>x</text:p></table:table-cell>'
    above += "</table:table-row><table:table-row><table:covered-table-cell/></table:table-row>"
    spans = make_odt(above.format(10**9) + "</table:table>")
    yield Case("odt-spans", "a.odt", spans, text="| x | x |")
    itself = '<text:p><draw:frame><draw:object xlink:href="."/></draw:frame>core</text:p>' * 5000
    yield Case("odt-objects", "a.odt", make_odt(itself), text="core")
    changed = "<w:p>" + "<w:ins><w:del>" * 400 + "<w:r><w:delText>core</w:delText></w:r>"
    tracked = make_docx(changed + "</w:del></w:ins>" * 400 + "</w:p>")
    yield Case("docx-changes", "a.docx", tracked, "nested|crashed|core")
    based = "".join(
        f'<w:style w:type="paragraph" w:styleId="s{n}"><w:basedOn w:val="s{(n + 1) % 5000}"/>'
        "</w:style>"
        for n in range(5000)
    )
    styles = {"styles.xml": ("styles", f"<w:styles {WORD_NAMES}>{based}</w:styles>")}
    cyclic = make_docx(make_paragraph("words", "s1"), parts=styles)
    yield Case("docx-cyclic-styles", "a.docx", cyclic, text="words")
    book = _patch(
        make_epub(["words"]),
        "package.opf",
        b'<itemref idref="c0"/>',
        b'<itemref idref="c0"/>' * 50_000,
    )
    yield Case("epub-spine", "a.epub", book, text="words")
    yield Case("epub-lost", "a.epub", make_zip({"mimetype": "application/epub+zip"}), "damaged")
    away = _patch(make_epub(["words"]), "package.opf", b"c%200.xhtml", b"../../../etc/passwd")
    yield Case("epub-upwards", "a.epub", away, "no text")


def make_mails() -> Iterator[Case]:
    parts = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (number, number)
        for number in range(3000)
    )
    yield Case("mail-deep", "a.eml", b"Subject: x\n" + parts + b"\nwords", "nested|x|crashed")
    yield Case(
        "mail-charset",
        "a.eml",
        b"Subject: x\nContent-Type: text/plain; charset=bogus\n\nwords",
        text="words",
    )
    base64 = b"Subject: x\nContent-Transfer-Encoding: base64\n\n%%%%not base64"
    yield Case("mail-base64", "a.eml", base64, text="Subject: x")
    yield Case("mail-header", "a.eml", b"Subject: " + b"x" * 500_000 + b"\n\nwords", text="words")
    yield Case("mail-none", "a.eml", b"no headers here", "no headers|not a mail")
    for kind, data in {
        "png": b"\x89PNG\r\n\x1a\n" + bytes(99),
        "gzip": b"\x1f\x8b\x08" + bytes(99),
        "elf": b"\x7fELF\x02\x01\x01" + bytes(99),
        "bmp-words": b"BMW makes cars. " * 9,
    }.items():
        error = "" if kind == "bmp-words" else "which cannot be read"
        yield Case(kind, "a.pdf", data, error, "BMW" if not error else None)


def _unzip(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _patch(data: bytes, name: str, old: bytes, new: bytes) -> bytes:
    """A ZIP file with other bytes in the files whose names end so."""
    files = _unzip(data)
    return make_zip(
        {
            one: content.replace(old, new) if name in one else content
            for one, content in files.items()
        }
    )
