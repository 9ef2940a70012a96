"""Tables of the configuration file, written and taken out; all else stays as it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from vibe_llms.configuration import Tree, parse_settings, read_settings
from vibe_llms.exceptions import ConfigurationError
from vibe_llms.files import parse_toml
from vibe_llms.storage.files import make_folder, replace_file, storage_errors
from vibe_llms.storage.locks import locked

_LOCK_SECONDS = 10.0
_HEADER = re.compile(r"^[ \t]*\[[^\n]*$", re.MULTILINE)


def draw_rows(table: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Rows as they are written in the configuration file."""
    import tomli_w

    return tomli_w.dumps({table: rows})


def add_rows(file: Path, table: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write rows at the end of the file, in place of those of the same names."""

    def expect(tree: Tree) -> Tree:
        return {**tree, table: {**tree.get(table, {}), **rows}}

    def change(text: str) -> str:
        for name in rows:
            text = _without(text, (table, name))
        return f"{text.rstrip()}\n\n{draw_rows(table, rows)}".lstrip("\n")

    _rewrite(file, f"[{table}]", change, expect)


def remove_row(file: Path, table: str, name: str) -> None:
    """Take a row out of the file."""

    def expect(tree: Tree) -> Tree:
        left = {key: row for key, row in tree[table].items() if key != name}
        others = {key: value for key, value in tree.items() if key != table}
        return {**others, table: left} if left else others

    def change(text: str) -> str:
        return _without(text, (table, name))

    _rewrite(file, f"[{table}.{name}]", change, expect)


def _rewrite(
    file: Path, what: str, change: Callable[[str], str], expect: Callable[[Tree], Tree]
) -> None:
    """Change the text of the file; nothing is written where it would say anything else then."""
    with storage_errors(file):
        make_folder(file.parent)
        with locked(file.parent, seconds=_LOCK_SECONDS):
            # A file that cannot be read is not written over.
            data = read_settings(file)
            before = parse_settings(data, file)
            text = change(data.decode())
            after = _parse(text)
            wanted = expect(before)
            if after not in (wanted, {**wanted, what.strip("[]").partition(".")[0]: {}}):
                raise ConfigurationError(
                    f"{what} cannot be changed without spoiling what stands there; change it by "
                    "hand: vibe-llms config edit",
                    file=str(file),
                )
            replace_file(file, text.encode())


def _parse(text: str) -> Tree | None:
    try:
        return parse_toml(text.encode())
    except ValueError:
        return None


def _without(text: str, path: tuple[str, ...]) -> str:
    """The text without a table and those below it; comments above them stay."""
    starts = [found.start() for found in _HEADER.finditer(text)]
    parts = [text[: starts[0]] if starts else text]
    for start, end in pairwise([*starts, len(text)]):
        section = text[start:end]
        if _path_of(section.partition("\n")[0])[: len(path)] != path:
            parts.append(section)
        else:
            # What stands above the next table speaks of that one.
            lines = reversed(section.splitlines(keepends=True) if end != len(text) else [])
            tail = list(takewhile(lambda line: not line.partition("#")[0].strip(), lines))
            parts += reversed(tail)
    return "".join(parts)


def _path_of(header: str) -> tuple[str, ...]:
    """The names in the header of a table, however they are written."""
    level: Any = _parse(header)
    path: list[str] = []
    while isinstance(level, dict) and level:
        name, level = next(iter(level.items()))
        path.append(name)
    return tuple(path)
