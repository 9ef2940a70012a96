"""OpenDocument files are read with merged cells, charts, changes, notes and comments."""

from __future__ import annotations

from tests.documents.making import OPEN_NAMES, make_odt
from vibe_llms.conversations.document_texts import Place
from vibe_llms.documents.reading import DocumentReader


def write(text: str) -> str:
    return f"<text:p>{text}</text:p>"


def draw_cell(text: str, about: str = "") -> str:
    return f"<table:table-cell {about}>{write(text)}</table:table-cell>"


_COVERED = "<table:covered-table-cell/>"


async def read(reader: DocumentReader, body: str, styles: str = "") -> str:
    return (await reader.read(make_odt(body, styles=styles), "a.odt")).text


async def test_merged_cells_are_repeated_in_each_cell(reader: DocumentReader) -> None:
    wide = 'table:number-columns-spanned="2"'
    tall = 'table:number-rows-spanned="2"'
    rows = [
        draw_cell("Head", wide) + _COVERED + draw_cell("tall", tall),
        draw_cell("1") + draw_cell("2") + _COVERED,
        draw_cell("3") + draw_cell("4") + draw_cell("5"),
    ]
    table = "".join(f"<table:table-row>{row}</table:table-row>" for row in rows)
    table = f"<table:table>{table}</table:table>"
    expected = "| Head | Head | tall |\n| --- | --- | --- |\n| 1 | 2 | tall |\n| 3 | 4 | 5 |"
    assert await read(reader, table) == expected
    slide = f"<draw:page><draw:frame>{table}</draw:frame></draw:page>"
    text = await reader.read(make_odt(slide, kind="presentation"), "a.odp")
    assert (text.text, text.place_at(0)) == (expected, Place(1))


async def test_a_table_in_a_cell_does_not_repeat_its_rows(reader: DocumentReader) -> None:
    inner = f"<table:table><table:table-row>{draw_cell('in')}</table:table-row></table:table>"
    cell = f"<table:table-cell>{write('out')}{inner}</table:table-cell>"
    row = f"<table:table-row>{cell}{draw_cell('b')}</table:table-row>"
    assert await read(reader, f"<table:table>{row}</table:table>") == (
        "| out in | b |\n| --- | --- |"
    )


async def test_a_chart_is_its_title_and_its_data(reader: DocumentReader) -> None:
    cells = "".join(
        f"<table:table-row>{draw_cell(a)}{draw_cell(b)}</table:table-row>"
        for a, b in (("", "Sum"), ("2025", "9.1"))
    )
    chart = (
        f'<office:chart {OPEN_NAMES}><chart:chart chart:class="chart:line">'
        f"<chart:title>{write('Sales')}</chart:title><table:table>{cells}</table:table>"
        "</chart:chart></office:chart>"
    )
    body = write('before<draw:frame><draw:object xlink:href="./Object 1"/></draw:frame>')
    data = make_odt(body, files={"Object 1/content.xml": chart})
    assert (await reader.read(data, "a.odt")).text == (
        "before\n\nLine chart: Sales\n\n|  | Sum |\n| --- | --- |\n| 2025 | 9.1 |"
    )


async def test_changes_struck_and_hidden_text_are_marked(reader: DocumentReader) -> None:
    regions = "".join(
        f'<text:changed-region text:id="{name}"><text:{kind}><office:change-info>'
        f"<dc:creator>Ada</dc:creator></office:change-info>{text}</text:{kind}>"
        "</text:changed-region>"
        for name, kind, text in (("c1", "deletion", write("ten")), ("c2", "insertion", ""))
    )
    styles = (
        '<style:style style:name="S"><style:text-properties '
        'style:text-line-through-style="solid"/></style:style><style:style style:name="H">'
        '<style:text-properties text:display="none"/></style:style>'
    )
    body = f"<text:tracked-changes>{regions}</text:tracked-changes>" + write(
        'Pay <text:change text:change-id="c1"/><text:change-start text:change-id="c2"/>twelve'
        '<text:change-end text:change-id="c2"/> or <text:span text:style-name="S">six</text:span>'
        ' <text:span text:style-name="H">never</text:span>'
    )
    text = await reader.read(make_odt(body, styles=styles), "a.odt")
    assert text.text == ("Pay <del>ten</del><ins>twelve</ins> or ~~six~~ <hidden>never</hidden>")
    assert text.notices == (
        "it has tracked changes by Ada: <ins> is around inserted text, <del> around deleted text",
        "it has hidden text: <hidden> is around it",
    )


async def test_notes_and_comments_follow_their_paragraph(reader: DocumentReader) -> None:
    note = (
        "<text:note><text:note-citation>1</text:note-citation>"
        f"<text:note-body>{write('A source')}</text:note-body></text:note>"
    )
    comment = (
        "<office:annotation><dc:creator>Ada</dc:creator><dc:date>2026-01-31</dc:date>"
        f"{write('Sure?')}</office:annotation>"
    )
    assert await read(reader, write(f"Ducks{note} swim{comment}.") + write("Next")) == (
        "Ducks[1] swim.\n\n[1] A source\n\nComment (author: Ada, time: 2026-01-31): Sure?\n\nNext"
    )


async def test_numbered_lists_have_numbers(reader: DocumentReader) -> None:
    styles = (
        '<text:list-style style:name="L"><text:list-level-style-number text:level="1" '
        'style:num-format="1"/><text:list-level-style-bullet text:level="2"/></text:list-style>'
    )
    inner = f"<text:list><text:list-item>{write('in')}</text:list-item></text:list>"
    items = [write("a") + write("more"), write("b") + inner]
    body = "".join(f"<text:list-item>{item}</text:list-item>" for item in items)
    assert await read(reader, f'<text:list text:style-name="L">{body}</text:list>', styles) == (
        "1. a\n\n  more\n\n2. b\n  - in"
    )


async def test_headers_and_footers_are_read(reader: DocumentReader) -> None:
    page = (
        f"<style:master-page><style:header>{write('Draft')}</style:header>"
        f"<style:footer>{write('7')}</style:footer></style:master-page>"
    )
    styles = f"<office:document-styles {OPEN_NAMES}>{page}{page}</office:document-styles>"
    data = make_odt(write("Text"), files={"styles.xml": styles})
    assert (await reader.read(data, "a.odt")).text == "Header: Draft\n\nText"


async def test_slides_have_titles_and_notes_and_may_be_hidden(reader: DocumentReader) -> None:
    styles = (
        '<style:style style:name="H"><style:drawing-page-properties '
        'presentation:visibility="hidden"/></style:style>'
    )
    box = "<draw:frame {}><draw:text-box>{}</draw:text-box></draw:frame>"
    title = box.format('presentation:class="title"', write("Plan"))
    notes = f"<presentation:notes>{box.format('', write('Say it'))}</presentation:notes>"
    body = f'<draw:page draw:style-name="H">{notes}{title}{box.format("", write("Do"))}</draw:page>'
    data = make_odt(body, kind="presentation", styles=styles)
    text = await reader.read(data, "a.odp")
    assert text.text == "## Plan (hidden slide)\n\nDo\n\nNotes: Say it"
    assert text.place_at(0) == Place(1, "", "Plan")
    assert text.notices == ("hidden slides, which are read too: 1",)
