"""Word files are read with what mammoth leaves out: changes, hidden text, margins, charts."""

from __future__ import annotations

import pytest

from tests.documents.making import WORD_NAMES, make_chart, make_docx, make_paragraph
from vibe_llms.documents.reading import DocumentReader


def write(text: str, properties: str = "", *, tag: str = "t") -> str:
    about = f"<w:rPr>{properties}</w:rPr>" if properties else ""
    return f'<w:r>{about}<w:{tag} xml:space="preserve">{text}</w:{tag}></w:r>'


def insert(text: str, author: str = "Ada", kind: str = "ins") -> str:
    return f'<w:{kind} w:author="{author}">{write(text)}</w:{kind}>'


def delete(text: str, author: str = "Ada") -> str:
    return f'<w:del w:author="{author}">{write(text, tag="delText")}</w:del>'


async def read(reader: DocumentReader, body: str, **parts: tuple[str, str]) -> str:
    data = make_docx(body, parts={f"{name}.xml": part for name, part in parts.items()})
    return (await reader.read(data, "a.docx")).text


async def test_tracked_changes_are_marked_and_told(reader: DocumentReader) -> None:
    changed = delete("ten") + "<w:proofErr/>" + delete("ty") + insert("twelve")
    body = f"<w:p>{write('Pay ')}{changed}{write(' euros')}</w:p>"
    text = await reader.read(make_docx(body), "a.docx")
    assert text.text == "Pay <del>tenty</del><ins>twelve</ins> euros"
    assert text.notices == (
        "it has tracked changes by Ada: <ins> is around inserted text, <del> around deleted text",
    )


async def test_changes_of_several_people_say_whose_they_are(reader: DocumentReader) -> None:
    nested = f'<w:ins w:author="Ada">{delete("c", "Bob")}</w:ins>'
    body = f"<w:p>{delete('a', 'Ada')}{delete('b', 'Bob')}{nested}</w:p>"
    assert await read(reader, body) == (
        '<del author="Ada">a</del><del author="Bob">b</del>'
        '<ins author="Ada"><del author="Bob">c</del></ins>'
    )


async def test_deleted_paragraphs_and_rows_and_moved_text_stay_in_place(
    reader: DocumentReader,
) -> None:
    gone = "<w:pPr><w:rPr><w:del w:author='Ada'/></w:rPr></w:pPr>"
    row = "<w:tr>{}<w:tc><w:p>{}</w:p></w:tc><w:tc><w:p>{}</w:p></w:tc></w:tr>"
    deleted = "<w:trPr><w:del w:author='Ada'/></w:trPr>"
    body = (
        f"<w:p>{gone}{delete('All of it')}</w:p><w:p>{gone}{write('Half')}</w:p>"
        f"<w:p>{write(' line')}</w:p>"
        f"<w:p>{insert('there', kind='moveTo')}</w:p><w:p>{insert('here', kind='moveFrom')}</w:p>"
        f"<w:tbl>{row.format('', write('a'), write('b'))}"
        f"{row.format(deleted, write('c'), delete('d'))}</w:tbl>"
    )
    assert await read(reader, body) == (
        "<del>All of it</del>\n\nHalf line\n\n<ins>there</ins>\n\n<del>here</del>\n\n"
        "| a | b |\n| --- | --- |\n| <del>c</del> | <del>d</del> |"
    )


async def test_struck_and_hidden_text_is_marked(reader: DocumentReader) -> None:
    styles = (
        f"<w:styles {WORD_NAMES}><w:style w:type='paragraph' w:styleId='Base'>"
        "<w:rPr><w:vanish/></w:rPr></w:style><w:style w:type='paragraph' w:styleId='Secret'>"
        "<w:basedOn w:val='Base'/></w:style></w:styles>"
    )
    plain = '<w:vanish w:val="0"/><w:strike w:val="false"/>'
    paragraphs = [
        write("Price 9") + write("8", "<w:strike/>") + write("7", "<w:dstrike/>"),
        write("seen ") + write("un", "<w:vanish/>") + write("seen", "<w:b/><w:vanish/>"),
        write("plain", plain),
        "<w:pPr><w:pStyle w:val='Secret'/></w:pPr>" + write("by style"),
    ]
    body = "".join(f"<w:p>{paragraph}</w:p>" for paragraph in paragraphs)
    data = make_docx(body, parts={"styles.xml": ("styles", styles)})
    text = await reader.read(data, "a.docx")
    assert text.text == (
        "Price 9~~87~~\n\nseen <hidden>unseen</hidden>\n\nplain\n\n<hidden>by style</hidden>"
    )
    assert text.notices == ("it has hidden text: <hidden> is around it",)


async def test_headers_and_footers_are_read_once(reader: DocumentReader) -> None:
    references = "".join(
        f'<w:{kind}Reference r:id="x{number}"/>'
        for number, kind in ((1, "header"), (2, "header"), (3, "footer"), (4, "footer"))
    )
    link = '<w:hyperlink r:id="x9">' + write("Draft") + "</w:hyperlink>"
    parts = {
        "h1": ("header", f"<w:hdr {WORD_NAMES}><w:p>{link}{delete('Old')}</w:p></w:hdr>"),
        "h2": ("header", f"<w:hdr {WORD_NAMES}><w:p>{link}{delete('Old')}</w:p></w:hdr>"),
        "f1": ("footer", f"<w:ftr {WORD_NAMES}>{make_paragraph('Secret')}</w:ftr>"),
        "f2": ("footer", f"<w:ftr {WORD_NAMES}>{make_paragraph('17')}</w:ftr>"),
    }
    body = f"{make_paragraph('Text')}<w:sectPr>{references}</w:sectPr>"
    assert await read(reader, body, **parts) == (
        "Header: Draft<del>Old</del>\n\nText\n\nFooter: Secret"
    )


async def test_changes_in_footnotes_and_comments_are_marked(reader: DocumentReader) -> None:
    note = f"<w:footnote w:id='1'><w:p>{insert('new')}</w:p></w:footnote>"
    notes = f"<w:footnotes {WORD_NAMES}>{note}</w:footnotes>"
    body = f"<w:p>{write('Text')}<w:r><w:footnoteReference w:id='1'/></w:r></w:p>"
    text = await read(reader, body, footnotes=("footnotes", notes))
    assert "Text[1]" in text
    assert "<ins>new</ins>" in text


async def test_a_chart_follows_its_paragraph(reader: DocumentReader) -> None:
    chart = '<c:chart xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" r:id="x1"/>'
    body = f"<w:p><w:r><w:drawing>{chart}</w:drawing></w:r></w:p>{make_paragraph('After')}"
    drawn = make_chart("pieChart", "Votes", {"Share": {"Ada": "0.6"}})
    assert await read(reader, body, chart1=("chart", drawn)) == (
        "Pie chart: Votes\n\n|  | Share |\n| --- | --- |\n| Ada | 0.6 |\n\nAfter"
    )


async def test_check_boxes_show_whether_they_are_checked(reader: DocumentReader) -> None:
    space = "http://schemas.microsoft.com/office/word/2010/wordml"
    box = (
        '<w:sdt><w:sdtPr><q:checkbox><q:checked q:val="{}"/></q:checkbox></w:sdtPr>'
        "<w:sdtContent>{}</w:sdtContent></w:sdt>"
    )
    inside = box.format(1, write("☒")) + write("Yes ") + box.format(0, write("☐")) + write("No")
    body = f'<w:p xmlns:q="{space}">{inside}</w:p>'
    assert await read(reader, body) == "[x] Yes [ ] No"


@pytest.mark.parametrize("prefix", ["w", "ns0"])
async def test_changes_and_formulas_are_found_by_any_prefix(
    reader: DocumentReader, prefix: str
) -> None:
    formula = "<m:oMathPara><m:oMath><m:r><m:t>a+b</m:t></m:r></m:oMath></m:oMathPara>"
    body = f"<w:p>{insert('x')}{formula}</w:p>".replace("w:", f"{prefix}:")
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    body = body.replace(f"<{prefix}:p>", f'<{prefix}:p xmlns:{prefix}="{space}">')
    assert await read(reader, body) == "<ins>x</ins>a+b"


async def test_struck_and_changed_text_of_html_is_marked(reader: DocumentReader) -> None:
    page = b"<p>Was <s>10</s>, is <b><del>9</del></b> <ins class=ad></ins><ins>8<ins>8</ins></ins>"
    page += b"</p><del><p>all</p><p>gone</p></del><p>kept"
    assert (await reader.read(page, "a.html")).text == (
        "Was ~~10~~, is <del>9</del> <ins>88</ins>\n\n<del>all</del>\n\n<del>gone</del>\n\nkept"
    )
