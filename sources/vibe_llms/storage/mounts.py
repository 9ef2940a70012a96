"""Network file systems, on which SQLite files are not safe."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mounts")
_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|afs|ceph|lustre|gpfs|beegfs\w*|(fuse\.)?(sshfs|gluster\w*)"
)
#: Octal escape of a space or similar character in the list of mounts.
_ESCAPE = re.compile(r"\\([0-7]{3})")


def find_network_mount(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return the type of the network file system of a path, or an empty string.

    The path need not exist. The result is also empty if the type is unknown.
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
