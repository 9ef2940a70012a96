"""What a turn costs in CPU time at the end of a long conversation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile

import httpx2
from floors import read_stream
from interfaces import CHAT, INTERFACES, OLLAMA, Interface
from measure import KEY, Row, cpu_seconds, loopback, ratio_row, settle

from vibe_llms import AssistantCanister, Canister, UserCanister, open_session

LENGTHS = (10, 100, 1_000, 5_000)
#: The tokens that a reply to a long history says were read: fewer, and Ollama would have cut it.
READ = "30000000"
#: After so many messages, the first turn encodes all; a context that has room for them.
LONGEST, ROOMY = 100_000, 1 << 40
#: Against the official packages, at the longest; openai's copies and checks every message.
BARS = {"anthropic": 0.25, "openai": 0.01, "ollama": 0.25, "google-genai": 0.01}


def measure_turns(runs: int) -> list[Row]:
    return [row for one in INTERFACES for row in asyncio.run(_measure(one, runs))]


async def _measure(interface: Interface, runs: int) -> list[Row]:
    rows: list[Row] = []
    row = interface.row
    with loopback("short", "1", interface.name) as url, tempfile.TemporaryDirectory() as home:
        # Otherwise the longest history would be compacted.
        models = {interface.model: {"context-tokens": ROOMY}}
        configuration = {"providers": {row: {"base-url": url, "models": models}}}
        async with (
            open_session(home=home, keys={row: KEY}, configuration=configuration) as session,
            httpx2.AsyncClient() as bare,
            interface.produce_package(url) as package,
        ):
            for length in LENGTHS:
                history = produce_history(length)
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


def measure_first_turns(runs: int) -> list[Row]:
    """The first turn after a very long history, whose tokens Ollama measures and Chat does not."""
    return [asyncio.run(_measure_first_turns(runs))]


async def _measure_first_turns(runs: int) -> Row:
    samples: dict[str, list[float]] = {"ours": [], "chat": []}
    measured = {"ours": OLLAMA, "chat": CHAT}
    async with contextlib.AsyncExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        rows = {
            one.row: {
                "base-url": stack.enter_context(loopback("short", "1", one.name, READ)),
                "models": {one.model: {"context-tokens": ROOMY}},
            }
            for one in measured.values()
        }
        session = await stack.enter_async_context(
            open_session(
                home=home,
                keys=dict.fromkeys(rows, KEY),
                configuration={"providers": rows},
            )
        )
        history = produce_history(LONGEST)
        for number in range(runs + 1):
            for name, one in measured.items():
                address = f"{one.row}/{one.model}"
                conversation = await session.begin(address, history=history, save=False)
                settle()
                start = cpu_seconds()
                await conversation.converse("and now?")
                if number:
                    samples[name].append(cpu_seconds() - start)
                del conversation
    what = f"{OLLAMA.label}: CPU of the first turn after {LONGEST:,} messages"
    return ratio_row(what, samples, "ms", scale=1e3, bars={"chat": 2.0})


def produce_history(length: int) -> list[Canister]:
    history: list[Canister] = []
    for number in range(length // 2):
        history.append(UserCanister.from_text(f"question {number} {'x' * 180}"))
        history.append(AssistantCanister.from_text(f"answer {number} {'y' * 180}"))
    return history
