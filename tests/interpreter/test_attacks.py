"""L3: whatever code does, it ends in time, leaves nothing, and reads no key."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.interpreter.attacks import ATTACKS, Attack
from vibe_llms.interpreter import kernels
from vibe_llms.interpreter.cage import find_obstacle
from vibe_llms.interpreter.kernels import Kernel, KernelResult
from vibe_llms.interpreter.settings import Limits

QUICK = Limits(call_seconds=1.5, cpu_seconds=20, grace_seconds=1, start_seconds=60)
WHOLE = Limits(start_seconds=60)
#: The promised time, and the start of a kernel on a loaded machine.
LONGEST_SECONDS = 35
#: For attacks that the limit on memory ends, which takes longer on a busy machine.
PATIENT = msgspec.structs.replace(QUICK, call_seconds=20)
#: Those that a cage ends by its nature; without one it is work.
WITHOUT_CAGE = (
    *("ignores signals", "computes in many", "detaches a child", "forks twice"),
    *("fills memory in many", "kills its parent", "exits", "writes a huge file"),
    *("holds memory in files without names", "holds memory in segments", "hides shared memory"),
)
SECRET = "canary-9f86d081884c7d65"


def survivors(token: str) -> list[str]:
    """The processes that run with a word, besides those that have ended."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if token.encode() in words and state not in "ZX":
                found.append(words.decode(errors="replace"))
    return found


def reported(answer: KernelResult) -> str:
    return "\n".join(piece.text for piece in answer.pieces)


@pytest.fixture
def key_name() -> str:
    """The name of a key that lies in the kernel's keyring of this session, where it has any."""
    name = f"vibe-llms-{os.getpid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    add_key = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
    libc.syscall(add_key, b"user", name.encode(), SECRET.encode(), len(SECRET), -3)
    return name


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def attack(one: Attack, limits: Limits, *, spaces: bool, port: int) -> KernelResult:
    """Run the code, see that it ends in time and leaves nothing; gives what it was answered."""
    kernel = Kernel(limits, spaces=spaces)
    await kernel.start()
    token = Path(kernel._folder).name
    folder = Path(kernel._folder)
    try:
        began = time.monotonic()
        code = one.code.replace("TOKEN", token).replace("PORT", str(port))
        answer = await kernel.execute(code)
        assert time.monotonic() - began <= LONGEST_SECONDS
        assert one.words in (reported(answer) or "nothing")
        if one.lost is not None:
            assert bool(kernel.lost) == one.lost, reported(answer)
        size = sum(len(piece.text) + len(piece.data) for piece in answer.pieces if not piece.name)
        assert size <= limits.output_bytes + 1000
    finally:
        await kernel.end()
    assert survivors(token) == []
    assert not folder.exists()
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_in_a_cage_ends_and_leaves_nothing(
    name: str, port: int, key_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not find_obstacle()
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    one = ATTACKS[name]
    one = one._replace(code=one.code.replace("KEYNAME", key_name))
    limits = PATIENT if "emory" in one.words else QUICK
    answer = await attack(one, limits, spaces=True, port=port)
    shown = reported(answer) + "".join(piece.data.decode("latin1") for piece in answer.pieces)
    assert SECRET not in shown
    assert "reached" not in shown.replace("the output reached", "")
    assert "wrote /" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_CAGE)
async def test_an_attack_without_a_cage_ends_and_leaves_nothing(name: str, port: int) -> None:
    await attack(ATTACKS[name], QUICK, spaces=False, port=port)


@pytest.mark.parametrize("spaces", [True, False], ids=["caged", "free"])
async def test_what_honest_code_does_goes_on_working(spaces: bool) -> None:
    code = """
import multiprocessing, os, socket, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory
with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(abs, [-1, -2]))
held = shared_memory.SharedMemory(create=True, size=100_000)
held.buf[0] = 7
print(held.buf[0])
held.close()
held.unlink()
with multiprocessing.Value("i", 3).get_lock(): print("locked")
with ThreadPoolExecutor(3) as threads: print(list(threads.map(abs, [-3])))
print(subprocess.run("echo $((1 + 3))", shell=True, capture_output=True, text=True).stdout.strip())
left, right = socket.socketpair()
left.send(b"5")
print(right.recv(1).decode(), len(os.urandom(6)))
"""
    kernel = Kernel(WHOLE, spaces=spaces)
    await kernel.start()
    try:
        answer = await kernel.execute(code)
    finally:
        await kernel.end()
    assert reported(answer).split() == ["[1,", "2]", "7", "locked", "[3]", "4", "5", "6"]


@pytest.mark.attacks
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_ends_within_the_limits_that_are_shipped(name: str, port: int) -> None:
    await attack(ATTACKS[name], WHOLE, spaces=True, port=port)


@pytest.mark.attacks
async def test_a_fork_bomb_without_a_bound_ends(port: int) -> None:
    bomb = Attack("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    await attack(bomb, WHOLE, spaces=True, port=port)


async def test_a_survivor_would_be_detected(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "end_tree", lambda *_, **__: True)
    one = ATTACKS["detaches a child"]
    kernel = Kernel(QUICK, spaces=False)
    await kernel.start()
    token = Path(kernel._folder).name
    await kernel.execute(one.code.replace("TOKEN", token))
    # The cage itself still ends what is in it; so the cage is killed as code could do it.
    assert kernel._cage is not None
    assert survivors(token) != []
    monkeypatch.undo()
    await kernel.end()
    assert survivors(token) == []
