"""Programs of the cookbook end with one line if they get wrong arguments."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.pages import DOCUMENTATION, EXAMPLES
from tests.documentation.transcripts import newcomer

NAMES = sorted(
    name
    for page in (DOCUMENTATION / "cookbook").glob("*.md")
    for name in re.findall(r'title="(\w+\.py)"', page.read_text("utf-8"))
)
#: Programs with arguments that they cannot do without.
DEMANDING = [name for name in NAMES if "usage: python" in (EXAMPLES / name).read_text("utf-8")]
#: Programs that need no arguments, among those that read some.
OPTIONAL = {"before_openai.py", "from_openai.py", "terminal_chat.py"}
#: Arguments that name files or folders that do not exist.
MISSING = {
    "chat_with_pdfs.py": ["nothing"],
    "classify_rows.py": ["nothing.csv", "labels.csv"],
    "coding_helper.py": ["nothing", "Mend it."],
    "evaluate_prompts.py": ["support", "nothing.txt"],
    "extract_table.py": ["nothing.txt"],
    "nightly_digest.py": ["nothing", "digest.md"],
    "summarize_long.py": ["nothing.pdf"],
    "translate.py": ["nothing.txt", "nothing.csv"],
}
KEYS = ("ANTHROPIC_API_KEY", "BOT_TOKEN", "OPENAI_API_KEY", "WEBHOOK_SECRET")


def run(name: str, arguments: list[str], folder: Path) -> str:
    """Run a program that fails; return what it says."""
    environment = newcomer(folder / "home", "http://127.0.0.1:9") | dict.fromkeys(KEYS, "your-key")
    environment["OPENAI_BASE_URL"] = "http://127.0.0.1:9/v1"
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    return done.stderr


def test_every_program_that_demands_arguments_is_known() -> None:
    reading = {name for name in NAMES if "sys.argv" in (EXAMPLES / name).read_text("utf-8")}
    assert reading - {*DEMANDING} == OPTIONAL
    assert {*MISSING} <= {*DEMANDING}


@pytest.mark.parametrize("name", DEMANDING)
def test_without_its_arguments_a_program_says_which_it_needs(name: str, tmp_path: Path) -> None:
    assert re.fullmatch(rf"usage: python {name} [][A-Z. ]+\n", run(name, [], tmp_path))


@pytest.mark.parametrize("name", MISSING)
def test_a_file_that_does_not_exist_is_named_in_one_line(name: str, tmp_path: Path) -> None:
    said = run(name, MISSING[name], tmp_path)
    assert said.count("\n") == 1
    assert re.search("nothing|FOLDER|no conversation has the tag support", said), said
    # Nothing is made before it is clear what to do.
    assert [one.name for one in tmp_path.iterdir()] == ["home"]
