"""Several threads can be the first to read a stored value: msgspec 0.22 crashes there by itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Reads values in many threads at once, which change places as often as they can.
READ = """
import sys, threading
{setting}

barrier = threading.Barrier(16)
sys.setswitchinterval(1e-6)

def read():
    barrier.wait()
    {reading}

threads = [threading.Thread(target=read) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
VALUES = {
    "a script": (
        "from vibe_llms.providers.scripted.scripts import produce_script",
        "produce_script({'replies': [{'when': '.', 'parts': [{'text': 'Yes.'}]}]}, 'x')",
    ),
    "a line of messages": (
        "from vibe_llms.messages.codecs import decode_canister",
        """decode_canister(b'{"role":"user","contents":[{"kind":"text","data":"Hi"}]}')""",
    ),
    "an entry": (
        "import datetime as d\nfrom vibe_llms.memory.entries import Entry, check_entry",
        "check_entry(Entry(identity='x', content='x', created=d.datetime.now(d.UTC)))",
    ),
}


def read(setting: str, reading: str) -> tuple[int, bytes]:
    command = READ.format(setting=setting, reading=reading)
    ended = subprocess.run([sys.executable, "-c", command], capture_output=True, check=False)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("value", VALUES)
def test_threads_can_be_the_first_to_read(value: str) -> None:
    assert [read(*VALUES[value]) for _ in range(4)] == [(0, b"")] * 4
