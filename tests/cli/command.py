"""The command in a process of its own with pipes, and within the test's own process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.terminal import COMMAND, LONGEST_SECONDS, is_forked
from tests.fakes.warm import warm_module
from vibe_llms.cli.main import main


class Outcome(NamedTuple):
    """How a run of the command ended."""

    status: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        """The one object that it printed."""
        return json.loads(self.output)

    @property
    def error(self) -> str:
        """The one line on stderr, which is no traceback."""
        assert "Traceback" not in self.errors, self.errors
        lines = [line for line in self.errors.splitlines() if line.startswith("vibe-llms: ")]
        assert len(lines) == 1, self.errors
        return lines[0].removeprefix("vibe-llms: ")


def run(
    *arguments: str | bytes,
    data: bytes | None = b"",
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
    **options: Any,
) -> Outcome:
    """Run the command in a process of its own, its three streams being pipes."""
    if is_forked(command, environment):
        command = warm_module("vibe_llms")
    done = subprocess.run(
        [*command, *arguments],
        input=data,
        capture_output=True,
        timeout=LONGEST_SECONDS,
        env={**os.environ, **(environment or {})},
        check=False,
        **options,
    )
    return Outcome(
        done.returncode,
        done.stdout.decode("utf-8", "replace"),
        done.stderr.decode("utf-8", "replace"),
    )


class _Stream(io.TextIOWrapper):
    """A standard stream in memory; perhaps it says that it is a terminal."""

    def __init__(self, data: bytes = b"", *, terminal: bool = False, name: str = "") -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8", errors="strict", newline="\n")
        self._terminal = terminal
        self.label = name

    def isatty(self) -> bool:
        return self._terminal

    @property
    def text(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode("utf-8", "replace")


@contextmanager
def streams(data: bytes = b"", *, terminals: str = "") -> Iterator[tuple[_Stream, _Stream]]:
    """Standard streams in memory; `terminals` names those that say that they are terminals."""
    given = _Stream(data, terminal="stdin" in terminals)
    output = _Stream(terminal="stdout" in terminals)
    errors = _Stream(terminal="stderr" in terminals)
    errors.reconfigure(errors="backslashreplace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", given)
        patch.setattr(sys, "stdout", output)
        patch.setattr(sys, "stderr", errors)
        if terminals:
            patch.setenv("TERM", "xterm-256color")
            patch.delenv("NO_COLOR", raising=False)
        yield output, errors


def invoke(*arguments: str, data: bytes = b"", terminals: str = "") -> Outcome:
    """Run the command within this process."""
    with streams(data, terminals=terminals) as (output, errors):
        with pytest.raises(SystemExit) as leaving:
            main(arguments)
        status = leaving.value.code
    assert isinstance(status, int)
    return Outcome(status, output.text, errors.text)


def write_script(folder: Path, text: str, name: str = "script.toml") -> str:
    """A script of the scripted provider in a file; gives the name of its model."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, "utf-8")
    return f"scripted/{path}"


def script_of(*parts: str, **reply: str) -> str:
    """A script whose one reply, given to every question, has these parts in TOML."""
    lines = [f"{key} = {value}" for key, value in {"when": "'.*'", **reply}.items()]
    return "\n".join(["[[replies]]", *lines, f"parts = [ {', '.join(parts)} ]", ""])


def remember(text: str, *options: str) -> str:
    """Remember a fact; its identity."""
    identity: str = invoke("memory", "add", "--json", *options, text).json["id"]
    return identity


def teach(
    home: Path,
    address: str = "scripted/demo",
    *,
    declared: int | None = None,
    server: str = "",
) -> None:
    """Store that a model accepts 8,192 tokens only."""
    row, _, model = address.partition("/")
    home.mkdir(exist_ok=True)
    learned: dict[str, object] = {
        "row": row,
        "model": model,
        "tokens": 8_192,
        "created": "2026-11-27",
        "server": server,
        "words": "scripted: too long",
    }
    if declared is not None:
        learned["declared"] = declared
    (home / "learned-windows.json").write_text(json.dumps({"windows": [learned]}))
