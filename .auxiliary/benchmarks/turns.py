"""What a turn costs in CPU time at the end of a long conversation."""

from __future__ import annotations

import asyncio
import json
import tempfile

import anthropic
import httpx2
import ollama
from floors import read_lines, read_stream
from measure import KEY, Row, cpu_seconds, loopback, ratio_row

from vibe_llms import AssistantCanister, Canister, UserCanister, open_session

LENGTHS = (10, 100, 1_000, 5_000)


def measure_turns(runs: int) -> list[Row]:
    return [*asyncio.run(_measure(runs)), asyncio.run(_measure_lines(runs))]


async def _measure(runs: int) -> list[Row]:
    rows: list[Row] = []
    with loopback("short") as url, tempfile.TemporaryDirectory() as home:
        configuration = {"providers": {"anthropic": {"base-url": url}}}
        async with (
            open_session(
                home=home, keys={"anthropic": KEY}, configuration=configuration
            ) as session,
            httpx2.AsyncClient() as bare,
            anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as package,
        ):
            for length in LENGTHS:
                history = _produce_history(length)
                conversation = await session.begin(
                    "anthropic/claude-sonnet-5-5", history=history, save=False
                )
                await conversation.converse("and now?")
                body = (await conversation.preview("and now?")).encode()
                request = json.loads(body)
                samples: dict[str, list[float]] = {"ours": [], "floor": [], "anthropic": []}
                for _ in range(runs):
                    start = cpu_seconds()
                    await conversation.converse("and now?")
                    ours = cpu_seconds() - start
                    start = cpu_seconds()
                    await read_stream(bare, url, body)
                    floor = cpu_seconds() - start
                    start = cpu_seconds()
                    async for _event in await package.messages.create(
                        model="m", max_tokens=9, messages=request["messages"], stream=True
                    ):
                        pass
                    official = cpu_seconds() - start
                    for name, value in zip(samples, (ours, floor, official), strict=True):
                        samples[name].append(value)
                bars = {"floor": 2.0, "anthropic": 0.25} if length == max(LENGTHS) else {}
                rows.append(
                    ratio_row(
                        f"CPU of a turn after {length:,} messages ({len(body) / 1e3:,.0f} kB)",
                        samples,
                        "ms",
                        scale=1e3,
                        bars=bars,
                    )
                )
    return rows


def _produce_history(length: int) -> list[Canister]:
    history: list[Canister] = []
    for number in range(length // 2):
        history.append(UserCanister.from_text(f"question {number} {'x' * 180}"))
        history.append(AssistantCanister.from_text(f"answer {number} {'y' * 180}"))
    return history


async def _measure_lines(runs: int) -> Row:
    length = max(LENGTHS)
    samples: dict[str, list[float]] = {"ours": [], "floor": [], "ollama": []}
    with loopback("line") as url, tempfile.TemporaryDirectory() as home:
        configuration = {"providers": {"ollama": {"base-url": url}}}
        async with (
            open_session(home=home, configuration=configuration) as session,
            httpx2.AsyncClient() as bare,
            ollama.AsyncClient(host=url) as package,
        ):
            conversation = await session.begin(
                "ollama/qwen3:8b", history=_produce_history(length), save=False
            )
            await conversation.converse("and now?")
            body = (await conversation.preview("and now?")).encode()
            request = json.loads(body)
            for _ in range(runs):
                start = cpu_seconds()
                await conversation.converse("and now?")
                ours = cpu_seconds() - start
                start = cpu_seconds()
                await read_lines(bare, url, body)
                floor = cpu_seconds() - start
                start = cpu_seconds()
                async for _event in await package.chat(
                    model="m", messages=request["messages"], stream=True
                ):
                    pass
                official = cpu_seconds() - start
                for name, value in zip(samples, (ours, floor, official), strict=True):
                    samples[name].append(value)
    return ratio_row(
        f"CPU of a turn of Ollama's after {length:,} messages ({len(body) / 1e3:,.0f} kB)",
        samples,
        "ms",
        scale=1e3,
        bars={"floor": 2.0, "ollama": 0.25},
    )
