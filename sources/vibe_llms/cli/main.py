"""The entry of the command: starts it, and ends it quietly where nobody waits for it any more.

Nothing of weight is imported here, so that Ctrl-C finds its way out from the first moment on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from vibe_llms.cli.terminal import drop_unwritten, open_closed_streams

#: What the threads are called that load models and compute with them.
LOADING_THREADS = "vibe-llms embeddings"
_INTERRUPTED = 130
_CLOSED_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and leave with its status; errors become one line on stderr."""
    status = _INTERRUPTED
    try:
        open_closed_streams()
        commands = import_module("vibe_llms.cli.commands")
        status = commands.run_command(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # Nobody reads what we print any more, which is no failure of ours.
        status = _CLOSED_PIPE
    if arguments is None:
        # All is done and kept; what is pressed now shall not spoil the end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    drop_unwritten()
    if arguments is None and _is_loading():
        # Python would wait for it, and all else is closed.
        os._exit(status)
    sys.exit(status)


def _is_loading() -> bool:
    """Whether a thread is still loading a model that is no longer needed."""
    return any(one.name.startswith(LOADING_THREADS) for one in threading.enumerate())
