"""Versions of the conversations in a folder, from the marks of their changes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from vibe_llms.storage.changes import Changes, is_being_changed, read_slot
from vibe_llms.storage.conversations import is_conversation_identity
from vibe_llms.storage.interfaces import ConversationVersions

#: Longest tick in seconds of a file system's clock. Changes within one tick would not show.
_TICK_SECONDS = 2.0


def survey_versions(
    folder: Path, changes: Changes, before: ConversationVersions | None
) -> ConversationVersions:
    """Return the versions of all conversations, or `before` if nothing has changed since."""
    # Both are read before the names: what changes in between has another token the next time.
    table, status = changes.read(), os.stat(folder)
    token = b"%b %d" % (table, status.st_mtime_ns)
    if before is not None and before.token == token:
        return before
    known = {} if before is None else before.versions
    versions: dict[str, object] = {}
    certain = bool(table) and time.time() - status.st_mtime > _TICK_SECONDS
    for name in filter(is_conversation_identity, os.listdir(folder)):
        version: object = read_slot(table, name)
        if name in known and known[name] != version and is_being_changed(f"{folder}/{name}"):
            # A mark comes before the change.
            version, certain = known[name], False
        versions[name] = version
    return ConversationVersions(token if certain else b"", versions)
