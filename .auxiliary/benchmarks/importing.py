"""How long an import of a large export takes, and how much memory.

    python .auxiliary/benchmarks/importing.py                          about a minute
    python .auxiliary/benchmarks/importing.py --conversations 10000    ten times as long
    python .auxiliary/benchmarks/importing.py --page                   also write the table

The export is a ZIP file of ChatGPT: for each conversation 12 messages of 200 to 3,000 characters
with a second branch, and a picture of 90 kB; 10,000 conversations are 1 GB. The command imports
it into an empty archive on the disk, with syncs, and then again. The bars are 60 seconds for 10,000
conversations and 300 MB. Leaves with 1 where a bar was not held or the report is wrong. Nothing
else may run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import Row, environment
from run import conclude, draw

_BAR_SECONDS = 60.0
_BAR_CONVERSATIONS = 10_000
_BAR_BYTES = 300e6
_MESSAGES = 12
_PICTURE_BYTES = 90_000
_PART = 500
_FIGURES = "figures of imports"
_PNG = b"\x89PNG\r\n\x1a\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=_BAR_CONVERSATIONS // 10)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--page", action="store_true", help="write the table of the page")
    options = parser.parse_args()
    number = options.conversations
    if options.write:
        write_export(options.write, number)
        return 0
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export = folder / "export.zip"
        # In a process of its own, because the memory of the command includes that of its parent.
        writing = ["--write", str(export), "--conversations", str(number)]
        subprocess.run([sys.executable, __file__, *writing], check=True)
        size = export.stat().st_size / 1e6
        bar = _BAR_SECONDS * number / _BAR_CONVERSATIONS
        for what, status in (("first import", "imported"), ("import again", "unchanged")):
            seconds, memory = run_import(export, folder / "home", {status: number})
            title = f"{what} of {number:,} conversations ({size:.0f} MB)"
            rows.append(
                Row(title, {"ours": seconds}, "s", {"the bar": seconds / bar}, {"the bar": 1.0})
            )
            rows.append(
                Row(
                    f"{what}, memory",
                    {"ours": memory / 1e6},
                    "MB",
                    {"the bar": memory / _BAR_BYTES},
                    {"the bar": 1.0},
                )
            )
            print(draw(rows[-2]), draw(rows[-1]), sep="\n", flush=True)
    return conclude(rows, page=options.page, figures=_FIGURES)


def run_import(export: Path, home: Path, counts: dict[str, int]) -> tuple[float, float]:
    """Run the command; return its seconds and the most memory that it had, in bytes."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "vibe_llms", "import", "--json", str(export)],
        env=environment(home),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    report = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    process.stdout.close()
    found = {name: count for name, count in report["counts"].items() if count}
    if status or found != counts:
        raise RuntimeError(f"the command ended with {status}: {found}")
    return seconds, usage.ru_maxrss * 1024.0


def write_export(path: Path, number: int) -> None:
    """Write the export."""
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(5000)]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for part, start in enumerate(range(0, number, _PART)):
            batch = [
                produce_conversation(one, chance, words)
                for one in range(start, min(number, start + _PART))
            ]
            archive.writestr(f"conversations-{part:03}.json", json.dumps(batch))
        for one in range(number):
            data = _PNG + chance.randbytes(_PICTURE_BYTES)
            archive.writestr(f"file-P{one}-photo.png", data, zipfile.ZIP_STORED)


def produce_conversation(
    number: int, chance: random.Random, words: Sequence[str]
) -> dict[str, Any]:
    """Produce a conversation with a picture and a second branch."""
    mapping: dict[str, Any] = {"root": {"id": "root", "message": None, "parent": None}}
    parent = "root"
    for place in range(_MESSAGES):
        role = "assistant" if place % 2 else "user"
        length = 400 if place % 2 else 50
        parts: list[Any] = [" ".join(chance.choices(words, k=chance.randint(length // 4, length)))]
        if place == 0:
            pointer = {"content_type": "image_asset_pointer"}
            parts.append({**pointer, "asset_pointer": f"file-service://file-P{number}"})
        identity = f"{number}-{place}"
        mapping[identity] = {
            "id": identity,
            # The last answer is a second version of the one before.
            "parent": mapping[parent]["parent"] if place == _MESSAGES - 2 else parent,
            "message": {
                "id": identity,
                "author": {"role": role},
                "create_time": 1.75e9 + number * 100 + place,
                "content": {"content_type": "multimodal_text", "parts": parts},
                "recipient": "all",
                "metadata": {"model_slug": "gpt-5"} if place % 2 else {},
            },
        }
        parent = identity
    return {
        "title": f"Conversation {number}",
        "create_time": 1.75e9 + number * 100,
        "update_time": 1.75e9 + number * 100 + 99,
        "mapping": mapping,
        "current_node": parent,
        "conversation_id": f"c{number}",
    }


if __name__ == "__main__":
    sys.exit(main())
