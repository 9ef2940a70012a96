"""What streaming costs in CPU time, a chunk and many conversations at once: ours and the floor."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace

import httpx2
from floors import read_stream
from interfaces import INTERFACES, STREAMED, Interface
from measure import KEY, Row, cpu_seconds, loopback, ratio_row, settle

from vibe_llms import Invoker, UserCanister, open_session
from vibe_llms.providers.contract.model import ContractModel

CHUNKS = 5_000
CONVERSATIONS, CHUNKS_EACH = 200, 100
#: Against the official packages; anthropic's decodes faster than openai's.
BARS = {"anthropic": 0.6, "openai": 0.2, "ollama": 1.0, "google-genai": 0.2, "botocore": 0.2}
MOST_SECONDS = 4e-6


def measure_chunks(runs: int) -> list[Row]:
    rows = []
    for one in STREAMED:
        bars = {"floor": 1.5, one.package: BARS[one.package]}
        rows += [
            asyncio.run(_measure(one, "stream", "one HTTP chunk an event", runs, bars)),
            asyncio.run(_measure(one, "packed", "HTTP chunks of 16 KiB", runs, {})),
        ]
    return rows


async def _measure(
    interface: Interface, kind: str, words: str, runs: int, bars: dict[str, float]
) -> Row:
    samples: dict[str, list[float]] = {"ours": [], "floor": [], interface.package: []}
    seen = 0

    def handle(_: object) -> None:
        nonlocal seen
        seen += 1

    row = interface.row
    with (
        loopback(kind, str(CHUNKS), interface.name) as url,
        tempfile.TemporaryDirectory() as home,
    ):
        configuration = interface.configure(url)
        async with (
            open_session(
                event_handler=handle, home=home, keys={row: KEY}, configuration=configuration
            ) as session,
            httpx2.AsyncClient() as bare,
            interface.produce_package(url) as package,
        ):
            model = await session.access_model(f"{row}/{interface.model}")
            settle()
            for number in range(runs + 2):
                start = cpu_seconds()
                await model.converse([UserCanister.from_text("hi")])
                ours = cpu_seconds() - start
                start = cpu_seconds()
                await read_stream(bare, url, interface=interface.name)
                floor = cpu_seconds() - start
                start = cpu_seconds()
                async for _ in interface.stream(package, {}):
                    pass
                official = cpu_seconds() - start
                if number > 1:
                    for name, value in zip(samples, (ours, floor, official), strict=True):
                        samples[name].append(value / CHUNKS)
    assert seen > (runs + 2) * CHUNKS
    what = f"{interface.label}: CPU of a streamed chunk, {words}"
    row_of_chunk = ratio_row(what, samples, "µs", scale=1e6, bars=bars)
    # What other processes do adds to the time of one of them, and never takes from it.
    least = {"4 µs": min(samples["ours"]) / MOST_SECONDS}
    return replace(
        row_of_chunk,
        ratios={**row_of_chunk.ratios, **least},
        bars={**bars, "4 µs": 1.0} if bars else {},
    )


def measure_crowd(runs: int) -> list[Row]:
    return [asyncio.run(_measure_crowd(one, runs)) for one in INTERFACES]


async def _measure_crowd(interface: Interface, runs: int) -> Row:
    samples: dict[str, list[float]] = {"ours": [], "floor": []}
    seen = 0

    def handle(_: object) -> None:
        nonlocal seen
        seen += 1

    row = interface.row
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    with (
        loopback("stream", str(CHUNKS_EACH), interface.name) as url,
        tempfile.TemporaryDirectory() as home,
    ):
        configuration = interface.configure(url)
        async with (
            open_session(
                event_handler=handle, home=home, keys={row: KEY}, configuration=configuration
            ) as session,
            httpx2.AsyncClient(limits=limits) as bare,
        ):
            for number in range(runs + 1):
                crowd = [
                    await session.begin(f"{row}/{interface.model}", save=False)
                    for _ in range(CONVERSATIONS)
                ]
                settle()
                start = cpu_seconds()
                await asyncio.gather(*(one.converse("hi") for one in crowd))
                ours = cpu_seconds() - start
                start = cpu_seconds()
                await asyncio.gather(
                    *(read_stream(bare, url, interface=interface.name) for _ in crowd)
                )
                floor = cpu_seconds() - start
                if number:
                    samples["ours"].append(ours)
                    samples["floor"].append(floor)
    assert seen > runs * CONVERSATIONS * CHUNKS_EACH
    what = f"{interface.label}: CPU of {CONVERSATIONS} conversations at once, {CHUNKS_EACH} chunks"
    return ratio_row(what, samples, "ms", scale=1e3, bars={"floor": 1.5})


def measure_contract(runs: int) -> list[Row]:
    """What the contract adds to a chunk of a model that is offered tools by it."""
    return [asyncio.run(_measure_contract(INTERFACES[0], runs))]


async def _measure_contract(interface: Interface, runs: int) -> Row:
    def nothing() -> None:
        """Do nothing."""

    tools = (Invoker.from_function(nothing),)
    samples: dict[str, list[float]] = {"contract": [], "native": []}
    row = interface.row
    with (
        loopback("stream", str(CHUNKS), interface.name) as url,
        tempfile.TemporaryDirectory() as home,
    ):
        configuration = interface.configure(url)
        async with open_session(home=home, keys={row: KEY}, configuration=configuration) as session:
            model = await session.access_model(f"{row}/{interface.model}")
            models = {"contract": ContractModel(model), "native": model}
            settle()
            for number in range(runs + 2):
                for name, one in models.items():
                    start = cpu_seconds()
                    await one.converse([UserCanister.from_text("hi")], tools)
                    if number > 1:
                        samples[name].append((cpu_seconds() - start) / CHUNKS)
    what = f"{interface.label}: CPU of a streamed chunk under the contract"
    return ratio_row(what, samples, "µs", scale=1e6, bars={"native": 1.5})
