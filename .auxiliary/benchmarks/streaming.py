"""What a streamed chunk costs in CPU time: ours, the floor, and the official package."""

from __future__ import annotations

import asyncio
import tempfile

import anthropic
import httpx2
import ollama
from floors import read_lines, read_stream
from measure import KEY, Row, cpu_seconds, loopback, ratio_row

from vibe_llms import UserCanister, open_session

CHUNKS = 5_000


def measure_chunks(runs: int) -> list[Row]:
    return [
        asyncio.run(
            _measure("stream", "one HTTP chunk an event", runs, {"floor": 1.5, "anthropic": 0.6})
        ),
        asyncio.run(_measure("packed", "HTTP chunks of 16 KiB", runs, {})),
        asyncio.run(_measure_lines(runs)),
    ]


async def _measure(kind: str, words: str, runs: int, bars: dict[str, float]) -> Row:
    samples: dict[str, list[float]] = {"ours": [], "floor": [], "anthropic": []}
    seen = 0

    def handle(_: object) -> None:
        nonlocal seen
        seen += 1

    with loopback(kind, str(CHUNKS)) as url, tempfile.TemporaryDirectory() as home:
        configuration = {"providers": {"anthropic": {"base-url": url}}}
        async with (
            open_session(
                event_handler=handle,
                home=home,
                keys={"anthropic": KEY},
                configuration=configuration,
            ) as session,
            httpx2.AsyncClient() as bare,
            anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as package,
        ):
            model = await session.access_model("anthropic/claude-sonnet-5-5")
            for number in range(runs + 2):
                start = cpu_seconds()
                await model.converse([UserCanister.from_text("hi")])
                ours = cpu_seconds() - start
                start = cpu_seconds()
                await read_stream(bare, url)
                floor = cpu_seconds() - start
                start = cpu_seconds()
                async for _ in await package.messages.create(
                    model="m", max_tokens=9, messages=[], stream=True
                ):
                    pass
                official = cpu_seconds() - start
                if number > 1:
                    for name, value in zip(samples, (ours, floor, official), strict=True):
                        samples[name].append(value / CHUNKS)
    assert seen > (runs + 2) * CHUNKS
    return ratio_row(f"CPU of a streamed chunk, {words}", samples, "µs", scale=1e6, bars=bars)


async def _measure_lines(runs: int) -> Row:
    samples: dict[str, list[float]] = {"ours": [], "floor": [], "ollama": []}
    seen = 0

    def handle(_: object) -> None:
        nonlocal seen
        seen += 1

    with loopback("lines", str(CHUNKS)) as url, tempfile.TemporaryDirectory() as home:
        configuration = {"providers": {"ollama": {"base-url": url}}}
        async with (
            open_session(event_handler=handle, home=home, configuration=configuration) as session,
            httpx2.AsyncClient() as bare,
            ollama.AsyncClient(host=url) as package,
        ):
            model = await session.access_model("ollama/qwen3:8b")
            for number in range(runs + 2):
                start = cpu_seconds()
                await model.converse([UserCanister.from_text("hi")])
                ours = cpu_seconds() - start
                start = cpu_seconds()
                await read_lines(bare, url)
                floor = cpu_seconds() - start
                start = cpu_seconds()
                async for _ in await package.chat(model="m", messages=[], stream=True):
                    pass
                official = cpu_seconds() - start
                if number > 1:
                    for name, value in zip(samples, (ours, floor, official), strict=True):
                        samples[name].append(value / CHUNKS)
    assert seen > (runs + 2) * CHUNKS
    return ratio_row(
        "CPU of a streamed chunk of Ollama's",
        samples,
        "µs",
        scale=1e6,
        bars={"floor": 1.5, "ollama": 1.0},
    )
