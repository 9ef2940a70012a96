"""Which file system a path is on: SQLite's files are not safe on those of a network."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mounts")
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|afs|ceph|lustre|gpfs|beegfs\w*|(fuse\.)?(sshfs|gluster\w*)"
)
#: How blanks and the like are written in the list of mounts.
_ESCAPE = re.compile(r"\\([0-7]{3})")


def find_network_mount(path: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of the network file system that a path is on; empty if it is on another, or unknown.

    The path need not exist.
    """
    place = os.path.realpath(path)
    found, kind = "", ""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        _, mount, type_, *_ = line.split(" ")
        mount = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), mount)
        # A later mount hides an earlier one at the same place.
        if len(mount) >= len(found) and os.path.commonpath((mount, place)) == mount:
            found, kind = mount, type_
    return kind if _NETWORK.fullmatch(kind) else ""
