"""What all tests share: their own home, a closed network, a time limit, counts for storms, and the
tests that run only on request.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import pickle
import signal
import socket
import ssl
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpcore2
import pytest

from tests.fakes.warm import start_warm_process
from tests.faults.waits import pytest_timeout_set_timer as pytest_timeout_set_timer
from vibe_llms.base import redaction
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.opening import open_session
from vibe_llms.session.core import Session
from vibe_llms.storage.archive import DirectoryArchive

if TYPE_CHECKING:
    from tests.fakes.anthropic import FakeAnthropic
    from tests.fakes.llamacpp import FakePackage
    from tests.fakes.ollama import FakeOllama

#: Settings of plugins, which the tests of values need not have: those run with pytest alone.
_PLUGIN_SETTINGS = ("timeout",)
#: Variables that would lead a test out of its own home, or to a real key, or that hide how a
#: command behaves elsewhere.
_FOREIGN = (
    *("_API_KEY", "_AUTH_TOKEN", "_BASE_URL", "_PROXY", "_proxy"),
    *("VIBE_LLMS_", "ANTHROPIC_", "OPENAI_", "OLLAMA_", "OTEL_", "AWS_", "AZURE_"),
    *("PYTHONUNBUFFERED", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LC_"),
)
# Hundreds of tests start the program. Compiling it takes longer than most of them, so bytecode is
# kept, also where the environment says otherwise.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The programs of this environment are found, activated or not.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
# A shell that runs the tests in the background makes them ignore Ctrl-C, and nohup makes them
# ignore that the window is closed. Every program that they start would ignore these too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

#: Markers of tests that need something besides this project, would fail with the day of a package's
#: release, or take long: they run where `-m` names them.
APART = ("attacks", "browser", "drift", "llamacpp", "mcp", "minilm", "server", "shells", "slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the separate tests, unless `-m` asks for them. A name that holds an address
    differs from process to process, which ends a run on several cores now and then.
    """
    addressed = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if addressed:
        raise pytest.UsageError(f"give these tests ids of their own: {addressed}")
    separate = set(APART)
    unasked = {name for name in APART if name not in config.option.markexpr}
    kept: list[pytest.Item] = []
    apart: list[pytest.Item] = []
    for item in items:
        names = {mark.name for mark in item.iter_markers()}
        if not unasked.isdisjoint(names):
            apart.append(item)
            continue
        kept.append(item)
        if config.option.nightly:
            item.add_marker(pytest.mark.timeout(3600))
        # They load models, start programs, or attack at the default limits. The first mark counts.
        if not separate.isdisjoint(names):
            item.add_marker(pytest.mark.timeout(300))
    if apart:
        config.hook.pytest_deselected(items=apart)
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collecting tests makes hardly any garbage, so nobody looks for it meanwhile."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What collection leaves is never garbage: each full collection would look at all of it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """With `-n auto`, two workers for each core: tests wait for processes half of their time."""
    return 2 * len(os.sched_getaffinity(0))


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let a worker that has nothing left to do take tests of another."""
    if config.pluginmanager.hasplugin("xdist") and config.option.dist == "no":
        config.option.dist = "worksteal" if config.option.numprocesses else "no"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    for name in _PLUGIN_SETTINGS:
        if not pluginmanager.hasplugin(name):
            parser.addini(name, "a setting of a plugin that is not installed")
    parser.addoption(
        "--nightly",
        action="store_true",
        help="run storms at their full counts: python -m pytest -m storm --nightly",
    )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def read_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process reads the certificates of this machine and each TOML text once, and the packages of
    providers read one certificate instead of all. Thousands of tests open a session or a client,
    and reading these takes longer than most tests.
    """
    produce, parse = httpcore2.default_ssl_context, tomllib.loads

    @functools.cache
    def produce_once(*places: str | None, **options: bool) -> ssl.SSLContext:
        return produce(**options)

    def produce_context(**options: bool) -> ssl.SSLContext:
        places = [os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")]
        return produce_once(*places, **options)

    @functools.lru_cache(64)
    def parse_once(text: str) -> bytes:
        return pickle.dumps(parse(text))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", produce_context)
        patch.setattr(tomllib, "loads", lambda text: pickle.loads(parse_once(text)))
        if importlib.util.find_spec("certifi"):
            bundle = importlib.import_module("certifi")
            end = "-----END CERTIFICATE-----\n"
            one = tmp_path_factory.mktemp("certificates") / "one.pem"
            one.write_text(bundle.contents().partition(end)[0] + end)
            patch.setattr(bundle, "where", lambda: str(one))
        yield


@pytest.fixture(scope="session", autouse=True)
def closed_network() -> Iterator[None]:
    """No test reaches further than this machine."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test wanted to reach {address}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_here)
        yield


@pytest.fixture(scope="session")
def warm_process() -> Iterator[None]:
    """Servers of `tests.fakes.warm` start at once."""
    writing = start_warm_process()
    yield
    os.close(writing)


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
    # Nothing is kept in the keyring of the user who runs the tests.
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    # A port where nothing listens, and no search for servers, whatever runs on this machine.
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("VIBE_LLMS_LOCAL_SERVERS", "0")
    # No key of another test is taken out of the words of this one.
    monkeypatch.setattr(redaction, "_KNOWN", {})
    return folder


@pytest.fixture
def fake_anthropic() -> Iterator[FakeAnthropic]:
    """A strict server of the Messages interface on this machine."""
    from tests.fakes.anthropic import FakeAnthropic

    with FakeAnthropic() as server:
        yield server


@pytest.fixture
def fake_ollama() -> Iterator[FakeOllama]:
    """A strict server of Ollama's interface on this machine."""
    from tests.fakes.ollama import FakeOllama

    with FakeOllama() as server:
        yield server


@pytest.fixture
def fake_llamacpp(monkeypatch: pytest.MonkeyPatch) -> FakePackage:
    """The package llama-cpp-python, whether it is installed or not, without anything in C."""
    from tests.fakes.llamacpp import FakePackage

    package = FakePackage()
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    return package


@pytest.fixture
async def session(home: Path) -> AsyncIterator[Session]:
    """A session whose archive does not wait for the disk."""
    archive = DirectoryArchive(home, StorageSettings(durability="fast"))
    async with open_session(archive=archive) as session:
        yield session
