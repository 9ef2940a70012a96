"""Check the database: its availability, who can see its rows, and missing data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from vibe_llms.base.configuration import ARCHIVE
from vibe_llms.base.exceptions import (
    ArchiveDamaged,
    ContentDamaged,
    ContentMissing,
    ConversationNotFound,
    FormatNewer,
    PackageMissing,
    StorageError,
    StorageUnavailable,
)
from vibe_llms.storage.deposits import references_of
from vibe_llms.storage.interfaces import Diagnosis
from vibe_llms.storage.objects import CONTENTS, ObjectStore, check_objects
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.database import Connection, Database
from vibe_llms.storage.postgres.migrating import describe_role
from vibe_llms.storage.postgres.statements import MESSAGES

_ROLE = """
select rolname, rolsuper, rolbypassrls, exists (
    select from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'vibe' and pg_has_role(current_user, c.relowner, 'member'))
from pg_roles where rolname = current_user
"""
#: Tables of users, their row security flags, and names and conditions of the policies that apply
#: to programs. Policies for only the owner of the table are for its functions. The result does not
#: depend on who asks: policies do not apply to a superuser, who is a member of every role.
_TABLES = """
select c.relname, c.relrowsecurity,
    array(select array[polname, coalesce(pg_get_expr(p.polqual, p.polrelid), '')]
        from pg_policy p where p.polrelid = c.oid and p.polpermissive and exists (
            select from unnest(p.polroles) held where held = 0 or held = to_regrole('vibe_llms')
                or (held <> c.relowner and pg_has_role(held, 'usage') and not (
                    select rolsuper from pg_roles where rolname = current_user))))
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attname = 'owner' and not a.attisdropped
where n.nspname = 'vibe' and c.relkind = 'r' and has_table_privilege(c.oid, 'select')
order by c.relname
"""
_OWN = "owner = vibe.current_user_name()"
_POLICY = "create policy owner on vibe.{table} using ({own}) with check ({own})"
#: The extension was dropped, and the column with it.
_VECTORLESS = """
select from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'vibe' and c.relname = 'memory_vectors' and not exists (
    select from pg_attribute a
    where a.attrelid = c.oid and a.attname = 'embedding' and not a.attisdropped)
"""
#: Violated foreign keys that were dropped, or that a restored backup did not check.
_ORPHANS = """
select distinct scope from vibe.memory_entries e
where owner = %s and not exists (
    select from vibe.memory_scopes s where s.owner = e.owner and s.scope = e.scope)
order by scope
"""
#: Expected and actual number of a conversation's messages at one moment.
_COUNTS = f"""
select c.messages, (
    select count(*) from {MESSAGES}
    where p.owner = c.owner and p.conversation = c.identity and m.position < c.messages)
from vibe.conversations c where owner = %s and identity = %s
"""  # noqa: S608  (constants)
#: Copying only these rows from a backup keeps everything that was written since.
_FROM_BACKUP = "restore a backup into another database, and copy these rows from there: {}"
_MESSAGES_LOST = _FROM_BACKUP.format("of the conversation, in vibe.messages and vibe.pieces")
_SCOPE_LOST = _FROM_BACKUP.format("of the scope, in vibe.memory_scopes")
_CONTENT_LOST = _FROM_BACKUP.format("of the hash, in vibe.contents and vibe.content_uses")
_OBJECT_LOST = "copy the object {} from a copy of the bucket, under the same name"
#: Contents whose bytes are in an object store.
_OBJECTS = "select hash from vibe.contents where owner = %s and present and data is null"


async def inspect_database(database: Database) -> Sequence[Diagnosis]:
    """Return the reasons why the database is unusable or shows its roles too many rows."""
    try:
        async with database.transaction("") as connection:
            found = [one async for one in _inspect_tables(connection)]
    except (StorageError, PackageMissing) as error:
        return [Diagnosis("database", ARCHIVE, str(error))]
    try:
        await database.check()
    except StorageUnavailable as error:
        # A missing right for one kind of data does not prevent checks of the others.
        subject = "rights" if error.refused else "database"
        found.append(Diagnosis(subject, ARCHIVE, str(error)))
    return found


async def inspect_objects(objects: ObjectStore | None) -> Sequence[Diagnosis]:
    """Return the reason why the object store is unusable, if one is configured."""
    try:
        if objects is not None:
            await check_objects(objects)
    except (StorageUnavailable, PackageMissing) as error:
        return [Diagnosis("bucket", f"{ARCHIVE}.{CONTENTS}", str(error))]
    return []


async def inspect_archive(archive: PostgresArchive) -> AsyncIterator[Diagnosis]:
    """Yield the problems of a user's data."""
    try:
        async for one in _inspect_user(archive):
            yield one
    except StorageError as error:
        yield Diagnosis("database", ARCHIVE, f"{archive.user}: {error}")


async def _inspect_tables(connection: Connection) -> AsyncIterator[Diagnosis]:
    for role, superuser, bypasses, owns in await _ask(connection, _ROLE):
        problem = describe_role(role, superuser=superuser, bypasses=bypasses)
        if problem or owns:
            yield Diagnosis(
                "rights",
                f"{ARCHIVE}.dsn",
                problem or f"the role {role!r} owns the tables, so it can change their policies",
                "create another role, name it in dsn, and run: vibe-llms archive migrate",
            )
    for table, active, policies in await _ask(connection, _TABLES):
        place, policy = f"vibe.{table}", _POLICY.format(table=table, own=_OWN)
        if not active:
            text = "its policies are not in force, so a query may see the rows of all users"
            remedy = f"alter table vibe.{table} enable row level security"
            yield Diagnosis("rights", place, text, remedy)
        elif not policies:
            yield Diagnosis("rights", place, "it has no policy, so no user sees a row", policy)
        for name, condition in policies if active else ():
            if _strip(condition) != _strip(_OWN):
                text = f"a policy shows a user more than the user's own rows: {condition}"
                yield Diagnosis("rights", place, text, f'drop policy "{name}" on {place}')
    for _ in await _ask(connection, _VECTORLESS):
        yield Diagnosis(
            "memory",
            "vibe.memory_vectors",
            "it has no column for vectors, because the extension vector was dropped",
            "create extension vector; truncate vibe.memory_vectors; "
            "alter table vibe.memory_vectors add embedding vector not null",
        )


def _strip(condition: str) -> str:
    """Return a condition without PostgreSQL's additions."""
    return condition.replace("vibe.", "").strip("()")


async def _ask(
    connection: Connection, question: str, values: Sequence[str] = ()
) -> Sequence[tuple[Any, ...]]:
    return await (await connection.execute(question.encode(), values)).fetchall()


async def _inspect_user(archive: PostgresArchive) -> AsyncIterator[Diagnosis]:
    for summary in await archive.survey(superseded=True):
        # A conversation that was deleted in the meantime is not a problem.
        with suppress(ConversationNotFound):
            async for one in _inspect_conversation(archive, summary.identity):
                yield one
    async with archive.database.transaction(archive.user) as connection:
        orphans = await _ask(connection, _ORPHANS, [archive.user])
        objects = {digest for (digest,) in await _ask(connection, _OBJECTS, [archive.user])}
    for (scope,) in orphans:
        text = "its entries are there, but the scope is not, so they are ignored"
        yield Diagnosis("memory", f"{archive.user}/{scope}", text, _SCOPE_LOST)
    for reference in await archive.contents.survey(archive.user):
        try:
            await archive.load(reference)
        except (ContentDamaged, ContentMissing) as error:
            place = f"{archive.user}/{reference.hash}"
            store, remedy = archive.contents.objects, _CONTENT_LOST
            if store is not None and reference.hash in objects:
                remedy = _OBJECT_LOST.format(store.locate(archive.user, reference.hash))
            yield Diagnosis("content", place, str(error), remedy)


async def _inspect_conversation(
    archive: PostgresArchive, identity: str
) -> AsyncIterator[Diagnosis]:
    place = f"{archive.user}/{identity}"
    try:
        restored = await archive.restore(identity, lenient=True)
    except (ArchiveDamaged, FormatNewer) as error:
        yield Diagnosis("conversation", place, str(error))
        return
    async with archive.database.transaction(archive.user) as connection:
        counts = await _ask(connection, _COUNTS, [archive.user, identity])
    for due, held in counts:
        if held != due:
            text = f"it has {held} of its {due} messages"
            yield Diagnosis("conversation", place, text, _MESSAGES_LOST)
    for gap in restored.gaps:
        text = f"this line ({gap.size} bytes) cannot be read: {gap.reason}"
        yield Diagnosis("line", f"{place}:{gap.line}", text, _MESSAGES_LOST)
    references = [one for canister in restored.canisters for one in references_of(canister)]
    held = await archive.contents.find(archive.user, {one.hash for one in references})
    for reference in dict.fromkeys(references):
        if held.get(reference.hash) != reference:
            text = f"{identity} needs this content, but it is missing or incomplete"
            yield Diagnosis("content", f"{archive.user}/{reference.hash}", text, _CONTENT_LOST)
