"""Stores keys and other secrets in the system's keyring or in the key file.

`credentials` finds keys.
"""

from __future__ import annotations

from pathlib import Path

from vibe_llms.base.configuration import read_toml
from vibe_llms.base.credentials import KEYRING_SERVICE, read_keys
from vibe_llms.base.files import LARGEST_SETTINGS
from vibe_llms.base.folders import make_folder, replace_file, storage_errors
from vibe_llms.base.locks import locked

_LOCK_SECONDS = 10.0


def store_key(file: Path, name: str, text: str) -> None:
    """Add a key to the key file or delete one; concurrent changes by other processes are kept."""
    import tomli_w

    with storage_errors(file):
        make_folder(file.parent)
        with locked(file.parent, seconds=_LOCK_SECONDS):
            read_keys(file)
            # Everything else in the file is kept.
            known = read_toml(file, trusted=True) if file.exists() else {}
            known.pop(name, None)
            if text:
                known[name] = text
            replace_file(file, tomli_w.dumps(known).encode(), LARGEST_SETTINGS)


class KeyVault:
    """Storage for secrets that arise while a program runs, such as a server's tokens.

    Secrets are in the system's keyring if the package `keyring` is installed and works, otherwise
    in the key file, which only its owner can read. With `keyring=False` they are only in the file:
    the system has one keyring for all users of a server.
    """

    def __init__(self, file: Path, *, keyring: bool = True) -> None:
        self._file = file
        self._keyring = keyring

    def read(self, name: str) -> str:
        """Return the value of a name; empty if there is none."""
        stored = _read_keyring(name) if self._keyring else ""
        return stored or read_keys(self._file).get(name, "")

    def keep(self, name: str, text: str) -> None:
        """Store a value; an empty one deletes the name."""
        kept = self._keyring and _write_keyring(name, text)
        if kept and name not in read_keys(self._file):
            return
        store_key(self._file, name, "" if kept else text)


def _read_keyring(name: str) -> str:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return ""
    try:
        return keyring.get_password(KEYRING_SERVICE, name) or ""
    except KeyringError:
        return ""


def _write_keyring(name: str, text: str) -> bool:
    """Return True if the keyring stored or deleted the value."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return False
    try:
        if text:
            keyring.set_password(KEYRING_SERVICE, name, text)
        elif keyring.get_password(KEYRING_SERVICE, name):
            keyring.delete_password(KEYRING_SERVICE, name)
        else:
            return False
    except KeyringError:
        return False
    return True
