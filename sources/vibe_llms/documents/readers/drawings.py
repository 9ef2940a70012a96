"""Charts, diagrams, text in shapes, and comments of Microsoft documents."""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.documents.readers.archives import (
    Relation,
    local_name,
    read_identity,
    read_xml,
)
from vibe_llms.documents.readers.markup import draw_table
from vibe_llms.documents.readers.number_formats import parse_format

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
#: Names of charts; other kinds are just called charts.
_CHARTS = {
    "barChart": "Bar chart",
    "bar3DChart": "Bar chart",
    "lineChart": "Line chart",
    "line3DChart": "Line chart",
    "pieChart": "Pie chart",
    "pie3DChart": "Pie chart",
    "ofPieChart": "Pie chart",
    "doughnutChart": "Doughnut chart",
    "areaChart": "Area chart",
    "area3DChart": "Area chart",
    "scatterChart": "Scatter chart",
    "radarChart": "Radar chart",
    "bubbleChart": "Bubble chart",
    "stockChart": "Stock chart",
}
_LEVELS = frozenset("12345678")
_LONGEST_NUMBER = 6
_MOST_POINTS = 1000
_MOST_SERIES = 100


class _Series(NamedTuple):
    """A series of a chart: its name, and the label and value of each point by number."""

    name: str
    labels: Mapping[int, str]
    values: Mapping[int, str]


def read_paragraphs(shape: Element) -> Iterator[str]:
    """Yield the paragraphs of text in a shape or a cell. Items of lists are indented."""
    #: The last number of the list at each level.
    numbers: dict[int, int] = {}
    for paragraph in shape.iter(f"{_DRAWING}p"):
        text = "".join(
            (element.text or "") if element.tag == f"{_DRAWING}t" else " "
            for element in paragraph.iter()
            if element.tag in (f"{_DRAWING}t", f"{_DRAWING}br")
        )
        if not (line := " ".join(text.split())):
            continue
        properties = paragraph.find(f"{_DRAWING}pPr")
        mark = "" if properties is None else properties.get("lvl", "0")
        level = int(mark) if mark in _LEVELS else 0
        marker = "- " if level else ""
        numbered = None if properties is None else properties.find(f"{_DRAWING}buAutoNum")
        numbers = {one: number for one, number in numbers.items() if one <= level}
        if numbered is None:
            numbers.pop(level, None)
        else:
            start = numbered.get("startAt", "1")
            before = int(start) - 1 if start.isdecimal() and len(start) < _LONGEST_NUMBER else 0
            numbers[level] = numbers.get(level, before) + 1
            marker = f"{numbers[level]}. "
        yield f"{'  ' * level}{marker}{line}"


def read_graphic(
    archive: zipfile.ZipFile, element: Element, relations: Mapping[str, Relation]
) -> str:
    """Return the text of the chart or diagram that an element refers to, or "" without one."""
    relation = relations.get(read_identity(element))
    if relation is None or relation.kind not in ("chart", "chartEx", "diagramData"):
        return ""
    try:
        root = read_xml(archive, relation.path)
    except DocumentUnreadable:
        return "(a chart that is damaged)"
    if relation.kind == "diagramData":
        return "\n".join(f"- {line}" for line in read_paragraphs(root))
    return draw_chart(root)


def draw_chart(root: Element, *, most_points: int = _MOST_POINTS) -> str:
    """Return a chart as its title and a table: a row for each point, a column for each series.

    With more points than `most_points`, return its title and the names of the series.
    """
    kinds = [_CHARTS[local_name(one.tag)] for one in root.iter() if local_name(one.tag) in _CHARTS]
    head = ", ".join(dict.fromkeys(kinds)) or "Chart"
    if title := _read_title(root):
        head += f": {title}"
    series: Sequence[_Series] = [
        _read_series(one) for one in root.iter() if local_name(one.tag) == "ser"
    ]
    series = series[:_MOST_SERIES] or _read_newer(root)
    blocks = [head]
    for _, group in itertools.groupby(series, lambda one: one.labels):
        members = list(group)
        points = sorted({*members[0].labels, *(point for one in members for point in one.values)})
        if len(points) > most_points:
            blocks.append("Series: " + ", ".join(one.name for one in members))
            continue
        rows = [["", *(one.name for one in members)]]
        for point in points:
            label = members[0].labels.get(point, str(point + 1))
            rows.append([label, *(one.values.get(point, "") for one in members)])
        blocks.append(draw_table(rows))
    return "\n\n".join(filter(None, blocks))


def describe_comment(text: str, author: str = "", time: str = "", label: str = "Comment") -> str:
    """Return a comment as a line of text.

    >>> describe_comment("Why?", "Ada", "2026-01-31T10:00:00")
    'Comment (author: Ada, time: 2026-01-31T10:00:00): Why?'
    """
    about = [f"author: {author}"] if author else []
    about += [f"time: {time}"] if time else []
    head = f"{label} ({', '.join(about)})" if about else label
    words = " ".join(text.split())
    return f"{head}: {words}" if words else head


def _read_title(root: Element) -> str:
    for element in root.iter():
        tag = local_name(element.tag)
        if tag == "title":
            texts = [one.text or "" for one in element.iter() if local_name(one.tag) in ("t", "v")]
            return " ".join("".join(texts).split())
        if tag == "plotArea":
            break
    return ""


def _read_series(element: Element) -> _Series:
    found: dict[str, dict[int, str]] = {}
    name = ""
    for child in element:
        match local_name(child.tag):
            case "tx":
                name = " ".join(" ".join(_read_points(child).values()).split())
            case "cat" | "xVal":
                found["labels"] = _read_points(child)
            case "val" | "yVal":
                found["values"] = _read_points(child)
            case "bubbleSize":
                sizes = _read_points(child)
                values = found.get("values", {})
                found["values"] = {
                    point: f"{value} (size {sizes[point]})" if point in sizes else value
                    for point, value in values.items()
                }
            case _:
                pass
    return _Series(name, found.get("labels", {}), found.get("values", {}))


def _read_points(element: Element) -> dict[int, str]:
    """Return the cached texts or numbers of a chart's cells, with all levels joined."""
    points: dict[int, str] = {}
    levels = [one for one in element.iter() if local_name(one.tag) == "lvl"]
    for holder in reversed(levels or [element]):
        code = next((one.text for one in holder.iter() if _is_format(one)), None)
        for point in holder.iter():
            if local_name(point.tag) != "pt":
                continue
            value = next((one.text or "" for one in point if local_name(one.tag) == "v"), "")
            index = point.get("idx", "")
            if value and index.isdecimal() and len(points) <= _MOST_POINTS:
                text = _show(value, point.get("formatCode") or code)
                before = points.get(int(index))
                points[int(index)] = f"{before} {text}" if before else text
    if not points:
        texts = [one.text or "" for one in element.iter() if local_name(one.tag) == "v"]
        points = {0: texts[0]} if texts else {}
    return points


def _is_format(element: Element) -> bool:
    return local_name(element.tag) == "formatCode"


def _show(value: str, code: str | None) -> str:
    try:
        return parse_format(code or "General").show(float(value))
    except (ValueError, OverflowError):
        return value


def _read_newer(root: Element) -> Sequence[_Series]:
    """Return the series of a chart kind of Office 2016, such as a waterfall or a treemap."""
    data: dict[str, _Series] = {}
    for element in root.iter():
        if local_name(element.tag) != "data" or not element.get("id"):
            continue
        labels: dict[int, str] = {}
        values: dict[int, str] = {}
        for dimension in element:
            numbers = local_name(dimension.tag) == "numDim"
            for level in reversed([one for one in dimension if local_name(one.tag) == "lvl"]):
                for point in level:
                    index = point.get("idx", "")
                    if not index.isdecimal() or len(labels) > _MOST_POINTS:
                        continue
                    texts = values if numbers else labels
                    before = texts.get(int(index))
                    shown = _show(point.text or "", level.get("formatCode"))
                    texts[int(index)] = f"{before} {shown}" if before else shown
        data[element.get("id", "")] = _Series("", labels, values)
    found = []
    for element in root.iter():
        if local_name(element.tag) != "series":
            continue
        name, identity = "", ""
        for one in element.iter():
            tag = local_name(one.tag)
            name = name or ((one.text or "") if tag == "v" else "")
            identity = one.get("val", "") if tag == "dataId" else identity
        if identity in data:
            found.append(data[identity]._replace(name=name))
    return found[:_MOST_SERIES]
