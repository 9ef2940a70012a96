"""The unit of systemd and the container file: their steps are carried out in fresh folders.

There is no container engine and no systemd here. Absolute paths are moved below a folder of the
test, and what only root may do is left out: other users, and owners of files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documentation.pages import DOCUMENTATION, EXAMPLES, ROOT
from tests.fakes.ports import find_port

_SECONDS = 120
#: What the image or the machine has at first.
_TOP = ("source", "wheels", "opt", "data", "etc", "var")


class Machine:
    """A folder in place of the root of a machine, with a fresh Python."""

    def __init__(self, root: Path) -> None:
        self.root = root
        tools = root / "tools"
        venv.create(tools)
        packages = [path for path in sys.path if path.endswith("site-packages")]
        chown = tools / "bin" / "chown"
        chown.write_text('#!/bin/sh\ntest -e "$2"\n')
        chown.chmod(0o755)
        self.environment = {
            "PATH": f"{tools}/bin:/usr/bin:/bin",
            "HOME": str(root),
            # Dependencies are those of the tests, not the package itself, which is editable there.
            "PYTHONPATH": os.pathsep.join(packages),
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_IGNORE_INSTALLED": "1",
        }

    def place(self, text: str) -> str:
        """A text with its paths below the folder."""
        return re.sub(rf"(?<![\w.:/])/(?={'|'.join(_TOP)})", f"{self.root}/", text)

    def run(self, command: str) -> None:
        """Carry out a step."""
        done = subprocess.run(
            ["sh", "-ec", self.place(command)],
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    @contextmanager
    def start(self, command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
        """A process that is still there when the block begins."""
        with subprocess.Popen(
            [self.place(word) for word in command],
            env=self.environment,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def survey(self, *folders: str) -> Mapping[str, int]:
        """The files below some folders, with the times of their last changes."""
        return {
            str(path): path.lstat().st_mtime_ns
            for folder in folders
            for path in (self.root / folder).rglob("*")
        }


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine on which the container file has been built."""
    machine = Machine(tmp_path_factory.mktemp("machine"))
    source = machine.root / "source"
    for name in ("sources", "data", "documentation/examples"):
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    make, context = read_building()
    machine.run(f"cd /source && {make}")
    for name, text in read_containerfile():
        if name == "RUN":
            machine.run(text)
        elif name == "COPY":
            pattern, _, target = text.partition(" ")
            folder = Path(machine.place(target))
            folder.mkdir()
            for path in (source / context).glob(pattern):
                shutil.copy(path, folder)
    shutil.rmtree(source)
    return machine


def read_building() -> tuple[str, str]:
    """The command of the page that makes the wheel, and the folder that it gives to the engine."""
    page = (DOCUMENTATION / "how-to" / "run-a-server.md").read_text()
    (make,) = re.findall(r"^python -m pip wheel .*$", page, re.MULTILINE)
    (context,) = re.findall(r"^podman build .* (\S+)$", page, re.MULTILINE)
    return make, context


def read_containerfile() -> Sequence[tuple[str, str]]:
    """The instructions of the container file, each with its text."""
    text = (EXAMPLES / "Containerfile").read_text().replace("\\\n", "")
    found = [line.partition(" ") for line in text.splitlines() if line]
    return [(name, rest) for name, _, rest in found]


def read_unit() -> Mapping[str, Sequence[str]]:
    """The settings of the unit's section `[Service]`."""
    _, _, text = (EXAMPLES / "vibe-llms.service").read_text().partition("[Service]\n")
    found: dict[str, list[str]] = {}
    for line in text.partition("\n[")[0].splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def wait_until_ready(port: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(process.communicate())


@pytest.mark.slow
def test_the_container_serves_is_healthy_and_ends(machine: Machine) -> None:
    steps = read_containerfile()
    once = dict(steps)
    variables = dict(text.split("=", 1) for name, text in steps if name == "ENV")
    assert {name: variables[f"VIBE_LLMS_SERVER__{name}"] for name in ("HOST", "PORT")} == {
        "HOST": "0.0.0.0",
        "PORT": once["EXPOSE"],
    }
    # Nothing but the wheel is in the image: no sources, no keys of who builds it.
    assert [path.suffix for path in (machine.root / "wheels").iterdir()] == [".whl"]
    assert once["USER"].partition(":")[0] not in ("0", "root")
    assert variables["VIBE_LLMS_HOME"] == once["VOLUME"]
    assert once["STOPSIGNAL"] == "SIGTERM"
    port = find_port()
    machine.environment |= {name: machine.place(value) for name, value in variables.items()}
    machine.environment |= {"VIBE_LLMS_SERVER__PORT": str(port)}
    entry, default = json.loads(once["ENTRYPOINT"]), json.loads(once["CMD"])
    with machine.start([*entry, "users", "add", "local"]) as adding:
        key, errors = adding.communicate(timeout=_SECONDS)
        assert (adding.returncode, errors) == (0, "")
    check = once["HEALTHCHECK"].partition("CMD ")[2]
    installed = machine.survey("opt", "wheels")
    with machine.start([*entry, *default]) as server:
        wait_until_ready(port, server)
        machine.run(check)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/models", headers={"x-api-key": key.strip()}
        )
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:
            assert b"scripted/demo" in response.read()
        server.terminate()
        output, _ = server.communicate(timeout=_SECONDS)
    assert (server.returncode, output) == (0, "")
    # So the rest of the container can be read-only.
    assert machine.survey("opt", "wheels") == installed
    assert (machine.root / "data").stat().st_mode & 0o777 == 0o700
    with pytest.raises(AssertionError):
        machine.run(check)


@pytest.mark.slow
def test_the_unit_serves_and_ends_in_time(machine: Machine) -> None:
    unit = read_unit()
    (command,) = unit["ExecStart"]
    (home,) = (value.partition("=")[2] for value in unit["Environment"])
    assert home == f"/var/lib/{unit['StateDirectory'][0]}"
    assert unit["User"][0] not in ("root", "0")
    (machine.root / home[1:]).mkdir(mode=int(unit["StateDirectoryMode"][0], 8), parents=True)
    port = find_port()
    machine.environment |= {
        "VIBE_LLMS_HOME": machine.place(home),
        "VIBE_LLMS_SERVER__HOST": "127.0.0.1",
        "VIBE_LLMS_SERVER__PORT": str(port),
    }
    installed = machine.survey("opt")
    with machine.start(shlex.split(command)) as server:
        wait_until_ready(port, server)
        server.terminate()
        server.communicate(timeout=float(unit["TimeoutStopSec"][0]))
    assert server.returncode == 0
    assert machine.survey("opt") == installed
    if analyze := shutil.which("systemd-analyze"):
        copy = machine.root / "vibe-llms.service"
        copy.write_text((EXAMPLES / "vibe-llms.service").read_text().replace(
            command, machine.place(command)))  # fmt: skip
        done = subprocess.run(
            [analyze, "verify", copy], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
