"""The registry of embedders: `register` for those who write one, `access_embedder` for memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from vibe_llms.configuration import Configuration
from vibe_llms.memory.embedders.interfaces import Embedder
from vibe_llms.providers.provider_pool import Providers
from vibe_llms.registries import Registry, Row

EMBEDDERS = "embedders"


def ignore(_: str) -> None:
    """Ignore a notice."""


class EmbedderConfiguration(Struct, frozen=True):
    """What an embedder's factory is given besides its name.

    `model` is what the address says after the row's name, or the row's `default-model`. `settings`
    are the keys of the row that are its own, not yet checked: `configuration.read(Settings,
    settings, "embedders", name)` makes them typed and names the file and key of what is wrong.
    `providers` are those of `[providers]`, with their keys; `notify` is for what a person should
    know, such as a text that was cut.
    """

    configuration: Configuration
    model: str
    settings: Mapping[str, Any]
    providers: Providers
    notify: Callable[[str], None] = ignore


EmbedderFactory: TypeAlias = Callable[[str, EmbedderConfiguration], Embedder]

_REGISTRY: Registry[EmbedderFactory] = Registry(EMBEDDERS)


def register(name: str, factory: EmbedderFactory) -> None:
    """Offer an embedder's factory to the rows that name the calling module."""
    _REGISTRY.register(name, factory)


def access_embedder(row: Row, configuration: EmbedderConfiguration) -> Embedder:
    """The embedder that a row describes; imports its module, loads no model.

    `RegistrationError` where the row names what cannot be found, `ConfigurationError` where the
    embedder does not accept the rest of the row.
    """
    return _REGISTRY.access(row)(row.name, configuration)
