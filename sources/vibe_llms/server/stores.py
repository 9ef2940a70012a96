"""Registries of the stores that only servers use, by kind of backend."""

from __future__ import annotations

from vibe_llms.server.continuations import ContinuationStore, produce_home_continuations
from vibe_llms.server.import_records import ImportRecordStore, produce_home_records
from vibe_llms.server.secrets import SecretStore, produce_home_secrets
from vibe_llms.storage.backends import Backend, StoreKind

CONTINUATION_STORES: StoreKind[ContinuationStore] = StoreKind("continuations")
IMPORT_STORES: StoreKind[ImportRecordStore] = StoreKind("imports")
SECRET_STORES: StoreKind[SecretStore] = StoreKind("secrets")
CONTINUATION_STORES.register("home")(produce_home_continuations)
IMPORT_STORES.register("home")(produce_home_records)
SECRET_STORES.register("home")(produce_home_secrets)


@CONTINUATION_STORES.register("postgres")
def _produce_postgres_continuations(backend: Backend) -> ContinuationStore:
    from vibe_llms.server.postgres_continuations import produce_store

    return produce_store(backend)


@IMPORT_STORES.register("postgres")
def _produce_postgres_imports(backend: Backend) -> ImportRecordStore:
    from vibe_llms.server.postgres_imports import produce_store

    return produce_store(backend)


@SECRET_STORES.register("postgres")
def _produce_postgres_secrets(backend: Backend) -> SecretStore:
    from vibe_llms.server.postgres_secrets import produce_store

    return produce_store(backend)


def produce_secrets(backend: Backend) -> SecretStore:
    """Create the secret store of a backend."""
    return SECRET_STORES.produce(backend)


def produce_continuations(backend: Backend) -> ContinuationStore:
    """Create the continuation store of a backend."""
    return CONTINUATION_STORES.produce(backend)


def produce_import_records(backend: Backend) -> ImportRecordStore:
    """Create the store of the records of imports of a backend."""
    return IMPORT_STORES.produce(backend)
