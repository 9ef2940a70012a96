"""How PostgreSQL grows: append, list, search, open and recall beside 1,000 to 1,000,000 rows.

    python .auxiliary/benchmarks/postgres.py                 about ten minutes, and 4 GB
    python .auxiliary/benchmarks/postgres.py --most 10000    up to so many rows
    python .auxiliary/benchmarks/postgres.py --quick         fewer questions
    python .auxiliary/benchmarks/postgres.py --page          also write the table and the plot
    python .auxiliary/benchmarks/postgres.py --page --figures documentation/explanation/growth.json
                                                             the same, of figures that are there

A PostgreSQL with `fsync` runs on this machine. Messages are filled in by the archive itself, 4
conversations at a time; the index of their words is made when all are there, and then the tables
are vacuumed, as PostgreSQL does by itself. `growth.json` and `growth.svg` are written into the
folder `--out`. The bars are for 1,000,000 rows. Leaves with 1 where one was not reached.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import log10
from pathlib import Path

import msgspec
import psycopg
from archives import real_disk
from measure import HERE
from memory_growth import GROW
from memory_search import InventedEmbedder, fill, measure_store, produce_questions, produce_texts
from plots import draw_plot

from page import PAGE, describe_machine, number, write_between
from vibe_llms.memory.postgres import PostgresMemory
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Archive, Details
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings

sys.path.insert(0, str(HERE.parent.parent))
from tests.fakes.postgres import Cluster, TestDatabase

_LEAST, _MOST = 1_000, 1_000_000
#: The messages of a short conversation. A long one has a tenth of all messages, and there are as
#: many short ones.
_SHORT = 9
_SHARE = 10
_LONG = "long"
_PARALLEL = 4
#: Words of a message, of which so many are known.
_WORDS, _KNOWN = 60, 20_000
#: One message in so many has a word that one other of a million has.
_RARE_EVERY, _RARE = 1_000, 500
#: The word that three of four messages have, one that one of 70 has, which takes longest among all,
#: and a rare one.
_SEARCHED = {"common word": "w0", "less common word": "w500", "rare word": "rare0"}
#: Entries of one user among those of others, and the most entries of one user.
_ENTRIES, _MOST_ENTRIES = 500, 100_000

_APPEND, _OPEN, _FOLDER = "append, 99 of 100", "open", "open in a folder"
_OTHERS, _OWN, _FIRST = "recall, rows of others", "recall, own rows", "first recall, own rows"
#: The milliseconds of an operation, and how many times as long as in a folder opening may take.
_BARS = {_APPEND: 10.0, "list": 20.0, **{f"search, {name}": 100.0 for name in _SEARCHED}}
_OPEN_BAR = 3.0
#: They are in the table.
_NOT_DRAWN = ("append, median", _FOLDER, _FIRST)

_BEGUN = time.perf_counter()


class Growth(msgspec.Struct):
    """What was measured: the milliseconds of each operation by the number of rows."""

    machine: str
    minutes: float = 0.0
    figures: dict[str, dict[int, float]] = {}

    def add(self, count: int, figures: Mapping[str, float], out: Path) -> None:
        """Keep the figures of a number of rows, and print them."""
        for name, value in figures.items():
            self.figures.setdefault(name, {})[count] = round(value, 4)
        self.minutes = round((time.perf_counter() - _BEGUN) / 60, 1)
        out.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        report(f"{count:,}: " + "; ".join(f"{name} {value:.2f}" for name, value in figures.items()))


class Texts:
    """Texts whose words are as common as those of a language; the same at each run."""

    def __init__(self) -> None:
        self._random = random.Random(5)
        self._words = [f"w{number}" for number in range(_KNOWN)]
        self._weights = [*itertools.accumulate(1 / (number + 5) for number in range(_KNOWN))]
        self._numbers = itertools.count()

    def say(self) -> Canister:
        """The next message."""
        number = next(self._numbers)
        words = self._random.choices(self._words, cum_weights=self._weights, k=_WORDS)
        if number % _RARE_EVERY == 0:
            words.append(f"rare{number // _RARE_EVERY % _RARE}")
        return UserCanister.from_text(" ".join(words))


def report(text: str) -> None:
    """Print a line, with the time since the beginning."""
    minutes, seconds = divmod(int(time.perf_counter() - _BEGUN), 60)
    print(f"{minutes:3}:{seconds:02}  {text}", flush=True)


async def fill_archive(archive: Archive, folder: Archive, count: int) -> None:
    """Store so many messages, and the long conversation in the folder too."""
    texts = Texts()
    said = [texts.say() for _ in range(count // _SHARE)]
    for one in (archive, folder):
        await one.create(_LONG, _details(), [])
        for start in range(0, len(said), 1_000):
            await one.append(_LONG, said[start : start + 1_000], after=None)
    numbers = iter(range(count // _SHARE))

    async def create() -> None:
        for place in numbers:
            await archive.create(_short(place), _details(), [texts.say() for _ in range(_SHORT)])

    await asyncio.gather(*(create() for _ in range(_PARALLEL)))


async def measure_archive(
    archive: Archive, folder: Archive, count: int, questions: int
) -> Mapping[str, float]:
    """The milliseconds of each kind of work; opening takes turns with the folder."""
    texts, chance = Texts(), random.Random(7)
    appends = []
    for _ in range(50 * questions):
        # As in a turn, the conversation was opened before.
        identity = _short(chance.randrange(count // _SHARE))
        last = (await archive.restore(identity)).canisters[-1].identity
        said = [texts.say()]
        appends.append(await clock(archive.append(identity, said, after=last)))
    cuts = statistics.quantiles(appends, n=100)
    work: dict[str, Callable[[], Awaitable[object]]] = {"list": partial(archive.survey, limit=50)}
    for name, word in _SEARCHED.items():
        work[f"search, {name}"] = partial(archive.search, word)
    work[_OPEN] = partial(archive.restore, _LONG)
    work[_FOLDER] = partial(folder.restore, _LONG)
    times: dict[str, list[float]] = {name: [] for name in work}
    for round_ in range(questions + 1):
        for name, function in work.items():
            # What was opened before is freed now, and not while something else is measured.
            await asyncio.sleep(0)
            gc.collect()
            taken = await clock(function())
            if round_:  # the first warms the caches up
                times[name].append(taken)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"append, median": cuts[49], _APPEND: cuts[98], **medians}


async def clock(work: Awaitable[object]) -> float:
    """The milliseconds that something takes."""
    start = time.perf_counter()
    await work
    return (time.perf_counter() - start) * 1e3


async def grow_archive(
    cluster: Cluster, place: TestDatabase, count: int, questions: int
) -> Mapping[str, float]:
    """The figures of a database with so many messages."""
    database = Database(PostgresSettings(dsn=place.dsn, statement_seconds=600))
    archive = PostgresArchive(database, PostgresContents(database, inline_bytes=1024), "ada")
    with tempfile.TemporaryDirectory(dir=real_disk()) as path:
        folder = DirectoryArchive(Path(path))
        try:
            with produce_index_later(place.admin_dsn):
                await fill_archive(archive, folder, count)
                report(f"{count:,} messages are there; making the index of their words")
            settle(cluster, place)
            report("measuring append, list, search and open")
            return await measure_archive(archive, folder, count, questions)
        finally:
            await folder.close()
            await database.close()


@contextlib.contextmanager
def produce_index_later(address: str) -> Iterator[None]:
    """Make the index of words after the block: to fill it row by row takes much longer."""
    with psycopg.connect(address, autocommit=True) as connection:
        found = connection.execute(
            "select pg_get_indexdef('vibe.messages_by_words'::regclass)"
        ).fetchone()
        assert found is not None
        connection.execute("drop index vibe.messages_by_words")
        yield
        connection.execute("set maintenance_work_mem = '512MB'")
        connection.execute(found[0].encode())


def settle(cluster: Cluster, place: TestDatabase) -> None:
    """Do what PostgreSQL and the system do by themselves within minutes."""
    cluster.execute("vacuum analyze", place.name)
    cluster.execute("checkpoint")
    os.sync()


def grow_memory(
    cluster: Cluster, place: TestDatabase, sizes: Sequence[int], questions: int
) -> Iterator[tuple[int, Mapping[str, float]]]:
    """The figures of recall, by words and vectors: first rows of others grow, then own ones."""
    database = BlockingDatabase(PostgresSettings(dsn=place.dsn, statement_seconds=600))

    def recall(user: str, count: int) -> tuple[float, float]:
        """The first and the median recall of a user with so many entries, in milliseconds."""
        store = PostgresMemory(database, user, lock_seconds=60)
        texts = produce_texts(count, random.Random(1))
        asked = produce_questions(texts, random.Random(2))[: 10 * questions]
        embedder = InventedEmbedder()
        if not store.survey_scopes():
            fill(store, texts)
            # Its index is made, and stored for the next process.
            asyncio.run(measure_store(lambda _: store, embedder, asked[:1]))
            settle(cluster, place)
            report(f"{count:,} entries are there; measuring recall")
        again = PostgresMemory(database, user, lock_seconds=60)
        first, median, _ = asyncio.run(measure_store(lambda _: again, embedder, asked))
        return 1e3 * first, median

    try:
        owners = 0
        for size in sizes:
            wanted = size // _ENTRIES
            with psycopg.connect(place.admin_dsn, autocommit=True) as connection:
                values = {"first": owners + 1, "last": wanted, "each": _ENTRIES}
                connection.execute(GROW.encode(), values)
            owners = wanted
            settle(cluster, place)
            report(f"{size:,} entries of others are there")
            yield size, {_OTHERS: recall("ada", _ENTRIES)[1]}
        for size in sizes:
            if size <= _MOST_ENTRIES:
                yield size, dict(zip((_FIRST, _OWN), recall(f"own-{size}", size), strict=True))
    finally:
        database.close()


def measure(sizes: Sequence[int], out: Path, questions: int) -> Growth:
    """Measure all, and write each figure as soon as it is there."""
    with tempfile.TemporaryDirectory(dir=real_disk()) as folder:
        cluster = Cluster(Path(folder) / "cluster", durable=True)
        try:
            growth = Growth(f"{describe_machine().removesuffix('.')}, {read_version(cluster)}")
            for size in sizes:
                place = cluster.create("archive")
                growth.add(size, asyncio.run(grow_archive(cluster, place, size, questions)), out)
                cluster.drop(place.name)
            for size, figures in grow_memory(cluster, cluster.create("memory"), sizes, questions):
                growth.add(size, figures, out)
        finally:
            cluster.stop()
    return growth


def read_version(cluster: Cluster) -> str:
    """What PostgreSQL it is."""
    with psycopg.connect(cluster.address("postgres")) as connection:
        return f"with PostgreSQL {connection.info.server_version // 10_000}"


def judge(growth: Growth) -> Iterator[tuple[str, str, bool | None]]:
    """Each bar with its name, and whether it was reached; `None` if it was not measured."""
    most = {name: values.get(_MOST) for name, values in growth.figures.items()}
    for name, bar in _BARS.items():
        value = most[name]
        yield name, f"≤ {bar:g} ms", None if value is None else value <= bar
    opened, folder = most[_OPEN], most[_FOLDER]
    reached = None if opened is None or folder is None else opened <= _OPEN_BAR * folder
    yield _OPEN, f"≤ {_OPEN_BAR:g} x in a folder", reached


def write_table(growth: Growth) -> Iterator[str]:
    """The lines of the page."""
    sizes = sorted({count for values in growth.figures.values() for count in values})
    yield f"{growth.machine}, in {growth.minutes:g} minutes."
    yield ""
    yield f"| ms | {' | '.join(f'{size:,}' for size in sizes)} | per tenfold | bar |"
    yield f"| --- |{' ---: |' * len(sizes)} ---: | --- |"
    words = {None: f"for {_MOST:,}", True: "reached", False: "not reached"}
    bars = {name: f"{bar}: {words[reached]}" for name, bar, reached in judge(growth)}
    for name, values in growth.figures.items():
        cells = [number(values[size]) if size in values else "" for size in sizes]
        tenfold = ""
        if len(values) > 1:
            (least, first), *_, (most, last) = sorted(values.items())
            tenfold = f"x {(last / first) ** (1 / log10(most / least)):.2f}"
        yield f"| {name} | {' | '.join(cells)} | {tenfold} | {bars.get(name, '')} |"


def draw(growth: Growth) -> str:
    """The plot, one line for each operation."""
    lines = {name: values for name, values in growth.figures.items() if name not in _NOT_DRAWN}
    return draw_plot("PostgreSQL: time of an operation", "messages, or entries of memory", lines)


def main() -> int:
    """Measure or read, write the files, and return 1 if a bar was not reached."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--most", type=int, default=_MOST, help="the largest number of rows")
    parser.add_argument("--quick", action="store_true", help="a tenth of the questions")
    parser.add_argument("--out", type=Path, default=Path(real_disk()), help="where files go")
    parser.add_argument("--page", action="store_true", help=f"write the table of {PAGE.name}")
    parser.add_argument("--figures", type=Path, help="a growth.json, instead of measuring")
    options = parser.parse_args()
    out = PAGE.parent if options.page else options.out
    if options.figures:
        growth = msgspec.json.decode(options.figures.read_bytes(), type=Growth)
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        sizes = [min(_LEAST, options.most)]
        while 10 * sizes[-1] <= options.most:
            sizes.append(10 * sizes[-1])
        growth = measure(sizes, options.out / "growth.json", 2 if options.quick else 20)
    lines = [*write_table(growth)]
    print(*lines, sep="\n")
    encoded = msgspec.json.format(msgspec.json.encode(growth)) + b"\n"
    (out / "growth.json").write_bytes(encoded)
    (out / "growth.svg").write_text(draw(growth), "utf-8")
    if options.page:
        write_between(lines, "figures of growth")
    missed = [name for name, _, reached in judge(growth) if reached is False]
    for name in missed:
        print(f"not reached: {name}", file=sys.stderr)
    return 1 if missed else 0


def _short(number: int) -> str:
    return f"c{number:07}"


def _details() -> Details:
    return Details(created=datetime.now(UTC))


if __name__ == "__main__":
    sys.exit(main())
