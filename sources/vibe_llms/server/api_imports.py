"""The endpoints under `/api/imports`: imports of other programs' conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from vibe_llms.importing.reports import ImportOptions
from vibe_llms.server.api_files import check_type
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.files import LONGEST_NAME
from vibe_llms.server.imports import ImportDescription
from vibe_llms.server.reading import read_query
from vibe_llms.server.spaces import UserSpace

_PROBLEMS = ("partly", "empty", "refused")


class ImportList(Struct):
    """The latest imports, newest first, and the largest file in bytes that can be uploaded."""

    imports: Sequence[ImportDescription]
    most_bytes: int


class ImportQuery(Struct):
    """Name of the file, and what to import of it.

    In a dry run nothing is stored, and the file is kept for an hour to be imported then. `since`
    leaves out conversations that were last changed before this day (UTC), `match` those without
    this text in their title. `tag` is added to all.
    """

    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)] = "export"
    dry_run: bool = False
    since: date | None = None
    match: str = ""
    tag: Annotated[str, Meta(max_length=100)] = ""


class ImportReportQuery(Struct):
    """With `problems`, only conversations that are not imported completely are listed."""

    problems: bool = False


async def list_imports(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List the latest imports, newest first."""
    listed = ImportList(await space.imports.survey(), core.settings.import_bytes)
    await exchange.reply(msgspec.json.encode(listed))


async def upload_import(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Import conversations of another program from a file, whose bytes are the body.

    The program is recognized automatically. The response comes when the file has arrived; the
    import runs in the background, one at a time. Importing again adds only what is new.
    """
    query = read_query(ImportQuery, exchange.query)
    check_type(exchange.media_type)
    since = None if query.since is None else datetime.combine(query.since, time(), UTC)
    options = ImportOptions(
        since=since,
        match=query.match,
        tags=(query.tag,) if query.tag else (),
        dry_run=query.dry_run,
    )
    most, key = core.settings.import_bytes, "import-bytes"
    await exchange.check_length(most, key)
    parts = exchange.receive_parts(most, key, core.settings)
    described = await space.imports.upload(query.name, options, parts)
    await exchange.reply(msgspec.json.encode(described), status=201)


async def show_import(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show the state and the progress of an import."""
    await exchange.reply(msgspec.json.encode(await space.imports.access(exchange.argument)))


async def show_import_report(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show the report of an import that has ended, as `vibe-llms import --json` prints it."""
    query = read_query(ImportReportQuery, exchange.query)
    report = await space.imports.load_report(exchange.argument)
    if query.problems:
        found = tuple(one for one in report.conversations if one.status in _PROBLEMS)
        report = replace(report, conversations=found)
    await exchange.reply(await asyncio.to_thread(msgspec.json.encode, report))


async def start_import(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Import the file of a dry run that has ended."""
    described = await space.imports.start(exchange.argument)
    await exchange.reply(msgspec.json.encode(described), status=202)


async def cancel_import(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Stop an import; what was imported stays. Without effect if it has ended."""
    described = await space.imports.cancel(exchange.argument)
    await exchange.reply(msgspec.json.encode(described))


async def remove_import(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Delete an import that has ended from the list, with the file of a dry run."""
    described = await space.imports.remove(exchange.argument)
    await exchange.reply(msgspec.json.encode(described))
