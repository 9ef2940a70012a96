"""Installing on demand (P1): what is pinned and nothing else, whole or not at all."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from tests.cli.terminal import COMMAND, LONGEST_SECONDS
from tests.fakes.index import FakeIndex, make_source, make_wheel
from tests.plugins.rows import ZEROS, offer, read_row, write_row
from vibe_llms.base.exceptions import (
    PackageMissing,
    PluginMissing,
    RegistrationError,
    RequestForbidden,
)
from vibe_llms.base.folders import TEMPORARY
from vibe_llms.base.network.offline import forbid_requests
from vibe_llms.plugins import installing
from vibe_llms.plugins.installing import install, plan_installation, remove
from vibe_llms.plugins.records import read_record, survey_records, verify

SIMPLE = {"plug/__init__.py": "VALUE = 1\n", "plug/inner.py": "VALUE = 2\n"}


def test_a_pinned_package_is_in_its_own_folder_and_recorded(
    home: Path, index: FakeIndex, tool: str
) -> None:
    plugin = offer(home, index, SIMPLE)
    with pytest.raises(PluginMissing, match="vibe-llms plugins install mine"):
        verify(plugin)
    plan = plan_installation(plugin)
    assert tool in plan.line
    assert index.requests == []
    install(plan)
    record = verify(plugin)
    assert {"plug/__init__.py", "plug/inner.py"} <= set(record.files)
    assert not [name for name in record.files if name.endswith(".pyc")]
    assert plugin.folder.parent == home / "plugins"
    assert [path for path, _ in survey_records(home / "plugins")] == [plugin.folder]
    assert sorted(path.name for path in (home / "plugins").iterdir()) == [plugin.folder.name]
    assert plugin.folder.stat().st_mode & 0o777 == 0o700
    assert not subprocess.run(
        [sys.executable, "-c", "import plug"], capture_output=True, check=False
    ).stdout
    remove(plugin.folder)
    assert list((home / "plugins").iterdir()) == []


@pytest.mark.parametrize("way", ["block", "key"])
def test_nothing_is_installed_from_elsewhere_where_real_requests_are_forbidden(
    home: Path, index: FakeIndex, way: str
) -> None:
    plugin = offer(home, index, SIMPLE)
    away = msgspec.structs.replace(plugin, index="https://pypi.example/simple")
    with forbid_requests() if way == "block" else nullcontext():
        assert plan_installation(plugin, offline=way == "key")
        with pytest.raises(RequestForbidden, match=r"installing .* would go to pypi\.example"):
            plan_installation(away, offline=way == "key")


def test_another_hash_is_refused_and_leaves_what_was_there(
    home: Path, index: FakeIndex, tool: str
) -> None:
    good = offer(home, index, SIMPLE)
    install(plan_installation(good))
    file, data = make_wheel("plug", "2.0", SIMPLE)
    index.add(file, data)
    write_row(home, {"plug==2.0": [ZEROS]}, index=index.simple, name="other")
    with pytest.raises(RegistrationError, match="nothing was installed") as caught:
        install(plan_installation(read_row("other")))
    assert (caught.value.table, caught.value.key) == ("providers.other", "install")
    assert read_record(read_row("other").folder) is None
    assert sorted(path.name for path in (home / "plugins").iterdir()) == [good.folder.name]
    verify(good)


def test_no_code_of_a_package_runs_while_it_is_installed(
    home: Path, index: FakeIndex, tool: str, tmp_path: Path
) -> None:
    """I-53: a hijacked release ran at every start of the interpreter, by a `.pth` file."""
    marker = tmp_path / "ran"
    hook = f"import pathlib; pathlib.Path({str(marker)!r}).write_text('ran')\n"
    plugin = offer(
        home,
        index,
        {**SIMPLE, "plug.pth": hook, "sitecustomize.py": hook, "usercustomize.py": hook},
    )
    install(plan_installation(plugin))
    run_command("list")
    run_command("plugins", "list")
    assert not marker.exists()
    # That the hook is one: in a folder of Python's own it runs.
    program = f"import site; site.addsitedir({str(plugin.packages)!r})"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert marker.exists()


def test_a_package_that_would_have_to_be_built_is_not_taken(
    home: Path, index: FakeIndex, tool: str, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    setup = f"open({str(marker)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='plug')"
    file, data = make_source("plug", "1.0", {"setup.py": setup, "plug.py": ""})
    write_row(home, {"plug==1.0": [index.add(file, data)]}, index=index.simple)
    with pytest.raises(RegistrationError, match="nothing was installed"):
        install(plan_installation(read_row()))
    assert not marker.exists()


def test_dependencies_of_a_package_are_installed_only_if_they_are_pinned(
    home: Path, index: FakeIndex, tool: str
) -> None:
    name, data = make_wheel("needed", "3.1", {"needed.py": "VALUE = 3\n"})
    digest = index.add(name, data)
    plugin = offer(home, index, SIMPLE)
    install(plan_installation(plugin))
    assert not (plugin.packages / "needed.py").exists()
    (home / "config.toml").unlink()
    write_row(
        home,
        {**plugin.requirements, "needed==3.1": [digest, ZEROS]},
        index=index.simple,
    )
    both = read_row()
    assert both.folder != plugin.folder
    install(plan_installation(both))
    assert (both.packages / "needed.py").exists()


def test_a_package_without_the_module_of_its_row_is_refused(home: Path, index: FakeIndex) -> None:
    plugin = offer(home, index, {"other.py": ""})
    with pytest.raises(RegistrationError, match=r"plug==1\.0 has no module 'plug'"):
        install(plan_installation(plugin))
    assert list((home / "plugins").iterdir()) == []


def check_index_is_the_rows_own(
    home: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`AssertionError` where the environment or a file leads to another index."""
    with FakeIndex() as other:
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL"):
            monkeypatch.setenv(name, other.simple)
        monkeypatch.setenv("UV_DEFAULT_INDEX", other.simple)
        for file in ("pip.conf", "pip/pip.conf"):
            path = tmp_path / ".config" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"[global]\nextra-index-url = {other.simple}\n")
        (tmp_path / "uv.toml").write_text(f'index-url = "{other.simple}"\n')
        monkeypatch.chdir(tmp_path)
        install(plan_installation(offer(home, index, SIMPLE)))
        assert other.requests == []
    assert index.requests


def test_neither_the_environment_nor_a_file_leads_to_another_index(
    home: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str
) -> None:
    check_index_is_the_rows_own(home, index, monkeypatch, tmp_path)


def test_an_installer_that_obeys_its_environment_would_be_detected(
    home: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installing, "_PASSED_ON", tuple(os.environ))
    monkeypatch.setattr(
        installing, "_PASSED_ON", (*installing._PASSED_ON, "UV_INDEX", "UV_DEFAULT_INDEX")
    )
    with pytest.raises(AssertionError):
        check_index_is_the_rows_own(home, index, monkeypatch, tmp_path)


def test_an_installer_gets_no_keys(
    home: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spy = tmp_path / "bin" / "uv"
    spy.parent.mkdir()
    spy.write_text(f"#!/bin/sh\nenv > {tmp_path}/seen\nexit 3\n")
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{spy.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary")
    with pytest.raises(RegistrationError, match="nothing was installed"):
        install(plan_installation(offer(home, index, SIMPLE)))
    assert "sk-canary" not in (tmp_path / "seen").read_text()


def test_an_installer_in_the_current_folder_is_not_taken(
    home: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "uv").write_text("#!/bin/sh\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".:/usr/bin")
    assert plan_installation(offer(home, index, SIMPLE)).command[0] == sys.executable


def test_without_an_installer_that_is_said(
    home: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(PackageMissing, match="needs the package 'uv'"):
        plan_installation(offer(home, index, SIMPLE))


def test_an_installer_that_cannot_be_run_is_reported(home: Path, index: FakeIndex) -> None:
    plan = plan_installation(offer(home, index, SIMPLE))
    gone = msgspec.structs.replace(plan, command=("/nowhere/uv",))
    with pytest.raises(RegistrationError, match="/nowhere/uv cannot be run"):
        install(gone)
    assert list((home / "plugins").iterdir()) == []


def test_a_folder_of_wheels_serves_as_index(
    home: Path, index: FakeIndex, tmp_path: Path, tool: str
) -> None:
    file, data = make_wheel("plug", "1.0", SIMPLE)
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / file).write_bytes(data)
    write_row(home, {"plug==1.0": [index.add(file, data)]}, index=str(tmp_path / "wheels"))
    install(plan_installation(read_row()))
    verify(read_row())
    assert index.requests == []


def run_command(*arguments: str) -> None:
    subprocess.run([*COMMAND, *arguments], check=True, timeout=LONGEST_SECONDS)


def check_kill(home: Path, index: FakeIndex, seconds: float, command: tuple[str, ...]) -> bool:
    """Kill an installation after some time; `AssertionError` where half of it counts as a plugin.

    Whether it was whole.
    """
    plugin = read_row()
    process = subprocess.Popen(
        [*command, "plugins", "install", "mine", "--yes"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    whole = read_record(plugin.folder) is not None
    if whole:
        verify(plugin)
    install(plan_installation(plugin))
    verify(plugin)
    left = [path.name for path in (home / "plugins").iterdir() if path.name.startswith(TEMPORARY)]
    assert left == []
    remove(plugin.folder)
    return whole


@pytest.mark.storm
def test_an_installation_that_is_killed_is_taken_for_none(
    home: Path, index: FakeIndex, rounds: Callable[[int, int], int]
) -> None:
    offer(home, index, {**SIMPLE, **{f"plug/m{n}.py": "x = 1\n" * 500 for n in range(100)}})
    chance = random.Random(5)
    for _ in range(rounds(4, 60)):
        check_kill(home, index, chance.uniform(0.2, 1.2), COMMAND)


def test_half_an_installation_that_is_taken_for_whole_would_be_detected(
    home: Path, index: FakeIndex
) -> None:
    offer(home, index, SIMPLE)
    planting = (
        "from vibe_llms.plugins import installing as i, records as r; import os, signal\n"
        "def early(plan):\n"
        "    p = plan.plugin; os.makedirs(p.packages)\n"
        "    r.write_record(p.folder, r.Record(p.row, p.module, p.requirements, {'plug.py': ''}))\n"
        "    os.kill(0, signal.SIGKILL)\n"
        "import vibe_llms.cli.providers as c; c.install = early\n"
        "import vibe_llms.cli.main as m; m.main()"
    )
    with pytest.raises(RegistrationError, match="changed after the installation"):
        check_kill(home, index, LONGEST_SECONDS, (sys.executable, "-c", planting))
