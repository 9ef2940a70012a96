"""L3: whatever code does, it ends in time, leaves nothing, and reads no key."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interpreter.attacks import ATTACKS, Attack
from vibe_llms.interpreter import kernels
from vibe_llms.interpreter.cage import can_separate
from vibe_llms.interpreter.kernels import Answer, Kernel
from vibe_llms.interpreter.settings import Limits

QUICK = Limits(call_seconds=1.5, cpu_seconds=20, grace_seconds=1, start_seconds=60)
WHOLE = Limits(start_seconds=60)
#: The promise, beside which only the start of a kernel on a loaded machine counts.
LONGEST_SECONDS = 35
#: Those that a cage ends by its nature; without one it is work.
WITHOUT_CAGE = (
    *("ignores signals", "computes in many", "detaches a child", "forks twice"),
    *("fills memory in many", "kills its parent", "exits", "writes a huge file"),
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


def told(answer: Answer) -> str:
    return "\n".join(piece.text for piece in answer.pieces)


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def attack(one: Attack, limits: Limits, *, spaces: bool, port: int) -> Answer:
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
        assert one.words in (told(answer) or "nothing")
        if one.lost is not None:
            assert bool(kernel.lost) == one.lost, told(answer)
        size = sum(len(piece.text) + len(piece.data) for piece in answer.pieces if not piece.name)
        assert size <= limits.output_bytes + 1000
    finally:
        await kernel.end()
    assert survivors(token) == []
    assert not folder.exists()
    return answer


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_in_a_cage_ends_and_leaves_nothing(
    name: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert can_separate()
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    answer = await attack(ATTACKS[name], QUICK, spaces=True, port=port)
    shown = told(answer) + "".join(piece.data.decode("latin1") for piece in answer.pieces)
    assert SECRET not in shown
    assert "reached" not in shown.replace("has reached", "")
    assert "wrote /" not in shown


@pytest.mark.parametrize("name", WITHOUT_CAGE)
async def test_an_attack_without_a_cage_ends_and_leaves_nothing(name: str, port: int) -> None:
    await attack(ATTACKS[name], QUICK, spaces=False, port=port)


@pytest.mark.attacks
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_ends_within_the_limits_that_are_shipped(name: str, port: int) -> None:
    await attack(ATTACKS[name], WHOLE, spaces=True, port=port)


@pytest.mark.attacks
async def test_a_fork_bomb_without_a_bound_ends(port: int) -> None:
    bomb = Attack("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass")
    await attack(bomb, WHOLE, spaces=True, port=port)


async def test_a_survivor_would_be_found_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
