"""How long one request holds the event loop of the server.

    python .auxiliary/benchmarks/holds.py            about a minute
    python .auxiliary/benchmarks/holds.py --page     also write the table of the page

The server is a process with a beat on its loop, once a millisecond; the longest delay of a beat
while a request is answered is what the request holds. *CPU of a step* is the most CPU time that the
loop itself takes between two looks at its sockets, also on a busy machine. The requests are the
largest that the limits allow. The provider is another process. Leaves with 1 where the bar was not
held or a reply was wrong. Nothing else may run on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from asyncio import events
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from measure import Row, environment
from run import conclude, draw
from serving import serve_upstream
from upstream import MODELS

BAR_SECONDS = 0.05
_BEAT_SECONDS = 0.001
_FIGURES = "figures of holds"
_CHARACTERS = 8 * 1024 * 1024
_FILE_BYTES = 30_000_000
_REPEATS = 5
#: Sends a body to a path and expects a status; returns the longest delay and CPU of a step.
_Ask: TypeAlias = Callable[[str, bytes, int], tuple[float, float]]
#: Their model takes no file: that is found out after it was read.
_REFUSED = {"Chat, one file": 400}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--page", action="store_true", help="write the table of the page")
    parser.add_argument("parts", nargs="*", help="only the requests whose names have these words")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve())
        return 0
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_upstream() as upstream,
        _start(Path(folder), upstream.url) as ask,
    ):
        for name, path, body in _survey_requests():
            if options.parts and not any(part in name for part in options.parts):
                continue
            # The first request imports what it needs.
            longest, cpu = min(ask(path, body, _REFUSED.get(name, 200)) for _ in range(_REPEATS))
            rows.append(
                Row(
                    f"longest hold of the event loop: {name} ({len(body) / 1e6:.1f} MB)",
                    {"ours": longest * 1000, "CPU of a step": cpu * 1000, "50 ms": 50.0},
                    "ms",
                    {"50 ms": longest / BAR_SECONDS},
                    {"50 ms": 1.0},
                )
            )
            print(draw(rows[-1]), flush=True)
    return conclude(rows, page=options.page, figures=_FIGURES)


def _survey_requests() -> Iterator[tuple[str, str, bytes]]:
    said: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[number % 2], "content": f"Message {number} of the history."}
        for number in range(9_999)
    ]
    dialects: Mapping[str, tuple[str, Callable[[list[Any]], dict[str, Any]]]] = {
        "Chat": ("/v1/chat/completions", lambda one: {"model": "short", "messages": one}),
        "Responses": ("/v1/responses", lambda one: {"model": "short", "input": one}),
        "Messages": (
            "/v1/messages",
            lambda one: {"model": "short", "max_tokens": 99, "messages": one},
        ),
        "DIAL": (
            "/openai/deployments/short/chat/completions",
            lambda one: {"messages": one},
        ),
    }
    for name, (path, write) in dialects.items():
        kind = "input_text" if name == "Responses" else "text"
        parts = [{"type": kind, "text": "Part."}] * 10_000
        line = "All of a long text. é\n"
        text = line * (_CHARACTERS // len(line))
        for what, messages in (
            ("9,999 messages", said),
            ("10,000 parts", [{"role": "user", "content": parts}]),
            ("one text", [{"role": "user", "content": text}]),
        ):
            yield f"{name}, {what}", path, msgspec.json.encode(write(messages))
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
            },
        }
        for number in range(1000)
    ]
    body = {"model": "short", "messages": said[:1], "tools": tools}
    yield "Chat, 1,000 tools", "/v1/chat/completions", msgspec.json.encode(body)
    data = base64.b64encode(os.urandom(_FILE_BYTES)).decode()
    file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{data}"}
    body = {
        "model": "short",
        "messages": [{"role": "user", "content": [{"type": "file", "file": file}]}],
    }
    yield "Chat, one file", "/v1/chat/completions", msgspec.json.encode(body)
    yield "run, one text", "/api/runs", msgspec.json.encode({"model": "short", "prompt": text})


@contextlib.contextmanager
def _start(folder: Path, upstream: str) -> Iterator[_Ask]:
    (folder / "config.toml").write_text(
        "[aliases]\n" + "".join(f'{model} = "openai-chat/{model}"\n' for model in MODELS)
    )
    with subprocess.Popen(
        [sys.executable, __file__, "--serve"],
        env=environment(folder, "openai-chat", f"{upstream}/v1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines, orders = process.stdout, process.stdin
        url = lines.readline().strip()

        def take() -> tuple[float, float]:
            orders.write("\n")
            orders.flush()
            longest, cpu = map(float, lines.readline().split())
            return longest, cpu

        def ask(path: str, body: bytes, wanted: int) -> tuple[float, float]:
            take()
            headers = {"content-type": "application/json"}
            request = urllib.request.Request(url + path, body, headers)
            try:
                response = urllib.request.urlopen(request, timeout=300)
            except urllib.error.HTTPError as error:
                response = error
            with response:
                answer = response.read()
            if response.status // 100 != wanted // 100:
                raise RuntimeError(f"{path}: {response.status} {answer[:200].decode()}")
            return take()

        try:
            yield ask
        finally:
            process.kill()


async def _serve() -> None:
    from vibe_llms.base.configuration import load_configuration
    from vibe_llms.server.running import RunningServer
    from vibe_llms.server.settings import read_server_settings

    configuration = load_configuration(overrides={"server": {"port": 0}})
    loop, longest, expected = asyncio.get_running_loop(), 0.0, 0.0

    busiest = [0.0]
    run = events.Handle._run

    def run_step(handle: events.Handle) -> None:
        begun = time.thread_time()
        run(handle)
        busiest[0] = max(busiest[0], time.thread_time() - begun)

    events.Handle._run = run_step  # type: ignore[method-assign, assignment]

    def beat() -> None:
        nonlocal longest, expected
        now = loop.time()
        longest = max(longest, now - expected)
        expected = now + _BEAT_SECONDS
        loop.call_at(expected, beat)

    def report() -> None:
        nonlocal longest
        sys.stdin.readline()
        print(longest, busiest[0], flush=True)
        longest = busiest[0] = 0.0

    settings = read_server_settings(configuration)
    server = RunningServer(configuration, settings, keys=False, log=lambda _: None)
    print(server.url, flush=True)
    expected = loop.time()
    beat()
    loop.add_reader(sys.stdin, report)
    await server.serve()


if __name__ == "__main__":
    sys.exit(main())
