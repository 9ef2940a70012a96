"""Checks what is in the database: whether it is there, who may see it, and that all of it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from vibe_llms.configuration import ARCHIVE
from vibe_llms.exceptions import (
    ArchiveDamaged,
    ContentDamaged,
    ContentMissing,
    ConversationNotFound,
    FormatNewer,
    PackageMissing,
    StorageError,
)
from vibe_llms.storage.deposits import references_of
from vibe_llms.storage.interfaces import Diagnosis
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.database import Connection, Database
from vibe_llms.storage.postgres.migrating import describe_role

_ROLE = """
select rolname, rolsuper, rolbypassrls, exists (
    select from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'vibe' and pg_has_role(current_user, c.relowner, 'member'))
from pg_roles where rolname = current_user
"""
#: Tables of users that show a user the rows of others.
_OPEN = """
select c.relname from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attname = 'owner' and not a.attisdropped
where n.nspname = 'vibe' and c.relkind = 'r'
    and has_table_privilege(c.oid, 'select')
    and not row_security_active(c.oid)
order by c.relname
"""
_NEEDED = "restore the database from a backup"


async def inspect_database(database: Database) -> Sequence[Diagnosis]:
    """Why the database cannot be used, or shows its roles too much."""
    try:
        async with database.transaction("") as connection:
            return [one async for one in _inspect_rights(connection)]
    except (StorageError, PackageMissing) as error:
        return [Diagnosis("database", ARCHIVE, str(error))]


async def inspect_archive(archive: PostgresArchive) -> AsyncIterator[Diagnosis]:
    """The problems of what a user has."""
    try:
        async for one in _inspect_user(archive):
            yield one
    except StorageError as error:
        yield Diagnosis("database", ARCHIVE, f"{archive.user}: {error}")


async def _inspect_rights(connection: Connection) -> AsyncIterator[Diagnosis]:
    for role, superuser, bypasses, owns in await _ask(connection, _ROLE):
        problem = describe_role(role, superuser=superuser, bypasses=bypasses)
        if problem or owns:
            yield Diagnosis(
                "rights",
                f"{ARCHIVE}.dsn",
                problem or f"the role {role!r} owns the tables, so it can change their policies",
                "create another role, name it in dsn, and run: vibe-llms archive migrate",
            )
    for (table,) in await _ask(connection, _OPEN):
        yield Diagnosis(
            "rights",
            f"vibe.{table}",
            "its policies are not in force, so a query may see the rows of all users",
            f"alter table vibe.{table} enable row level security",
        )


async def _ask(connection: Connection, question: str) -> Sequence[tuple[Any, ...]]:
    return await (await connection.execute(question.encode())).fetchall()


async def _inspect_user(archive: PostgresArchive) -> AsyncIterator[Diagnosis]:
    for summary in await archive.survey(superseded=True):
        # It was deleted in the meantime, which is not a problem.
        with suppress(ConversationNotFound):
            async for one in _inspect_conversation(archive, summary.identity):
                yield one
    for reference in await archive.contents.survey(archive.user):
        try:
            await archive.load(reference)
        except (ContentDamaged, ContentMissing) as error:
            yield Diagnosis("content", f"{archive.user}/{reference.hash}", str(error), _NEEDED)


async def _inspect_conversation(
    archive: PostgresArchive, identity: str
) -> AsyncIterator[Diagnosis]:
    place = f"{archive.user}/{identity}"
    try:
        restored = await archive.restore(identity, lenient=True)
    except (ArchiveDamaged, FormatNewer) as error:
        yield Diagnosis("conversation", place, str(error))
        return
    for gap in restored.gaps:
        text = f"this line ({gap.size} bytes) cannot be read: {gap.reason}"
        yield Diagnosis("line", f"{place}:{gap.line}", text, _NEEDED)
    references = [one for canister in restored.canisters for one in references_of(canister)]
    held = await archive.contents.find(archive.user, {one.hash for one in references})
    for reference in dict.fromkeys(references):
        if held.get(reference.hash) != reference:
            text = f"{identity} needs this content, but it is missing or incomplete"
            yield Diagnosis("content", f"{archive.user}/{reference.hash}", text, _NEEDED)
