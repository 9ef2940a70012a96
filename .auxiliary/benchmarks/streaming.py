"""What a streamed chunk costs in CPU time: ours, the floor, and the official package."""

from __future__ import annotations

import asyncio
import tempfile

import httpx2
from floors import read_stream
from interfaces import INTERFACES, Interface
from measure import KEY, Row, cpu_seconds, loopback, ratio_row

from vibe_llms import UserCanister, open_session

CHUNKS = 5_000
#: Against the official packages; anthropic's decodes faster than openai's.
BARS = {"anthropic": 0.6, "openai": 0.2, "ollama": 1.0}


def measure_chunks(runs: int) -> list[Row]:
    rows = []
    for one in INTERFACES:
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
        configuration = {"providers": {row: {"base-url": url}}}
        async with (
            open_session(
                event_handler=handle, home=home, keys={row: KEY}, configuration=configuration
            ) as session,
            httpx2.AsyncClient() as bare,
            interface.produce_package(url) as package,
        ):
            model = await session.access_model(f"{row}/{interface.model}")
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
    return ratio_row(what, samples, "µs", scale=1e6, bars=bars)
