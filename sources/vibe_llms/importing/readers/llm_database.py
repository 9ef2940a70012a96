"""Reading of the tables of llm's database, whose columns differ by version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vibe_llms.importing.fields import read_count, read_object
from vibe_llms.importing.json_values import parse_json
from vibe_llms.importing.messages import ExportedContent, ExportedMedia
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import ImageContent, Location, TextualContent

if TYPE_CHECKING:
    import sqlite3

_ABSENT: Mapping[str, Any] = {
    "forked_from": None,
    "resolved_model": None,
    "reasoning": None,
    "exception": None,
    "token_details": None,
    "provider_metadata": None,
}


class LlmDatabase:
    """A database of llm. `missing` counts attachments that are not in it."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.missing = 0
        rows = database.execute("select name from sqlite_master where type = 'table'")
        self._tables = {name for (name,) in rows}

    def select(
        self, table: str, order: str = "rowid", **where: str | int | None
    ) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a table with these values; none if there is no such table."""
        if table not in self._tables:
            return ()
        condition = " and ".join(f'"{key}" = ?' for key in where) or "1"
        # The names are our own.
        query = f'select * from "{table}" where {condition} order by {order}'  # noqa: S608
        rows = self._database.execute(query, tuple(where.values())).fetchall()
        return [{**_ABSENT, **{key: row[key] for key in row.keys()}} for row in rows]  # noqa: SIM118

    def find(self, table: str, **where: str | int | None) -> Mapping[str, Any]:
        """Return the first row with these values, or an empty one."""
        return next(iter(self.select(table, "rowid", **where)), {})

    def find_fragment(self, identity: int) -> str:
        """Return the text of a fragment."""
        return str(self.find("fragments", id=identity).get("content") or "")

    def load_attachment(self, identity: str) -> ExportedContent:
        """Return an attachment; files on this machine are not read, only those in the database."""
        row = self.find("attachments", id=identity)
        content, kind = row.get("content"), str(row.get("type") or "")
        if isinstance(content, bytes) and content:
            return ExportedMedia(partial(bytes, content), kind)
        if address := row.get("url"):
            return ImageContent(Location(str(address)), kind)
        self.missing += 1
        return TextualContent(f"[file {row.get('path') or identity}, not in the export]")


def read_tokens(row: Mapping[str, Any]) -> Usage | None:
    """Return the usage of a response or a turn."""
    received, sent = read_count(row, "input_tokens"), read_count(row, "output_tokens")
    if not received and not sent:
        return None
    details = read_object(parse_json(row.get("token_details") or "null"))
    cached = read_count(details, "prompt_tokens_details", "cached_tokens") or read_count(
        details, "input_tokens_details", "cached_tokens"
    )
    return Usage(
        uncached_input_tokens=max(0, received - cached),
        cache_read_tokens=cached,
        output_tokens=sent,
    )
