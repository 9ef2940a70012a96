"""A workbook is read as it is shown, with what is hidden and what is missing in it."""

from __future__ import annotations

from tests.documents.making import make_chart, make_relations, make_xlsx
from vibe_llms.documents.reading import DocumentReader

_HEAD = '<row r="1"><c r="A1" t="inlineStr"><is><t>Head</t></is></c></row>'


async def read_cells(
    reader: DocumentReader, cells: str, *formats: str, around: tuple[str, str] = ("", "")
) -> str:
    """The second row of a sheet with these cells."""
    xml = f'{around[0]}<sheetData>{_HEAD}<row r="2">{cells}</row></sheetData>{around[1]}'
    text = await reader.read(make_xlsx({"S": []}, formats=formats, xml={"S": xml}), "a.xlsx")
    return text.text.splitlines()[-1]


async def test_errors_of_cells_are_read_whatever_they_are(reader: DocumentReader) -> None:
    cells = "".join(
        f'<c r="{column}2" t="e"><f>1/0</f><v>{error}</v></c>'
        for column, error in zip("ABC", ("#DIV/0!", "#N/A", "#SPILL!"), strict=True)
    )
    assert await read_cells(reader, cells) == "| #DIV/0! | #N/A | #SPILL! |"


async def test_a_formula_without_a_value_is_shown_and_told(reader: DocumentReader) -> None:
    cells = (
        '<c r="A2"><f>SUM(B1:B9)</f></c><c r="B2"><f>A1&amp;"x"</f><v></v></c>'
        '<c r="C2"><f t="shared" si="0"/></c><c r="D2" t="str"><f>T(A9)</f><v></v></c>'
        '<c r="E2"><f>1+1</f><v>2</v></c>'
    )
    xml = {"S": f'<sheetData>{_HEAD}<row r="2">{cells}</row></sheetData>'}
    text = await reader.read(make_xlsx({"S": []}, xml=xml), "a.xlsx")
    assert text.text.splitlines()[-1] == (
        '| =SUM(B1:B9) (not calculated) | =A1&"x" (not calculated) '
        "| =a formula (not calculated) |  | 2 |"
    )
    (notice,) = text.notices
    assert notice.startswith("3 formulas have no value, because no spreadsheet program has")


async def test_numbers_are_shown_as_their_format_says(reader: DocumentReader) -> None:
    shown = {
        ("0.0%", "0.125"): "12.5%",
        ("0 %", "0.125"): "12.5 %",
        ('_("$"* #,##0.00_);_("$"* (#,##0.00)', "-1234.5"): "-$1,234.50",
        ("#,##0.00\\ [$€-407]", "1234.567"): "1,234.57 €",
        ("00000", "1067"): "01067",
        ('0.0" kg"', "2.25"): "2.25 kg",
        ("d/m/yy;@", "45000"): "2023-03-15",
        ("yyyy-mm-dd hh:mm", "45000.5"): "2023-03-15 12:00:00",
        ("[h]:mm", "1.5"): "36:00:00",
        ("General", "0.30000000000000004"): "0.3",
    }
    cells = "".join(
        f'<c r="{chr(65 + index)}2" s="{index + 1}"><v>{value}</v></c>'
        for index, (_, value) in enumerate(shown)
    )
    row = await read_cells(reader, cells, *(code for code, _ in shown))
    assert row == f"| {' | '.join(shown.values())} |"


async def test_long_numbers_keep_their_digits(reader: DocumentReader) -> None:
    numbers = ["1234567890123456", "12345678901234567890", "1.2345678901234568E+16", "1E-7"]
    cells = "".join(
        f'<c r="{chr(65 + index)}2"><v>{number}</v></c>' for index, number in enumerate(numbers)
    )
    assert await read_cells(reader, cells) == (
        "| 1234567890123456 | 12345678901234567890 | 12345678901234568 | 1e-07 |"
    )


async def test_what_is_hidden_is_read_and_told(reader: DocumentReader) -> None:
    rows = "".join(
        f'<row r="{number}" {hidden}><c r="A{number}"><v>{number}</v></c>'
        f'<c r="B{number}"><v>5</v></c></row>'
        for number, hidden in enumerate(("", 'hidden="1"', ""), 1)
    )
    columns = '<cols><col min="2" max="2" hidden="1"/></cols>'
    data = make_xlsx(
        {"Plan": [], "Salaries": [["Ada", 9]]},
        states={"Salaries": "veryHidden"},
        xml={"Plan": f"{columns}<sheetData>{rows}</sheetData>"},
    )
    text = await reader.read(data, "a.xlsx")
    assert text.text == (
        "## Plan\n\n| 1 | 5 (hidden column) |\n| --- | --- |\n| 2 (hidden row) | 5 |\n| 3 | 5 |"
        "\n\n## Salaries (hidden sheet)\n\n| Ada | 9 |\n| --- | --- |"
    )
    assert text.notices == (
        "hidden, but read too: 1 row of 'Plan', 1 column of 'Plan', the sheet 'Salaries'",
    )


async def test_merged_cells_are_repeated_and_a_merged_title_is_text(
    reader: DocumentReader,
) -> None:
    rows = [["Sales"], ["", "2025"], ["North", "1", "2"], ["", "3", "4"]]
    merged = '<mergeCell ref="A1:C1"/><mergeCell ref="B2:C2"/><mergeCell ref="A3:A4"/>'
    inside = "".join(
        f'<row r="{number}">'
        + "".join(
            f'<c r="{"ABC"[column]}{number}" t="inlineStr"><is><t>{cell}</t></is></c>'
            for column, cell in enumerate(row)
        )
        + "</row>"
        for number, row in enumerate(rows, 1)
    )
    xml = f"<sheetData>{inside}</sheetData><mergeCells>{merged}</mergeCells>"
    data = make_xlsx({"S": []}, xml={"S": xml})
    assert (await reader.read(data, "a.xlsx")).text == (
        "## S\n\nSales\n\n|  | 2025 | 2025 |\n| --- | --- | --- |\n"
        "| North | 1 | 2 |\n| North | 3 | 4 |"
    )


async def test_rows_of_equal_cells_are_rows(reader: DocumentReader) -> None:
    data = make_xlsx({"S": [[1, 1], [2, 2]]})
    assert (await reader.read(data, "a.xlsx")).text == "## S\n\n| 1 | 1 |\n| --- | --- |\n| 2 | 2 |"


async def test_comments_and_charts_of_a_sheet_follow_its_cells(reader: DocumentReader) -> None:
    threads = "http://schemas.microsoft.com/office/spreadsheetml/2018/threadedcomments"
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    files = {
        "xl/worksheets/_rels/sheet1.xml.rels": make_relations(
            ("comments", "../comments1.xml"),
            ("threadedComment", "../threadedComments/threadedComment1.xml"),
            ("drawing", "../drawings/drawing1.xml"),
        ),
        "xl/comments1.xml": (
            f'<comments xmlns="{main}"><authors><author>Bob</author></authors><commentList>'
            '<comment ref="A1" authorId="0"><text><r><t>Old</t></r></text></comment>'
            '<comment ref="B1" authorId="0"><text><r><t>Why</t></r><r><t> so?</t></r></text>'
            "</comment></commentList></comments>"
        ),
        "xl/threadedComments/threadedComment1.xml": (
            f'<ThreadedComments xmlns="{threads}"><threadedComment ref="A1" dT="2026-01-31T10:00" '
            'personId="P"><text>Check it</text></threadedComment></ThreadedComments>'
        ),
        "xl/drawings/drawing1.xml": "<wsDr/>",
        "xl/drawings/_rels/drawing1.xml.rels": make_relations(("chart", "../charts/c.xml")),
        "xl/charts/c.xml": make_chart("lineChart", "Rain", {"mm": {"May": "3", "June": "4"}}),
    }
    text = await reader.read(make_xlsx({"S": [["a", "b"]]}, files=files), "a.xlsx")
    assert text.text == (
        "## S\n\n| a | b |\n| --- | --- |\n\nLine chart: Rain\n\n"
        "|  | mm |\n| --- | --- |\n| May | 3 |\n| June | 4 |\n\n"
        "A1: Comment (time: 2026-01-31T10:00): Check it\nB1: Comment (author: Bob): Why so?"
    )


async def test_a_long_sheet_is_read_whole(reader: DocumentReader) -> None:
    data = make_xlsx({"S": [["n", "square"], *([n, n * n] for n in range(1, 2200))]})
    text = await reader.read(data, "a.xlsx")
    assert text.text.count("| n | square |") == 5
    assert sum(line.startswith("| ") for line in text.text.splitlines()) == 2199 + 2 * 5
