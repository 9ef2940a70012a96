"""Kernels: state, values, pictures, files, limits, and their end."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from vibe_llms.interpreter import plans
from vibe_llms.interpreter.kernels import Kernel, KernelLost, KernelResult
from vibe_llms.interpreter.processes import survey_tree
from vibe_llms.interpreter.settings import Limits

LIMITS = Limits(call_seconds=30, grace_seconds=3, start_seconds=60)
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@asynccontextmanager
async def run(*, spaces: bool = True, **limits: Any) -> AsyncIterator[Kernel]:
    values = {name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__}
    kernel = Kernel(Limits(**{**values, **limits}), spaces=spaces)
    try:
        await kernel.start()
        yield kernel
    finally:
        await kernel.end()


def parts(answer: KernelResult) -> list[tuple[str, str]]:
    return [(piece.kind, piece.text) for piece in answer.pieces]


@pytest.mark.parametrize("spaces", [True, False])
async def test_code_keeps_what_it_defined_and_returns_what_it_prints_and_shows(
    spaces: bool,
) -> None:
    async with run(spaces=spaces) as kernel:
        first = await kernel.execute(
            "x = 41\nimport sys\nprint('hello')\nsys.stderr.write('oh')\n1"
        )
        assert ("stdout", "hello\n") in parts(first)
        assert ("stderr", "oh") in parts(first)
        assert parts(await kernel.execute("x + 1")) == [("value", "42")]
        wrong = await kernel.execute("1 / 0")
        assert wrong.failed
        ((kind, text),) = parts(wrong)
        assert kind == "error"
        assert "ZeroDivisionError: division by zero" in text
        assert "\x1b" not in text
        assert parts(await kernel.execute("x")) == [("value", "41")]
        assert not kernel.lost
        assert bool(kernel.gaps) != spaces


async def test_pictures_and_files_come_back_once() -> None:
    code = f"""
import os
from IPython.display import Image, display
data = {PICTURE!r}
display(Image(data))
os.makedirs("deep/er", exist_ok=True)
open("deep/er/one.png", "wb").write(data)
open("two.csv", "w").write("a,b\\n")
open(".hidden", "w").write("x")
None
"""
    async with run() as kernel:
        answer = await kernel.execute(code)
        (picture,) = (piece for piece in answer.pieces if piece.kind == "picture")
        assert (picture.data, picture.mimetype) == (PICTURE, "image/png")
        files = {piece.name: piece.data for piece in answer.pieces if piece.kind == "file"}
        assert files == {"deep/er/one.png": PICTURE, "two.csv": b"a,b\n"}
        assert parts(await kernel.execute("None")) == []
        again = await kernel.execute("open('two.csv', 'a').write('1,2\\n'); None")
        assert [piece.data for piece in again.pieces] == [b"a,b\n1,2\n"]


@pytest.mark.parametrize("work", ["time.sleep(100)", "while True: pass"])
async def test_code_that_does_not_end_is_interrupted_and_keeps_its_state(work: str) -> None:
    async with run(call_seconds=1) as kernel:
        await kernel.execute("x = 1")
        answer = await kernel.execute(f"import time\nx = 2\n{work}")
        assert answer.failed
        assert parts(answer)[0] == ("note", "[stopped: it did not finish within 1 s]")
        assert parts(await kernel.execute("x")) == [("value", "2")]


async def test_a_cancelled_call_is_interrupted_and_the_next_one_answered() -> None:
    async with run() as kernel:
        call = asyncio.create_task(kernel.execute("import time\ntime.sleep(100)"))
        await asyncio.sleep(0.3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert parts(await kernel.execute("1 + 1")) == [("value", "2")]


async def test_what_goes_on_after_its_call_is_ended_when_it_has_computed_enough() -> None:
    async with run(cpu_seconds=1.5) as kernel:
        answer = await kernel.execute(
            "import threading\n"
            "def work():\n    while True: pass\n"
            "threading.Thread(target=work, daemon=True).start()"
        )
        assert not answer.failed
        async with asyncio.timeout(30):
            while not kernel.lost:
                await asyncio.sleep(0.05)
        assert kernel.lost == "it used more than 1.5 s of CPU time"
        again = await kernel.execute("1")
        assert again.failed
        assert (
            "it used more than 1.5 s of CPU time; names and files are lost" in again.pieces[-1].text
        )


async def test_what_its_start_computes_counts_for_no_call() -> None:
    async with run(cpu_seconds=0.01) as kernel:
        assert not kernel.lost


async def test_without_mounts_of_its_own_what_it_writes_is_bounded_all_the_same() -> None:
    async with run(spaces=False, disk_bytes=2_000_000) as kernel:
        answer = await kernel.execute(
            "import time\n"
            "for n in range(100):\n"
            "    with open(f'{n}.bin', 'wb') as file: file.write(b'x' * 500_000)\n"
            "    time.sleep(0.05)\n"
        )
        assert answer.failed
        assert "it wrote more than 2,000,000 bytes" in answer.pieces[-1].text


async def test_a_kernel_that_cannot_start_says_so_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "_ARGUMENTS", ("--no-such-option=1", "--debug", "--version"))
    kernel = Kernel(LIMITS, spaces=True)
    with pytest.raises(KernelLost, match="it exited"):
        await kernel.start()
    assert kernel.lost
    assert not Path(kernel._folder).name


async def test_a_kernel_that_starts_too_slowly_is_ended() -> None:
    kernel = Kernel(Limits(start_seconds=0.01), spaces=True)
    with pytest.raises(KernelLost, match="it did not start in time"):
        await kernel.start()


async def test_no_process_is_left_where_the_end_comes_twice_and_at_once() -> None:
    async with run() as kernel:
        assert kernel._cage is not None
        cage = kernel._cage.pid
        assert len(survey_tree(cage)) == 3
        await asyncio.gather(kernel.end(), kernel.end())
        assert survey_tree(cage) == []


FLOODS = {
    "lines": "while True: print('y' * 1000)",
    "a text at once": "print('y' * 50_000_000)",
    "errors": "import sys\nwhile True: print('e' * 1000, file=sys.stderr)",
    "a value at once": "'y' * 50_000_000",
    "values": "from IPython.display import display\nwhile True: display('d' * 1000)",
    "a picture": "from IPython.display import display, Image\n"
    "display(Image(data=b'\\x89PNG' * 5_000_000, format='png'))",
    "a thread": "import threading, time\nended = []\n"
    "def flood():\n    while not ended: print('t' * 1000)\n"
    "threading.Thread(target=flood).start()\n"
    "try: time.sleep(3600)\nfinally: ended.append(1)",
    "a program": "import subprocess\nsubprocess.run('yes')",
    "a descriptor": "import os\nwhile True: os.write(1, b'z' * 1000)",
}


PATIENT: dict[str, Any] = {"call_seconds": 300, "cpu_seconds": 300, "grace_seconds": 60}


def reported(answer: KernelResult) -> str:
    return "\n".join(piece.text for piece in answer.pieces)


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_is_interrupted_at_the_limit_and_the_state_is_kept(name: str) -> None:
    async with run(**PATIENT) as kernel:
        await kernel.execute("state = 41")
        answer = await kernel.execute(FLOODS[name])
        assert "[the output reached its limit of 1,048,576 bytes]" in reported(answer)
        assert reported(answer).endswith(
            "[the running code was interrupted; names and files are kept]"
        )
        assert reported(await kernel.execute("state + 1")) == "42"


@pytest.mark.parametrize(("code", "seconds"), [("print('y' * 1000)", 300), ("sleep(0.01)", 1)])
async def test_code_that_ignores_an_interrupt_gets_another(code: str, seconds: float) -> None:
    async with run(**{**PATIENT, "call_seconds": seconds, "grace_seconds": 8}) as kernel:
        await kernel.execute("from time import sleep\nstate = 41")
        await kernel.execute(
            f"try:\n  while True: {code}\nexcept KeyboardInterrupt: pass\nwhile True: {code}"
        )
        assert not kernel.lost
        assert reported(await kernel.execute("state + 1")) == "42"


async def test_messages_that_say_little_are_limited_too() -> None:
    async with run(**PATIENT, output_bytes=20_000) as kernel:
        for code in ("print('a', flush=True)", "clear_output()", "display({'a/b': ''}, raw=True)"):
            answer = await kernel.execute(
                f"from IPython.display import clear_output, display\nwhile True: {code}"
            )
            assert "[the output reached its limit of 20,000 bytes]" in reported(answer)
            assert not kernel.lost


async def test_a_flood_that_pushes_out_the_message_that_it_has_ended_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run() as kernel:
        client: Any = kernel._client
        receive = client.get_iopub_msg
        lost: list[dict[str, Any]] = []

        async def receive_without_the_first_end(**options: Any) -> dict[str, Any]:
            message: dict[str, Any] = await receive(**options)
            if not lost and message["content"].get("execution_state") == "idle":
                lost.append(message)
                return await receive_without_the_first_end(**options)
            return message

        monkeypatch.setattr(client, "get_iopub_msg", receive_without_the_first_end)
        assert not (await kernel.execute("state = 41")).failed
        assert lost
        assert reported(await kernel.execute("state + 1")) == "42"


async def test_a_long_error_is_cut_and_nothing_is_lost() -> None:
    async with run(**PATIENT) as kernel:
        answer = await kernel.execute("raise ValueError('y' * 50_000_000)")
        assert answer.failed
        assert "ValueError" in reported(answer)
        assert reported(await kernel.execute("1 + 1")) == "2"
