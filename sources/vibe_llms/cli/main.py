"""The entry point of the command.

It imports nothing heavy, so that Ctrl-C is handled from the start.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from vibe_llms.cli.terminal import drop_unwritten, open_closed_streams

#: Name of the threads that load embedding models and compute with them.
LOADING_THREADS = "vibe-llms embeddings"
_INTERRUPTED = 130
_CLOSED_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit with its status; print an error as one line on stderr."""
    status = _INTERRUPTED
    try:
        open_closed_streams()
        from vibe_llms.cli.commands import run_command

        status = run_command(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # A reader that closes our output is not an error.
        status = _CLOSED_PIPE
    if arguments is None:
        # Everything is saved; ignore Ctrl-C while exiting.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    drop_unwritten()
    if arguments is None and _is_loading():
        # Python would wait for the thread; everything else is closed.
        os._exit(status)
    sys.exit(status)


def _is_loading() -> bool:
    """Return True if a thread is still loading a model, which is no longer needed."""
    return any(one.name.startswith(LOADING_THREADS) for one in threading.enumerate())
