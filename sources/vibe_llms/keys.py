"""Keeping keys, and what else is as secret: in the system's keyring, or in the file of keys.

How keys are looked up is in `credentials`.
"""

from __future__ import annotations

from pathlib import Path

from vibe_llms.configuration import read_toml
from vibe_llms.credentials import KEYRING_SERVICE, read_keys
from vibe_llms.storage.files import make_folder, replace_file, storage_errors
from vibe_llms.storage.locks import locked

_LOCK_SECONDS = 10.0


def store_key(file: Path, name: str, text: str) -> None:
    """Put a key into the file of keys, or take it out; others' changes meanwhile are kept."""
    import tomli_w

    with storage_errors(file):
        make_folder(file.parent)
        with locked(file.parent, seconds=_LOCK_SECONDS):
            read_keys(file)
            # Nothing else that stands in the file is lost.
            known = read_toml(file, trusted=True) if file.exists() else {}
            known.pop(name, None)
            if text:
                known[name] = text
            replace_file(file, tomli_w.dumps(known).encode())


class KeyVault:
    """Secrets that come to be while a program runs, such as the tokens of a server.

    The system's keyring has them where the package `keyring` is installed and finds one that works;
    else the file of keys, which only its owner can read.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self, name: str) -> str:
        """What is kept under a name; empty if nothing is."""
        return _read_keyring(name) or read_keys(self._file).get(name, "")

    def keep(self, name: str, text: str) -> None:
        """Keep it from now on; an empty text removes it."""
        kept = _write_keyring(name, text)
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
    """Whether the keyring has it now, or has it no more."""
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
