"""The registry of providers: `register` for those who write one, `access_provider` for sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from vibe_llms.events import EventHandler
from vibe_llms.exceptions import RegistrationError, VibeLlmsError
from vibe_llms.providers.interfaces import Provider, ProviderConfiguration, ProviderFactory
from vibe_llms.registries import Registry, Row

_REGISTRY: Registry[ProviderFactory] = Registry("providers")


def register(name: str, factory: ProviderFactory) -> None:
    """Offer a provider's factory to the rows that name the calling module.

    To be called where the module is imported::

        register("anthropic", AnthropicProvider)
    """
    _REGISTRY.register(name, factory)


def access_provider(
    row: Row, configuration: ProviderConfiguration, event_handler: EventHandler
) -> Provider:
    """The provider that a row describes; imports its module.

    `RegistrationError` where the row names what cannot be found or does not work,
    `ConfigurationError` where the provider does not accept the rest of the row.
    """
    factory = _REGISTRY.access(row)
    with guard_row(row):
        provider = factory(row.name, configuration, event_handler)
        if not callable(getattr(provider, "produce_client", None)):
            raise TypeError(f"its factory made {provider!r}, which is no provider")
    return provider


def guard_row(row: Row, table: str = _REGISTRY.table) -> AbstractContextManager[None]:
    """What the code behind a row raises as an error of this library, one that names the row.

    So a broken module is reported and breaks no other.
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
    except BaseException as error:  # the border of a plugin, which may even end the program
        if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
            raise
        raise RegistrationError(
            f"{what} does not work: {type(error).__name__}: {error}",
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
