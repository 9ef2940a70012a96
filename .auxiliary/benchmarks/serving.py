"""The server under load, in one run beside LiteLLM's proxy in front of the same provider.

    python .auxiliary/benchmarks/serving.py                    about seven minutes
    python .auxiliary/benchmarks/serving.py --quick            shorter rounds
    python .auxiliary/benchmarks/serving.py rates start        parts of those below
    python .auxiliary/benchmarks/serving.py --page             also write the table of the page
    python .auxiliary/benchmarks/serving.py --litellm PYTHON   with the LiteLLM of that interpreter

Client, server and provider are a process each, on loopback. CPU time is that of the server's
process alone. Leaves with 1 where a bar was not held or a reply was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from archives import real_disk
from load import Load, Order, quantile
from measure import HERE, KEY, Row, environment
from run import conclude, draw
from upstream import LATE_SECONDS, MODELS, PACE_SECONDS

CHUNKS = 100
CONNECTIONS = 50
STREAMS = 500
#: The clock of the system that counts the CPU time of other processes.
_TICKS = os.sysconf("SC_CLK_TCK")
_START_SECONDS = 120.0
_TEXT = "".join(f"word{number} " for number in range(CHUNKS))
_FIGURES = "figures of the server"


@dataclass(frozen=True)
class Kind:
    """A kind of request: what it is called, and the body for it."""

    name: str
    path: str
    said: str
    stored: bool
    member: str
    streamed_member: str

    def order(self, url: str, *, stream: bool = False, model: str = "") -> Order:
        model = model or ("long" if stream else "short")
        store = "" if self.path == "/v1/messages" else f',"store":{str(self.stored).lower()}'
        body = f'{{"model":"{model}",{self.said}{store},"stream":{str(stream).lower()}}}'
        return Order(
            url=url,
            path=self.path,
            body=body,
            member=self.streamed_member if stream else self.member,
            text=_TEXT if stream else "word0 ",
            connections=CONNECTIONS,
        )


_MESSAGES = '"messages":[{"role":"user","content":"hello #"}]'
_CHAT = "/v1/chat/completions"
KINDS = (
    Kind("Chat, not stored", _CHAT, _MESSAGES, False, "content", "content"),
    Kind("Chat, stored", _CHAT, _MESSAGES, True, "content", "content"),
    Kind("Messages, stored", "/v1/messages", f'"max_tokens":99,{_MESSAGES}', True, "text", "text"),
    Kind("Responses, not stored", "/v1/responses", '"input":"hello #"', False, "text", "delta"),
    Kind("Responses, stored", "/v1/responses", '"input":"hello #"', True, "text", "delta"),
)
UNSTORED, STORED, RESPONSES = KINDS[0], KINDS[1], KINDS[-1]


@dataclass(frozen=True)
class Server:
    """A process that listens, and how many seconds it took until it was ready."""

    name: str
    process: int
    url: str
    started: float

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Measured:
    """A load, and the CPU seconds that the server took for a reply."""

    load: Load
    cpu: float


@dataclass(frozen=True)
class Bench:
    """The processes of a run."""

    upstream: Server
    ours: Server
    floor: Server
    litellm: Server | None
    seconds: float
    produce_ours: Callable[[], contextlib.AbstractContextManager[Server]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="only these parts")
    parser.add_argument("--quick", action="store_true", help="a fifth of the time and requests")
    parser.add_argument("--page", action="store_true", help="write the table of the page")
    parser.add_argument("--litellm", help="the Python of an environment with litellm[proxy]")
    options = parser.parse_args()
    if options.litellm is None:
        print("without LiteLLM, which --litellm PYTHON measures too", file=sys.stderr)
    rows: list[Row] = []
    with _produce_bench(options.litellm, seconds=1.0 if options.quick else 5.0) as bench:
        for part in options.parts or PARTS:
            for row in PARTS[part](bench):
                rows.append(row)
                print(draw(row), flush=True)
    return conclude(rows, page=options.page, figures=_FIGURES)


def measure_start(bench: Bench) -> Iterator[Row]:
    seconds = []
    for _ in range(5):
        with bench.produce_ours() as server:
            seconds.append(server.started)
    figures = {"ours": sorted(seconds)[len(seconds) // 2]}
    if bench.litellm is not None:
        figures["LiteLLM"] = bench.litellm.started
    figures["1 s"] = 1.0
    yield _compare("start of the process until it is ready", figures, "s", {"1 s": 1.0})


def measure_rates(bench: Bench) -> Iterator[Row]:
    for stream in (False, True):
        what = f"streams of {CHUNKS} chunks" if stream else "replies of one word"
        direct = _measure(bench, bench.upstream, UNSTORED, stream=stream)
        # The floor gives whole replies alone.
        floor = None if stream else _measure(bench, bench.floor, UNSTORED)
        theirs = None
        if bench.litellm is not None:
            theirs = _measure(bench, bench.litellm, UNSTORED, stream=stream)
        for kind in KINDS:
            ours = _measure(bench, bench.ours, kind, stream=stream)
            rates, cpu = {"ours": ours.load.rate}, {"ours": ours.cpu}
            ratios: dict[str, float] = {}
            if theirs is not None:
                rates["LiteLLM"], cpu["LiteLLM"] = theirs.load.rate, theirs.cpu
                # More is better, so it is theirs of ours.
                ratios["10 x LiteLLM"] = 10 * theirs.load.rate / ours.load.rate
            rates["direct"] = direct.load.rate
            # A proxy that keeps nothing is compared with what keeps nothing.
            bars = {} if kind.stored else dict.fromkeys(ratios, 1.0)
            yield Row(f"{kind.name}: {what}", rates, "/s", ratios, bars)
            if floor is not None:
                cpu["floor"] = floor.cpu
            cpu = {name: 1e3 * value for name, value in cpu.items()}
            yield _compare(f"{kind.name}: CPU of each of the {what}", cpu, "ms")


def measure_latency(bench: Bench) -> Iterator[Row]:
    """50 clients that each wait for a provider, which takes its time."""
    servers = [(bench.ours, UNSTORED), (bench.ours, STORED)]
    if bench.litellm is not None:
        servers.append((bench.litellm, UNSTORED))
    direct = _measure(bench, bench.upstream, UNSTORED, model="late").load
    for server, kind in servers:
        ours = server is bench.ours
        load = _measure(bench, server, kind, model="late", seconds=2 * bench.seconds).load
        for share, bar in ((0.5, 3.0), (0.99, 13.0)):
            added = (quantile(load.taken, share) - quantile(direct.taken, share)) * 1e3
            yield _compare(
                f"{_name(server, kind)}: added latency of {CONNECTIONS} at once, p{share * 100:g}",
                {"ours" if ours else server.name: added, f"{bar:g} ms": bar},
                "ms",
                {f"{bar:g} ms": 1.0} if ours else {},
            )


def measure_streams(bench: Bench) -> Iterator[Row]:
    """500 clients that begin at the same time, each with a chunk every tenth of a second."""
    for kind in (UNSTORED, STORED, RESPONSES):
        order = kind.order(bench.ours.url, stream=True, model="paced")
        order = msgspec.structs.replace(order, connections=STREAMS, requests=STREAMS)
        load = _run_load(bench.ours, order).load
        first, whole = quantile(load.firsts, 0.99), quantile(load.taken, 0.99)
        what = f"{kind.name}: {STREAMS} streams at once"
        yield _compare(f"{what}, first text, p99", {"ours": first, "1 s": 1.0}, "s", {"1 s": 1.0})
        paced = {"ours": whole, "the provider": PACE_SECONDS * CHUNKS}
        yield _compare(f"{what}, whole reply, p99", paced, "s")


def measure_memory(bench: Bench) -> Iterator[Row]:
    """What is resident after many requests of several kinds."""
    tenth = int(2_000 * bench.seconds)
    shares = {UNSTORED: 0.7, STORED: 0.2, RESPONSES: 0.1}
    with bench.produce_ours() as server:
        resident = []
        for requests in (tenth, 9 * tenth):
            for kind, share in shares.items():
                order = kind.order(server.url)
                number = int(requests * share)
                _run_load(server, msgspec.structs.replace(order, requests=number))
            resident.append(server.resident_bytes / 2**20)
        before = f"after {tenth:,}"
        yield _compare(
            f"resident after {10 * tenth:,} requests",
            {"ours": resident[1], before: resident[0]},
            "MiB",
            {before: 1.1},
        )


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "start": measure_start,
    "rates": measure_rates,
    "latency": measure_latency,
    "streams": measure_streams,
    "memory": measure_memory,
}


def _name(server: Server, kind: Kind) -> str:
    return kind.name if server.name == "ours" else server.name


def _compare(
    what: str, figures: dict[str, float], unit: str, bars: dict[str, float] | None = None
) -> Row:
    """A row of the first figure against the others."""
    ours, *others = figures
    ratios = {other: figures[ours] / figures[other] for other in others}
    return Row(what, figures, unit, ratios, bars or {})


def _measure(
    bench: Bench,
    server: Server,
    kind: Kind,
    *,
    stream: bool = False,
    model: str = "",
    seconds: float | None = None,
) -> Measured:
    order = kind.order(server.url, stream=stream, model=model)
    if model == "late":
        # All at the same instant would measure a queue of 50.
        order = msgspec.structs.replace(order, spread_seconds=LATE_SECONDS)
    # The first ones open connections and make what is made once.
    _run_load(server, msgspec.structs.replace(order, requests=2 * CONNECTIONS))
    return _run_load(server, msgspec.structs.replace(order, seconds=seconds or bench.seconds))


def _run_load(server: Server, order: Order) -> Measured:
    begun = server.cpu_seconds
    command = [sys.executable, str(HERE / "load.py"), msgspec.json.encode(order).decode()]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    load = msgspec.json.decode(output, type=Load)
    if load.wrong or not load.replies:
        raise SystemExit(f"{server.name}: {load.wrong} of {load.replies} replies are wrong")
    return Measured(load, (server.cpu_seconds - begun) / load.replies)


@contextlib.contextmanager
def _produce_bench(litellm: str | None, *, seconds: float) -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=real_disk()))
        upstream = stack.enter_context(serve_upstream())
        homes = iter(range(100))

        def produce_ours() -> contextlib.AbstractContextManager[Server]:
            return _serve_ours(Path(folder) / str(next(homes)), upstream.url)

        ours = stack.enter_context(produce_ours())
        floor = stack.enter_context(_serve_floor(Path(folder), upstream.url))
        theirs = None
        if litellm is not None:
            theirs = stack.enter_context(_serve_litellm(litellm, Path(folder), upstream.url))
        yield Bench(upstream, ours, floor, theirs, seconds, produce_ours)


@contextlib.contextmanager
def serve_upstream() -> Iterator[Server]:
    command = [sys.executable, str(HERE / "upstream.py"), str(CHUNKS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
            yield Server("direct", process.pid, url, 0.0)
        finally:
            process.kill()


@contextlib.contextmanager
def _serve_ours(home: Path, upstream: str) -> Iterator[Server]:
    home.mkdir()
    (home / "config.toml").write_text(
        "[aliases]\n"
        + "".join(f'{model} = "openai-chat/{model}"\n' for model in MODELS)
        + f"[server]\nuser-turns = {2 * STREAMS}\n"
    )
    port = find_port()
    command = [
        str(Path(sys.executable).parent / "vibe-llms"),
        *("serve", "--no-key", "--quiet", "--port", str(port)),
    ]
    variables = environment(home, "openai-chat", f"{upstream}/v1")
    with serve("ours", command, variables, port, "/ready") as server:
        yield server


@contextlib.contextmanager
def _serve_floor(folder: Path, upstream: str) -> Iterator[Server]:
    port = find_port()
    command = [sys.executable, str(HERE / "bare_server.py"), str(port), upstream]
    with serve("floor", command, environment(folder), port, "/") as server:
        yield server


@contextlib.contextmanager
def _serve_litellm(python: str, folder: Path, upstream: str) -> Iterator[Server]:
    rows = [
        {
            "model_name": model,
            "litellm_params": {
                "model": f"openai/{model}",
                "api_base": f"{upstream}/v1",
                "api_key": KEY,
            },
        }
        for model in MODELS
    ]
    file = folder / "litellm.yaml"
    # JSON is YAML.
    file.write_bytes(msgspec.json.encode({"model_list": rows}))
    port = find_port()
    command = [
        str(Path(python).parent / "litellm"),
        *("--config", str(file), "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"),
    ]
    variables = {
        **environment(folder),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with serve("LiteLLM", command, variables, port, "/health/liveliness") as server:
        yield server


@contextlib.contextmanager
def serve(
    name: str, command: list[str], variables: dict[str, str], port: int, ready: str
) -> Iterator[Server]:
    url = f"http://127.0.0.1:{port}"
    begun = time.perf_counter()
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(command, env=variables, stdout=output, stderr=output) as process,
    ):
        try:
            while not _is_ready(url + ready):
                if process.poll() is not None or time.perf_counter() - begun > _START_SECONDS:
                    output.seek(0)
                    raise SystemExit(f"{name} did not start:\n{output.read()[-2000:].decode()}")
                time.sleep(0.002)
            yield Server(name, process.pid, url, time.perf_counter() - begun)
        finally:
            process.terminate()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def find_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
