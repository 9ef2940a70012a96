"""What the tests of versions share: git as its user runs it, and a git that is not what it seems.

These tests need git. Where it is missing they fail and say so; none is left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

REAL = shutil.which("git") or ""


def ask_git(folder: Path, *arguments: str) -> str:
    """What git says when it is run in a folder, without settings."""
    assert REAL, "these tests need git; install it: apt-get install git"
    done = subprocess.run(
        [REAL, "-C", str(folder), *arguments],
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"},
    )
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def make_program(path: Path, script: str) -> Path:
    """A program of a shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return path


def list_committed(folder: Path) -> dict[str, str]:
    """The files of the newest commit, and their texts."""
    names = ask_git(folder, "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")
    return {name: ask_git(folder, "show", f"HEAD:{name}") for name in names if name.endswith(".md")}


def list_files(folder: Path) -> dict[str, str]:
    """The files below the entries, and their texts."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in (folder / "entries").rglob("[!.]*.md")
    }
