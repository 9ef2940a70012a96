"""How things are measured: medians of interleaved runs, and ratios against a baseline."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEY = "sk-benchmark-0123456789abcdef"
#: Variables of the keys of the rows that are measured.
KEYS = (
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GEMINI_API_KEY",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AZURE_OPENAI_API_KEY",
)


@dataclass
class Row:
    """One line of the results: what, ours against others, and the bar."""

    what: str
    figures: Mapping[str, float]
    unit: str
    ratios: Mapping[str, float] = field(default_factory=dict)
    bars: Mapping[str, float] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        return all(self.ratios[name] <= bar for name, bar in self.bars.items())


def ratio_row(
    what: str,
    samples: Mapping[str, Sequence[float]],
    unit: str,
    *,
    scale: float = 1.0,
    bars: Mapping[str, float] | None = None,
) -> Row:
    """A row from samples that were taken in turn; the first name is ours.

    The ratio against another is the median of the ratios pair by pair, so that a machine that gets
    slower half-way does not count.
    """
    ours, *others = samples
    ratios = {
        other: statistics.median(a / b for a, b in zip(samples[ours], samples[other], strict=True))
        for other in others
    }
    figures = {name: statistics.median(values) * scale for name, values in samples.items()}
    return Row(what, figures, unit, ratios, bars or {})


def processes(commands: Mapping[str, Sequence[str]], runs: int) -> dict[str, list[float]]:
    """The wall seconds of whole processes, each command in turn."""
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(runs + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(
                command,
                check=True,
                env=bare_environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            if number:  # the first warms the caches up
                samples[name].append(time.perf_counter() - start)
    return samples


def cpu_seconds() -> float:
    """The CPU time of this process, of all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def settle() -> None:
    """Take what is in memory now out of the garbage collector's sight.

    The official packages are imported with ours here, and their objects are many: ours must not
    pay for looking at them.
    """
    gc.collect()
    gc.freeze()


def best_of(work: Callable[[], object], runs: int) -> list[float]:
    """The wall seconds of some runs of a function, after one that is not counted."""
    work()
    samples = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return samples


@contextlib.contextmanager
def loopback(kind: str, *arguments: str) -> Iterator[str]:
    """A loopback server in a process of its own; gives its address."""
    server = subprocess.Popen(
        [sys.executable, str(HERE / "loopback.py"), kind, *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def bare_environment() -> dict[str, str]:
    """The environment without what would lead a command to the user's own things.

    Compiled modules are kept, as an installation has them.
    """
    foreign = (
        *("VIBE_LLMS", "ANTHROPIC", "OPENAI", "OLLAMA", "GEMINI", "GOOGLE", "AWS", "AZURE"),
        "PYTHONDONTWRITEBYTECODE",
    )
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def environment(home: Path, row: str = "", url: str = "") -> dict[str, str]:
    """The environment of a command that shall find nothing of the user's."""
    kept = bare_environment()
    kept["VIBE_LLMS_HOME"] = str(home)
    if row:
        name = row.upper().replace("-", "_")
        kept[f"VIBE_LLMS_PROVIDERS__{name}__BASE_URL"] = url
        kept |= dict.fromkeys(KEYS, KEY)
    return kept
