"""The processes that a test has started."""

from __future__ import annotations

import os

from vibe_llms.interpreter.processes import survey_tree

#: Those that other tests have left to this process.
BEFORE: set[int] = set()


def children() -> int:
    """How many processes a test has started, zombies included."""
    return len({one.identity for one in survey_tree(os.getpid())} - BEFORE)
