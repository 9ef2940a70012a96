"""Several servers on one PostgreSQL: what a turn costs each of them, and the database.

    python .auxiliary/benchmarks/servers.py           about two minutes
    python .auxiliary/benchmarks/servers.py --quick   shorter rounds
    python .auxiliary/benchmarks/servers.py --page    also write the table of the performance page

Two cores cannot show three servers at full speed, so CPU time is counted. If a turn costs a server
as much beside two others as it does alone, three servers do three times the work of one, for as
long as the database has the CPU time that a turn costs it. Leaves with 1 where a bar was not held.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from archives import real_disk
from load import Load
from measure import HERE, Row, environment
from run import conclude, draw
from serving import KINDS, Kind, Server, find_port, serve, serve_upstream
from upstream import MODELS

sys.path.insert(0, str(HERE.parent.parent))
from tests.fakes.postgres import Cluster, TestDatabase

_SERVERS = 3
#: The database has a process for each connection, and so uses them all.
_CORES = 2
_CONNECTIONS = 8
_FIGURES = "figures of several servers"
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a fifth of the time")
    parser.add_argument("--page", action="store_true", help="write the table of the page")
    options = parser.parse_args()
    rows: list[Row] = []
    for row in measure(1.0 if options.quick else 5.0):
        rows.append(row)
        print(draw(row), flush=True)
    return conclude(rows, page=options.page, figures=_FIGURES)


def measure(seconds: float) -> Iterator[Row]:
    """The CPU time of a turn, and how many turns a second that allows."""
    with (
        tempfile.TemporaryDirectory(dir=real_disk()) as folder,
        serve_upstream() as upstream,
        _serve_database(Path(folder)) as (cluster, database),
        contextlib.ExitStack() as stack,
    ):
        servers = [
            stack.enter_context(_serve_one(Path(folder) / str(number), upstream.url, database))
            for number in range(_SERVERS)
        ]
        for kind in (kind for kind in KINDS if kind.stored):
            one = _load(servers[:1], cluster, kind, seconds)
            three = _load(servers, cluster, kind, seconds)
            cpu = {"beside two others": three.server, "alone": one.server}
            yield Row(
                f"{kind.name}: CPU of a server for a turn",
                {name: 1e3 * value for name, value in cpu.items()},
                "ms",
                {"alone": three.server / one.server},
                {"alone": 1.5},
            )
            spent = {"with three servers": 1e3 * three.database, "with one": 1e3 * one.database}
            ratio = {"with one": three.database / one.database}
            yield Row(f"{kind.name}: CPU of the database for a turn", spent, "ms", ratio)
            rates = {
                "three servers": min(_SERVERS / three.server, _CORES / three.database),
                "one": min(1 / one.server, _CORES / one.database),
            }
            # More is better, so it is twice the rate of one of the rate of three.
            ratios = {"2 x one": 2 * rates["one"] / rates["three servers"]}
            what = f"{kind.name}: turns a second, a core for a server and {_CORES} for the database"
            yield Row(what, rates, "/s", ratios, {"2 x one": 1.0})


class Cost(msgspec.Struct):
    """The CPU seconds of a turn, of the servers and of the database."""

    server: float
    database: float


def _load(servers: Sequence[Server], cluster: Cluster, kind: Kind, seconds: float) -> Cost:
    """What turns cost while all of some servers are busy."""
    for length in (seconds / 5, seconds):
        begun, before = sum(one.cpu_seconds for one in servers), _count_cpu(cluster)
        clients = []
        for server in servers:
            order = msgspec.structs.replace(
                kind.order(server.url), connections=_CONNECTIONS, seconds=length
            )
            command = [sys.executable, str(HERE / "load.py"), msgspec.json.encode(order).decode()]
            clients.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        loads = [msgspec.json.decode(one.communicate()[0], type=Load) for one in clients]
        replies = sum(load.replies for load in loads)
        if not replies or any(load.wrong for load in loads):
            raise SystemExit(f"{kind.name}: wrong replies")
        server_seconds = sum(one.cpu_seconds for one in servers) - begun
    return Cost(server_seconds / replies, (_count_cpu(cluster) - before) / replies)


def _count_cpu(cluster: Cluster) -> float:
    """The CPU seconds of a cluster, with those of its processes that have ended."""
    postmaster = (cluster.socket / "postmaster.pid").read_text().split()[0]
    ticks = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if folder.name == postmaster:
                    ticks += sum(map(int, fields[11:15]))
                elif fields[1] == postmaster:
                    ticks += sum(map(int, fields[11:13]))
    return ticks / _TICKS


@contextlib.contextmanager
def _serve_database(folder: Path) -> Iterator[tuple[Cluster, TestDatabase]]:
    cluster = Cluster(folder / "cluster", durable=True)
    try:
        yield cluster, cluster.create("benchmark")
    finally:
        cluster.stop()


@contextlib.contextmanager
def _serve_one(home: Path, upstream: str, database: TestDatabase) -> Iterator[Server]:
    home.mkdir()
    aliases = "".join(f'{model} = "openai-chat/{model}"\n' for model in MODELS)
    (home / "config.toml").write_text(f"{database.table}[aliases]\n{aliases}")
    port = find_port()
    command = [
        str(Path(sys.executable).parent / "vibe-llms"),
        *("serve", "--no-key", "--quiet", "--port", str(port)),
    ]
    variables = environment(home, "openai-chat", f"{upstream}/v1")
    with serve("ours", command, variables, port, "/ready") as server:
        yield server


if __name__ == "__main__":
    sys.exit(main())
