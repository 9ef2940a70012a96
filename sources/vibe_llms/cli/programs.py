"""Other programs of the user: the editor, and the clipboard, which may be on another machine."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from vibe_llms.base.exceptions import RequestError
from vibe_llms.base.files import LARGEST_SETTINGS, read_file
from vibe_llms.cli.running import ignore_sigint
from vibe_llms.cli.terminal import can_redraw, is_terminal, write

#: Editors to try without $VISUAL and $EDITOR.
_USUAL = ("sensible-editor", "vim", "nano", "vi")
#: Programs that fill a clipboard, each with the variable that is set if it can be used.
_PROGRAMS = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--input", "--clipboard")),
    ("TMUX", ("tmux", "load-buffer", "-w", "-")),
)
_PROGRAM_SECONDS = 5.0


def find_editor(instead: str) -> str:
    """Return the editor of $VISUAL or $EDITOR, or at a terminal one of the usual editors.

    Raises `RequestError`, which says what to do `instead`, if there is none.
    """
    if editor := os.environ.get("VISUAL") or os.environ.get("EDITOR"):
        return editor
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise RequestError(f"not a terminal; set EDITOR, or {instead}")
    if found := next(filter(shutil.which, _USUAL), None):
        return found
    raise RequestError(f"no editor found; set EDITOR, or {instead}")


def run_editor(editor: str, path: Path) -> None:
    """Edit a file; Ctrl-C goes to the editor only.

    Raises `RequestError` if the editor cannot be started or fails.
    """
    try:
        with ignore_sigint():
            done = subprocess.run([*shlex.split(editor), str(path)], check=False)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"cannot start the editor {editor!r}: {error}; set EDITOR to another"
        ) from error
    if done.returncode != 0:
        raise RequestError(f"the editor {editor!r} exited with status {done.returncode}")


def edit_text(editor: str, text: str) -> str:
    """Return a text as the user leaves it in the editor, without blank lines around it."""
    with TemporaryDirectory(prefix="vibe-llms-") as folder:
        path = Path(folder) / "instructions.md"
        path.write_text(f"{text}\n" if text else "", "utf-8")
        run_editor(editor, path)
        try:
            return read_file(path, LARGEST_SETTINGS).decode("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"what the editor left cannot be read: {error}") from error


def copy(text: str) -> str:
    """Copy a text to the clipboard; return the name of the program that took it.

    Without a program, ask the terminal with OSC 52, which works over ssh. Raises `RequestError` if
    neither works.
    """
    programs = [line for variable, line in _PROGRAMS if os.environ.get(variable)]
    if sys.platform == "darwin":
        programs.insert(0, ("pbcopy",))
    for line in programs:
        if shutil.which(line[0]) and _run(line, text):
            return line[0]
    if not can_redraw(sys.stderr):
        raise RequestError("no clipboard found; install wl-copy, xclip or xsel")
    write(sys.stderr, f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a")
    return "the terminal"


def _run(line: tuple[str, ...], text: str) -> bool:
    try:
        done = subprocess.run(
            line,
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROGRAM_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
