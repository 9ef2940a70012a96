"""Stores of the server's users, one for each kind of backend."""

from __future__ import annotations

from vibe_llms.storage.backends import Backend, StoreKind
from vibe_llms.storage.users import UserStore, produce_home_users

USER_STORES: StoreKind[UserStore] = StoreKind("users")
USER_STORES.register("home")(produce_home_users)


@USER_STORES.register("postgres")
def _produce_postgres_users(backend: Backend) -> UserStore:
    from vibe_llms.storage.postgres.users import produce_store

    return produce_store(backend)


def produce_users(backend: Backend) -> UserStore:
    """Return the users of a backend."""
    return USER_STORES.produce(backend)
