"""Tasks for a program, and the answers of the model behind the server."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import struct
import subprocess
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

T = TypeVar("T")

#: The event loop of all tasks, for clients that are kept.
_RUNNER = asyncio.Runner()

#: Address of the server, without a path.
URL = os.environ["TEST_API_BASE_URL"]
OPENAI_URL = f"{URL}/v1"
KEY = "My API Key"
MODEL = "upstream/thinker"
#: Seconds that a program may take for one task.
LIMIT_SECONDS = 120

GREETING, GREETED = "Hello!", "I am scripted/demo"
THOUGHT = "Let me think about that."
QUESTION, REPORTED = 'What is the weather in "Rome"?', "`get_weather` returned: sunny"
STATEMENT, STATED = 'It is 21 degrees in "Rome".', {"city": "Rome", "degrees": 21}
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "title": "weather",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
LOOK, SEEN = "What is in this picture?", "I see image/png."
TURN = "Which turn is this?"
#: The reply to it never ends.
COUNT, COUNTED = "Count slowly.", "one two three"


def _draw() -> bytes:
    """Return a PNG of 8 times 8 red pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = zlib.compress(b"".join(b"\0" + b"\xff\0\0" * 8 for _ in range(8)))
    head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


PICTURE = _draw()
PICTURE_BASE64 = base64.b64encode(PICTURE).decode()
PICTURE_URL = f"data:image/png;base64,{PICTURE_BASE64}"


class Streamed(NamedTuple):
    """A reply as it came."""

    chunks: Sequence[str]
    reasoning: str = ""

    @property
    def text(self) -> str:
        """The whole reply."""
        return "".join(self.chunks)


class Program:
    """One program, in one of the dialects that it speaks.

    A task that the program cannot do is not implemented; `suites.toml` gives the reason.
    """

    #: Names of the interfaces by which the program can reach the server.
    dialects: ClassVar[Sequence[str]] = ("default",)

    def __init__(self, dialect: str, folder: Path) -> None:
        self.dialect = dialect
        self.folder = folder

    def answer(self, prompt: str) -> str:
        """Return the reply, in one piece."""
        raise NotImplementedError

    def stream(self, prompt: str) -> Streamed:
        """Return the reply as it is streamed."""
        raise NotImplementedError

    def call_tool(self, prompt: str) -> tuple[str, Sequence[str]]:
        """Offer `get_weather`, which returns "sunny"; return the reply and the cities asked for."""
        raise NotImplementedError

    def structure(self, prompt: str) -> Mapping[str, Any]:
        """Return the reply as an object that fits `SCHEMA`."""
        raise NotImplementedError

    def look(self, prompt: str) -> str:
        """Send `PICTURE` with the prompt; return the reply."""
        raise NotImplementedError

    def converse(self, prompts: Sequence[str]) -> Sequence[str]:
        """Hold one conversation; return the replies."""
        raise NotImplementedError

    def cancel(self, prompt: str) -> str:
        """Leave a reply that never ends as soon as there is some text; return that."""
        raise NotImplementedError


class AsyncProgram(Program):
    """A program that is used with `await`: each task is a coroutine of the same name with `_`."""

    async def _answer(self, prompt: str) -> str:
        raise NotImplementedError

    async def _stream(self, prompt: str) -> Streamed:
        raise NotImplementedError

    async def _call_tool(self, prompt: str) -> tuple[str, Sequence[str]]:
        raise NotImplementedError

    async def _structure(self, prompt: str) -> Mapping[str, Any]:
        raise NotImplementedError

    async def _look(self, prompt: str) -> str:
        raise NotImplementedError

    async def _converse(self, prompts: Sequence[str]) -> Sequence[str]:
        raise NotImplementedError

    async def _cancel(self, prompt: str) -> str:
        raise NotImplementedError

    def answer(self, prompt: str) -> str:
        """Return the reply, in one piece."""
        return _run(self._answer, prompt)

    def stream(self, prompt: str) -> Streamed:
        """Return the reply as it is streamed."""
        return _run(self._stream, prompt)

    def call_tool(self, prompt: str) -> tuple[str, Sequence[str]]:
        """Offer `get_weather`, which returns "sunny"; return the reply and the cities asked for."""
        return _run(self._call_tool, prompt)

    def structure(self, prompt: str) -> Mapping[str, Any]:
        """Return the reply as an object that fits `SCHEMA`."""
        return _run(self._structure, prompt)

    def look(self, prompt: str) -> str:
        """Send `PICTURE` with the prompt; return the reply."""
        return _run(self._look, prompt)

    def converse(self, prompts: Sequence[str]) -> Sequence[str]:
        """Hold one conversation; return the replies."""
        return _run(self._converse, prompts)

    def cancel(self, prompt: str) -> str:
        """Leave a reply that never ends as soon as there is some text; return that."""
        return _run(self._cancel, prompt)


def _run(task: Callable[[Any], Coroutine[Any, Any, T]], given: Any) -> T:
    async def limited() -> T:
        async with asyncio.timeout(LIMIT_SECONDS):
            return await task(given)

    return _RUNNER.run(limited())


class Command(Program):
    """A program of the command line, with a home of its own."""

    def __init__(self, dialect: str, folder: Path) -> None:
        super().__init__(dialect, folder)
        self.picture = folder / "picture.png"
        self.picture.write_bytes(PICTURE)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that the program sees."""
        kept = ("PATH", "LANG", "TERM", "SSL_CERT_FILE")
        given = {name: os.environ[name] for name in kept if name in os.environ}
        return {**given, "HOME": str(self.folder), "PYTHONUTF8": "1"}

    def execute(self, *command: str | Path, typed: str = "") -> str:
        """Run a command to its end; return what it prints."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            input=typed,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert not done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def interrupt(self, *command: str | Path, after: str, typed: str = "") -> str:
        """Send Ctrl-C to a command when it has printed something; return what it printed."""
        printed = ""
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(typed.encode())
                process.stdin.flush()
                if not typed:
                    process.stdin.close()
                while after not in printed:
                    got = os.read(process.stdout.fileno(), 65536)
                    assert got, f"ended before {after!r}: {printed[-4000:]}"
                    printed += got.decode()
                process.send_signal(signal.SIGINT)
                process.stdin.close()
                process.wait(LIMIT_SECONDS)
            finally:
                process.kill()
        return printed
