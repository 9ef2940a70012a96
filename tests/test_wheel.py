"""The wheel, as users install it: what their type checkers learn from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: A program of a user's; `reveal_type` shows that the types are real and not `Any`.
PROGRAM = """
import asyncio
from dataclasses import dataclass

import vibe_llms
from vibe_llms import Event, MessageProgressEvent, TextChunk, Turn, invoker, open_session
from vibe_llms import synchronous
from vibe_llms.testing import scripted_model


def show(event: Event) -> None:
    match event:
        case MessageProgressEvent(chunk=TextChunk(text)):
            print(text, end="")


@invoker(aliases=["plus"])
def add(a: int, b: int = 2) -> int:
    return a + b


@dataclass
class Person:
    name: str


async def main() -> Turn[Person]:
    async with open_session(event_handler=show) as session:
        conversation = await session.begin(scripted_model(["Hi"]), invokers=[add])
        plain: Turn = await conversation.converse("Hello")
        async for text in conversation.stream("Again").text():
            reveal_type(text)
        stream = conversation.stream("Who?", output=Person)
        reveal_type(stream.turn)
        return await conversation.converse("Who?", output=Person)


def hold() -> None:
    with synchronous.open_session() as session:
        reveal_type(session.begin("a/b").converse("Who?", output=Person).output.name)


turn = asyncio.run(main())
reveal_type(turn.output)
reveal_type(add(1))
turn.no_such_member
vibe_llms.no_such_name
"""


def run(*command: str | Path, **options: str) -> subprocess.CompletedProcess[str]:
    # Nothing may lead to the sources, which are typed whatever the wheel holds.
    environment = {**os.environ, "MYPYPATH": "", "PYTHONPATH": "", **options}
    return subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        cwd=options.get("PWD", ROOT),
        env=environment,
        check=False,
    )


@pytest.mark.slow
def test_a_program_is_checked_against_the_types_of_the_installed_wheel(tmp_path: Path) -> None:
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        shipped = {*opened.namelist()}
    for example in (ROOT / "documentation" / "examples").rglob("*"):
        if example.is_file() and "__pycache__" not in example.parts:
            name = example.relative_to(ROOT / "documentation")
            assert f"vibe_llms/data/{name}" in shipped
    assert "vibe_llms/data/examples.toml" in shipped
    page = ROOT / "sources" / "vibe_llms" / "page"
    files = {f"vibe_llms/page/{one.relative_to(page)}" for one in page.rglob("*") if one.is_file()}
    assert "vibe_llms/page/index.html" in files
    assert files <= shipped
    home = tmp_path / "venv"
    venv.create(home)
    python = home / "bin" / "python"
    (packages,) = home.glob("lib/python*/site-packages")
    install = (sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps")
    installed = run(*install, "--python", python, wheel)
    assert installed.returncode == 0, installed.stderr
    # The dependencies are those of the tests; the package itself comes before them.
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(others))

    program = tmp_path / "program" / "main.py"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    cache = ROOT / ".auxiliary" / "caches" / "mypy-wheel"
    checked = run(
        *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable"),
        *(python, "--cache-dir", cache, program.name),
        PWD=str(program.parent),
    )
    reported = re.findall(r"^main.py:\d+: (.*)", checked.stdout, re.MULTILINE)
    assert reported == [
        'note: Revealed type is "str"',
        'note: Revealed type is "vibe_llms.messages.canisters.Turn[main.Person] | None"',
        'note: Revealed type is "str"',
        'note: Revealed type is "main.Person"',
        'note: Revealed type is "int"',
        'error: "Turn[Person]" has no attribute "no_such_member"  [attr-defined]',
        'error: Module has no attribute "no_such_name"  [attr-defined]',
    ], checked.stdout + checked.stderr
