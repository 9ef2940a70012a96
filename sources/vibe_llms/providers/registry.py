"""Registry of providers: `register` for their authors, `access_provider` for sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from vibe_llms.base.exceptions import RegistrationError, VibeLlmsError
from vibe_llms.base.registries import Registry, Row
from vibe_llms.messages.events import EventHandler
from vibe_llms.providers.interfaces import Provider, ProviderConfiguration, ProviderFactory

_REGISTRY: Registry[ProviderFactory] = Registry("providers")


def register(name: str, factory: ProviderFactory) -> None:
    """Register a provider's factory for the rows that name the calling module.

    Call it when the module is imported:

    ```python
    register("anthropic", AnthropicProvider)
    ```
    """
    _REGISTRY.register(name, factory)


def access_provider(
    row: Row, configuration: ProviderConfiguration, event_handler: EventHandler
) -> Provider:
    """Return the provider that a row describes, importing its module.

    Raise `RegistrationError` if the row names a module that is not found or does not work, and
    `ConfigurationError` if the provider does not accept the rest of the row.
    """
    factory = _REGISTRY.access(row)
    with guard_row(row):
        provider = factory(row.name, configuration, event_handler)
        if not callable(getattr(provider, "produce_client", None)):
            raise TypeError(f"its factory returned {provider!r}, which is not a provider")
    return provider


def guard_row(row: Row, table: str = _REGISTRY.table) -> AbstractContextManager[None]:
    """Turn errors of the code behind a row into errors of this library that name the row.

    A broken module is thus reported, and does not break others.
    """
    place = {"file": row.file, "table": f"{table}.{row.name}", "key": "module"}
    return guard_code(f"the module {row.module!r}", **place)


@contextmanager
def guard_code(what: str, *, file: str = "", table: str = "", key: str = "") -> Iterator[None]:
    """Turn an error of a plugin's code into one of this library that says `what` failed."""
    try:
        yield
    except (VibeLlmsError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a plugin may even try to end the program
        if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
            raise
        raise RegistrationError(
            f"{what} failed: {type(error).__name__}: {error}",
            file=file,
            table=table,
            key=key,
        ) from error


def _is_being_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0
