"""The editor of whoever is at the terminal, and what becomes of a file in it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from vibe_llms.cli.running import deaf
from vibe_llms.cli.terminal import is_terminal
from vibe_llms.exceptions import RequestError

#: What is looked for where neither $VISUAL nor $EDITOR names one.
_USUAL = ("sensible-editor", "vim", "nano", "vi")


def find_editor(instead: str) -> str:
    """The editor of $VISUAL or $EDITOR; at a terminal else one of the usual ones.

    `RequestError` where there is none, with what can be done `instead`.
    """
    if editor := os.environ.get("VISUAL") or os.environ.get("EDITOR"):
        return editor
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise RequestError(f"there is no terminal for an editor; set EDITOR, or {instead}")
    if found := next(filter(shutil.which, _USUAL), None):
        return found
    raise RequestError(f"no editor was found; set EDITOR, or {instead}")


def run_editor(editor: str, path: Path) -> None:
    """Let somebody edit a file. Ctrl-C is for the editor alone.

    `RequestError` where it cannot be started, or says that it failed.
    """
    try:
        with deaf():
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"the editor {editor!r} cannot be started: {error}; set EDITOR to another"
        ) from error
    if done.returncode != 0:
        raise RequestError(f"the editor {editor!r} ended with status {done.returncode}")
