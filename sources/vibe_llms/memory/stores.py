"""Stores of memory for each kind of backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vibe_llms.memory.interfaces import MemoryStores
from vibe_llms.storage.backends import Backend, StoreKind

if TYPE_CHECKING:
    from vibe_llms.storage.postgres.backend import PostgresBackend

MEMORY_STORES: StoreKind[MemoryStores] = StoreKind("memory")


@MEMORY_STORES.register("home")
def _produce_home_memory(backend: Backend) -> MemoryStores:
    from vibe_llms.memory.home import produce_store

    return produce_store(backend)


@MEMORY_STORES.register("postgres")
def _produce_postgres_memory(backend: PostgresBackend) -> MemoryStores:
    from vibe_llms.memory.postgres import produce_store

    return produce_store(backend)
