"""The clipboard of the user at the terminal, which may be on another machine."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys

from vibe_llms.cli.terminal import obeys, write
from vibe_llms.exceptions import RequestError

#: The programs that fill a clipboard, and the variable that says that there is one.
_PROGRAMS = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--input", "--clipboard")),
    ("TMUX", ("tmux", "load-buffer", "-w", "-")),
)
_PROGRAM_SECONDS = 5.0


def copy(text: str) -> str:
    """Put a text into the clipboard; gives the name of what took it.

    It is a program if one is there, else the terminal itself, asked with the sequence OSC 52, which
    works over ssh. `RequestError` if there is neither.
    """
    programs = [line for variable, line in _PROGRAMS if os.environ.get(variable)]
    if sys.platform == "darwin":
        programs.insert(0, ("pbcopy",))
    for line in programs:
        if shutil.which(line[0]) and _run(line, text):
            return line[0]
    if not obeys(sys.stderr):
        raise RequestError("there is no clipboard here; install wl-copy, xclip or xsel")
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
