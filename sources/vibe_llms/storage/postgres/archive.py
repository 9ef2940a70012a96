"""`PostgresArchive`: the conversations and contents of one user, in the database.

Every method is one transaction. Only transactions that change the same conversation wait for each
other. Those that begin or end sharing messages run one at a time for each user.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import (
    ContentDamaged,
    ContentMissing,
    ConversationMoved,
    ConversationNotFound,
    FormatNewer,
)
from vibe_llms.messages.canisters import Canister, UserCanister, role_of
from vibe_llms.messages.codecs import LineUnreadable, decode_canister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.messages.events import Notice
from vibe_llms.storage.conversations import is_conversation_identity
from vibe_llms.storage.deposits import Deposit, concerns_contents
from vibe_llms.storage.details import (
    change_details,
    decode_details,
    describe_changes,
    encode_details,
    parse_tree,
)
from vibe_llms.storage.families import find_family
from vibe_llms.storage.interfaces import (
    FORMAT,
    ConversationVersions,
    Details,
    Finding,
    Origin,
    Relative,
    Restored,
    Summary,
    UploadedFile,
)
from vibe_llms.storage.lines import (
    LineReader,
    decode_each,
    decode_parts,
    describe_damage,
    encode_line,
)
from vibe_llms.storage.postgres import statements
from vibe_llms.storage.postgres.contents import PostgresContents, PreparedCanisters
from vibe_llms.storage.postgres.database import Connection, Database, clean_text, survey_fences
from vibe_llms.storage.postgres.pipelines import Statement
from vibe_llms.storage.postgres.titles import encode_patterns
from vibe_llms.storage.postgres.words import Query, encode_query, encode_words, has_phrases
from vibe_llms.storage.resolving import Named, find_conversation, rank_of, refuse_rank
from vibe_llms.storage.texts import excerpt_of, text_of, title_of, words_of
from vibe_llms.storage.transfer import StoredConversation

#: Anything that looks like a hash counts, because a newer version may write hashes elsewhere.
_HASH = re.compile(rb"[0-9a-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
#: Up to this many canisters are encoded on the event loop.
_MOST_ON_LOOP = 4
_FOREVER = datetime.max.replace(tzinfo=UTC)


class _Rows(Struct, frozen=True):
    """Canisters as rows of the table. `titled` is the index of the one that provides the title."""

    identities: list[str]
    lines: list[bytes]
    hashes: list[str]
    words: list[str]
    title: str
    titled: int | None

    @property
    def digests(self) -> AbstractSet[str]:
        """Hashes in the lines, of contents or of something else."""
        return {digest for text in self.hashes for digest in _DIGEST.findall(text)}

    def values(self) -> dict[str, Any]:
        """Return the values of a statement."""
        last = self.identities[-1] if self.identities else ""
        return {**msgspec.structs.asdict(self), "count": len(self.identities), "last": last}


class PostgresArchive:
    """Archive of a user in the database. Its connections belong to the backend."""

    def __init__(
        self,
        database: Database,
        contents: PostgresContents,
        user: str,
        settings: StorageSettings = StorageSettings(),
    ) -> None:
        self.database = database
        self.contents = contents
        self.user = user
        self.settings = settings

    async def create(
        self, identity: str, details: Details, canisters: Sequence[Canister]
    ) -> tuple[Canister, ...]:
        """Create a conversation with its first canisters, and return them as kept in memory."""
        values = self._values(identity)
        prepared, rows = await self._prepare(canisters)
        values |= {**rows.values(), **_columns_of(encode_details(details), details)}
        if not await self._add(statements.CREATE, values, prepared, rows):
            async with self.database.transaction(self.user) as connection:
                if not await self._is_there(connection, values, rows, first=0):
                    raise ConversationMoved("it already exists", path=identity)
        return prepared.kept

    async def append(
        self, identity: str, canisters: Sequence[Canister], *, after: str | None
    ) -> tuple[tuple[Canister, ...], tuple[Notice, ...]]:
        """Add canisters; see `vibe_llms.storage.interfaces.Archive`.

        Canisters that an earlier attempt with unknown outcome already added are not added again.
        """
        values = self._values(identity)
        prepared, rows = await self._prepare(canisters)
        values |= {**rows.values(), "after": None if after is None else clean_text(after)}
        if not await self._add(statements.APPEND, values, prepared, rows):
            async with self.database.transaction(self.user) as connection:
                await self._explain(connection, values, rows)
        return prepared.kept, ()

    async def retract(self, identity: str, *, after: str, last: str) -> None:
        """Delete canisters at the end; see `vibe_llms.storage.interfaces.Archive`."""
        values = {**self._values(identity), "holder": _holder(identity), "after": clean_text(after)}
        async with self.database.transaction(self.user) as connection:
            await connection.execute(statements.LOCK, values)
            row = await self._access(connection, values, "last", lock=True)
            if row[0] != clean_text(last):
                raise _moved(identity)
            values["cut"] = await self._locate(connection, identity, after) + 1
            cursor = await connection.execute(statements.CUT_HASHES, values)
            values["hashes"] = [digest for (digest,) in await cursor.fetchall()]
            cursor = await connection.execute(statements.CUT_PIECES, values)
            values["strands"] = [strand for (strand,) in await cursor.fetchall()]
            await connection.execute(statements.CUT.encode(), values)
            await connection.execute(statements.SWEEP, values)
            if values["hashes"]:
                await connection.execute(statements.CUT_CONTENTS, values)

    async def restore(self, identity: str, *, lenient: bool = False) -> Restored:
        """Return a conversation. With `lenient`, tolerate damage and report the gaps."""
        values = self._values(identity)
        read = _read(await self.database.fetch(self.user, statements.RESTORE, values))
        if read is None:
            raise _not_found(identity)
        metadata, _, parts = read
        return await asyncio.to_thread(self._decode, identity, metadata, parts, lenient)

    async def read(self, identity: str) -> tuple[bytes, bytes]:
        """Return a conversation's `metadata.toml` and `messages.jsonl`, as in a folder."""
        stored = await self.export_conversation(identity)
        return stored.metadata, stored.lines

    async def fork(
        self, identity: str, target: str, details: Details, *, at: str | None = None
    ) -> None:
        """Create a conversation from the messages of another, which both share."""
        values = {
            **self._values(identity),
            "target": self._values(target)["conversation"],
            "parent": _holder(identity),
            "holder": _holder(target),
            **_columns_of(encode_details(details), details),
        }
        async with self.database.transaction(self.user) as connection:
            await connection.execute(statements.LOCK, values)
            cut, last = await self._access(connection, values, "messages, last")
            if at is not None:
                cut, last = await self._locate(connection, identity, at) + 1, clean_text(at)
            values |= {"cut": cut, "last": last}
            if await _fetch(connection, statements.FORK, values) is None:
                raise ConversationMoved("it already exists", path=target)
            await connection.execute(statements.SHARE_CONTENTS, values)

    async def revise(
        self,
        identity: str,
        *,
        name: str | None = None,
        model: str | None = None,
        superseded_by: str | None = None,
        add_tags: Sequence[str] = (),
        remove_tags: Sequence[str] = (),
    ) -> Details:
        """Change the details of a conversation."""
        changes = describe_changes(
            name=name,
            model=model,
            superseded_by=superseded_by,
            add_tags=add_tags,
            remove_tags=remove_tags,
        )
        values = self._values(identity)
        async with self.database.transaction(self.user) as connection:
            (metadata,) = await self._access(connection, values, "metadata", lock=True)
            changed, details = change_details(metadata.encode(), changes, identity)
            await self._set(connection, values, _columns_of(changed, details))
        return details

    async def remove(self, *identities: str, last: str | None = None) -> None:
        """Permanently delete all of the conversations or none; see `Archive.remove`."""
        for identity in identities:
            self._values(identity)
        values: dict[str, Any] = {"owner": self.user, "identities": [*identities]}
        async with self.database.transaction(self.user) as connection:
            await connection.execute(statements.LOCK, values)
            cursor = await connection.execute(statements.REMOVE, values)
            gone: dict[str, datetime] = {}
            for identity, updated, end in await cursor.fetchall():
                if last is not None and end != clean_text(last):
                    raise _moved(identity)
                gone[identity] = updated
            for identity in identities:
                if identity not in gone:
                    raise _not_found(identity)
            cursor = await connection.execute(statements.REMOVE_PIECES, values)
            values["strands"] = [strand for (strand,) in await cursor.fetchall()]
            await connection.execute(statements.SWEEP, values)
            for identity, updated in gone.items():
                await self.contents.release(
                    connection, self.user, _holder(identity), before=updated
                )

    async def resolve(self, text: str) -> str:
        """Return the identity of the conversation that a text refers to; see `Archive.resolve`."""
        values: dict[str, Any] = {"owner": self.user, "conversation": text, "rank": rank_of(text)}
        listed = f"from vibe.conversations c where owner = %(owner)s and {statements.IS_LISTED}"
        async with self.database.transaction(self.user) as connection:
            if is_conversation_identity(text) and await _fetch(
                connection,
                "select identity from vibe.conversations "
                "where owner = %(owner)s and identity = %(conversation)s",
                values,
            ):
                return text
            if values["rank"]:
                question = (
                    f"select identity {listed} {statements.NEWEST} offset %(rank)s - 1 limit 1"
                )
                if row := await _fetch(connection, question, values):
                    return str(row[0])
                row = await _fetch(connection, f"select count(*) {listed}", values)
                raise refuse_rank(text, row[0] if row else 0)
            rows: Sequence[tuple[str, str, str, bool]] = ()
            if text.strip():
                values |= {"begun": clean_text(text.casefold()), **encode_patterns(text)}
                rows = await (await connection.execute(statements.RESOLVE, values)).fetchall()
        current = [Named(one, name, name or title) for one, name, title, shown in rows if shown]
        return await asyncio.to_thread(find_conversation, text, [row[0] for row in rows], current)

    async def survey(
        self,
        *,
        limit: int | None = None,
        tag: str = "",
        superseded: bool = False,
        after: str = "",
    ) -> Sequence[Summary]:
        """Return conversations, most recent first; see `vibe_llms.storage.interfaces.Archive`."""
        values: dict[str, Any] = {"owner": self.user, "tag": clean_text(tag)}
        wanted = _wanted(tag, superseded)
        if after:
            values |= self._values(after)
            found = await self.database.fetch(self.user, statements.TIMES, values)
            if not found:
                raise _not_found(after)
            values["updated"], values["created"] = found[0]
            wanted += f" and {statements.FOLLOWS}"
        # Part of the statement, because the query plan depends on the limit.
        most = "" if limit is None else f"limit {int(limit)}"
        question = f"{statements.SUMMARY} {wanted} {statements.NEWEST} {most}"
        return [_summarize(*row) for row in await self.database.fetch(self.user, question, values)]

    async def count(self, *, tag: str = "", superseded: bool = False) -> int:
        """Return the number of conversations that `survey` lists without a limit."""
        ((number,),) = await self.database.fetch(
            self.user,
            "select count(*) from vibe.conversations c "  # noqa: S608
            f"where owner = %(owner)s {_wanted(tag, superseded)}",
            {"owner": self.user, "tag": clean_text(tag)},
        )
        return int(number)

    async def survey_versions(
        self, before: ConversationVersions | None = None
    ) -> ConversationVersions:
        """Return the versions of all conversations, or `before` if nothing has changed since."""
        values: dict[str, Any] = {"owner": self.user}
        ((token,),) = await self.database.fetch(self.user, statements.TOKEN, values)
        if before is not None and before.token == token.encode():
            return before
        rows = await self.database.fetch(self.user, statements.VERSIONS, values)
        return ConversationVersions(token.encode(), dict(rows))

    async def survey_family(self, identity: str) -> Sequence[Relative]:
        """Return all conversations that were forked from the same one, oldest first."""
        values: dict[str, Any] = {"owner": self.user}
        forks = await self.database.fetch(self.user, statements.FORKS, values)
        values["family"] = sorted(find_family(clean_text(identity), dict(forks)))
        question = f"{statements.SUMMARY} and identity = any(%(family)s) {statements.OLDEST}"
        found = [_summarize(*row) for row in await self.database.fetch(self.user, question, values)]
        if identity not in {one.identity for one in found}:
            raise _not_found(identity)
        shared = dict(await self.database.fetch(self.user, statements.SHARED, values))
        return [Relative(one, shared.get(one.identity, 0)) for one in found]

    async def search(
        self, text: str, *, limit: int = 20, superseded: bool = False
    ) -> Sequence[Finding]:
        """Return the messages that contain all words of a text, best match first.

        If more than 1,000 messages match, only the newest are rated, including those of superseded
        conversations.
        """
        words = words_of(text)
        query = encode_query(self.user, words)
        findings: list[Finding] = []
        most, skipped = limit, 0
        while query is not None and len(findings) < limit:
            values = {
                "wanted": query.wanted,
                "rated": query.rated,
                "every": superseded,
                "most": most,
                "skipped": skipped,
            }
            rows = await self.database.fetch(self.user, statements.SEARCH, values)
            # Limit how many messages' long texts are read at once.
            for start in range(0, len(rows), limit):
                if len(findings) < limit:
                    findings += await self._find_in(rows[start : start + limit], words, query)
            if len(rows) < most:
                break
            # Fetch more: the database rates all matches each time, and few may contain the phrases.
            most, skipped = max(limit, statements.RATED), skipped + most
        return findings[:limit]

    async def load(self, reference: Reference) -> bytes:
        """Return the bytes of a reference, checked against its hash."""
        return await self.contents.load(self.user, reference)

    async def load_all(self, references: Sequence[Reference]) -> Mapping[str, bytes]:
        """Return the bytes of references, keyed by hash."""
        return await self.contents.load_all(self.user, references)

    async def put(self, data: bytes, mimetype: str = "") -> Reference:
        """Store bytes. They may be collected if no message refers to them within an hour."""
        return await self.contents.put(self.user, data, mimetype)

    async def upload(
        self,
        data: bytes,
        name: str,
        mimetype: str = "",
        *,
        identity: str = "",
        purpose: str = "",
        expires: str | None = None,
    ) -> UploadedFile:
        """Store bytes as a file, which is kept until it is removed, and replace one with its id.

        The id is `identity`, 32 hexadecimal digits, or else the hash of the bytes.
        """
        deposit = await asyncio.to_thread(Deposit.from_bytes, data, mimetype)
        await self.contents.put_all(self.user, [deposit])
        file = UploadedFile(
            id=identity or deposit.reference.hash,
            name=name,
            mimetype=mimetype,
            size=deposit.reference.size,
            created="",
            hash=deposit.reference.hash,
            purpose=purpose,
            expires=expires,
        )
        return await self._keep_file(file)

    async def survey_files(self) -> Sequence[UploadedFile]:
        """Return the uploaded files, newest first."""
        question = f"{statements.FILES} order by created desc, hash desc"
        rows = await self.database.fetch(self.user, question, {"owner": self.user})
        return [_describe_file(*row) for row in rows]

    async def access_file(self, identity: str) -> UploadedFile:
        """Return an uploaded file by its id, or raise `ContentMissing`."""
        async with self.database.transaction(self.user) as connection:
            statement = f"{statements.FILES} and hash = %(hash)s"
            return await self._find_file(connection, statement, identity)

    async def remove_file(self, identity: str) -> UploadedFile:
        """Delete an uploaded file. Its bytes stay while a message needs them."""
        async with self.database.transaction(self.user) as connection:
            file = await self._find_file(connection, statements.REMOVE_FILE, identity)
            await self.contents.release(
                connection, self.user, _file_holder(identity), before=_FOREVER
            )
        return file

    async def collect(self) -> Sequence[str]:
        """Delete contents that no conversation or file refers to, and return their hashes."""
        return await self.contents.collect(self.user)

    async def survey_identities(self) -> Sequence[str]:
        """Return the identities of all conversations, including superseded and unreadable ones."""
        values = {"owner": self.user}
        rows = await self.database.fetch(self.user, statements.IDENTITIES, values)
        return [identity for (identity,) in rows]

    async def export_conversation(self, identity: str) -> StoredConversation:
        """Return a conversation as it is stored; see `TransferableArchive`."""
        values = self._values(identity)
        stored = _export(await self.database.fetch(self.user, statements.RESTORE, values))
        if stored is None:
            raise _not_found(identity)
        return stored

    async def import_conversation(self, identity: str, stored: StoredConversation) -> None:
        """Make a conversation identical to another archive's; see `TransferableArchive`."""
        values = self._values(identity)
        details = decode_details(parse_tree(stored.metadata, identity), identity)
        columns = {**_columns_of(stored.metadata, details), "updated": stored.updated}
        there = _export(await self.database.fetch(self.user, statements.RESTORE, values))
        begun = b"" if there is None else there.lines
        if not stored.lines.startswith(begun):
            raise ConversationMoved("the conversation was continued here", path=identity)
        lines = stored.lines[len(begun) :].split(b"\n")[:-1]
        starts = range(0, len(lines), statements.PART)
        parts = [await self._read_rows(lines[start : start + statements.PART]) for start in starts]
        async with self.database.transaction(self.user) as connection:
            if there is None:
                first = {**values, **columns, **_Rows([], [], [], [], "", None).values()}
                if await _fetch(connection, statements.CREATE, first) is None:
                    raise ConversationMoved("it already exists", path=identity)
            else:
                await self._access(connection, values, "last", lock=True)
                cursor = connection.cursor(binary=True)
                await cursor.execute(statements.RESTORE.encode(), values)
                there = _export(await cursor.fetchall())
                if there is None or there.lines != begun:
                    raise _moved(identity)
            # Split into parts, because each statement has a time limit.
            for rows in parts:
                more = {**values, **rows.values(), "after": None}
                await _fetch(connection, statements.APPEND, more)
                await self._keep(connection, PreparedCanisters((), ()), rows, identity)
            await self._set(connection, values, columns)

    async def find_contents(self, digests: Collection[str]) -> Mapping[str, Reference]:
        """Return the references of stored contents among these hashes, keyed by hash."""
        return await self.contents.find(self.user, digests)

    async def import_file(self, file: UploadedFile) -> None:
        """Keep the record of a file whose bytes are stored."""
        await self._keep_file(file)

    async def close(self) -> None:
        """Do nothing, because the backend owns the connections."""

    def _values(self, identity: str) -> dict[str, Any]:
        """Return the values that name a conversation; raise `ConversationNotFound` if invalid."""
        if not is_conversation_identity(identity):
            raise ConversationNotFound(
                f"{identity!r} is not the identity of a conversation; see: vibe-llms list"
            )
        return {"owner": self.user, "conversation": identity}

    async def _set(
        self, connection: Connection, values: Mapping[str, Any], columns: Mapping[str, Any]
    ) -> None:
        """Change columns of a conversation."""
        names = ", ".join(f"{column} = %({column})s" for column in columns)
        await connection.execute(
            f"update vibe.conversations set {names} "  # noqa: S608
            "where owner = %(owner)s and identity = %(conversation)s".encode(),
            {**values, **columns},
        )

    async def _keep_file(self, file: UploadedFile) -> UploadedFile:
        """Keep the record of a file. Without a time, it gets the current one."""
        holder = _file_holder(file.id)
        values = {
            "owner": self.user,
            "hash": file.id,
            "name": clean_text(file.name),
            "mimetype": clean_text(file.mimetype),
            "size": file.size,
            "created": file.created or None,
            "content": file.hash,
            "purpose": clean_text(file.purpose),
            "expires": file.expires,
        }
        async with self.database.transaction(self.user) as connection:
            if file.id != file.hash:
                # The bytes of a file that this one replaces.
                await self.contents.release(connection, self.user, holder, before=_FOREVER)
            reference = Reference(file.hash, file.size)
            await self.contents.use(connection, self.user, [reference], holder)
            cursor = await connection.execute(statements.KEEP_FILE, values)
            (row,) = await cursor.fetchall()
        return _describe_file(*row)

    async def _read_rows(self, lines: list[bytes]) -> _Rows:
        """Return the rows of stored lines."""
        canisters = await asyncio.to_thread(lambda: [_decode(line) for line in lines])
        texts = await self._read_texts([one for one in canisters if one is not None])
        return await asyncio.to_thread(self._describe, lines, canisters, texts)

    async def _prepare(self, canisters: Sequence[Canister]) -> tuple[PreparedCanisters, _Rows]:
        limit = self.settings.inline_bytes
        if len(canisters) <= _MOST_ON_LOOP and not any(
            concerns_contents(one, limit) for one in canisters
        ):
            # A thread would take longer than the work.
            prepared = PreparedCanisters(tuple(canisters), tuple(canisters))
            return prepared, self._encode(prepared, {})
        prepared = await self.contents.prepare(self.user, canisters)
        texts = await self._read_texts(prepared.kept)
        return prepared, await asyncio.to_thread(self._encode, prepared, texts)

    def _encode(self, prepared: PreparedCanisters, texts: Mapping[str, str]) -> _Rows:
        longest = self.settings.line_bytes
        lines = [encode_line(stored, longest, "") for stored in prepared.stored]
        return self._describe(lines, prepared.kept, texts)

    def _describe(
        self, lines: list[bytes], canisters: Sequence[Canister | None], texts: Mapping[str, str]
    ) -> _Rows:
        """Return the rows of lines. The canister of an unreadable line is `None`."""
        rows = _Rows([], lines, [], [], "", None)
        read = _reader_of(texts)
        title, titled = "", None
        for place, (line, canister) in enumerate(zip(lines, canisters, strict=True)):
            text = text_of(canister, read) if canister is not None else ""
            if titled is None and isinstance(canister, UserCanister) and (title := title_of(text)):
                titled = place
            rows.identities.append(clean_text(canister.identity) if canister is not None else "")
            hashes = sorted({digest.decode() for digest in _HASH.findall(line)})
            rows.hashes.append(f"{{{','.join(hashes)}}}")
            rows.words.append(encode_words(self.user, text))
        return msgspec.structs.replace(rows, title=clean_text(title), titled=titled)

    async def _add(
        self, statement: str, values: Mapping[str, Any], prepared: PreparedCanisters, rows: _Rows
    ) -> bool:
        """Add rows and keep the contents that they need. Return False if they cannot be added."""
        if not (prepared.references or rows.digests):
            addition = Statement(self.user, statement, values)
            *_, added = await self.database.run([*survey_fences(), addition])
            return bool(added.rows)
        async with self.database.transaction(self.user) as connection:
            for fence in survey_fences():
                await connection.execute(fence.query.encode(), fence.values)
            if await _fetch(connection, statement, values) is None:
                return False
            await self._keep(connection, prepared, rows, values["conversation"])
        return True

    async def _keep(
        self, connection: Connection, prepared: PreparedCanisters, rows: _Rows, identity: str
    ) -> None:
        """Store the contents that rows need, and keep them for the conversation."""
        # Called last: every transaction locks the conversation's row before its contents.
        holder = _holder(identity)
        if prepared.references:
            await self.contents.store(connection, self.user, prepared, holder)
            # After its contents: `release` spares newer ones, which other messages may need.
            await connection.execute(statements.TOUCH, self._values(identity))
        needed = {one.hash for one in prepared.references}
        others = rows.digests - needed
        if others:
            # A newer version may refer to these hashes. Hashes without a content are ignored.
            values = {"owner": self.user, "holder": holder, "hashes": sorted(others)}
            await connection.execute(statements.KEEP_OTHERS, values)

    async def _access(
        self, connection: Connection, values: Mapping[str, Any], columns: str, *, lock: bool = False
    ) -> tuple[Any, ...]:
        """Return columns of a conversation that this version may change."""
        row = await _fetch(
            connection,
            f"select format, {columns} from vibe.conversations "  # noqa: S608
            "where owner = %(owner)s and identity = %(conversation)s"
            f"{' for no key update' if lock else ''}",
            values,
        )
        if row is None:
            raise _not_found(values["conversation"])
        if row[0] > FORMAT:
            raise FormatNewer(_describe_format(row[0]), path=values["conversation"])
        return row[1:]

    async def _locate(self, connection: Connection, identity: str, message: str) -> int:
        """Return the position of a message. Of two with the same identity, the later one counts."""
        values = {**self._values(identity), "message": clean_text(message)}
        row = await _fetch(connection, statements.LOCATE, values) if message else None
        if row is None:
            raise ConversationNotFound(f"{identity} has no message {message}")
        return int(row[0])

    async def _explain(
        self, connection: Connection, values: Mapping[str, Any], rows: _Rows
    ) -> None:
        """Raise the reason why canisters could not be added, unless they were added before."""
        (messages,) = await self._access(connection, values, "messages")
        first = messages - len(rows.identities)
        if not rows.identities or not await self._is_there(connection, values, rows, first=first):
            raise _moved(values["conversation"])

    async def _is_there(
        self, connection: Connection, values: Mapping[str, Any], rows: _Rows, *, first: int
    ) -> bool:
        """Return True if a conversation ends with these rows, starting at position `first`."""
        before = values.get("after")
        start = first - 1 if before else first
        cursor = await connection.cursor(binary=True).execute(
            statements.LAST, {**values, "first": start}
        )
        found = await cursor.fetchall()
        if before and (not found or found.pop(0)[0] != before):
            return False
        return found == [*zip(rows.identities, rows.lines, strict=True)]

    def _decode(
        self, identity: str, metadata: bytes, parts: Sequence[bytes], lenient: bool
    ) -> Restored:
        details = decode_details(parse_tree(metadata, identity), identity)
        longest = self.settings.line_bytes
        plain = decode_parts(parts, longest)
        if plain is not None:
            return Restored(identity, details, tuple(plain[0]))
        canisters, gaps = decode_each(LineReader(parts, longest))
        if gaps and not lenient:
            raise describe_damage(gaps[0], identity, identity)
        return Restored(identity, details, tuple(canisters), tuple(gaps))

    async def _read_texts(self, canisters: Sequence[Canister]) -> Mapping[str, str]:
        """Return the readable texts that canisters refer to, keyed by hash."""
        wanted = {
            content.data.hash: content.data
            for canister in canisters
            for content in canister.contents
            if isinstance(content, TextualContent) and isinstance(content.data, Reference)
        }
        loaded: dict[str, bytes] = {}
        try:
            loaded |= await self.load_all([*wanted.values()])
        except (ContentMissing, ContentDamaged):
            for one in wanted.values():
                try:
                    loaded[one.hash] = await self.load(one)
                except (ContentMissing, ContentDamaged):
                    continue
        return {digest: data.decode("utf-8", "replace") for digest, data in loaded.items()}

    async def _find_in(
        self, rows: Sequence[Sequence[Any]], words: Sequence[str], query: Query
    ) -> Sequence[Finding]:
        """Return the messages of a search that also contain its phrases."""
        found = [(*row, canister) for row in rows if (canister := _decode(row[3])) is not None]
        read = _reader_of(await self._read_texts([canister for *_, canister in found]))
        texts = [text_of(canister, read) for *_, canister in found]
        return [
            Finding(
                conversation,
                name or title,
                canister.identity,
                role_of(canister),
                canister.created,
                excerpt_of(said, words),
                name,
            )
            for said, (conversation, name, title, _, canister) in zip(texts, found, strict=True)
            if has_phrases(said, query)
        ]

    async def _find_file(
        self, connection: Connection, statement: str, identity: str
    ) -> UploadedFile:
        values = {"owner": self.user, "hash": clean_text(identity)}
        row = await _fetch(connection, statement, values)
        if row is None:
            raise ContentMissing(f"file {identity!r} not found")
        return _describe_file(*row)


def _read(rows: Sequence[Sequence[Any]]) -> tuple[bytes, datetime, Sequence[bytes]] | None:
    """Return a conversation's details, the time of its last change, and its lines in parts."""
    if not rows:
        return None
    metadata, updated, *_ = rows[0]
    parts = sorted((start, part) for _, _, start, part in rows if part is not None)
    return metadata.encode(), updated, [part + b"\n" for _, part in parts]


def _export(rows: Sequence[Sequence[Any]]) -> StoredConversation | None:
    read = _read(rows)
    if read is None:
        return None
    metadata, updated, parts = read
    return StoredConversation(metadata, b"".join(parts), updated)


async def _fetch(
    connection: Connection, statement: str, values: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    return await (await connection.execute(statement.encode(), values)).fetchone()


def _columns_of(metadata: bytes, details: Details) -> dict[str, Any]:
    """Return the column values of details."""
    origin = details.forked_from
    return {
        "metadata": metadata.decode(),
        "format": details.format,
        "name": clean_text(details.name),
        "model": clean_text(details.model),
        "tags": [clean_text(tag) for tag in details.tags],
        "origin": None
        if origin is None
        else [clean_text(origin.conversation), clean_text(origin.canister)],
        "superseded_by": clean_text(details.superseded_by),
        "created": details.created,
    }


def _summarize(
    identity: str,
    name: str,
    title: str,
    created: datetime,
    updated: datetime,
    model: str,
    tags: Sequence[str],
    origin: Sequence[str] | None,
    messages: int,
    version: int,
    superseded_by: str,
) -> Summary:
    return Summary(
        identity,
        name,
        title,
        created.astimezone(UTC),
        updated.astimezone(UTC),
        model,
        tuple(tags),
        None if origin is None else Origin(*origin),
        messages,
        _describe_format(version) if version > FORMAT else "",
        superseded_by,
    )


def _wanted(tag: str, superseded: bool) -> str:
    """Return the conditions of a list."""
    listed = "" if superseded else f"and {statements.IS_LISTED}"
    return f"{listed} and %(tag)s = any(tags)" if tag else listed


def _describe_file(
    identity: str,
    name: str,
    mimetype: str,
    size: int,
    created: datetime,
    digest: str,
    purpose: str,
    expires: datetime | None,
) -> UploadedFile:
    return UploadedFile(
        id=identity,
        name=name,
        mimetype=mimetype,
        size=size,
        created=created.astimezone(UTC).isoformat(),
        hash=digest,
        purpose=purpose,
        expires=None if expires is None else expires.astimezone(UTC).isoformat(),
    )


def _describe_format(version: int) -> str:
    return (
        f"written by a newer version of vibe-llms (format {version}, supported is "
        f"{FORMAT}); install that version to open it"
    )


def _not_found(identity: str) -> ConversationNotFound:
    return ConversationNotFound(f"conversation {identity} not found")


def _moved(identity: str) -> ConversationMoved:
    return ConversationMoved(
        "another process has continued this conversation; continue in a fork", path=identity
    )


def _holder(identity: str) -> str:
    return f"conversation/{identity}"


def _file_holder(digest: str) -> str:
    return f"file/{digest}"


def _decode(line: bytes) -> Canister | None:
    try:
        return decode_canister(line)
    except LineUnreadable:
        return None


def _reader_of(texts: Mapping[str, str]) -> Callable[[Reference], str]:
    """Return a function with which `text_of` reads references."""
    return lambda reference: texts.get(reference.hash, "")
