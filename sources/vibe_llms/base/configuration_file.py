"""Edits of the configuration file that keep its comments and layout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vibe_llms.base.configuration import Tree, parse_settings, read_settings
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.base.files import LARGEST_SETTINGS, parse_toml
from vibe_llms.base.folders import make_folder, replace_file, storage_errors
from vibe_llms.base.locks import locked

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import Item, Key

    Body: TypeAlias = list[tuple[Key | None, Item]]

#: Keys that lead to a value.
KeyPath: TypeAlias = tuple[str, ...]
_LOCK_SECONDS = 10.0
#: Characters that a comment cannot contain.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def set_value(file: Path, key: str, value: str) -> None:
    """Set a key at the top of the file."""

    def change(document: TOMLDocument) -> str:
        document[key] = value
        return document.as_string()

    _edit(file, key, change, lambda tree: {**tree, key: value})


def set_values(file: Path, values: Mapping[KeyPath, Any], check: Callable[[Tree], object]) -> None:
    """Set values by their paths; `check` raises an error if the new settings would be wrong."""

    def change(document: TOMLDocument) -> str:
        text = document.as_string()
        for path, value in values.items():
            text = _set(text, path, _spread(value))
        return text

    def expect(tree: Tree) -> Tree:
        for path, value in values.items():
            tree = _with(tree, path, value)
        check(tree)
        return tree

    _edit(file, ", ".join(map(draw_path, values)), change, expect)


def unset_value(file: Path, path: KeyPath) -> bool:
    """Remove a value or a table from the file; return False if it is missing."""
    tree: Any = parse_settings(read_settings(file), file)
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = tree[key]

    def change(document: TOMLDocument) -> str:
        inner: Any = document
        for key in path[:-1]:
            inner = inner[key]
        inner.remove(path[-1])
        return document.as_string()

    _edit(file, draw_path(path), change, lambda tree: _without(tree, path))
    return True


def read_path(text: str) -> KeyPath:
    """Split a path such as `stream.retries` into keys; raise `ConfigurationError` if invalid.

    >>> read_path('providers.mine.models."qwen.*".title')
    ('providers', 'mine', 'models', 'qwen.*', 'title')
    """
    try:
        tree: Any = parse_toml(f"{text} = 0".encode())
    except ValueError:
        tree = {}
    path: list[str] = []
    while isinstance(tree, dict) and len(tree) == 1:
        ((key, tree),) = tree.items()
        path.append(key)
    if tree != 0 or "\n" in text:
        raise ConfigurationError(
            f"{text!r} is not a key; write it as in TOML: stream.retries, or "
            'providers.mine.models."qwen.*".title'
        )
    return tuple(path)


def draw_path(path: KeyPath) -> str:
    """Write a path as in TOML."""
    return ".".join(
        key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in path
    )


def survey_values(tree: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the values of settings with their paths; a table counts only if it is empty."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from survey_values(value, (*path, key))
        else:
            yield (*path, key), value


def _set(text: str, path: KeyPath, value: Any) -> str:
    """Set a value in its place, or after its table's last value, or in a new table at the end."""
    import tomlkit
    from tomlkit.container import Container

    document = tomlkit.parse(text)
    inner: Any = document
    for key in path[:-1]:
        if key not in inner:
            table = tomlkit.dumps({path[-1]: value})
            return f"{text.rstrip()}\n\n[{draw_path(path[:-1])}]\n{table}".lstrip("\n")
        inner = inner[key]
    key, body = path[-1], inner if isinstance(inner, Container) else getattr(inner, "value", None)
    last = None
    if key not in inner and isinstance(body, Container):
        names = [own for own, item in body.body if own is not None and not _is_table(item)]
        last = names[-1] if names else None
    if isinstance(body, Container) and last is not None:
        # Comments at the end are often about the next table.
        body._insert_after(last, key, value)
    else:
        inner[key] = value
    return document.as_string()


def _is_table(item: Item) -> bool:
    from tomlkit.items import AbstractTable, AoT

    return isinstance(item, AbstractTable | AoT)


def _with(tree: Mapping[str, Any], path: KeyPath, value: Any) -> Tree:
    key, *rest = path
    if not rest:
        return {**tree, key: value}
    below = tree.get(key, {})
    return {**tree, key: _with(below if isinstance(below, dict) else {}, tuple(rest), value)}


def _without(tree: Mapping[str, Any], path: KeyPath) -> Tree:
    key, *rest = path
    if not rest:
        return {name: value for name, value in tree.items() if name != key}
    return {**tree, key: _without(tree[key], tuple(rest))}


def draw_rows(
    table: str,
    rows: Mapping[str, Mapping[str, Any]],
    remarks: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Write rows as `add_rows` does."""
    import tomlkit

    drawn = []
    for name, row in rows.items():
        head, newline, rest = tomlkit.dumps({table: {name: _spread(row)}}).partition("\n")
        notes = (remarks or {}).get(name, ())
        comments = "".join(
            f"# {_CONTROL.sub(' ', line)}\n" for note in notes for line in note.splitlines()
        )
        drawn.append(f"{head}{newline}{comments}{rest}")
    return "\n".join(drawn)


def is_writable(table: str, rows: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if TOML can hold the rows: no half characters, not nested too deeply."""
    try:
        return parse_toml(draw_rows(table, rows).encode()) == {table: rows}
    except (ValueError, RecursionError):
        return False


def add_rows(
    file: Path,
    table: str,
    rows: Mapping[str, Mapping[str, Any]],
    *,
    remarks: Mapping[str, Sequence[str]] | None = None,
    replace: bool = True,
) -> None:
    """Write rows at the end of the file, with remarks as comments below their headers.

    Rows with the same names are replaced. Without `replace`, they are a `ConfigurationError`.
    """

    def change(document: TOMLDocument) -> str:
        for name in rows:
            _remove(document, table, name)
        text = document.as_string().rstrip()
        return f"{text}\n\n{draw_rows(table, rows, remarks)}".lstrip("\n")

    def expect(tree: Tree) -> Tree:
        own = tree.get(table, {})
        if not replace and (taken := [name for name in rows if name in own]):
            raise ConfigurationError(
                f"it has {' and '.join(draw_path((table, one)) for one in taken)} already",
                file=str(file),
            )
        return {**tree, table: {**own, **rows}}

    _edit(file, f"[{table}]", change, expect)


def _spread(value: Any) -> Any:
    """Return a value for `tomlkit` in which texts of several lines are written as such."""
    import tomlkit
    from tomlkit.items import String, StringType, Trivia

    match value:
        case str() if "\n" in value:
            escaped = tomlkit.string(value, multiline=True).as_string()[3:-3]
            # The line break after the opening quotes is not part of the value.
            text = String(StringType.MLB, value, f"\n{escaped.removeprefix(chr(10))}", Trivia())
            return text if _parse(f"value = {text.as_string()}") == {"value": value} else value
        case Mapping():
            return {key: _spread(one) for key, one in value.items()}
        case list() | tuple():
            return [_spread(one) for one in value]
        case _:
            return value


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
    """Change the file; raise `ConfigurationError` if the result differs from the expected one."""
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
    """Return the tree without empty tables, which removing the last row may leave."""
    if tree is None:
        return None
    kept = {
        key: _without_empty(value) if isinstance(value, dict) else value
        for key, value in tree.items()
    }
    return {key: value for key, value in kept.items() if value != {}}


def _remove(document: TOMLDocument, table: str, name: str) -> None:
    """Remove a row from the text, but not the comments above the next table.

    `tomlkit` assigns these comments to the table before them, and would remove them too.
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
            # A table without its own header would get one.
            document.body[place : place + 1] = body


def _find_end(item: Item) -> Body:
    """Return the blank lines and comments below the last value of a table."""
    from tomlkit.items import Table

    end: Body = []
    for key, part in reversed(item.value.body if isinstance(item, Table) else []):
        if key is not None:
            return [*_find_end(part), *reversed(end)]
        end.append((key, part))
    return end[::-1]
