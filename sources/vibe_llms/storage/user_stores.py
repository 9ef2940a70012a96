"""Stores of the server's users and their logins, one for each kind of backend."""

from __future__ import annotations

from vibe_llms.storage.backends import Backend, StoreKind
from vibe_llms.storage.logins import LoginStore, produce_home_logins
from vibe_llms.storage.users import UserStore, produce_home_users

USER_STORES: StoreKind[UserStore] = StoreKind("users")
LOGIN_STORES: StoreKind[LoginStore] = StoreKind("logins")
USER_STORES.register("home")(produce_home_users)
LOGIN_STORES.register("home")(produce_home_logins)


@USER_STORES.register("postgres")
def _produce_postgres_users(backend: Backend) -> UserStore:
    from vibe_llms.storage.postgres.users import produce_store

    return produce_store(backend)


@LOGIN_STORES.register("postgres")
def _produce_postgres_logins(backend: Backend) -> LoginStore:
    from vibe_llms.storage.postgres.logins import produce_store

    return produce_store(backend)


def produce_users(backend: Backend) -> UserStore:
    """Return the users of a backend."""
    return USER_STORES.produce(backend)


def produce_logins(backend: Backend) -> LoginStore:
    """Return the logins of a backend."""
    return LOGIN_STORES.produce(backend)
