"""The registry of providers: `register` for those who write one, `access_provider` for sessions."""

from __future__ import annotations

from vibe_llms.events import EventHandler
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

    `RegistrationError` where the row names what cannot be found, `ConfigurationError` where the
    provider does not accept the rest of the row.
    """
    return _REGISTRY.access(row)(row.name, configuration, event_handler)
