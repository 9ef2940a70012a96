"""The secret that signs reply states, shared by all servers of a backend.

It is created on first use. In a home, it is in a file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from vibe_llms.base.files import LARGEST_SETTINGS, read_trusted
from vibe_llms.base.folders import make_folder, replace_file, storage_errors
from vibe_llms.base.locks import locked
from vibe_llms.storage.backends import Backend

_FILE = "state.key"
_KEY_BYTES = 32
_LOCK_SECONDS = 10.0


class SecretStore(Protocol):
    """Storage of the servers' secret."""

    async def access(self) -> bytes:
        """Return the secret; of several servers that create it concurrently, one wins."""
        ...


class HomeSecretStore:
    """The `SecretStore` of a home, in a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def access(self) -> bytes:
        """Return the secret, creating it if necessary."""
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
    """Generate a new secret."""
    return os.urandom(_KEY_BYTES)


def produce_home_secrets(backend: Backend) -> HomeSecretStore:
    """Create the secret store of a home."""
    return HomeSecretStore(backend.configuration.places.data / "server")
