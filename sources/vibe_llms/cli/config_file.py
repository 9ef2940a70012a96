"""Edits of the configuration file: its comments and its layout stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vibe_llms.configuration import Tree, parse_settings, read_settings
from vibe_llms.exceptions import ConfigurationError
from vibe_llms.files import LARGEST_SETTINGS, parse_toml
from vibe_llms.storage.files import make_folder, replace_file, storage_errors
from vibe_llms.storage.locks import locked

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import Item, Key

    Body: TypeAlias = list[tuple[Key | None, Item]]

_LOCK_SECONDS = 10.0


def set_value(file: Path, key: str, value: str) -> None:
    """Set a key at the top of the file."""

    def change(document: TOMLDocument) -> str:
        document[key] = value
        return document.as_string()

    _edit(file, key, change, lambda tree: {**tree, key: value})


def draw_rows(table: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Rows as `add_rows` writes them."""
    import tomlkit

    return tomlkit.dumps({table: rows})


def add_rows(file: Path, table: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write rows at the end of the file; they replace rows with the same names."""

    def change(document: TOMLDocument) -> str:
        for name in rows:
            _remove(document, table, name)
        return f"{document.as_string().rstrip()}\n\n{draw_rows(table, rows)}".lstrip("\n")

    _edit(file, f"[{table}]", change, lambda tree: {**tree, table: {**tree.get(table, {}), **rows}})


def remove_row(file: Path, table: str, name: str) -> None:
    """Remove a row from the file."""

    def change(document: TOMLDocument) -> str:
        _remove(document, table, name)
        return document.as_string()

    def expect(tree: Tree) -> Tree:
        left = {key: row for key, row in tree[table].items() if key != name}
        others = {key: value for key, value in tree.items() if key != table}
        return {**others, table: left} if left else others

    _edit(file, f"[{table}.{name}]", change, expect)


def _edit(
    file: Path, what: str, change: Callable[[TOMLDocument], str], expect: Callable[[Tree], Tree]
) -> None:
    """Change the file; `ConfigurationError` if the result would not be exactly what is expected."""
    import tomlkit

    with storage_errors(file):
        make_folder(file.parent)
        with locked(file.parent, seconds=_LOCK_SECONDS):
            data = read_settings(file)
            wanted = expect(parse_settings(data, file))
            text = change(tomlkit.parse(data))
            if _without_empty(_parse(text)) != _without_empty(wanted):
                raise ConfigurationError(
                    f"{what} cannot be changed without damaging the rest of the file; change it by "
                    "hand: vibe-llms config edit",
                    file=str(file),
                )
            replace_file(file, text.encode(), LARGEST_SETTINGS)


def _parse(text: str) -> Tree | None:
    try:
        return parse_toml(text.encode())
    except ValueError:
        return None


def _without_empty(tree: Tree | None) -> Tree | None:
    """The tree without empty tables: removing the last row may leave the header above it."""
    return None if tree is None else {key: value for key, value in tree.items() if value != {}}


def _remove(document: TOMLDocument, table: str, name: str) -> None:
    """Remove a row from the text; comments above the next table stay.

    `tomlkit` counts those to the table before them, and would remove them too.
    """
    from tomlkit.items import AbstractTable, Table

    # The rows of a table may be in several places.
    for place, (key, rows) in reversed(list(enumerate(document.body))):
        if key is None or key.key != table or not isinstance(rows, AbstractTable):
            continue
        body = rows.value.body
        for index, (own, row) in reversed(list(enumerate(body))):
            if own is not None and own.key == name:
                body[index : index + 1] = _find_end(row)
        if isinstance(rows, Table) and rows.is_super_table() and not any(own for own, _ in body):
            # It has no header of its own, and would get one.
            document.body[place : place + 1] = body


def _find_end(item: Item) -> Body:
    """The blank lines and comments below the last value of a table."""
    from tomlkit.items import Table

    end: Body = []
    for key, part in reversed(item.value.body if isinstance(item, Table) else []):
        if key is not None:
            return [*_find_end(part), *reversed(end)]
        end.append((key, part))
    return end[::-1]
