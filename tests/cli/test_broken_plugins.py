"""P2: a broken plugin breaks only itself, and is named."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import invoke, run
from tests.cli.terminal import COMMAND, LONGEST_SECONDS
from vibe_llms.base import registries
from vibe_llms.cli.running import bound_import, interruptible
from vibe_llms.providers import provider_pool, registry

#: A provider that does all that is asked of one, but for what a broken one leaves out.
_WHOLE = """
class Provider:
    def __init__(self, name, configuration, event_handler): self.name = name
    def produce_client(self): return Client()
class Client:
    async def access_model(self, name): raise LookupError("no models today")
    async def survey_models(self): raise LookupError("no models today")
    async def close(self): pass
from vibe_llms.providers.registry import register
"""
#: The modules, and words of the error that names what is wrong with each.
BROKEN = {
    "missing": (None, "module 'missing' not found"),
    "needing": ("import a_package_that_is_not_there", "needs 'a_package_that_is_not_there'"),
    "older": (
        "from vibe_llms.messages.events import NoSuchEvent",
        "cannot import name 'NoSuchEvent'",
    ),
    "crooked": ("def (", "SyntaxError"),
    "raising": ("raise ValueError('out of order')", "ValueError: out of order"),
    "leaving": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "basic": ("raise BaseException('deep')", "BaseException: deep"),
    "cancelling": ("import asyncio; raise asyncio.CancelledError", "CancelledError"),
    "hanging": ("import time\nwhile True: time.sleep(0.01)", "more than 0.1 s (import-seconds)"),
    "stubborn": (
        "import time\ntry: time.sleep(60)\nexcept Exception: time.sleep(60)",
        "cannot be imported",
    ),
    "empty": ("", "registers nothing"),
    "twice": (
        f"{_WHOLE}register('twice', lambda *_: 1)\nregister('twice', lambda *_: 2)",
        "registers 'twice' twice",
    ),
    "nameless": (
        f"{_WHOLE}register('one', Provider)\nregister('two', Provider)",
        "registers 'one', 'two'",
    ),
    "factless": (f"{_WHOLE}register('none', lambda *_: None)", "which is not a provider"),
    "fewer": (f"{_WHOLE}register('few', lambda: 1)", "TypeError"),
    "failing": (
        f"{_WHOLE}\ndef make(*_): raise KeyError('made')\nregister('failing', make)",
        "KeyError: 'made'",
    ),
    "exiting": (f"{_WHOLE}\ndef make(*_): raise SystemExit(4)\nregister('x', make)", "SystemExit"),
    "dawdling": (
        f"{_WHOLE}\nimport time\ndef make(*_): time.sleep(60)\nregister('d', make)",
        "more than 0.1 s (import-seconds)",
    ),
    "calling": (f"{_WHOLE}register('calling', Provider)", "LookupError: no models today"),
    "clientless": (
        f"{_WHOLE}Provider.produce_client = lambda self: 1 / 0\nregister('c', Provider)",
        "ZeroDivisionError",
    ),
    "json": (None, "registers nothing"),
}
# The alarm of `import-seconds` may come while garbage is collected: it is shown, and comes again.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
#: These load, and fail when they are spoken with.
LATE = ("calling", "clientless")


@pytest.fixture(autouse=True)
def broken(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home with a row for each."""
    folder = tmp_path / "modules"
    folder.mkdir()
    rows = ["[aliases]\nfine = 'scripted/demo'\n"]
    for name, (text, _) in BROKEN.items():
        if text is not None:
            (folder / f"{name}.py").write_text(text)
        rows.append(
            f"[providers.{name}]\nmodule = '{name}'\ncredential = 'none'\n"
            "import-seconds = 0.1\ndefault-model = 'm'\n"
        )
    home.mkdir()
    (home / "config.toml").write_text("\n".join(rows))
    monkeypatch.syspath_prepend(str(folder))
    # Other processes find them too.
    monkeypatch.setenv("PYTHONPATH", str(folder))
    before = set(sys.modules)
    yield
    for name in set(BROKEN) - before:
        sys.modules.pop(name, None)
        registry._REGISTRY._factories.pop(name, None)


def check_named(name: str) -> None:
    """`AssertionError` where a broken one is not named, or hurts another."""
    words = BROKEN[name][1]
    for arguments in (
        ["chat", "-m", f"{name}/m", "Hello!"],
        ["-n", "--json", "-m", name, "Hello!"],
        ["models", name],
    ):
        outcome = invoke(*arguments)
        assert outcome.status == 78, outcome
        assert words in outcome.error, outcome.error
        assert f"[providers.{name}]" in outcome.error


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_named_where_it_is_used(name: str) -> None:
    check_named(name)


@pytest.mark.parametrize("name", ["basic", "failing", "exiting", "calling"])
def test_one_that_breaks_more_than_itself_would_be_detected(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    class Open(registries.Registry[Any]):
        def access(self, row: registries.Row) -> Any:
            __import__(row.module)
            return super().access(row)

    monkeypatch.setattr(registry, "_REGISTRY", Open("providers"))
    for module in (registry, provider_pool):
        monkeypatch.setattr(module, "guard_row", lambda _: nullcontext())
    with pytest.raises((AssertionError, BaseException), match=r"deep|status|SystemExit"):
        check_named(name)


def survey_commands() -> Sequence[Sequence[str]]:
    """All commands that do not use what is broken."""
    outcome = invoke("--print-id", "-m", "scripted/demo", "hello")
    identity = outcome.errors.splitlines()[-1]
    return [
        ["--help"],
        ["--version"],
        ["hello"],
        ["-m", "fine", "hello"],
        ["--json", "hello"],
        ["-c", "hello"],
        ["--dry-run", "hello"],
        ["list"],
        ["list", "--json"],
        ["show", identity],
        ["search", "hello"],
        ["fork", identity],
        ["rename", identity, "other"],
        ["tag", identity, "blue"],
        ["rm", identity, "--yes"],
        ["models", "scripted"],
        ["models", "default"],
        ["models", "default", "scripted/demo"],
        ["plugins", "list"],
        ["keys", "list"],
        ["keys", "path"],
        ["config", "path"],
        ["config", "show"],
        ["completion", "bash"],
    ]


def test_other_commands_work_although_plugins_are_broken() -> None:
    for arguments in survey_commands():
        outcome = invoke(*arguments)
        assert outcome.status == 0, (arguments, outcome)
        assert not set(sys.modules) & (set(BROKEN) - {"json"}), arguments


def test_commands_that_ask_all_name_each_one_and_answer_for_the_others() -> None:
    outcome = invoke("providers")
    assert outcome.status == 0
    lines = {line.split()[0]: line for line in outcome.output.splitlines()}
    for name, (_, words) in BROKEN.items():
        if name not in LATE:
            assert "cannot be used: " in lines[name]
            assert words in lines[name]
    assert lines["scripted"].endswith("needs no key")
    outcome = invoke("models", "-q", "demo")
    assert outcome.output == "scripted/demo  a script, not a model\n"
    assert outcome.status == 78
    for name in LATE:
        assert BROKEN[name][1] in outcome.errors
    for arguments in (["config", "check"], ["doctor"]):
        outcome = invoke(*arguments)
        assert outcome.status in (1, 78)
        for name, (_, words) in BROKEN.items():
            assert name in LATE or words in outcome.output + outcome.errors


def test_in_a_process_of_its_own_there_is_no_traceback() -> None:
    for arguments in (["providers"], ["models"], ["chat", "-m", "basic/m", "Hello!"]):
        outcome = run(*arguments)
        assert "Traceback" not in outcome.errors + outcome.output, outcome
        assert "scripted" in outcome.output or outcome.status == 78 or "basic" in outcome.output


def test_an_import_that_hangs_is_ended_by_one_ctrl_c(home: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "modules" / "endless.py").write_text(
        f"open({str(begun)!r}, 'w').close()\nimport time\nwhile True: time.sleep(0.01)\n"
    )
    with (home / "config.toml").open("a") as file:
        file.write("[providers.endless]\nmodule = 'endless'\ncredential = 'none'\n")
    for arguments in (["-m", "endless/m", "Hello!"], ["providers"]):
        begun.unlink(missing_ok=True)
        with subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            while not begun.exists():
                assert process.poll() is None
                os.sched_yield()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=LONGEST_SECONDS)
        assert process.returncode == 130
        assert b"Traceback" not in errors


def test_what_waits_in_another_thread_is_left_as_it_is() -> None:
    async def work() -> str:
        def inner() -> str:
            with bound_import(0.001), interruptible():
                return "done"

        return await asyncio.to_thread(inner)

    assert asyncio.run(work()) == "done"


def test_signals_are_as_before_after_an_import() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeoutError, match="import-seconds"), bound_import(0.01):
        time.sleep(LONGEST_SECONDS)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM)) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
