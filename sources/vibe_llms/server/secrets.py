"""The secret that signs states: one for all servers that may be sent them.

It is made when it is first needed. In a home, it is in a file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from vibe_llms.files import LARGEST_SETTINGS, read_trusted
from vibe_llms.storage.backends import Backend, produce_part
from vibe_llms.storage.files import make_folder, replace_file, storage_errors
from vibe_llms.storage.locks import locked

_FILE = "state.key"
_BYTES = 32
_LOCK_SECONDS = 10.0


class SecretStore(Protocol):
    """Keeps the secret of the servers."""

    async def access(self) -> bytes:
        """The secret; of several servers that make it at the same time, one does."""
        ...


class HomeSecretStore:
    """The secret in a file of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def access(self) -> bytes:
        """The secret."""
        file = self._folder / _FILE
        with storage_errors(file):
            make_folder(self._folder)
            try:
                return read_trusted(file, private=True)
            except FileNotFoundError:
                with locked(self._folder, seconds=_LOCK_SECONDS):
                    if not file.exists():
                        replace_file(file, produce_secret(), LARGEST_SETTINGS)
                    return read_trusted(file, private=True)


def produce_secret() -> bytes:
    """A new secret."""
    return os.urandom(_BYTES)


def produce_secrets(backend: Backend) -> SecretStore:
    """The secret of a backend."""
    store: SecretStore = produce_part(backend, "secrets")
    return store


def produce_store(backend: Backend) -> HomeSecretStore:
    """The secret of a home."""
    return HomeSecretStore(backend.configuration.places.data / "server")
