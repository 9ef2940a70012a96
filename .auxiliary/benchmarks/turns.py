"""What a turn costs in CPU time at the end of a long conversation."""

from __future__ import annotations

import asyncio
import json
import tempfile

import httpx2
from floors import read_stream
from interfaces import INTERFACES, Interface
from measure import KEY, Row, cpu_seconds, loopback, ratio_row, settle

from vibe_llms import AssistantCanister, Canister, UserCanister, open_session

LENGTHS = (10, 100, 1_000, 5_000)
#: Against the official packages, at the longest; openai's copies and checks every message.
BARS = {"anthropic": 0.25, "openai": 0.01, "ollama": 0.25}


def measure_turns(runs: int) -> list[Row]:
    return [row for one in INTERFACES for row in asyncio.run(_measure(one, runs))]


async def _measure(interface: Interface, runs: int) -> list[Row]:
    rows: list[Row] = []
    row = interface.row
    with loopback("short", "1", interface.name) as url, tempfile.TemporaryDirectory() as home:
        configuration = {"providers": {row: {"base-url": url}}}
        async with (
            open_session(home=home, keys={row: KEY}, configuration=configuration) as session,
            httpx2.AsyncClient() as bare,
            interface.produce_package(url) as package,
        ):
            for length in LENGTHS:
                history = _produce_history(length)
                conversation = await session.begin(
                    f"{row}/{interface.model}", history=history, save=False
                )
                await conversation.converse("and now?")
                body = (await conversation.preview("and now?")).encode()
                request = json.loads(body)
                samples: dict[str, list[float]] = {"ours": [], "floor": [], interface.package: []}
                settle()
                for _ in range(runs):
                    start = cpu_seconds()
                    await conversation.converse("and now?")
                    samples["ours"].append(cpu_seconds() - start)
                    start = cpu_seconds()
                    await read_stream(bare, url, body, interface.name)
                    samples["floor"].append(cpu_seconds() - start)
                # Apart, so that nothing sweeps up what the package leaves behind.
                for _ in range(runs):
                    start = cpu_seconds()
                    async for _event in interface.stream(package, request):
                        pass
                    samples[interface.package].append(cpu_seconds() - start)
                bars = {"floor": 2.0, interface.package: BARS[interface.package]}
                size = f"{length:,} messages ({len(body) / 1e3:,.0f} kB)"
                rows.append(
                    ratio_row(
                        f"{interface.label}: CPU of a turn after {size}",
                        samples,
                        "ms",
                        scale=1e3,
                        bars=bars if length == max(LENGTHS) else {},
                    )
                )
    return rows


def _produce_history(length: int) -> list[Canister]:
    history: list[Canister] = []
    for number in range(length // 2):
        history.append(UserCanister.from_text(f"question {number} {'x' * 180}"))
        history.append(AssistantCanister.from_text(f"answer {number} {'y' * 180}"))
    return history
