"""Measure start-up: imports, `--help`, a one-shot up to its first event, and an ACP agent."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from interfaces import ANTHROPIC, AZURE, AZURE_CHAT, BEDROCK, CHAT, GEMINI, INTERFACES, OLLAMA
from measure import HERE, Row, bare_environment, environment, loopback, processes, ratio_row

NAMES = "from vibe_llms import MessageProgressEvent, TextChunk, open_session"
BARE_REQUEST = """
import asyncio, httpx2, sys
async def main():
    async with httpx2.AsyncClient() as client:
        body = b'{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user"}]}'
        async with client.stream("POST", sys.argv[1] + "/v1/messages", content=body) as response:
            async for chunk in response.aiter_raw():
                print(chunk, flush=True)
                break
asyncio.run(main())
"""
PACKAGE_REQUEST = """
import asyncio, anthropic, sys
async def main():
    client = anthropic.AsyncAnthropic(api_key="k" * 20, base_url=sys.argv[1])
    stream = await client.messages.create(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}], stream=True)
    async for event in stream:
        print(event.type, flush=True)
        break
asyncio.run(main())
"""


def measure_imports(runs: int) -> list[Row]:
    python = [sys.executable, "-c"]
    samples = processes(
        {
            "ours": [*python, NAMES],
            "asyncio, msgspec": [*python, "import asyncio, msgspec"],
            "interpreter": [*python, "pass"],
            "anthropic": [*python, "import anthropic"],
            "with the session": [*python, f"{NAMES}, Session"],
        },
        runs,
    )
    net = {
        name: [
            value - bare for value, bare in zip(samples[name], samples["interpreter"], strict=True)
        ]
        for name in ("ours", "asyncio, msgspec")
    }
    whole = {name: samples[name] for name in ("ours", "asyncio, msgspec", "anthropic")}
    opened = {"ours": samples["with the session"], "asyncio, msgspec": whole["asyncio, msgspec"]}
    return [
        ratio_row(
            "import with the names of the example, whole process",
            whole,
            "ms",
            scale=1e3,
            bars={"asyncio, msgspec": 1.35},
        ),
        ratio_row("the same, less a bare interpreter", net, "ms", scale=1e3),
        ratio_row("the same with all that a session needs, whole process", opened, "ms", scale=1e3),
    ]


def measure_help(runs: int) -> list[Row]:
    peer = _install_peer()
    command = str(Path(sys.executable).parent / "vibe-llms")
    rows = []
    for option in ("--help", "--version"):
        samples = processes({"ours": [command, option], "llm --help": [peer, "--help"]}, runs)
        rows.append(
            ratio_row(f"vibe-llms {option}", samples, "ms", scale=1e3, bars={"llm --help": 0.15})
        )
    return rows


def measure_oneshot(runs: int) -> list[Row]:
    command = str(Path(sys.executable).parent / "vibe-llms")
    rows = []
    for one in INTERFACES:
        if one is OLLAMA:
            continue  # has no host: it asks `show` first, and what that costs is Ollama's
        with tempfile.TemporaryDirectory() as folder, loopback("short", "1", one.name) as url:
            settings = environment(Path(folder) / "home", one.row, url)
            address = f"{one.row}/{one.model}"
            commands = {
                "ours": [command, "chat", "-m", address, "--jsonl", "hi"],
                "bare httpx2": [sys.executable, "-c", BARE_REQUEST, url],
            }
            if one is ANTHROPIC:
                commands["anthropic"] = [sys.executable, "-c", PACKAGE_REQUEST, url]
            samples: dict[str, list[float]] = {name: [] for name in commands}
            for number in range(runs + 1):
                for name, words in commands.items():
                    seconds = _first_output(words, settings)
                    if number:
                        samples[name].append(seconds)
        what = f"{one.label}: one-shot chat, start to first event"
        rows.append(ratio_row(what, samples, "ms", scale=1e3))
        extra = [a - b for a, b in zip(samples["ours"], samples["bare httpx2"], strict=True)]
        rows.append(
            Row(
                "the same, more than the bare request (bar: 200 ms)",
                {"ours": statistics.median(extra) * 1e3},
                "ms",
                {"200 ms": statistics.median(extra) / 0.2},
                {"200 ms": 1.0},
            )
        )
    return rows


def measure_rows(runs: int) -> list[Row]:
    """Measure the CPU time of a process that asks one row, against Chat Completions."""
    command = str(Path(sys.executable).parent / "vibe-llms")
    rows = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        asks: dict[str, tuple[list[str], dict[str, str]]] = {}
        for one in (CHAT, GEMINI, BEDROCK, AZURE_CHAT, AZURE):
            url = stack.enter_context(loopback("short", "1", one.name))
            settings = environment(folder / one.row, one.row, url)
            settings["AWS_REGION"] = one.settings.get("region", "")
            words = [command, "chat", "-m", f"{one.row}/{one.model}", "--jsonl", "hi"]
            asks[one.name] = words, settings
        samples: dict[str, list[float]] = {name: [] for name in asks}
        for number in range(runs + 1):
            for name, (words, settings) in asks.items():
                seconds = _process_seconds(words, settings)
                if number:
                    samples[name].append(seconds)
    for name in [*samples][1:]:
        pair = {"ours": samples[name], "Chat": samples[CHAT.name]}
        what = f"{name.capitalize()}: one-shot chat, CPU of the whole process"
        rows.append(ratio_row(what, pair, "ms", scale=1e3, bars={"Chat": 1.2}))
    return rows


def _process_seconds(words: list[str], settings: dict[str, str]) -> float:
    """The CPU time of a process."""
    with subprocess.Popen(
        words, env=settings, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return usage.ru_utime + usage.ru_stime


def measure_agent(runs: int) -> list[Row]:
    """Measure how long an editor waits for the first answer of `vibe-llms acp`."""
    command = str(Path(sys.executable).parent / "vibe-llms")
    line = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}\n'
    bare = "import sys; print(sys.stdin.readline(), flush=True)"
    commands = {"ours": [command, "acp"], "interpreter": [sys.executable, "-c", bare]}
    samples: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        settings = {**bare_environment(), "VIBE_LLMS_HOME": folder}
        for number in range(runs + 1):
            for name, words in commands.items():
                seconds = _first_output(words, settings, line)
                if number:
                    samples[name].append(seconds)
    row = ratio_row("vibe-llms acp, start to the answer of initialize", samples, "ms", scale=1e3)
    waited = statistics.median(samples["ours"])
    return [
        row,
        Row(
            "the same (bar: 300 ms)",
            {"ours": waited * 1e3},
            "ms",
            {"300 ms": waited / 0.3},
            {"300 ms": 1.0},
        ),
    ]


def _first_output(words: list[str], settings: dict[str, str], given: bytes = b"") -> float:
    start = time.perf_counter()
    with subprocess.Popen(
        words, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(given)
        if given:
            process.stdin.flush()
        else:
            process.stdin.close()
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
        process.stdin.close()
        process.stdout.read()
    assert line, words
    return seconds


def _install_peer() -> str:
    """The peer `llm` in an environment of its own, made once."""
    folder = HERE.parent / "artifacts" / "llm"
    if not (folder / "bin" / "llm").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(folder / "bin" / "pip"), "install", "--quiet", "llm"]
        subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
    return str(folder / "bin" / "llm")
