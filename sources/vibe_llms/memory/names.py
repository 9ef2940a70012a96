"""File names of entries: which files are entries, and which are copies of others.

TIME__IDENTITY.md                                    ours
TIME__IDENTITY.sync-conflict-20261126-101500-ABC.md  a copy by Syncthing
TIME__IDENTITY (1).md, TIME__IDENTITY-LAPTOP.md      copies by other programs
TIME__IDENTITY.md~                                   the last version, kept by an editor
NAME.md                                              written by hand
"""

from __future__ import annotations

import hashlib
import re

SUFFIX = ".md"
_BACKUP = "~"
#: Suffixes that Syncthing, browsers, Google Drive, Dropbox, and Nextcloud add to copies.
_MARK = re.compile(
    r"(?:\.sync-conflict-\d{8}-\d{6}[^.]*|\s\(\d{1,3}\)|\s\([^()]*conflict[^()]*\))\Z",
    re.IGNORECASE,
)
#: Names that can be identities unchanged.
_PLAIN = re.compile(r"[0-9a-z][0-9a-z-]{3,47}")
_DIGEST = 12


def is_entry_name(name: str) -> bool:
    """Return True if a file with this name is an entry, or a copy of one."""
    return name.removesuffix(_BACKUP).endswith(SUFFIX)


def name_original(name: str) -> str:
    """Return the name of the original of a copy; for other files, the name itself."""
    if not is_entry_name(name):
        return name
    stem = name.removesuffix(_BACKUP).removesuffix(SUFFIX)
    if stem.endswith(")") or "conflict" in stem.lower():
        stem = _MARK.sub("", stem)
    return f"{stem}{SUFFIX}"


def name_identity(name: str) -> str:
    """Return the identity of a file that was written by hand without one."""
    stem = name.removesuffix(SUFFIX)
    if _PLAIN.fullmatch(stem):
        return stem
    words = "-".join(re.findall(r"[0-9a-z]+", stem.lower()))[:32].strip("-")
    return f"{words}-{_digest(name)}" if words else _digest(name)


def name_copy(name: str, identity: str) -> str:
    """Return an identity for a copy of the entry with an identity, or "" for other files.

    The name of a copy extends that of the original.
    """
    _, ours, behind = name.rpartition(f"__{identity}")
    continued = bool(ours) and behind != SUFFIX and not behind[:1].isalnum()
    if not continued and name_original(name) == name:
        return ""
    mark = f"-{_digest(name)}"
    # A copy that got this identity and was edited since is a separate entry now.
    return "" if identity.endswith(mark) else f"{identity}{mark}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGEST]
