"""A slide is read with its charts, diagrams, merged cells, comments, and what is hidden."""

from __future__ import annotations

import pytest

from tests.documents.making import make_chart, make_pptx, make_relations
from vibe_llms.documents.reading import DocumentReader

_GRAPHIC = (
    "<p:graphicFrame><a:graphic><a:graphicData>{}</a:graphicData></a:graphic></p:graphicFrame>"
)
_CHART = '<c:chart xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" r:id="x1"/>'
_DIAGRAM = 'xmlns:dgm="http://schemas.openxmlformats.org/drawingml/2006/diagram"'


def write(text: str) -> str:
    return f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>"


def draw(shapes: str, files: dict[str, str] | None = None, *targets: tuple[str, str]) -> bytes:
    """A slide with other shapes, and the files that it refers to."""
    made = {"ppt/slides/_rels/slide1.xml.rels": make_relations(*targets), **(files or {})}
    return make_pptx([("Title", [])], shapes=shapes, files=made)


async def test_a_chart_is_its_title_and_its_data(reader: DocumentReader) -> None:
    series = {"Mallards": {"2024": "120", "2025": "0.30000000000000004"}, "Eiders": {"2024": "7"}}
    chart = make_chart("bar3DChart", "Ducks", series)
    data = draw(_GRAPHIC.format(_CHART), {"ppt/charts/c.xml": chart}, ("chart", "../charts/c.xml"))
    assert (await reader.read(data, "a.pptx")).text == (
        "## Title\n\nBar chart: Ducks\n\n"
        "|  | Mallards |\n| --- | --- |\n| 2024 | 120 |\n| 2025 | 0.3 |\n\n"
        "|  | Eiders |\n| --- | --- |\n| 2024 | 7 |"
    )


async def test_series_of_the_same_labels_are_columns_of_one_table(reader: DocumentReader) -> None:
    series = {"A": {"x": "1", "y": "2"}, "B": {"x": "3", "y": "4"}}
    data = draw(
        _GRAPHIC.format(_CHART),
        {"ppt/charts/c.xml": make_chart("oddChart", "", series)},
        ("chart", "../charts/c.xml"),
    )
    assert (await reader.read(data, "a.pptx")).text == (
        "## Title\n\nChart\n\n|  | A | B |\n| --- | --- | --- |\n| x | 1 | 3 |\n| y | 2 | 4 |"
    )


async def test_a_chart_of_a_newer_kind(reader: DocumentReader) -> None:
    space = "http://schemas.microsoft.com/office/drawing/2014/chartex"
    chart = (
        f'<cx:chartSpace xmlns:cx="{space}"><cx:chartData><cx:data id="0">'
        '<cx:strDim type="cat"><cx:lvl><cx:pt idx="0">Start</cx:pt><cx:pt idx="1">Rent</cx:pt>'
        '</cx:lvl></cx:strDim><cx:numDim type="val"><cx:lvl formatCode="0%">'
        '<cx:pt idx="0">1</cx:pt><cx:pt idx="1">-0.25</cx:pt></cx:lvl></cx:numDim></cx:data>'
        "</cx:chartData><cx:chart><cx:plotArea><cx:series><cx:tx><cx:txData><cx:v>Cash</cx:v>"
        '</cx:txData></cx:tx><cx:dataId val="0"/></cx:series></cx:plotArea></cx:chart>'
        "</cx:chartSpace>"
    )
    choice = _CHART.replace("http://schemas.openxmlformats.org/drawingml/2006/chart", space)
    shapes = (
        '<mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">'
        f"<mc:Choice>{_GRAPHIC.format(choice)}</mc:Choice><mc:Fallback><p:sp>"
        f"{write('This chart is not available')}</p:sp></mc:Fallback></mc:AlternateContent>"
    )
    data = draw(shapes, {"ppt/charts/e.xml": chart}, ("chartEx", "../charts/e.xml"))
    assert (await reader.read(data, "a.pptx")).text == (
        "## Title\n\nChart\n\n|  | Cash |\n| --- | --- |\n| Start | 100% |\n| Rent | -25% |"
    )


async def test_groups_diagrams_and_numbered_lists(reader: DocumentReader) -> None:
    numbered = "".join(
        f"<a:p><a:pPr><a:buAutoNum/></a:pPr><a:r><a:t>{text}</a:t></a:r></a:p>" for text in "ab"
    )
    shapes = (
        f"<p:grpSp><p:grpSp><p:sp>{write('in a group')}</p:sp></p:grpSp></p:grpSp>"
        f"<p:sp>{numbered}</p:sp>" + _GRAPHIC.format(f'<dgm:relIds {_DIAGRAM} r:dm="x1"/>')
    )
    space = "http://schemas.openxmlformats.org/drawingml/2006/main"
    points = (
        f'<dgm:dataModel {_DIAGRAM} xmlns:a="{space}">{write("Plan")}{write("Do")}</dgm:dataModel>'
    )
    data = draw(shapes, {"ppt/diagrams/d.xml": points}, ("diagramData", "../diagrams/d.xml"))
    assert (await reader.read(data, "a.pptx")).text == (
        "## Title\n\nin a group\n\n1. a\n2. b\n\n- Plan\n- Do"
    )


async def test_merged_cells_are_repeated(reader: DocumentReader) -> None:
    table = (
        f'<a:tbl><a:tr><a:tc gridSpan="2">{write("Head")}</a:tc><a:tc hMerge="1"/>'
        f'<a:tc rowSpan="2">{write("tall")}</a:tc></a:tr>'
        f'<a:tr><a:tc>{write("1")}</a:tc><a:tc>{write("2")}</a:tc><a:tc vMerge="1"/></a:tr></a:tbl>'
    )
    text = await reader.read(draw(_GRAPHIC.format(table)), "a.pptx")
    assert text.text == (
        "## Title\n\n| Head | Head | tall |\n| --- | --- | --- |\n| 1 | 2 | tall |"
    )


@pytest.mark.parametrize("newer", [False, True])
async def test_comments_follow_the_text_with_author_and_time(
    reader: DocumentReader, newer: bool
) -> None:
    main = "http://schemas.openxmlformats.org/presentationml/2006/main"
    space = "http://schemas.microsoft.com/office/powerpoint/2018/8/main"
    drawing = "http://schemas.openxmlformats.org/drawingml/2006/main"
    relations = make_relations(
        ("slide", "slides/slide1.xml"),
        ("authors", "authors.xml" if newer else "commentAuthors.xml"),
    ).replace('"x1"', '"r1"')
    if newer:
        files = {
            "ppt/authors.xml": (
                f'<q:authorLst xmlns:q="{space}"><q:author id="A" name="Ada"/></q:authorLst>'
            ),
            "ppt/comments/modernComment_1.xml": (
                f'<q:cmLst xmlns:q="{space}" xmlns:a="{drawing}"><q:cm authorId="A" created="T1">'
                f'<q:replyLst><q:reply authorId="A" created="T2"><q:txBody>{write("Yes")}'
                f"</q:txBody></q:reply></q:replyLst><q:txBody>{write('Sure?')}</q:txBody></q:cm>"
                "</q:cmLst>"
            ),
        }
        path = "../comments/modernComment_1.xml"
    else:
        files = {
            "ppt/commentAuthors.xml": (
                f'<p:cmAuthorLst xmlns:p="{main}"><p:cmAuthor id="0" name="Ada"/></p:cmAuthorLst>'
            ),
            "ppt/comments/comment1.xml": (
                f'<p:cmLst xmlns:p="{main}">'
                '<p:cm authorId="0" dt="T1"><p:text>Sure?</p:text></p:cm>'
                '<p:cm authorId="0" dt="T2"><p:text>Yes</p:text></p:cm></p:cmLst>'
            ),
        }
        path = "../comments/comment1.xml"
    files["ppt/_rels/presentation.xml.rels"] = relations
    text = await reader.read(draw("", files, ("comments", path)), "a.pptx")
    assert text.text == (
        "## Title\n\nComment (author: Ada, time: T1): Sure?\nComment (author: Ada, time: T2): Yes"
    )


async def test_a_hidden_slide_is_read_and_told(reader: DocumentReader) -> None:
    main = "http://schemas.openxmlformats.org/presentationml/2006/main"
    drawing = "http://schemas.openxmlformats.org/drawingml/2006/main"
    slide = (
        f'<p:sld xmlns:p="{main}" xmlns:a="{drawing}" show="0"><p:sp>{write("x")}</p:sp></p:sld>'
    )
    data = make_pptx([("One", []), ("", [])], files={"ppt/slides/slide2.xml": slide})
    text = await reader.read(data, "a.pptx")
    assert text.text == "## One\n\n(hidden slide)\n\nx"
    assert text.notices == ("hidden slides, which are read too: 2",)
