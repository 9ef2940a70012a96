"""The registry of embedders: authors call `register`, memory calls `access_embedder`."""

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
    """What an embedder's factory receives besides its name.

    `model` is the part of the address after the row's name, or the row's `default-model`.
    `settings` are the row's own keys, unchecked: `configuration.read(Settings, settings,
    "embedders", name)` makes them typed and names the file and key of an error. `providers` are
    those of `[providers]`, with their keys; `notify` shows the user a message, for example that a
    text was cut.
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

    `RegistrationError` if the row's module or factory cannot be found, `ConfigurationError` if the
    embedder does not accept the rest of the row.
    """
    return _REGISTRY.access(row)(row.name, configuration)
