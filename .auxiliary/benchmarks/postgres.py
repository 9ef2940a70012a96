"""How the archive in PostgreSQL grows, beside the archive in a folder: a table and a plot.

    python .auxiliary/benchmarks/postgres.py --most 1000000 --out /tmp/growth

For 1,000 messages, ten times as many, and so on: the time to append one message, to list the newest
50 conversations, to search a rare and a common word, and to open one conversation with a tenth of
all messages. A real server with `fsync` runs on this machine. `growth.md` and `growth.svg` are
written into the folder. A million messages take about half an hour and 6 GB.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fakes.postgres import access_cluster, temporary_database

from vibe_llms.configuration import StorageSettings
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Archive, Details
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings

#: Messages of a conversation, and words of a message, of which so many are known.
_MESSAGES, _WORDS, _KNOWN = 10, 60, 20_000
#: One message in so many has a rare word; every fifth or so has the common one.
_RARE_EVERY = 1_000
_APPENDS, _QUESTIONS = 400, 9
_SHARE = 10
_PARALLEL = 4
#: In milliseconds, and as a multiple of the folder's.
_BARS = {"append p99": 10.0, "list": 20.0, "search rare": 100.0, "search common": 100.0}
_OPEN_BAR = 3.0
_LONG = "long"

Figures = Mapping[str, float]


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
            words.append(f"rare{number // _RARE_EVERY % 500}")
        return UserCanister.from_text(" ".join(words))


async def fill(archive: Archive, count: int) -> None:
    """Store so many messages, a tenth of them in one conversation."""
    texts = Texts()
    details = Details(created=datetime.now(UTC))
    await archive.create(_LONG, details, [])
    left = count // _SHARE
    while left > 0:
        await archive.append(_LONG, [texts.say() for _ in range(min(left, 1_000))], after=None)
        left -= 1_000
    numbers = iter(range((count - count // _SHARE) // _MESSAGES))

    async def create() -> None:
        for number in numbers:
            said = [texts.say() for _ in range(_MESSAGES)]
            await archive.create(f"c{number:07}", Details(created=datetime.now(UTC)), said)

    await asyncio.gather(*(create() for _ in range(_PARALLEL)))


async def measure(archive: Archive, count: int) -> Figures:
    """Milliseconds of each kind of work."""
    texts = Texts()
    appends: list[float] = []
    await archive.survey(limit=1)
    last = (await archive.restore("c0000001")).canisters[-1].identity
    for _ in range(_APPENDS):
        said = texts.say()
        start = time.perf_counter()
        await archive.append("c0000001", [said], after=last)
        appends.append((time.perf_counter() - start) * 1e3)
        last = said.identity
    cuts = statistics.quantiles(appends, n=100)
    questions: Mapping[str, Callable[[], Awaitable[object]]] = {
        "list": lambda: archive.survey(limit=50),
        "search rare": lambda: archive.search("rare0"),
        "search common": lambda: archive.search("w0"),
        "open": lambda: archive.restore(_LONG),
    }
    figures = {"append p50": cuts[49], "append p99": cuts[98]}
    for name, question in questions.items():
        await question()
        figures[name] = statistics.median([await clock(question) for _ in range(_QUESTIONS)])
    print(f"{count:>9,} {type(archive).__name__:<17}", describe(figures), flush=True)
    return figures


async def clock(work: Callable[[], Awaitable[object]]) -> float:
    """The milliseconds that something takes."""
    start = time.perf_counter()
    await work()
    return (time.perf_counter() - start) * 1e3


def describe(figures: Figures) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in figures.items())


async def measure_tables(count: int) -> Figures:
    """The figures of a new database."""
    with temporary_database() as place:
        cluster = access_cluster()
        cluster.execute("alter system set fsync = on")
        cluster.execute("select pg_reload_conf()")
        database = Database(PostgresSettings(dsn=place.dsn, statement_seconds=600))
        contents = PostgresContents(database, inline_bytes=1024)
        archive = PostgresArchive(database, contents, "ada")
        await fill(archive, count)
        # As autovacuum does within a minute.
        cluster.execute("vacuum analyze", place.name)
        try:
            return await measure(archive, count)
        finally:
            await database.close()


async def measure_folder(count: int) -> Figures:
    """The figures of a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        archive = DirectoryArchive(Path(folder), StorageSettings(durability="fast"))
        await fill(archive, count)
        await archive.close()
        archive = DirectoryArchive(Path(folder))
        try:
            return await measure(archive, count)
        finally:
            await archive.close()


def write_table(rows: Sequence[tuple[int, Figures, Figures]]) -> Iterator[str]:
    """The lines of the table: milliseconds in PostgreSQL, and in the folder after the stroke."""
    names = [*rows[0][1]]
    yield f"| messages | {' | '.join(names)} |"
    yield f"|---:|{'---:|' * len(names)}"
    for count, tables, folder in rows:
        cells = [f"{tables[name]:.2f} / {folder[name]:.2f}" for name in names]
        yield f"| {count:,} | {' | '.join(cells)} |"


def draw(rows: Sequence[tuple[int, Figures, Figures]]) -> str:
    """The plot of the figures in PostgreSQL, both axes logarithmic."""
    from math import log10

    left, top, width, height = 60, 20, 520, 300
    counts = [log10(count) for count, *_ in rows]
    values = [log10(max(value, 0.01)) for _, tables, _ in rows for value in tables.values()]
    low, high = int(min(values) // 1), int(-(-max(values) // 1))
    span = max(counts[-1] - counts[0], 1)

    def place(count: float, value: float) -> str:
        x = left + (log10(count) - counts[0]) / span * width
        y = top + height - (log10(max(value, 0.01)) - low) / max(high - low, 1) * height
        return f"{x:.1f},{y:.1f}"

    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 370" font-size="12">'
    parts = [head]
    for power in range(low, high + 1):
        x, y = place(10 ** counts[0], 10.0**power).split(",")
        parts.append(f'<path d="M{x} {y}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y}" text-anchor="end">{10.0**power:g} ms</text>')
    for count, *_ in rows:
        x, _ = place(count, 1).split(",")
        parts.append(f'<text x="{x}" y="{top + height + 20}" text-anchor="middle">{count:,}</text>')
    colors = ("#888", "#333", "#0a7", "#07c", "#c50", "#a0a")
    for color, name in zip(colors, rows[0][1], strict=True):
        points = " ".join(place(count, tables[name]) for count, tables, _ in rows)
        x, y = points.split()[-1].split(",")
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{float(x) + 8}" y="{y}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def judge(count: int, tables: Figures, folder: Figures) -> Iterator[str]:
    """What does not keep to its bar."""
    for name, bar in _BARS.items():
        if tables[name] > bar:
            yield f"{count:,}: {name} takes {tables[name]:.1f} ms, the bar is {bar:g}"
    ratio = tables["open"] / folder["open"]
    if ratio > _OPEN_BAR:
        yield f"{count:,}: open takes {ratio:.1f} times the folder's, the bar is {_OPEN_BAR:g}"


def main() -> int:
    """Measure, write both files, and return 1 if a bar is not kept to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=10_000, help="the largest number of messages")
    parser.add_argument("--out", type=Path, default=Path(), help="the folder for both files")
    options = parser.parse_args()
    rows: list[tuple[int, Figures, Figures]] = []
    count = 1_000
    while count <= options.most:
        tables = asyncio.run(measure_tables(count))
        rows.append((count, tables, asyncio.run(measure_folder(count))))
        count *= 10
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.md").write_text("\n".join(write_table(rows)) + "\n", "utf-8")
    (options.out / "growth.svg").write_text(draw(rows), "utf-8")
    missed = [text for row in rows for text in judge(*row)]
    print(*missed, sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
