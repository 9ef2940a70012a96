"""What a kernel is given: nothing of our environment, and a folder that is its own."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from vibe_llms.interpreter.cage import CHANNELS
from vibe_llms.interpreter.plans import prepare_folder, produce_plan
from vibe_llms.interpreter.settings import Limits


@pytest.mark.parametrize("spaces", [True, False])
def test_a_plan_holds_nothing_of_our_environment(
    spaces: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret-of-mine")
    limits = Limits()
    plan = produce_plan(str(tmp_path / "cage"), limits, spaces=spaces)
    assert b"secret-of-mine" not in msgspec.json.encode(plan)
    assert (plan.command[0], plan.disk_bytes) == (sys.executable, limits.disk_bytes)
    assert plan.environment["HOME"].startswith(str(tmp_path)) is not spaces
    assert not {"/", "/usr"} & {*plan.visible}


@pytest.mark.parametrize("spaces", [True, False])
def test_the_folder_is_for_its_kernel_alone(spaces: bool, tmp_path: Path) -> None:
    os.mkdir(folder := tmp_path / "cage", 0o700)
    plan = produce_plan(str(folder), Limits(), spaces=spaces)
    connection = prepare_folder(plan)
    (file,) = Path(plan.channels).iterdir()
    written = msgspec.json.decode(file.read_bytes())
    assert written == {
        **connection,
        "ip": f"{CHANNELS if spaces else plan.channels}/k",
    }
    assert len(bytes.fromhex(connection["key"])) == 32
    assert connection["key"] != prepare_again(tmp_path)["key"]
    assert stat.S_IMODE(os.stat(plan.channels).st_mode) == 0o700


def prepare_again(home: Path) -> dict[str, object]:
    os.mkdir(folder := home / "other", 0o700)
    return prepare_folder(produce_plan(str(folder), Limits(), spaces=True))
