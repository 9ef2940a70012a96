"""P1: nothing is loaded or installed unasked, whatever lies in the current folder."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.command import Outcome, run

#: The command as it is installed: `python -m` puts the current folder on Python's path by itself.
SCRIPT = Path(sys.executable).with_name("vibe-llms")

#: On the path of every process here: reports each attempt to reach the network.
_WATCH = """
import os, socket
def connect(self, address, _log=os.environ["NETWORK_LOG"]):
    with open(_log, "a") as file:
        file.write(repr(address))
    raise OSError("closed")
socket.socket.connect = connect
"""

#: What Python, its tools, and tools like this one look for in a project.
MODULES = (
    *("sitecustomize", "usercustomize", "conftest", "setup", "noxfile", "vibe_llms", "evil"),
    *("json", "click", "msgspec", "tomllib", "platformdirs", "httpx2", "rich", "prompt_toolkit"),
    *("keyring", "genai_prices", "anthropic", "openai", "ollama", "pydantic", "pip", "uv", "site"),
    *("plugins", "providers", "tomli_w", "filetype", "jsonschema", "encodings", "typing", "signal"),
)
PROGRAMS = ("uv", "pip", "python", "python3", "vi", "pass", "git", "vibe-llms", "bash")
_ROW = """
default-model = "evil/evil"
[providers.evil]
module = "evil"
credential = "none"
default-model = "evil"
api-key-command = ["./pass"]
[providers.evil.install]
requirements = { "evil==1" = [] }
"""
TEXTS = {
    "config.toml": _ROW,
    "keys.toml": 'anthropic = "sk-evil-0123456789"\n',
    "vibe_llms.toml": _ROW,
    "vibe-llms.toml": _ROW,
    ".vibe-llms.toml": _ROW,
    ".vibe-llms/config.toml": _ROW,
    ".config/vibe-llms/config.toml": _ROW,
    ".config/pip/pip.conf": "[global]\nindex-url = http://127.0.0.1:9/evil\n",
    "pyproject.toml": "[tool.vibe-llms]\ndefault-model = 'evil/evil'\n[tool.uv]\nno-index = true\n",
    "uv.toml": 'index-url = "http://127.0.0.1:9/evil"\n',
    "pip.conf": "[install]\nindex-url = http://127.0.0.1:9/evil\n",
    "setup.cfg": "[options.entry_points]\nvibe_llms = evil\n",
    ".env": "VIBE_LLMS_DEFAULT_MODEL=evil/evil\nANTHROPIC_API_KEY=sk-evil-0123456789\n",
    ".envrc": "export VIBE_LLMS_DEFAULT_MODEL=evil/evil\n",
    "evil.pth": "import evil\n",
    "evil-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1\n",
    "evil-1.dist-info/entry_points.txt": "[vibe_llms]\nevil = evil\n[keyring.backends]\ne = evil\n",
    "data/configuration/general.toml": _ROW,
    "conversations/aaaabbbbcccc/metadata.toml": "format = 1\nname = 'evil'\n",
    "scripts/demo.toml": "[[replies]]\nparts = [{ text = 'evil' }]\n",
}
COMMANDS: Sequence[Sequence[str]] = (
    ["--help"],
    ["--version"],
    ["What can you do?"],
    ["chat", "-m", "scripted/demo", "Hello!"],
    ["chat", "-n", "--json", "Hello!"],
    ["chat", "--dry-run", "Hello!"],
    ["chat", "-m", "evil/evil", "Hello!"],
    ["list"],
    ["list", "--json"],
    ["search", "hello"],
    ["show", "aaaabbbbcccc"],
    ["models"],
    ["models", "default"],
    ["providers"],
    ["plugins", "list"],
    ["plugins", "install", "evil", "--yes"],
    ["keys", "list"],
    ["config", "show"],
    ["config", "check"],
    ["config", "edit"],
    ["doctor"],
    ["completion", "bash"],
)


def make_hostile(folder: Path, marker: Path) -> None:
    """A cloned project that would like to be run."""
    folder.mkdir()
    code = f"with open({str(marker)!r}, 'a') as file: file.write(__name__ + ' ')\n"
    for name in MODULES:
        (folder / f"{name}.py").write_text(code)
    (folder / "plugins").mkdir()
    (folder / "plugins" / "__init__.py").write_text(code)
    for name in PROGRAMS:
        path = folder / name
        if not path.exists():
            path.write_text(f"#!/bin/sh\necho {name} >> {marker}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
    for name, text in TEXTS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(text)


def run_within(folder: Path, arguments: Sequence[str], further: Mapping[str, str]) -> Outcome:
    """Run the installed command in a folder."""
    return run(
        *arguments,
        command=[str(SCRIPT)],
        cwd=folder,
        environment={"EDITOR": "true", "NETWORK_LOG": str(folder.parent / "network"), **further},
    )


def check_unmoved(tmp_path: Path, environment: Mapping[str, str]) -> None:
    """`AssertionError` where one of the commands loads, runs, installs or reaches anything."""
    folder, marker = tmp_path / "project", tmp_path / "ran"
    make_hostile(folder, marker)
    before = sorted(str(path) for path in folder.rglob("*"))
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(_WATCH)
    path = {"PYTHONPATH": str(tmp_path / "watch"), **environment}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(lambda each: run_within(folder, each, path), COMMANDS))
    for arguments, outcome in zip(COMMANDS, outcomes, strict=True):
        assert not marker.exists(), f"{arguments}: {marker.read_text()}"
        assert "Traceback" not in outcome.errors, outcome.errors
        expected = {"evil/evil": 66, "aaaabbbbcccc": 66, "evil": 2}
        status = next((code for word, code in expected.items() if word in arguments), 0)
        assert outcome.status == status, (arguments, outcome)
        if status == 0:
            assert "evil" not in outcome.output.replace(str(tmp_path), ""), arguments
    # `models` asks servers on this machine, which is what it is for.
    reached = tmp_path / "network"
    assert not reached.exists() or "127.0.0.1" in reached.read_text()
    assert sorted(str(path) for path in folder.rglob("*")) == before
    assert not (tmp_path / "home" / "plugins").exists()


def test_a_hostile_folder_moves_no_command(tmp_path: Path) -> None:
    assert len(COMMANDS) >= 20
    check_unmoved(tmp_path, {})


def test_a_command_that_looks_for_modules_where_it_is_would_be_detected(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_unmoved(tmp_path, {"PYTHONPATH": str(tmp_path / "project")})


def test_only_models_reaches_the_network_and_only_this_machine(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    make_hostile(folder, tmp_path / "ran")
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(_WATCH)
    reached = tmp_path / "network"
    for arguments in (
        ["What can you do?"],
        ["providers"],
        ["config", "check"],
        ["plugins", "list"],
    ):
        run_within(folder, arguments, {"PYTHONPATH": str(tmp_path / "watch")})
        assert not reached.exists(), arguments
    run_within(folder, ["models"], {"PYTHONPATH": str(tmp_path / "watch")})
    addresses = reached.read_text()
    assert addresses.count("(") == addresses.count("('127.0.0.1'")


@pytest.mark.slow
def test_no_command_imports_a_plugin_that_it_does_not_use(tmp_path: Path, home: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    home.mkdir()
    (home / "config.toml").write_text(
        "[providers.evil]\nmodule = 'evil'\ncredential = 'none'\ndefault-model = 'evil'\n"
    )
    path = {"PYTHONPATH": str(tmp_path / "modules")}
    completing = {"_VIBE_LLMS_COMPLETE": "bash_complete", "COMP_WORDS": "vibe-llms chat -m e"}
    uses = {"models", "providers", "check", "doctor", "evil/evil"}
    for arguments in COMMANDS:
        if not uses & set(arguments) or "default" in arguments:
            run_within(tmp_path, arguments, path)
            assert not marker.exists(), arguments
    offered = run_within(tmp_path, [], {**path, **completing, "COMP_CWORD": "3"})
    assert "evil/evil" in offered.output
    assert not marker.exists()
    run_within(tmp_path, ["providers"], path)
    assert marker.exists()


def test_the_command_is_there_as_it_is_installed() -> None:
    assert run("--version", command=[str(SCRIPT)]).output.startswith("vibe-llms ")
