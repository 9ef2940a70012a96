"""Each format gives its words with their structure, whatever the file is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.making import (
    make_docx,
    make_epub,
    make_odt,
    make_paragraph,
    make_pdf,
    make_pptx,
    make_xlsx,
    make_zip,
)
from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.conversations.document_texts import Place
from vibe_llms.documents.reading import DocumentReader

MAIL = b"""From: Ada <ada@example.com>
To: bob@example.com
Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=
Date: Mon, 2 Mar 2026 10:00:00 +0000
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary=B

--B
Content-Type: multipart/alternative; boundary=C

--C
Content-Type: text/plain; charset=iso-8859-1
Content-Transfer-Encoding: quoted-printable

Sch=F6n!
--C
Content-Type: text/html

<p>Not this
--C--
--B
Content-Type: application/pdf
Content-Disposition: attachment; filename="plan.pdf"

x
--B--
"""


async def test_word(reader: DocumentReader) -> None:
    formula = "<w:p><m:oMath><m:r><m:t>a+b</m:t></m:r></m:oMath></w:p>"
    cells = "".join(f"<w:tc>{make_paragraph(cell)}</w:tc>" for cell in ("x|y", "z"))
    body = make_paragraph("One", "Heading1") + make_paragraph("Text.") + formula
    body += f"<w:tbl><w:tr>{cells}</w:tr><w:tr>{cells}</w:tr></w:tbl>"
    text = await reader.read(make_docx(body, "Title"), "a.bin")
    assert (text.format, text.title) == ("word", "Title")
    assert text.text == "# One\n\nText.\n\na+b\n\n| x\\|y | z |\n| --- | --- |\n| x\\|y | z |"
    assert text.place_at(10) == Place(heading="One")


async def test_workbook(reader: DocumentReader) -> None:
    data = make_xlsx(
        {
            "Sales": [
                ["Year", "Sum"],
                [2025, 1.5],
                [],
                ["A title"],
                [],
                ["", "x", "y"],
                ["", 1, 2],
            ],
            "Empty": [],
            "More": [["End"]],
        }
    )
    text = await reader.read(data, "a.txt")
    assert text.text == (
        "## Sales\n\n| Year | Sum |\n| --- | --- |\n| 2025 | 1.5 |\n\nA title\n\n"
        "| x | y |\n| --- | --- |\n| 1 | 2 |\n\n## More\n\nEnd"
    )
    assert text.place_at(text.text.index("End")) == Place(sheet="More")


async def test_a_long_table_keeps_its_heading(reader: DocumentReader) -> None:
    rows = "\n".join(f"{n},{n * n}" for n in range(1200))
    text = await reader.read(f"n,square\n{rows}".encode(), "a.csv")
    assert text.text.count("| n | square |") == 3
    assert "| 1199 | 1437601 |" in text.text


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
async def test_csv(reader: DocumentReader, delimiter: str) -> None:
    lines = [["Name", "Words"], ["Ada", f'"one{delimiter} two"'], ["Bob", '"""hi""\nthere"']]
    data = "\n".join(delimiter.join(line) for line in lines).encode("utf-8-sig")
    text = await reader.read(data, "a.csv")
    words = f"one{delimiter} two".replace("|", "\\|").replace("\t", " ")
    assert text.text == (
        f"| Name | Words |\n| --- | --- |\n| Ada | {' '.join(words.split())} |\n"
        '| Bob | "hi" there |'
    )


async def test_slides(reader: DocumentReader) -> None:
    data = make_pptx([("Intro", ["One", "Two"]), ("End", ["Three"])], notes="Say hello")
    text = await reader.read(data, "a.pptx")
    assert text.text == "## Intro\n\nOne\nTwo\n\nNotes: Say hello\n\n## End\n\nThree"
    assert text.pages == 2
    assert text.place_at(text.text.index("Three")) == Place(2, "", "End")


async def test_opendocument(reader: DocumentReader) -> None:
    item = "<text:list-item><text:p>{}</text:p></text:list-item>"
    body = (
        '<text:h text:outline-level="2">Head</text:h><text:p>a<text:s text:c="2"/>b</text:p>'
        f"<text:list>{item.format('x')}{item.format('y')}</text:list>"
        "<table:table><table:table-row><table:table-cell><text:p>c</text:p></table:table-cell>"
        '<table:table-cell table:number-columns-repeated="2"><text:p>d</text:p></table:table-cell>'
        "</table:table-row></table:table>"
    )
    text = await reader.read(make_odt(body), "a")
    assert (text.format, text.title) == ("opendocument", "Open")
    assert text.text == ("## Head\n\na  b\n\n- x\n- y\n\n| c | d | d |\n| --- | --- | --- |")
    pages = "<draw:page><text:p>one</text:p></draw:page><draw:page><text:p>two</text:p></draw:page>"
    text = await reader.read(make_odt(pages, kind="presentation"), "a")
    assert (text.text, text.pages, text.place_at(5)) == ("one\n\ntwo", 2, Place(2))


async def test_a_book(reader: DocumentReader) -> None:
    text = await reader.read(make_epub(["<h1>One</h1><p>a", "<h1>Two</h1><p>b"]), "a")
    assert (text.format, text.title) == ("epub", "Book")
    assert text.text == "# One\n\na\n\n# Two\n\nb"


async def test_mail(reader: DocumentReader) -> None:
    text = await reader.read(MAIL, "a.eml")
    assert (text.title, text.format) == ("Grüße", "mail")
    assert text.text == (
        "From: Ada <ada@example.com>\nTo: bob@example.com\n"
        "Date: Mon, 02 Mar 2026 10:00:00 +0000\nSubject: Grüße\n\n"
        "Schön!\n\nAttachments: plan.pdf"
    )
    data = b"Subject: x\nContent-Type: text/html\n\n<h1>Head</h1><p>body"
    assert (await reader.read(data, "a.eml")).text == "Subject: x\n\n# Head\n\nbody"


async def test_html_keeps_structure(reader: DocumentReader) -> None:
    page = """<html><head><title>T &amp; U</title><style>no</style></head><body><nav>Menu</nav>
    <h1>One</h1><p>a <b>bold</b><br>word <a href="https://a.example/x">link</a></p>
    <ul><li>x<ol><li>y</li><li>z</li></ol></li></ul><pre>  code
  more</pre><table><tr><th colspan=2>h<th>i</tr><tr><td rowspan=2>1<td>2<td>3</tr>
    <tr><td>4<td>5</tr></table><p># no heading<script>no</script><img alt="A duck"></body></html>"""
    text = await reader.read(page.encode(), "a.html")
    assert text.title == "T & U"
    assert text.text == (
        "Menu\n\n# One\n\na bold\nword [link](https://a.example/x)\n\n"
        "- x\n  1. y\n  2. z\n\n```\n  code\n  more\n```\n\n"
        "| h | h | i |\n| --- | --- | --- |\n| 1 | 2 | 3 |\n| 1 | 4 | 5 |\n\n"
        "\\# no heading A duck"
    )


async def test_the_main_content_of_a_page(reader: DocumentReader) -> None:
    words = "The committee met on Tuesday and decided what to build next year. " * 10
    page = f"""<html><head><title>News</title></head><body><nav><a href=/a>Home</a></nav>
    <article><h1>Decision</h1><p>{words}</p><p>{words}</p></article>
    <footer>Copyright, imprint, cookies</footer></body></html>""".encode()
    text = await reader.read(page, "page.html", reader="page")
    assert "committee" in text.text
    assert "cookies" not in text.text
    assert "cookies" in (await reader.read(page, "page.html")).text
    short = await reader.read(b"<p>Only this", "page.html", reader="page")
    assert short.text == "Only this"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "cp1251"])
async def test_text_in_many_encodings(reader: DocumentReader, encoding: str) -> None:
    words = "Привет, как дела? Это обычный текст." if encoding == "cp1251" else "Größe, naïve café"
    text = "\n".join([words] * 20)
    assert (await reader.read(text.encode(encoding), "a.txt")).text == text


async def test_a_declared_encoding_counts(reader: DocumentReader) -> None:
    page = '<html><meta charset="shift_jis"><p>日本語'.encode("shift_jis")
    assert (await reader.read(page, "a.html")).text == "日本語"


async def test_markdown_and_code(reader: DocumentReader) -> None:
    data = b"# A\n\ntext\n\n```\n# not a heading\n```\n\n## B `c` [d](e)\n\nend"
    text = await reader.read(data, "a.md")
    assert text.text == data.decode()
    assert text.place_at(len(text.text) - 1) == Place(heading="A > B c d")
    code = b"# comment\nimport x\n\n\ndef f():\n    pass"
    text = await reader.read(code, "a.py")
    assert (text.text, text.format) == (code.decode(), "text")


async def test_the_outline_of_a_pdf_names_headings(reader: DocumentReader) -> None:
    pages = ["Cover", "1 Methods\nWe did\nData\nIt is", "on"]
    outline = [("Methods", 1), ("Data", 1)]
    text = await reader.read(make_pdf(pages, outline=outline), "a.pdf")
    headings = [
        text.place_at(text.text.index(word)).heading for word in ("Cover", "did", "is", "on")
    ]
    assert headings == ["", "Methods", "Data", "Data"]


@pytest.mark.parametrize(
    ("data", "name", "words"),
    [
        (
            b"\x89PNG\r\n\x1a\n" + bytes(100),
            "a.pdf",
            "it is of the type image/png, which cannot be read",
        ),
        (bytes(range(256)) * 4, "a.xyz", "it is of an unknown format"),
        (make_zip({"a": "b"}), "a.docx", "it is damaged or incomplete"),
        (make_zip({"a": "b"}), "a.zip", "it is of the type application/zip"),
        (b"%PDF-1.4 nonsense", "a.pdf", "it is not a valid PDF file, or it is damaged"),
    ],
    ids=["image", "unknown", "renamed", "zip", "nonsense"],
)
async def test_what_cannot_be_read_says_so(
    reader: DocumentReader, data: bytes, name: str, words: str
) -> None:
    with pytest.raises(DocumentUnreadable, match=f"^{name}: {words}"):
        await reader.read(data, name)


async def test_a_missing_file_and_special_ones_say_so(
    reader: DocumentReader, tmp_path: Path
) -> None:
    with pytest.raises(DocumentUnreadable, match=r"^a\.pdf: cannot be read: No such file"):
        await reader.read(tmp_path / "a.pdf")
    with pytest.raises(DocumentUnreadable, match=r"^null: cannot be read: it is a device"):
        await reader.read(Path("/dev/null"))
    with pytest.raises(DocumentUnreadable, match="cannot be read: Is a directory"):
        await reader.read(tmp_path)
