"""The measures of long conversations, run as their docstrings say, on small data of our own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / ".auxiliary" / "benchmarks"


def run(script: str, *arguments: str) -> list[str]:
    """The lines that a command prints; it must succeed."""
    command = [sys.executable, str(FOLDER / f"{script}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_what_must_stay_is_in_every_request_and_the_rest_can_be_reread() -> None:
    head, *kinds = run("context_needles", "--conversations", "16", "--seed", "7")
    assert head.startswith("16 conversations, ")
    digests = int(head.split(", ")[2].split()[0])
    assert digests > 10
    planted = {line[:24].strip(): line.split()[-3:] for line in kinds}
    assert {*planted} == {
        "instructions",
        "pinned",
        "first and last messages",
        "decisions",
        "calls with results",
        "turns that fit",
        "messages by id",
        "messages by a word",
    }
    for number, missing, word in planted.values():
        assert int(number.replace(",", "")) >= 10
        assert (missing, word) == ("0", "missing")


def speak(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def produce_trajectory(number: int) -> list[dict[str, Any]]:
    arguments = json.dumps({"user_id": f"user_{number}"})
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return [
        speak("system", "Help with bookings. " * 40),
        speak("user", f"I am user_{number}. Never call me before noon."),
        speak("assistant", None, tool_calls=[call]),
        speak("tool", f'{{"booking": {number}}} ' * 60, tool_call_id="c", name="look"),
        speak("assistant", f"Your booking is {number}. " * 30),
        speak("user", "###STOP###"),
    ]


def test_compacting_costs_less_than_sending_all_and_than_trimming(tmp_path: Path) -> None:
    data = tmp_path / "trajectories.json"
    data.write_text(json.dumps([{"traj": produce_trajectory(number)} for number in range(80)]))
    head, _, *rows = run("context_costs", str(data), "--windows", "8000")
    assert head.startswith("| window | prices | policy | cost of off |")
    table = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [row[:3] for row in table] == [
        ["8,000", prices, policy]
        for prices in ("Anthropic", "OpenAI")
        for policy in ("off", "trim", "ours")
    ]
    for off, trimmed, ours in (table[:3], table[3:]):
        assert (off[3], trimmed[4]) == ("1.00", "1.00")
        assert float(ours[3]) < 0.8
        assert float(ours[4]) < 0.5
        assert float(off[5]) > 3
        assert float(ours[5]) <= 1
        assert float(trimmed[6]) > float(ours[6]) > float(off[6]) == 1
        assert int(ours[7]) > 2


def test_answers_are_in_the_request_or_found(tmp_path: Path) -> None:
    items = [
        {"id": f"D{number}", "speaker": ("Ada", "Bo")[number % 2], "text": f"{text} {'x' * 300}"}
        for number, text in enumerate(
            [f"On day {number} we sailed to island{number}." for number in range(60)]
        )
    ]
    questions = [
        {"question": "When was island3 reached?", "category": 1, "evidence": ["D3"]},
        {"question": "What of island59?", "category": 2, "evidence": ["D59"]},
        {"question": "Who wept?", "category": 2, "evidence": ["D7"]},
        {"question": "Is there a dragon?", "category": 5, "evidence": []},
    ]
    data = tmp_path / "data.json"
    data.write_text(json.dumps([{"conversation": "c", "items": items, "questions": questions}]))
    window, head, *rows = run("context_locomo", str(data), "--windows", "3000")
    assert window.startswith("window 3,000: 1 dialogues, ")
    assert head.split() == ["category", "asked", "request", "reread", "both"]
    first, second, every = (row.split() for row in rows)
    assert first == ["1", "1", "0.0", "100.0", "100.0"]
    assert second[:3] == ["2", "2", "50.0"]
    assert every[:2] == ["all", "3"]
    assert float(every[4]) < 100
