"""The archive in the database: what it does beyond the contract, and how."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from tests.fakes.postgres import TestDatabase, access_cluster, temporary_database
from tests.faults.archives import produce_details, say
from vibe_llms.base.exceptions import ArchiveDamaged, ConversationMoved, FormatNewer, StorageError
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.messages.contents import ImageContent
from vibe_llms.storage.details import encode_details
from vibe_llms.storage.postgres import statements
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.migrations import migrate
from vibe_llms.storage.postgres.pipelines import Statement, StatementResult
from vibe_llms.storage.postgres.settings import PostgresSettings


def open_user(place: TestDatabase, user: str = "ada") -> PostgresArchive:
    database = Database(PostgresSettings(dsn=place.dsn))
    return PostgresArchive(database, PostgresContents(database, inline_bytes=1024), user)


@pytest.fixture
async def archive(place: TestDatabase) -> AsyncIterator[PostgresArchive]:
    archive = open_user(place)
    yield archive
    await archive.database.close()


def ask(place: TestDatabase, question: str, *values: Any) -> Sequence[tuple[Any, ...]]:
    """What the owner of the tables reads or changes."""
    with psycopg.connect(place.admin_dsn) as connection:
        cursor = connection.execute(question.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


async def test_a_fork_copies_no_message(archive: PostgresArchive, place: TestDatabase) -> None:
    said = say(*map(str, range(50)))
    await archive.create("parent", produce_details(), said)
    for number in range(5):
        name = f"fork{number}"
        await archive.fork("parent", name, produce_details(), at=said[-1 - number].identity)
        await archive.append(name, say("own"), after=said[-1 - number].identity)
    assert ask(place, "select count(*) from vibe.messages") == [(55,)]
    await archive.remove("parent")
    # The longest fork has all of them; the last message goes with it.
    await archive.remove("fork0")
    assert ask(place, "select count(*) from vibe.messages") == [(49 + 4,)]
    await archive.remove(*(f"fork{number}" for number in range(1, 5)))
    for table in ("conversations", "pieces", "messages", "content_uses"):
        assert ask(place, f"select count(*) from vibe.{table}") == [(0,)], table


async def test_messages_taken_back_leave_nothing_behind(
    archive: PostgresArchive, place: TestDatabase
) -> None:
    picture = UserCanister((ImageContent(b"picture", "image/png"),))
    one, two = say("one", "two")
    await archive.create("parent", produce_details(), [one, picture, two])
    await archive.retract("parent", after=one.identity, last=two.identity)
    for table in ("messages", "pieces"):
        assert ask(place, f"select count(*) from vibe.{table}")[0][0] in (1, 2)
    assert ask(place, "select count(*) from vibe.messages") == [(1,)]
    assert ask(place, "select count(*) from vibe.content_uses") == [(0,)]
    # One that another message needs stays.
    again = UserCanister(picture.contents)
    await archive.append("parent", [picture, again], after=one.identity)
    await archive.retract("parent", after=picture.identity, last=again.identity)
    assert ask(place, "select count(*) from vibe.content_uses") == [(1,)]


async def test_forks_and_removals_at_once_lose_and_leave_nothing(
    archive: PostgresArchive, place: TestDatabase
) -> None:
    said = say(*map(str, range(10)))
    await archive.create("root", produce_details(), said)
    names = [f"fork{number}" for number in range(12)]
    await asyncio.gather(
        *(
            archive.fork("root", name, produce_details(), at=said[number % 10].identity)
            for number, name in enumerate(names)
        )
    )
    await asyncio.gather(
        archive.remove("root"),
        *(archive.remove(name) for name in names[::2]),
        *(archive.fork(name, f"{name}-twin", produce_details()) for name in names[1::2]),
        *(archive.append(name, say("more"), after=None) for name in names[1::2]),
    )
    for number in range(1, 12, 2):
        wanted = said[: number % 10 + 1]
        held = (await archive.restore(names[number])).canisters
        assert [*held[:-1]] == wanted
        twin = (await archive.restore(f"{names[number]}-twin")).canisters
        assert [*twin[: len(wanted)]] == wanted
    await archive.remove(*(one.identity for one in await archive.survey()))
    assert ask(place, "select count(*) from vibe.messages") == [(0,)]


async def test_two_that_share_messages_may_be_removed_at_once(
    archive: PostgresArchive, place: TestDatabase
) -> None:
    await archive.create("parent", produce_details(), say("one", "two"))
    await archive.fork("parent", "child", produce_details())
    # Neither removal is over before the other one looks who still needs the messages.
    ask(
        place,
        "create function public.pause() returns trigger language plpgsql as $$ begin "
        "perform pg_sleep(0.2); return null; end $$;"
        "create trigger pause after delete on vibe.messages execute function public.pause()",
    )
    await asyncio.gather(archive.remove("parent"), archive.remove("child"))
    assert ask(place, "select count(*) from vibe.messages") == [(0,)]


async def test_what_is_repeated_is_not_done_twice(archive: PostgresArchive) -> None:
    (first,), said = say("first"), say("one", "two")
    details = produce_details()
    for _ in range(2):
        assert await archive.create("abcd", details, [first]) == (first,)
    for _ in range(2):
        kept, _ = await archive.append("abcd", said, after=first.identity)
        assert kept == tuple(said)
    assert (await archive.restore("abcd")).canisters == (first, *said)
    # The same messages, but not after the same one, or not all of them.
    for wrong, after in ((said[1:], first), (said[:1], first), (say("x"), first)):
        with pytest.raises(ConversationMoved):
            await archive.append("abcd", wrong, after=after.identity)
    with pytest.raises(ConversationMoved):
        await archive.create("abcd", details, [first])
    assert (await archive.restore("abcd")).canisters == (first, *said)


async def test_the_bytes_are_those_of_the_files(archive: PostgresArchive) -> None:
    said = say(*(f"{number} \0 \u2028" for number in range(2_500)))
    details = produce_details("a\0name", ["t"])
    await archive.create("abcd", details, said[:1_200])
    await archive.fork("abcd", "fork", details, at=said[999].identity)
    await archive.append("fork", said[1_000:], after=said[999].identity)
    lines = b"".join(encode_canister(one) + b"\n" for one in said)
    assert await archive.read("fork") == (encode_details(details), lines)
    (summary,) = await archive.survey(limit=1)
    assert (summary.identity, summary.name, summary.messages) == ("fork", "a\ufffdname", 2_500)


async def test_a_damaged_line_is_named_and_the_others_can_be_read(
    archive: PostgresArchive, place: TestDatabase
) -> None:
    one, two, three = say("one", "two", "three")
    await archive.create("abcd", produce_details(), [one, two, three])
    ask(place, "update vibe.messages set line = '{\"role\":' where position = 1")
    with pytest.raises(ArchiveDamaged, match="show abcd --lenient") as caught:
        await archive.restore("abcd")
    assert caught.value.line == 2
    restored = await archive.restore("abcd", lenient=True)
    assert restored.canisters == (one, three)
    (gap,) = restored.gaps
    assert (gap.line, gap.offset) == (2, len(encode_canister(one)) + 1)
    assert await archive.search("two") == []


async def test_what_a_newer_version_wrote_is_not_touched(
    archive: PostgresArchive, place: TestDatabase
) -> None:
    (said,) = say("first")
    await archive.create("abcd", produce_details("name"), [said])
    ask(
        place,
        "update vibe.conversations set format = 2, "
        "metadata = replace(metadata, 'format = 1', 'format = 2')",
    )
    for work in (
        archive.append("abcd", say("x"), after=said.identity),
        archive.restore("abcd"),
        archive.retract("abcd", after=said.identity, last=said.identity),
        archive.fork("abcd", "fork", produce_details()),
        archive.revise("abcd", name="x"),
    ):
        with pytest.raises(FormatNewer, match="written by a newer version of vibe-llms"):
            await work
    (summary,) = await archive.survey()
    assert summary.problem.startswith("written by a newer version")
    # Unknown fields of this format stay.
    ask(
        place,
        "update vibe.conversations set format = 1, "
        "metadata = 'mood = \"calm\"' || chr(10) || replace(metadata, 'format = 2', 'format = 1')",
    )
    await archive.revise("abcd", name="other")
    assert b'mood = "calm"' in (await archive.read("abcd"))[0]


async def test_a_message_that_could_not_be_read_again_is_refused(
    archive: PostgresArchive,
) -> None:
    await archive.create("abcd", produce_details(), [])
    archive.settings = type(archive.settings)(line_bytes=500)
    with pytest.raises(StorageError, match=r"exceeds line-bytes \(500\)"):
        await archive.append("abcd", say("short", "x" * 600), after=None)
    assert (await archive.restore("abcd")).canisters == ()


async def test_words_of_any_size_and_number_are_indexed(archive: PostgresArchive) -> None:
    texts = [
        "x" * 300_000,
        " ".join(f"word{number}" for number in range(50_000)) + " tail",
        "".join(chr(0x4E00 + number % 20_000) for number in range(250_000)),
        "\U00010400" * 100_000,
    ]
    await archive.create("abcd", produce_details(), say(*texts))
    (finding,) = await archive.search("word12000")
    assert "[word12000]" in finding.excerpt
    assert len(await archive.search("丁七")) == 0
    assert len(await archive.search(chr(0x4E00) + chr(0x4E01))) == 1


class Counting(Database):
    """It counts what is asked of it."""

    asked = 0

    async def run(self, statements: Sequence[Statement]) -> Sequence[StatementResult]:
        self.asked += 1
        return await super().run(statements)


async def test_a_phrase_that_few_messages_have_is_found_by_two_questions(
    place: TestDatabase,
) -> None:
    database = Counting(PostgresSettings(dsn=place.dsn))
    archive = PostgresArchive(database, PostgresContents(database, inline_bytes=1024), "ada")
    wanted, *others = say("alpha-beta", *["beta alpha"] * 300)
    await archive.create("abcd", produce_details(), [wanted, *others])
    database.asked = 0
    (finding,) = await archive.search("alpha-beta", limit=2)
    assert (finding.canister, database.asked) == (wanted.identity, 2)
    assert await archive.search("beta-beta") == []
    await database.close()


async def test_a_search_keeps_to_its_user_where_no_policy_holds_the_owner_of_the_tables(
    place: TestDatabase,
) -> None:
    for user in ("ada", "bob"):
        archive = open_user(place, user)
        await archive.create("abcd", produce_details(), say(f"common {user}"))
        await archive.database.close()
    with psycopg.connect(place.dsn) as connection:
        connection.execute("select set_config('vibe.user', 'ada', true)")
        call = "select line from vibe.search_messages('common', 'common', true, 100, 0)"
        ((line,),) = connection.execute(call).fetchall()
    assert b"common ada" in line


async def test_the_newest_conversations_are_read_without_a_look_at_the_others(
    archive: PostgresArchive, place: TestDatabase
) -> None:
    await archive.create("abcd", produce_details(), say("first"))
    ask(
        place,
        "insert into vibe.conversations select (jsonb_populate_record(c, jsonb_build_object("
        "'identity', 'c' || n, 'superseded_by', case when n % 9 = 0 then 'abcd' else '' end))).* "
        "from vibe.conversations c, generate_series(1, 5000) n",
    )
    with psycopg.connect(place.admin_dsn, autocommit=True) as connection:
        connection.execute("analyze vibe.conversations")
    listed = f"{statements.SUMMARY} and {statements.IS_LISTED}"
    values: dict[str, Any] = {"owner": "ada", "conversation": "c2500"}
    plans: list[str] = []
    with psycopg.connect(place.dsn) as connection:
        connection.execute("select set_config('vibe.user', 'ada', true)")
        (times,) = connection.execute(statements.TIMES.encode(), values).fetchall()
        values["updated"], values["created"] = times
        for question in (listed, f"{listed} and {statements.FOLLOWS}"):
            asked = f"explain {question} {statements.NEWEST} limit 50"
            rows = connection.execute(asked.encode(), values).fetchall()
            plans.append("\n".join(row[0] for row in rows))
    for plan in plans:
        assert "Backward using conversations_by_time" in plan
        assert not any(one in plan for one in ("Sort", "Hash", "hashed", "Seq Scan"))
    # A later page begins where it is, and does not pass over what is before it.
    assert re.search(r"Index Cond: .*ROW\(updated, created, identity\) <", plans[1])
    pages = [await archive.survey(limit=50, after=after) for after in ("", "c2500")]
    assert [len(page) for page in pages] == [50, 50]


async def test_a_search_does_not_read_the_pieces_of_all_conversations(
    archive: PostgresArchive, place: TestDatabase
) -> None:
    await archive.create("abcd", produce_details(), say("common", "common", "rare"))
    ask(
        place,
        "insert into vibe.pieces select 'ada', 'c' || n, 0, 1, 1000 + n "
        "from generate_series(1, 5000) n",
    )
    with psycopg.connect(place.admin_dsn, autocommit=True) as connection:
        connection.execute("analyze vibe.pieces")
    with psycopg.connect(place.dsn) as connection:
        connection.execute("select set_config('vibe.user', 'ada', true)")
        call = "select line from vibe.search_messages('rare', 'rare', false, 20, 0)"
        assert len(connection.execute(call.encode()).fetchall()) == 1
        read = "select seq_scan, idx_scan from pg_stat_xact_user_tables where relname = 'pieces'"
        assert connection.execute(read.encode()).fetchall() == [(0, 1)]


# The tables belong to a role without special rights here, as they do in production.


@pytest.fixture
def owned() -> Iterator[TestDatabase]:
    cluster = access_cluster()
    with temporary_database(bare=True) as place:
        cluster.execute(
            "do $$ begin create role keeper login createrole; "
            "exception when duplicate_object then null; end $$"
        )
        cluster.execute("grant vibe_llms to keeper with admin option")
        cluster.execute(f"alter database {place.name} owner to keeper")
        cluster.execute("create extension if not exists vector", place.name)
        dsn = cluster.address(place.name, "keeper")

        async def prepare() -> None:
            async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                await migrate(connection, "app")

        asyncio.run(prepare())
        yield TestDatabase(place.name, place.dsn, dsn)


def plan_of(place: TestDatabase, user: str, statement: str) -> str:
    """How the owner of the tables, which is what the function runs as, would do something."""
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute("select set_config('vibe.user', %s, true)", (user,))
        connection.execute("set local enable_seqscan = off")
        rows = connection.execute(f"explain {statement}".encode()).fetchall()
    return "\n".join(row[0] for row in rows)


def test_a_search_uses_the_index_of_words_and_sees_only_its_user(owned: TestDatabase) -> None:
    async def fill() -> None:
        for user in ("ada", "bob"):
            archive = open_user(owned, user)
            said = [*say(*(f"common {user} {n} {'rare' if n == 7 else ''}" for n in range(500)))]
            await archive.create("abcd", produce_details(), said)
            assert len(await archive.search("rare")) == 1
            (finding,) = await archive.search("common 499")
            assert finding.canister == said[499].identity
            assert await archive.search("common bob" if user == "ada" else "common ada") == []
            await archive.database.close()

    asyncio.run(fill())
    with psycopg.connect(owned.admin_dsn, autocommit=True) as connection:
        connection.execute("analyze vibe.messages")
    where = "from vibe.messages where owner = vibe.current_user_name() and words @@ '{}'::tsquery"
    plan = plan_of(owned, "ada", f"select line {where.format('rare & @ada')}")
    assert "messages_by_words" in plan
    # Programs have to call the function: under their policy the index cannot be used.
    with psycopg.connect(owned.dsn) as connection:
        connection.execute("select set_config('vibe.user', 'ada', true)")
        connection.execute("set local enable_seqscan = off")
        rows = connection.execute(f"explain select 1 {where.format('rare')}".encode()).fetchall()
        assert "messages_by_words" not in "".join(row[0] for row in rows)
        # The function keeps to the user, whatever it is asked for, and finds nothing without one.
        call = "select line from vibe.search_messages('common', 'common', true, 2000, 0)"
        lines = connection.execute(call.encode()).fetchall()
        assert len(lines) == 500
        assert all(b"common ada" in line for (line,) in lines)
        connection.execute("select set_config('vibe.user', '', true)")
        assert connection.execute(call.encode()).fetchall() == []
