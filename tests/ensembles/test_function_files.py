"""Python files as tools: read without running, approved by hash, and run."""

from __future__ import annotations

from pathlib import Path

import pytest

from vibe_llms.base.exceptions import FunctionsInvalid
from vibe_llms.ensembles.function_files import FilePin, load_functions, read_functions

GOOD = '''
from math import hypot
from vibe_llms import invoker

def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return _plus(a, b)

@invoker(approval="allow")
async def look(city: str) -> str:
    """Look at a city."""
    return city

plus = add

def _plus(a, b):
    return a + b
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sums.py"
    path.write_text(GOOD)
    return path


async def test_public_functions_of_the_file_become_tools_that_ask_unless_marked(file: Path) -> None:
    found = read_functions(str(file))
    assert found.functions == ("add", "look")
    ensemble = load_functions(found)
    assert [(one.name, one.approval) for one in ensemble.invokers] == [
        ("sums/add", "ask"),
        ("sums/look", "allow"),
    ]
    assert (await ensemble.invoke("add", {"a": 2})).text == "3"


def test_a_file_is_not_run_when_it_is_read(file: Path, tmp_path: Path) -> None:
    file.write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\n{GOOD}")
    found = read_functions(str(file))
    assert not (tmp_path / "ran").exists()
    # What was approved is run, whatever the file says by then.
    file.write_text("raise ValueError")
    load_functions(found)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('def a(x: int):\n  """D."""\n def\n', "invalid Python in line 3"),
        ("\0", "invalid Python"),
        ("", "no public function"),
        ("from math import hypot\ndef _a(): ...\n", "no public function"),
        ('def a(x: int):\n  """D."""\ndef a():\n  """E."""\n', "'a' more than once"),
        ('import nothere\ndef a():\n  """D."""\n', "in line 1: ModuleNotFoundError: No module"),
        ('import sys\nsys.exit(3)\ndef a():\n  """D."""\n', "it exits when it is run, in line 2"),
        ("\ndef a(x: int):\n  pass\n", "line 2: 'a' has no docstring"),
        ('def a(x):\n  """D."""\n', "'x' of 'a' has no type; add one, such as x: str"),
        ('from socket import socket\ndef a(x: socket):\n  """D."""\n', "line 2: .*JSON Schema"),
        ('def a(*x: int):\n  """D."""\n', r"\*x: int, which has no schema"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(FunctionsInvalid, match=message) as caught:
        load_functions(read_functions(str(file)))
    assert str(file) in str(caught.value)


def test_a_missing_file_a_folder_and_a_file_of_others_are_refused(
    file: Path, tmp_path: Path
) -> None:
    with pytest.raises(FunctionsInvalid, match="no such file"):
        read_functions(str(tmp_path / "none.py"))
    with pytest.raises(FunctionsInvalid, match="directory"):
        read_functions(str(tmp_path))
    link = tmp_path / "link.py"
    link.symlink_to(file)
    file.chmod(0o646)
    for path in (file, link):
        with pytest.raises(FunctionsInvalid, match="others may write to it"):
            read_functions(str(path))


def test_the_approval_is_of_this_content_and_a_change_is_described(
    file: Path, tmp_path: Path
) -> None:
    before = read_functions(str(file))
    pin = FilePin(tmp_path / "state", before)
    assert not pin.approved
    assert not pin.change
    pin.approve()
    assert FilePin(tmp_path / "state", before).approved
    file.write_text(GOOD.replace("look", "see"))
    after = read_functions(str(file))
    changed = FilePin(tmp_path / "state", after)
    assert not changed.approved
    assert changed.change == [
        f"approved: sha256:{before.digest}",
        f"now:      sha256:{after.digest}",
        "new: see",
        "gone: look",
    ]
    changed.approve()
    assert FilePin(tmp_path / "state", after).approved
    assert not FilePin(tmp_path / "state", before).approved


def test_what_the_file_prints_does_not_mix_with_the_answer(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("print('loading')\n" + GOOD)
    load_functions(read_functions(str(file)))
    assert capsys.readouterr() == ("", "loading\n")
