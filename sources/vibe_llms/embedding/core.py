"""Registry of embedders: authors call `register`, memory calls `access_embedder`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.registries import Registry, Row
from vibe_llms.embedding.interfaces import Embedder
from vibe_llms.providers.provider_pool import Providers

EMBEDDERS = "embedders"


def ignore(_: str) -> None:
    """Ignore a notice."""


class EmbedderConfiguration(Struct, frozen=True):
    """Arguments of an embedder's factory besides its name.

    `model` is the part of the address after the row's name, or the row's `default-model`.
    `settings` are the row's own keys, unchecked: `configuration.read(Settings, settings,
    "embedders", name)` makes them typed and names the file and key of an error. `providers` are the
    rows of `[providers]`, with their keys. `notify` shows the user a message, for example that a
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
    """Register an embedder's factory for the rows that name the calling module."""
    _REGISTRY.register(name, factory)


def access_embedder(row: Row, configuration: EmbedderConfiguration) -> Embedder:
    """Produce the embedder of a row; imports its module, but loads no model.

    Raise `RegistrationError` if the row's module or factory is not found, and `ConfigurationError`
    if the embedder rejects the rest of the row.
    """
    return _REGISTRY.access(row)(row.name, configuration)
