"""Readers of spreadsheets: XLSX with our own code, and others with python-calamine.

XLSX cells are read as displayed, with hidden cells and the objects around them. Libraries that are
as fast provide neither errors nor formats nor formulas.
"""

from __future__ import annotations

import datetime as dt
import itertools
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.conversations.document_texts import Part, Place
from vibe_llms.documents.readers.archives import (
    Relation,
    find_relations,
    local_name,
    opened_zip,
    parse_xml,
    read_identity,
    read_relations,
    read_xml,
)
from vibe_llms.documents.readers.drawings import (
    describe_comment,
    draw_chart,
    read_paragraphs,
)
from vibe_llms.documents.readers.interfaces import ReaderNotice, Source, register
from vibe_llms.documents.readers.number_formats import (
    BUILT_IN,
    NumberFormat,
    parse_format,
    show_moment,
    write_number,
)
from vibe_llms.documents.readers.packages import import_package
from vibe_llms.documents.readers.tables import draw_parts, split_blocks

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_MERGED = re.compile(rb'mergeCell ref="([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})"')
_MOST_MERGED = 100_000
#: Start of the first row, with the prefix of its name, and end of a row.
_ROW_START = re.compile(rb"<((?:\w+:)?)row[ />]")
_ROW_END = re.compile(rb"</(?:\w+:)?row>")
_PIECE_ROWS = 500
_MOST_COLUMNS = 16_384
#: Maximum number of columns in which a merged cell is repeated.
_MOST_SPAN = 100
#: Excel's escape for a character that XML does not allow.
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
#: Maximum number of points of a chart that is drawn. Its numbers are also in the cells.
_MOST_POINTS = 100
#: Maximum number of hidden items that are named.
_NAMED = 10
_PLAIN = NumberFormat()


def read_workbook(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield the sheets, each as Markdown tables separated at its empty rows."""
    if zipfile.is_zipfile(source.file):
        with opened_zip(source.file) as archive:
            starts = find_relations(read_relations(archive, ""), "officeDocument")
            if starts and starts[0].endswith(".xml"):
                yield from _read_excel(archive, starts[0])
                return
    source.file.seek(0)
    yield from _read_other(source)


def _read_excel(archive: zipfile.ZipFile, name: str) -> Iterator[Part | ReaderNotice]:
    book = Workbook(archive, name)
    hidden: list[str] = []
    uncalculated = 0
    for sheet in book.sheets:
        about = " (hidden sheet)" if sheet.hidden else ""
        hidden += [f"the sheet {sheet.name!r}"] if sheet.hidden else []
        named = False
        try:
            cells = book.read_cells(sheet)
            for block in itertools.chain(draw_sheet(cells), book.read_surroundings(sheet)):
                text = block if named else f"## {sheet.name}{about}\n\n{block}"
                named = True
                yield Part(text, Place(sheet=sheet.name))
        except DocumentUnreadable as error:
            yield ReaderNotice(problem=f"the sheet {sheet.name!r} cannot be read ({error})")
            continue
        for count, what in ((cells.hidden_rows, "row"), (cells.hidden_columns, "column")):
            if count:
                hidden.append(f"{count:,} {what}{'s' * (count > 1)} of {sheet.name!r}")
        uncalculated += cells.uncalculated
    if hidden:
        yield ReaderNotice(problem=f"hidden, but read too: {_enumerate(hidden)}")
    if uncalculated:
        many = "1 formula has" if uncalculated == 1 else f"{uncalculated:,} formulas have"
        yield ReaderNotice(
            problem=f"{many} no value, because no spreadsheet program has calculated it: open the "
            "file in one, and save it"
        )


def draw_sheet(rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield the tables of a sheet. A cell merged across a table becomes text."""
    for block in split_blocks(rows):
        head = next(block, None)
        while head is not None:
            following = next(block, None)
            if _is_title(head) and (following is None or _find(following) >= _find(head)):
                yield head[-1]
                head = following
                continue
            first = [head] if following is None else [head, following]
            yield from (part.text for part in draw_parts(itertools.chain(first, block), Place()))
            break


def _is_title(row: Sequence[str]) -> bool:
    return len(row) > 1 and isinstance(row[-1], _Title) and isinstance(row[-2], _Title)


class _Title(str):
    """Text of a row's only cell, which is merged with its neighbors."""

    __slots__ = ()


def _find(row: Sequence[str]) -> int:
    """Return the index of the first cell with text, or the length of an empty row."""
    return next((index for index, text in enumerate(row) if text), len(row))


class _Sheet(NamedTuple):
    name: str
    path: str
    kind: str
    hidden: bool


class Cells:
    """Rows of a sheet as texts, and counters of hidden and uncalculated cells."""

    def __init__(self, book: Workbook, data: bytes) -> None:
        self._book = book
        self._data = data
        self._merged = {
            (one.row, one.column): one
            for one in map(_read_merged, itertools.islice(_MERGED.finditer(data), _MOST_MERGED))
        }
        self._spans: list[_Merged] = []
        self._hidden: set[int] = set()
        self._columns: dict[str, int] = {}
        #: Tag of the elements with values, once the namespace of the file is known.
        self._value = ""
        self.hidden_columns = 0
        self.hidden_rows = 0
        self.uncalculated = 0

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the rows that have cells, with an empty row at each gap."""
        number = 0
        for index, data in enumerate(_divide(self._data)):
            for group in parse_xml(data):
                match local_name(group.tag):
                    case "cols" if not index:
                        for column in group:
                            self._note_columns(column)
                    case "sheetData":
                        self._value = group.tag.removesuffix("sheetData") + "v"
                        for row in group:
                            before, number = number, _read_number(row.get("r"), number + 1)
                            if number > before + 1:
                                yield []
                            yield self._read_row(row, number)
                    case _:
                        pass

    def _note_columns(self, element: Element) -> None:
        if _is_true(element.get("hidden")):
            first, last = (_read_number(element.get(name), 1) for name in ("min", "max"))
            self._hidden.update(range(first - 1, min(last, _MOST_COLUMNS)))

    def _read_row(self, row: Element, number: int) -> list[str]:
        texts: list[str] = []
        merged, columns, spans = self._merged, self._columns, self._spans
        if spans:
            spans = self._spans = [one for one in spans if one.last_row >= number]
        for cell in row:
            # Most cells of some sheets have only a style.
            if not len(cell) or not (text := self._read_cell(cell)):
                continue
            column = len(texts)
            if letters := (cell.get("r") or "").rstrip("0123456789"):
                if (known := columns.get(letters)) is None:
                    known = columns[letters] = _read_column(letters)
                column = known
            if column == len(texts):
                texts.append(text)
            elif 0 <= column < _MOST_COLUMNS:
                texts += [""] * (column + 1 - len(texts))
                texts[column] = text
            if merged and (found := merged.get((number, column))) is not None:
                spans.append(found._replace(text=text))
        if not texts:
            return texts
        alone = len(spans) == 1 and len(texts) - texts.count("") == 1
        for span in spans:
            last = min(span.last_column, span.column + _MOST_SPAN - 1)
            texts += [""] * (last + 1 - len(texts))
            text = _Title(span.text) if alone and span.row == number else span.text
            for column in range(span.column, last + 1):
                texts[column] = texts[column] or text
            if span.row == number:
                texts[span.column] = text
        if self._hidden or row.get("hidden"):
            self._mark_hidden(row, texts)
        return texts

    def _mark_hidden(self, row: Element, texts: list[str]) -> None:
        """Add a note to a hidden row, and once to each hidden column."""
        for column in [one for one in self._hidden if one < len(texts) and texts[one]]:
            self._hidden.discard(column)
            self.hidden_columns += 1
            texts[column] += " (hidden column)"
        if _is_true(row.get("hidden")):
            self.hidden_rows += 1
            texts[_find(texts)] += " (hidden row)"

    def _read_cell(self, cell: Element) -> str:
        kind = cell.get("t")
        value = cell.findtext(self._value)
        if value:
            if kind == "s":
                return self._book.find_string(value)
            return self._book.show(kind or "n", value, cell.get("s") or "0")
        formula = ""
        for child in cell:
            match local_name(child.tag):
                case "is":
                    return _read_string(child)
                case "f":
                    formula = (child.text or "a formula").strip()
                case _:
                    pass
        # A formula whose value is an empty text has the kind `str`.
        if not formula or kind == "str":
            return ""
        self.uncalculated += 1
        return f"={formula} (not calculated)"


class _Merged(NamedTuple):
    row: int
    column: int
    last_row: int
    last_column: int
    text: str = ""


def _read_merged(found: re.Match[bytes]) -> _Merged:
    left, top, right, bottom = (one.decode() for one in found.groups())
    return _Merged(int(top), _read_column(left), int(bottom), _read_column(right))


def _divide(data: bytes) -> Iterator[bytes]:
    """Yield the XML of a sheet in pieces, which take less memory and time to parse.

    Each piece is a separate sheet, with everything that comes before the rows.
    """
    ends = [found.end() for found in _ROW_END.finditer(data)][_PIECE_ROWS - 1 : -1 : _PIECE_ROWS]
    start = _ROW_START.search(data)
    if start is None or not ends:
        yield data
        return
    head, begun, name = data[: start.start()], start.start(), start[1]
    for end in ends:
        yield b"%s%s</%ssheetData></%sworksheet>" % (head, data[begun:end], name, name)
        begun = end
    yield head + data[begun:]


class Workbook:
    """Parts of a file that its sheets share."""

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        self._archive = archive
        root = read_xml(archive, name)
        self._relations = read_relations(archive, name)
        properties = next((one for one in root if local_name(one.tag) == "workbookPr"), None)
        self._since_1904 = properties is not None and _is_true(properties.get("date1904"))
        self.sheets = list(self._survey_sheets(root))
        self._formats = self._read_formats()
        self._strings = self._read_strings()
        self._people = self._read_people()

    def find_string(self, index: str) -> str:
        """Return a text by the index that cells use."""
        try:
            return self._strings[int(index)]
        except (ValueError, IndexError):
            return ""

    def show(self, kind: str, value: str, style: str) -> str:
        """Return a cell's value as text."""
        try:
            match kind:
                case "n":
                    shown = self._formats[int(style)]
                    if shown is not _PLAIN:
                        return shown.show(float(value), since_1904=self._since_1904)
                    # Keep an integer as it is, regardless of its length.
                    return value if value.isdecimal() else write_number(float(value))
                case "b":
                    return "FALSE" if value.strip() in ("0", "false") else "TRUE"
                case "d":
                    return value.replace("T", " ").removesuffix(" 00:00:00")
                case _:
                    return _unescape(value)
        except (ValueError, IndexError, OverflowError):
            return value

    def read_cells(self, sheet: _Sheet) -> Cells:
        """Return the rows of a sheet. A chart sheet has none."""
        if not sheet.path:
            raise DocumentUnreadable("it is missing in the file")
        return Cells(
            self, self._archive.read(sheet.path) if sheet.kind == "worksheet" else b"<none/>"
        )

    def read_surroundings(self, sheet: _Sheet) -> Iterator[str]:
        """Yield the charts and texts on top of a sheet, and its comments."""
        relations = read_relations(self._archive, sheet.path)
        for path in find_relations(relations, "drawing"):
            parts = read_relations(self._archive, path)
            for shape in read_xml(self._archive, path).iter():
                if local_name(shape.tag) == "sp" and (lines := [*read_paragraphs(shape)]):
                    yield "\n".join(lines)
            for chart in find_relations(parts, "chart", "chartEx"):
                yield draw_chart(read_xml(self._archive, chart), most_points=_MOST_POINTS)
        if comments := [*self._read_comments(relations)]:
            yield "\n".join(comments)

    def _read_comments(self, relations: Mapping[str, Relation]) -> Iterator[str]:
        """Yield the comments of a sheet, without old ones that repeat a thread."""
        threads: set[str] = set()
        for path in find_relations(relations, "threadedComment"):
            for element in read_xml(self._archive, path):
                place = element.get("ref", "")
                threads.add(place)
                text = "".join(one.text or "" for one in element if local_name(one.tag) == "text")
                author = self._people.get(element.get("personId", ""), "")
                yield f"{place}: {describe_comment(text, author, element.get('dT', ''))}"
        for path in find_relations(relations, "comments"):
            root = read_xml(self._archive, path)
            authors = [one.text or "" for one in root.iter() if local_name(one.tag) == "author"]
            for element in root.iter():
                place = element.get("ref", "")
                if local_name(element.tag) != "comment" or place in threads:
                    continue
                number = element.get("authorId", "")
                known = number.isdecimal() and int(number) < len(authors)
                text = "".join(_read_string(one) for one in element)
                yield f"{place}: {describe_comment(text, authors[int(number)] if known else '')}"

    def _survey_sheets(self, root: Element) -> Iterator[_Sheet]:
        for element in root.iter():
            if local_name(element.tag) == "sheet":
                relation = self._relations.get(read_identity(element), Relation("", ""))
                hidden = element.get("state", "visible") != "visible"
                yield _Sheet(element.get("name", ""), relation.path, relation.kind, hidden)

    def _find_part(self, kind: str) -> str:
        """Return the path of a part, or its usual path if no relation names it."""
        usual = f"xl/{kind}.xml"
        usual = usual if usual in self._archive.NameToInfo else ""
        return next(iter(find_relations(self._relations, kind)), usual)

    def _read_formats(self) -> Sequence[NumberFormat]:
        """Return the number formats of styles, which cells refer to by index."""
        if not (path := self._find_part("styles")):
            return [_PLAIN]
        codes = dict(BUILT_IN)
        styles: list[NumberFormat] = []
        for group in read_xml(self._archive, path):
            if local_name(group.tag) == "numFmts":
                for one in group:
                    codes[_read_number(one.get("numFmtId"))] = one.get("formatCode", "")
            elif local_name(group.tag) == "cellXfs":
                for one in group:
                    code = codes.get(_read_number(one.get("numFmtId")), "General")
                    shown = parse_format(code)
                    styles.append(_PLAIN if shown == _PLAIN else shown)
        return styles or [_PLAIN]

    def _read_strings(self) -> Sequence[str]:
        from xml.etree import ElementTree as ET

        strings: list[str] = []
        if path := self._find_part("sharedStrings"):
            try:
                with self._archive.open(path) as file:
                    for _, element in ET.iterparse(file):  # noqa: S314
                        if local_name(element.tag) == "si":
                            strings.append(_read_string(element))
                            element.clear()
            except ET.ParseError as error:
                raise DocumentUnreadable(f"its XML is not valid ({error})") from error
        return strings

    def _read_people(self) -> Mapping[str, str]:
        return {
            element.get("id", ""): element.get("displayName", "")
            for path in find_relations(self._relations, "person")
            for element in read_xml(self._archive, path)
        }


def _enumerate(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _read_string(element: Element) -> str:
    """Return the text of a string or a comment without phonetic hints."""
    texts: list[str] = []
    for child in element:
        match local_name(child.tag):
            case "t":
                texts.append(child.text or "")
            case "r":
                texts += [one.text or "" for one in child if local_name(one.tag) == "t"]
            case _:
                pass
    return _unescape("".join(texts))


def _unescape(text: str) -> str:
    if "_x" not in text:
        return text
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _read_column(reference: str) -> int:
    """Return the index of the column of a cell.

    >>> _read_column("A1"), _read_column("AB12")
    (0, 27)
    """
    column = 0
    for letter in reference:
        if not "A" <= letter <= "Z":
            break
        column = column * 26 + ord(letter) - 64
    return column - 1


def _read_number(text: str | None, default: int = -1) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 10 else default


def _is_true(text: str | None) -> bool:
    return text in ("1", "true", "on")


def _read_other(source: Source) -> Iterator[Part | ReaderNotice]:
    """Yield the sheets of an XLS, XLSB, or ODS file."""
    package = import_package("python_calamine", "python-calamine", "reading spreadsheets")
    try:
        workbook = package.CalamineWorkbook.from_filelike(source.file)
    except package.PasswordError as error:
        raise DocumentUnreadable(
            "it is encrypted; open it with its password, and save it without one"
        ) from error
    except (package.CalamineError, OSError) as error:
        raise DocumentUnreadable(f"it is not a valid spreadsheet, or damaged ({error})") from error
    for index, sheet in enumerate(workbook.sheets_metadata):
        if sheet.typ != package.SheetTypeEnum.WorkSheet:
            continue
        try:
            cells = workbook.get_sheet_by_index(index).iter_rows()
        except package.CalamineError as error:
            yield ReaderNotice(problem=f"the sheet {sheet.name!r} cannot be read ({error})")
            continue
        place = Place(sheet=sheet.name)
        named = False
        hidden = sheet.visible != package.SheetVisibleEnum.Visible
        about = " (hidden sheet)" if hidden else ""
        if hidden:
            yield ReaderNotice(problem=f"hidden, but read too: the sheet {sheet.name!r}")
        for block in split_blocks([_describe(cell) for cell in row] for row in cells):
            for part in draw_parts(block, place):
                text = part.text if named else f"## {sheet.name}{about}\n\n{part.text}"
                named = True
                yield Part(text, place)


def _describe(value: object) -> str:
    match value:
        case bool():
            return str(value).upper()
        case float():
            return write_number(value)
        case dt.datetime():
            return show_moment(value)
        case _:
            return str(value)


register("workbook", read_workbook)
