"""What all tests share: their own home, a closed network, async tests, counts for storms, and which
tests run only where they are asked for.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.anthropic import FakeAnthropic
from tests.fakes.llamacpp import FakePackage
from tests.fakes.ollama import FakeOllama
from vibe_llms import redaction
from vibe_llms.configuration import StorageSettings
from vibe_llms.session import Session, open_session
from vibe_llms.storage.archive import DirectoryArchive

#: Variables that would lead a test out of its own home, or to somebody's key, or that hide how a
#: command behaves elsewhere.
_FOREIGN = (
    *("_API_KEY", "_AUTH_TOKEN", "_BASE_URL", "_PROXY", "_proxy"),
    *("VIBE_LLMS_", "ANTHROPIC_", "OPENAI_", "OLLAMA_"),
    *("PYTHONUNBUFFERED", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LC_"),
)
# A shell that runs the tests in the background makes them ignore Ctrl-C, and so would every program
# that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Markers of tests that need something besides this project: they run where `-m` names them.
APART = ("attacks", "llamacpp", "mcp", "minilm", "server", "shells")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that stand apart, unless `-m` asks for them. A name that holds an address
    differs from process to process, which ends a run on several cores now and then.
    """
    addressed = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addressed:
        raise pytest.UsageError(f"give these tests ids of their own: {addressed}")
    unasked = [name for name in APART if name not in config.option.markexpr]
    apart = [item for item in items if any(map(item.get_closest_marker, unasked))]
    if apart:
        config.hook.pytest_deselected(items=apart)
        items[:] = [item for item in items if item not in apart]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly",
        action="store_true",
        help="run storms at their full counts: python -m pytest -m storm --nightly",
    )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """How often a storm is repeated: `rounds(few, many)`, many with `--nightly`."""
    nightly = bool(request.config.getoption("--nightly"))
    return lambda few, many: many if nightly else few


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, with nothing in it."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN) or name.endswith(_FOREIGN):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("VIBE_LLMS_HOME", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    # Nothing is kept in the keyring of whoever runs the tests.
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    # A port where nothing listens, whatever runs on this machine.
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    return folder


@pytest.fixture(autouse=True)
def no_known_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key of another test is taken out of the words of this one."""
    monkeypatch.setattr(redaction, "_KNOWN", {})


@pytest.fixture(autouse=True)
def closed_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reaches further than this machine."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test wanted to reach {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect_here)


@pytest.fixture
def fake_anthropic() -> Iterator[FakeAnthropic]:
    """A strict server of the Messages interface on this machine."""
    with FakeAnthropic() as server:
        yield server


@pytest.fixture
def fake_ollama() -> Iterator[FakeOllama]:
    """A strict server of Ollama's interface on this machine."""
    with FakeOllama() as server:
        yield server


@pytest.fixture
def fake_llamacpp(monkeypatch: pytest.MonkeyPatch) -> FakePackage:
    """The package llama-cpp-python, whether it is installed or not, without anything in C."""
    package = FakePackage()
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    return package


@pytest.fixture
async def session(home: Path) -> AsyncIterator[Session]:
    """A session whose archive does not wait for the disk."""
    archive = DirectoryArchive(home, StorageSettings(durability="fast"))
    async with open_session(archive=archive) as session:
        yield session
