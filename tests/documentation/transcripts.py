"""Console blocks, played: commands in a shell, lines at the prompt of a dialogue, and their output.

A block is a transcript. `$ ` begins a command (a line that ends with a backslash goes on in the
next one, after `> `), any other `> ` a line that is typed at the prompt of the dialogue, and `^C`
presses Ctrl-C as soon as the output above it has been seen. Everything else is output, and a line
`…` stands for any number of lines. Identities and times differ from run to run: they count as equal
where both sides have one, and commands further down are given those of this run. A line that ends
with `…` stands for any line that begins so.

`.auxiliary/scripts/transcripts` plays all pages like this too, and writes what it saw into them.
"""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

ELISION = "…"
_SECONDS = 100.0
_IDENTITY = re.compile(
    r"\b(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[a-z2-7]{12}|[0-9a-f]{12})\b"
)
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)?"
    r"|\d{8}T\d{6}Z-[0-9a-f]{6}|\b\d+\.\d+s\b"
)
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|[=>])")
#: So that there is time to press a key in the middle of an answer.
_SLOWLY = {"VIBE_LLMS_PROVIDERS__SCRIPTED__PACE_SECONDS": "0.05"}
_WRAPPER = """\
set -a
[ -e "$STATE" ] && . "$STATE"
(exit "$LAST")
{command}
LAST=$?
export LAST
export -p > "$STATE"
echo "cd '$PWD'" >> "$STATE"
exit $LAST
"""


@dataclass
class Command:
    """A command, and what follows it: output, lines that are typed, and presses of Ctrl-C."""

    text: str
    steps: list[str] = field(default_factory=list)

    @property
    def is_dialogue(self) -> bool:
        return any(step == "^C" or step.startswith("> ") for step in self.steps)


def read_commands(text: str) -> Sequence[Command]:
    """The commands of a block; `AssertionError` where it does not begin with one."""
    commands: list[Command] = []
    open_command = False
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:]))
        else:
            assert commands, f"a transcript begins with a command, not with {line!r}"
            if open_command:
                commands[-1].text += "\n" + line.removeprefix("> ")
            else:
                commands[-1].steps.append(line)
        open_command = commands[-1].text.endswith("\\") and not commands[-1].steps
    return commands


class Shell:
    """A shell whose environment and folder last from command to command."""

    def __init__(
        self, environment: Mapping[str, str], folder: Path, state: Path, *, rewriting: bool = False
    ) -> None:
        self._environment = {**environment, "STATE": str(state), "LAST": "0"}
        self._folder = folder
        self._homes = sorted({environment["HOME"], os.path.realpath(environment["HOME"])})
        self._known: dict[str, str] = {}
        self._rewriting = rewriting

    def play(self, commands: Iterable[Command]) -> None:
        """Run commands; `AssertionError` where one fails unforeseen or says something else.

        A command may fail where the next one asks for `$?`.
        """
        commands = list(commands)
        for index, command in enumerate(commands):
            status = self._play_dialogue(command) if command.is_dialogue else self._play(command)
            following = commands[index + 1].text if index + 1 < len(commands) else ""
            assert status == 0 or "$?" in following, f"$ {command.text}: status {status}"

    def _play(self, command: Command) -> int:
        done = subprocess.run(
            ["bash", "-c", self._wrap(command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
            cwd=self._folder,
            timeout=_SECONDS,
            check=False,
        )
        command.steps = self._compare(command, command.steps, done.stdout.decode())
        return done.returncode

    def _play_dialogue(self, command: Command) -> int:
        seen: list[str] = []
        expected: list[str] = []
        environment = {**self._environment, **_SLOWLY}
        with _Terminal(self._wrap(command), environment, self._folder) as terminal:
            for step in command.steps:
                if step == "^C":
                    terminal.await_lines([line for line in expected if not line.startswith("> ")])
                    terminal.type(b"\x03")
                    expected.append("^C")
                elif step.startswith("> "):
                    seen += self._compare(command, expected, terminal.read_to_prompt())
                    terminal.type(step[2:].encode() + b"\r")
                    expected = [step]
                else:
                    expected.append(step)
            rest, status = terminal.read_to_end()
        command.steps = [*seen, *self._compare(command, expected, rest)]
        return status

    def _wrap(self, command: Command) -> str:
        def here(match: re.Match[str]) -> str:
            word = match[0]
            whole = next((known for known in self._known if known.startswith(word)), None)
            return word if whole is None else self._known[whole][: len(word)]

        text = re.sub(r"(?<![\w-])[0-9a-z][0-9a-z-]{3,35}(?![\w-])", here, command.text)
        return _WRAPPER.replace("{command}", text)

    def _compare(self, command: Command, expected: Sequence[str], output: str) -> list[str]:
        """What the page shall say: what is expected, since it fits, or when rewriting what came."""
        for home in self._homes:
            output = output.replace(home, "/home/you")
        typed = [step for step in expected[:1] if step.startswith("> ")]
        wanted = [ELISION if step == "^C" else step for step in expected[len(typed) :]]
        actual = output.rstrip("\n").split("\n") if output.strip() else []
        # A terminal echoes what is typed.
        actual = actual[len(typed) :]
        if _fits(wanted, actual, self._known):
            return list(expected)
        if self._rewriting:
            before = {ours: theirs for theirs, ours in self._known.items()}
            return typed + [
                _IDENTITY.sub(lambda m: before.get(m[0], m[0]), line) for line in actual
            ]
        raise AssertionError(
            "\n".join(
                [f"$ {command.text}", "--- the page says", *expected, "--- it says here", *actual]
            )
        )


def newcomer(home: Path, server: str) -> dict[str, str]:
    """The environment of a new user whose provider is at `server`."""
    temporary = home / "tmp"
    temporary.mkdir(parents=True)
    return {
        "HOME": str(home),
        "TMPDIR": str(temporary),  # or its pytest tidies up after all earlier ones of this machine
        "VIBE_LLMS_HOME": str(home / ".config" / "vibe-llms"),
        "VIBE_LLMS_PROVIDERS__ANTHROPIC__BASE_URL": server,
        "VIBE_LLMS_PROVIDERS__OLLAMA__BASE_URL": server,
        "VIBE_LLMS_PROVIDERS__BEDROCK__BASE_URL": server,
        "VIBE_LLMS_PROVIDERS__GEMINI__BASE_URL": server,
        "VIBE_LLMS_PROVIDERS__AZURE__BASE_URL": server,
        "VIBE_LLMS_PROVIDERS__VERTEX__BASE_URL": server,
        # Readers of the first pages have neither a key nor a server.
        "VIBE_LLMS_LOCAL_SERVERS": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent / "closed"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "error",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "COLUMNS": "100",
        "TZ": "UTC",
        "EDITOR": "true",
    }


def _fits(expected: Sequence[str], actual: Sequence[str], known: dict[str, str]) -> bool:
    """Whether output is as expected; what fits of its identities is learned."""
    if not expected:
        return not actual
    if expected[0] == ELISION:
        return any(_fits(expected[1:], actual[skip:], known) for skip in range(len(actual) + 1))
    if not actual:
        return False
    learned = dict(known)
    if not _is_alike(expected[0], actual[0], learned) or not _fits(
        expected[1:], actual[1:], learned
    ):
        return False
    known.update(learned)
    return True


def _is_alike(expected: str, actual: str, known: dict[str, str]) -> bool:
    theirs, ours = _IDENTITY.findall(expected), _IDENTITY.findall(actual)
    if len(theirs) == len(ours):
        for one, other in zip(theirs, ours, strict=True):
            if known.setdefault(one, other) != other or list(known.values()).count(other) > 1:
                return False
    if expected.endswith(ELISION) and expected != actual:
        return _anonymize(actual).startswith(_anonymize(expected.removesuffix(ELISION)))
    return _anonymize(expected) == _anonymize(actual)


def _anonymize(line: str) -> str:
    return _TIME.sub("TIME", _IDENTITY.sub("IDENTITY", line)).rstrip()


class _Terminal:
    """A command with a terminal of its own."""

    def __init__(self, command: str, environment: Mapping[str, str], folder: Path) -> None:
        self._descriptor, inner = pty.openpty()
        # The first terminal that the leader of a session opens becomes its own.
        take = 'exec <"$TERMINAL" >"$TERMINAL" 2>&1\n'
        self._process = subprocess.Popen(
            ["bash", "-c", take + command],
            stdin=subprocess.DEVNULL,
            env={**environment, "TERMINAL": os.ttyname(inner)},
            cwd=folder,
            start_new_session=True,
        )
        self._inner = inner
        termios.tcsetwinsize(inner, (50, 200))
        self._output = b""
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._inner)
        os.close(self._descriptor)

    def type(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def read_to_prompt(self) -> str:
        """What was put out up to the next prompt, once the program reads keys by itself."""

        def prompted() -> bool:
            raw = not termios.tcgetattr(self._descriptor)[3] & termios.ICANON
            return raw and self._text().rpartition("\n")[2].strip() == ">"

        self._await(prompted, "the prompt")
        output, self._output = self._text(), b""
        return output.rpartition("\n")[0]

    def await_lines(self, lines: Sequence[str]) -> None:
        """Wait until lines, or the starts of them, have been put out."""

        def seen() -> bool:
            text = self._text()
            return all(_anonymize(line.rstrip(ELISION)) in _anonymize_all(text) for line in lines)

        self._await(seen, f"the output {lines}")

    def read_to_end(self) -> tuple[str, int]:
        """The rest of the output, and the exit status."""
        self._await(lambda: self._ended, "the end")
        return self._text(), self._process.wait()

    def _text(self) -> str:
        """The output as it can be read, without what moves the cursor or sets styles."""
        text = _SEQUENCE.sub("", self._output.decode("utf-8", "replace")).replace("\b", "")
        lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
        return "\n".join(lines)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _SECONDS
        while not condition():
            assert time.monotonic() < end, f"{what} did not come, but {self._text()!r}"
            assert not self._ended, f"it ended before {what} came: {self._text()!r}"
            gone = self._process.poll() is not None
            readable, _, _ = select.select([self._descriptor], [], [], 0 if gone else 0.05)
            if readable:
                self._output += os.read(self._descriptor, 65536)
            self._ended = gone and not readable


def _anonymize_all(text: str) -> str:
    return "\n".join(_anonymize(line) for line in text.split("\n"))
