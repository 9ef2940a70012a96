"""Contract checks for implementations of `MemoryStore`."""

from __future__ import annotations

import asyncio
import hashlib
import math
import tempfile
import threading
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import msgspec

from vibe_llms.base.exceptions import ArchiveLocked
from vibe_llms.embedding.cache import digest_text
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.chunks import split_passages
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Role, Scope, encode_entry
from vibe_llms.memory.interfaces import MemoryStore
from vibe_llms.memory.retrieval import RetrievalSettings
from vibe_llms.memory.transfer import export_memory, import_memory, read_export
from vibe_llms.messages.identities import produce_identity
from vibe_llms.testing.limits import require

_Check: TypeAlias = "Callable[[_Stores], Awaitable[None]]"

#: Number of tasks that change one scope at the same time, in two memories.
_RIVALS = 6
_SIZE = 32
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
#: Settings with which all entries are found, even poor matches.
_ALL = RetrievalSettings(limit=50, least_relevance=0.0, least_likeness=0.0)
_TEXTS = (
    "Ada keeps bees behind the house.",
    "Ada's sister Mathilda lives in Ghent and sings in a choir.",
    "The bees gave eleven jars of honey this year.",
    "Ada is allergic to penicillin. She carries a card about it.",
    "On Thursdays Ada plays chess with Ben.",
    "Ben has a green bicycle.",
    "Ada prefers tea to coffee.",
    "The choir gives a concert in December.",
)
_QUESTIONS = ("Who keeps bees?", "What does Ada drink?", "choir concert", "penicillin", "zebra")


async def check_memory_store(open_store: Callable[[str], MemoryStore]) -> None:
    """Raise `AssertionError` if a store breaks its contract with memory.

    `open_store(user)` opens the memory of a user, as another process would: the same each time, and
    empty at first. The checks use their own user names. All stores are closed at the end.
    """
    for check in _CHECKS:
        async with AsyncExitStack() as stack:
            name = check.__name__.removeprefix("_check_").replace("_", "-")
            await check(_Stores(open_store, name, stack))


class Hashes:
    """An embedder without a model: texts with common words get similar vectors.

    `texts` records the embedded texts.
    """

    model = "hashes"

    def __init__(self, size: int = _SIZE) -> None:
        self.texts: list[str] = []
        self._size = size

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """Return a vector for each text."""
        if not question:
            self.texts += texts
        return [self._embed(text) for text in texts]

    async def close(self) -> None:
        """Do nothing; the embedder has no resources."""

    def _embed(self, text: str) -> array[float]:
        vector = [0.01] * self._size
        for word in text.casefold().replace(".", " ").replace("?", " ").split():
            vector[hashlib.sha256(word.encode()).digest()[0] % self._size] += 1.0
        length = math.hypot(*vector)
        return array("f", (one / length for one in vector))


class _Stores:
    """The memory of one user, which can be opened several times."""

    def __init__(
        self, open_store: Callable[[str], MemoryStore], user: str, stack: AsyncExitStack
    ) -> None:
        self.user = user
        self.scope = Scope.of_user(user)
        self._open_store = open_store
        self._stack = stack

    def open_store(self, user: str = "") -> MemoryStore:
        """Open the store as another process would."""
        store = self._open_store(user or self.user)
        self._stack.callback(store.close)
        return store

    def open(
        self, user: str = "", *, embedder: Hashes | None = None, lock_seconds: float = 60.0
    ) -> Memory:
        """Open the memory as another process would."""
        memory = Memory(self.open_store(user), embedder=embedder, lock_seconds=lock_seconds)
        self._stack.push_async_callback(memory.close)
        return memory

    async def find(self, memory: Memory, question: str) -> list[str]:
        """Return the texts of the user's entries that match a question, in alphabetical order."""
        found = await memory.search(question, scopes=[self.scope])
        return sorted(one.entry.content for one in found)


async def _check_changes_are_found_by_others(stores: _Stores) -> None:
    one, other = stores.open(), stores.open()
    require(await stores.find(other, "bees") == [], "a new memory finds entries")
    entry = await one.add("Ada keeps bees.", scope=stores.scope)
    require(
        await stores.find(other, "bees") == ["Ada keeps bees."],
        "an entry that one process adds is not found by the next search of another",
    )
    repeat = await other.add("Ada keeps bees.", scope=stores.scope)
    require(repeat.identity == entry.identity, "an existing fact was added again")
    await other.revise(entry.identity, content="Ada keeps wasps.")
    require(
        (await stores.find(one, "wasps"), await stores.find(one, "bees"))
        == (["Ada keeps wasps."], []),
        "an entry that one process changes is found unchanged by another",
    )
    await one.remove(entry.identity)
    require(
        await stores.find(other, "wasps") == [],
        "an entry that one process deletes is found by another",
    )
    (status,) = await other.status()
    require((status.entries, status.deleted) == (0, 1), "a deleted entry is not kept as deleted")
    again = await other.restore(entry)
    require(again == entry, "an entry that was deleted does not come back as it was")
    require(await stores.find(one, "bees") == ["Ada keeps bees."], "a restored entry is not found")


async def _check_entries_are_kept_byte_by_byte(stores: _Stores) -> None:
    store, other = stores.open_store(), stores.open_store()
    entries = [
        Entry(
            content="Ünïcode \N{HONEYBEE}, a \0 and\n\n---\n`code`.",
            identity=produce_identity(),
            role=role,
            scope=stores.scope,
            created=_BEGIN + timedelta(microseconds=7),
            importance=0.123456789,
            category="L2" if role == Role.SUMMARY else "work",
            topics=("a, b", "c: d"),
            speaker="Ada",
            conversation="c",
            turn="t",
            merged_from=("x", "y"),
            further={"mood": "calm", "n": 3},
        )
        for role in Role
    ]
    with store.changing(stores.scope):
        places = [store.write(entry) for entry in entries]
    kept = {place: data for place, data in other.read_all(stores.scope) if data is not None}
    require(
        kept == {place: encode_entry(one) for place, one in zip(places, entries, strict=True)},
        "a text is not the Markdown of its entry, byte by byte",
    )
    read = dict(other.read_many(stores.scope, [*places, "facts/none.md"]))
    for place, entry in zip(places, entries, strict=True):
        require(other.place_of(entry) == place, "an entry is not where its store says")
        found = read.get(place)
        require(isinstance(found, Entry), f"{place} cannot be read")
        assert isinstance(found, Entry)
        require(
            msgspec.structs.replace(found, lines="") == entry, "an entry is read with other values"
        )
        require(other.holds(stores.scope, place), "an existing entry is not found")
    require(len(read) == len(places), "an entry is read from an empty place")
    require(set(other.scan(stores.scope)) == set(places), "a scan misses an entry")


async def _check_rivals_lose_nothing(stores: _Stores) -> None:
    memories = [stores.open(), stores.open()]
    await asyncio.gather(
        *(
            memories[number % 2].add(text, scope=stores.scope)
            for number in range(_RIVALS)
            for text in (f"Fact {number} is alone.", "Everyone says this.")
        )
    )
    for memory in memories:
        texts = sorted(entry.content for entry in await memory.survey(stores.scope))
        wanted = [*(f"Fact {number} is alone." for number in range(_RIVALS)), "Everyone says this."]
        require(texts == sorted(wanted), f"rivals lost or repeated facts: {texts}")


async def _check_a_locked_scope_is_not_changed_by_others(stores: _Stores) -> None:
    one, other = stores.open(), stores.open(lock_seconds=0.05)
    held, free = threading.Event(), threading.Event()

    def wait_locked(scope: HeldScope) -> int:
        before = len(scope.entries)
        held.set()
        free.wait(60)
        return len(scope.entries) - before

    await one.add("The first fact.", scope=stores.scope)
    holding = asyncio.create_task(one.change(stores.scope, wait_locked))
    try:
        require(await asyncio.to_thread(held.wait, 60), "a scope is never locked")
        locked = False
        try:
            await other.add("The second fact.", scope=stores.scope)
        except ArchiveLocked:
            locked = True
        require(locked, "a scope is changed while another process has locked it")
        require(
            await stores.find(other, "fact") == ["The first fact."],
            "a reader does not see the old entries while another process has locked the scope",
        )
        patient = stores.open()
        cancelled = asyncio.create_task(patient.add("The third fact.", scope=stores.scope))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
    finally:
        free.set()
        changed = await holding
    require(changed == 0, "a locked scope changes")
    await patient.add("The fourth fact.", scope=stores.scope)
    require(
        await stores.find(other, "fact") == ["The first fact.", "The fourth fact."],
        "a wait that was cancelled, or was too long, changed something",
    )


async def _check_a_failed_change_leaves_the_indexes_right(stores: _Stores) -> None:
    one, other = stores.open(), stores.open()
    await one.add("The first fact.", scope=stores.scope)
    first = (await one.survey(stores.scope))[0]

    def fail(held: HeldScope) -> None:
        held.add(msgspec.structs.replace(first, content="A new fact.", identity="0new"))
        held.delete(first)
        held.entries  # noqa: B018  (reads what has changed)
        raise ZeroDivisionError

    with suppress(ZeroDivisionError):
        await one.change(stores.scope, fail)
    await other.add("The last fact.", scope=stores.scope)
    texts = [
        (
            sorted(entry.content for entry in await memory.survey(stores.scope)),
            sorted(one.identity for one in await memory.outline(stores.scope)),
        )
        for memory in (one, other)
    ]
    require(texts[0] == texts[1], f"after a failed change one process knows {texts[0]}")
    require(
        len(texts[0][0]) == len(texts[0][1]),
        "after a failed change an index has entries that do not exist",
    )


async def _check_users_are_apart(stores: _Stores) -> None:
    mine, yours = stores.open(), stores.open("check-memory-other")
    entry = await mine.add("Ada keeps bees.", scope=stores.scope)
    hidden = "another user's memory"
    require(await stores.find(yours, "bees") == [], f"{hidden} is found")
    require(await yours.survey() == [], f"{hidden} is listed")
    require(stores.scope not in await yours.survey_scopes(), f"{hidden} shows its scopes")
    require(await yours.forget("bees") == [], f"{hidden} is forgotten")
    await yours.add("Ada keeps bees.", scope=stores.scope)
    require(await yours.forget_scope(stores.scope) != [], "a scope has no entries of its own")
    require((await mine.survey()) == [entry], f"{hidden} is changed")


async def _check_what_is_forgotten_is_gone(stores: _Stores) -> None:
    embedder = Hashes()
    one, other = stores.open(embedder=embedder), stores.open(embedder=Hashes())
    await one.add("Ada keeps zebras.", scope=stores.scope)
    old = await one.add("Ada saw zebras in Ghent.", scope=stores.scope)
    kept = await one.add("Ada drinks tea.", scope=stores.scope)
    await one.embed()
    await one.remove(old.identity)
    await stores.find(other, "zebras tea")
    store = stores.open_store()
    digests = [digest_text(text) for text in split_passages(kept)]
    gone = await one.forget("zebras", scopes=[stores.scope])
    require(len(gone) == 2, "a deleted entry is not forgotten")
    digests += [digest_text(text) for entry in gone for text in split_passages(entry)]
    require(await stores.find(other, "zebras") == [], "another process finds a forgotten entry")
    listed = {one.identity for one in await other.outline(stores.scope)}
    require(listed == {kept.identity}, "another process has a forgotten entry in its index")
    # Closing stores the index for the next process.
    await other.close()
    kept_texts = [data for _, data in store.read_all(stores.scope) if data is not None]
    snapshots = [
        part
        for _, parts in store.access_snapshots(stores.scope).read(("database", "vectors"))
        for part in parts.values()
    ]
    for data in (*kept_texts, *snapshots):
        require(b"zebra" not in data, "a word of a forgotten entry is kept")
    require(
        [*store.vectors.read(embedder.model, digests)] == digests[:1],
        "a vector of a forgotten entry is kept, or another is lost",
    )
    await one.forget_scope(stores.scope)
    require(not store.holds(stores.scope), "a scope that was forgotten is there")
    require(stores.scope not in store.survey_scopes(), "a scope that was forgotten is listed")
    await one.add("Ada is back.", scope=stores.scope)
    last = stores.open()
    require(await stores.find(last, "Ada") == ["Ada is back."], "a new scope has the old entries")


async def _check_each_text_is_embedded_once(stores: _Stores) -> None:
    first, second = Hashes(), Hashes()
    one, other = stores.open(embedder=first), stores.open(embedder=second)
    for text in _TEXTS:
        await one.add(text, scope=stores.scope)
    await one.embed()
    require(len(first.texts) >= len(_TEXTS), "the entries have no vectors")
    await stores.find(other, "Who keeps bees?")
    require(second.texts == [], "another process makes the same vectors again")
    store = stores.open_store()
    require(store.vectors.read_size(first.model) == _SIZE, "the size of vectors differs")
    wanted = dict(zip(map(digest_text, first.texts), await first.embed(first.texts), strict=True))
    found = store.vectors.read(first.model, [*wanted, b"\0" * 16])
    require(dict(found) == wanted, "a vector is read with other values")
    require(not store.vectors.read("another", [*wanted]), "vectors of another model are read")
    # The embedder now gives vectors of another size.
    longer = Hashes(2 * _SIZE)
    third = stores.open(embedder=longer)
    require(
        "Ada keeps bees behind the house." in await stores.find(third, "bees"),
        "with vectors of another size, nothing is found by words",
    )
    await third.reindex()
    require(store.vectors.read_size(first.model) == 2 * _SIZE, "a new index has the old vectors")


async def _check_a_stored_index_is_used_and_never_outdated(stores: _Stores) -> None:
    one = stores.open()

    def add(held: HeldScope) -> None:
        for number in range(200):
            held.add(
                Entry(
                    content=f"Note {number} is about bees.",
                    identity=f"0{number}",
                    role=Role.USER,
                    scope=stores.scope,
                    created=_BEGIN + timedelta(minutes=number),
                )
            )

    await one.change(stores.scope, add)
    await one.close()
    other = stores.open()
    await other.remove("0150")
    await other.add("The queen died.", scope=stores.scope)
    require(await stores.find(other, "queen") == ["The queen died."], "a new entry is not found")
    third = stores.open()
    for memory in (other, third):
        identities = {one.identity for one in await memory.outline(stores.scope)}
        require(len(identities) == 200, f"{len(identities)} entries are indexed, not 200")
        require("0150" not in identities, "a deleted entry comes back from a stored index")


async def _check_deduplication_has_one_worker(stores: _Stores) -> None:
    one, other = stores.open_store(), stores.open_store()
    with one.changing(stores.scope):
        pass
    require(other.read_last(stores.scope) is None, "a new scope was deduplicated before")
    when = _BEGIN + timedelta(microseconds=123)
    with one.deduplicating(stores.scope, seconds=60):
        locked = False
        try:
            with other.deduplicating(stores.scope, seconds=0):
                pass
        except ArchiveLocked:
            locked = True
        require(locked, "two processes deduplicate a scope at the same time")
        one.write_last(stores.scope, when)
    with other.deduplicating(stores.scope, seconds=60):
        require(other.read_last(stores.scope) == when, "the time of deduplication differs")


async def _check_results_are_those_of_files(stores: _Stores) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = Memory(Path(folder), durable=False, embedder=Hashes())
        memory = stores.open(embedder=Hashes())
        for number, text in enumerate(_TEXTS):
            for one in (files, memory):
                await one.add(
                    text,
                    scope=stores.scope,
                    role=Role.USER if number % 2 else Role.FACT,
                    created=_BEGIN + timedelta(minutes=number),
                    conversation="c",
                )
        now = _BEGIN + timedelta(days=1)
        for question in _QUESTIONS:
            for settings in (None, _ALL, msgspec.structs.replace(_ALL, mmr_lambda=0.5)):
                results: list[list[tuple[float, str]]] = []
                for one in (files, memory):
                    found = await one.search(
                        question, scopes=[stores.scope], settings=settings, now=now
                    )
                    # Entries of equal score may come in any order.
                    results.append(sorted((-hit.score, hit.entry.content) for hit in found))
                require(
                    results[0] == results[1],
                    f"{question!r} finds {results[1]}, and in files {results[0]}",
                )
        await files.close()


async def _check_it_is_exported_and_imported(stores: _Stores) -> None:
    memory, again = stores.open(embedder=Hashes()), stores.open("check-memory-import")
    for text in _TEXTS:
        await memory.add(text, scope=stores.scope)
    await memory.embed()
    data, count = await export_memory(memory)
    require(count == len(_TEXTS), f"{count} entries are exported")
    source = read_export(data, stores.scope)
    require(len(source.vectors) >= 1, "no vector is exported")
    result = await import_memory(again, source.entries, vectors=source.vectors)
    require(result.new == {str(stores.scope): count}, f"{result.new} is imported")
    both = [[*await one.survey()] for one in (again, memory)]
    require(both[0] == both[1], "an entry is imported with other values")


_CHECKS: Sequence[_Check] = (
    _check_changes_are_found_by_others,
    _check_entries_are_kept_byte_by_byte,
    _check_rivals_lose_nothing,
    _check_a_locked_scope_is_not_changed_by_others,
    _check_a_failed_change_leaves_the_indexes_right,
    _check_users_are_apart,
    _check_what_is_forgotten_is_gone,
    _check_each_text_is_embedded_once,
    _check_a_stored_index_is_used_and_never_outdated,
    _check_deduplication_has_one_worker,
    _check_results_are_those_of_files,
    _check_it_is_exported_and_imported,
)
