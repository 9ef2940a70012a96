"""The option `--functions`: a question before a file first runs, and its functions as tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.usefixtures("warm")

SUMS = '''
with open(__file__ + ".ran", "a") as ran:
    ran.write("x")
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sums.py"
    path.write_text(SUMS)
    return path


def _runs(file: Path) -> int:
    ran = file.with_name("sums.py.ran")
    return len(ran.read_text()) if ran.exists() else 0


def test_a_new_file_is_asked_about_once_and_then_again_when_it_changed(
    home: Path, file: Path
) -> None:
    command = ("-m", "scripted/demo", "--functions", str(file), "Add 3 4.")
    with Terminal(*command, columns=250) as terminal:
        shown = terminal.expect("Run it, and offer its functions\\?")
        assert f"{file} is new" in shown
        assert "functions: add" in shown
        assert not _runs(file)
        terminal.enter("y")
        terminal.expect("Run sums/add\\?")
        terminal.enter("y")
        terminal.expect("returned: 7")
        assert terminal.wait() == 0
    file.write_text(SUMS.replace("add", "plus"))
    with Terminal(*command, columns=250) as terminal:
        shown = terminal.expect("Run it, and offer its functions\\?")
        assert "has changed since you approved it" in shown
        assert "new: plus" in shown
        assert "gone: add" in shown
        terminal.enter("n")
        terminal.expect("not approved, so it was not run")
        assert terminal.wait() == 2
    assert _runs(file) == 1


def test_without_a_terminal_an_unapproved_file_is_refused(home: Path, file: Path) -> None:
    command = ("-m", "scripted/demo", "--functions", str(file))
    for refused in (invoke(*command, "Add 3 4."), invoke("ask", *command, str(file), "Add 3 4.")):
        assert refused.status == 2
        assert f"vibe-llms tools list --functions {file} -y" in refused.error
    assert not _runs(file)
    # This run's consent is not kept.
    assert "returned: 7" in invoke(*command, "--ta", "Add 3 4.").output
    assert invoke(*command, "Add 3 4.").status == 2
    listed = invoke("tools", "list", "--functions", str(file), "-y")
    assert listed.output.split() == ["sums/add", "ask", "Add", "two", "numbers."]
    assert "failed: The call was not allowed" in invoke(*command, "Add 3 4.").output


def test_a_function_is_shown_and_called_without_a_model(home: Path, file: Path) -> None:
    given = ("--functions", str(file), "-y")
    assert "sums/add: ask" in invoke("tools", "show", "add", *given).output
    assert invoke("tools", "call", "sums/add", '{"a": 2}', *given).output == "3\n"
    assert "sums/add" in invoke("tools", "call", "other", *given).error


def test_two_files_and_rows_of_the_same_name_are_refused(home: Path, file: Path) -> None:
    other = file.parent / "more" / "sums.py"
    other.parent.mkdir()
    other.write_text(SUMS)
    user = file.with_name("user.py")
    user.write_text(SUMS)
    for first, second in ((file, other), (file, user)):
        refused = invoke(
            "tools", "list", "--functions", str(first), "--functions", str(second), "-y"
        )
        assert f"{second}: there already are tools named" in refused.error
    assert not _runs(file)


def test_the_background_does_not_take_functions(home: Path, file: Path) -> None:
    refused = invoke("--detach", "--functions", str(file), "Hello.")
    assert "--functions and --detach exclude each other" in refused.errors


def test_an_import_that_hangs_is_interrupted(home: Path, file: Path) -> None:
    file.write_text("import time\nprint('hanging', flush=True)\ntime.sleep(600)\n" + SUMS)
    with Terminal("tools", "list", "--functions", str(file), "-y") as terminal:
        terminal.expect("hanging")
        terminal.press("c-c")
        assert terminal.wait() == 130
