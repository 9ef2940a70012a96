"""The registry of ensembles, and those of a session: opened when first named, closed with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from vibe_llms.configuration import Configuration
from vibe_llms.ensembles.interfaces import (
    Ensemble,
    EnsembleConfiguration,
    EnsembleFactory,
    EnsembleHost,
)
from vibe_llms.exceptions import ConfigurationError, EnsembleFailed, VibeLlmsError
from vibe_llms.registries import Registry, Row

ENSEMBLES = "ensembles"
_REGISTRY: Registry[EnsembleFactory] = Registry(ENSEMBLES)


def register(name: str, factory: EnsembleFactory) -> None:
    """Offer an ensemble's factory to the rows that name the calling module."""
    _REGISTRY.register(name, factory)


def access_ensemble(row: Row, configuration: EnsembleConfiguration) -> Ensemble:
    """The ensemble that a row describes, not yet open; imports its module.

    `RegistrationError` where the row names what cannot be found, `ConfigurationError` where the
    ensemble does not accept the rest of the row.
    """
    return _REGISTRY.access(row)(row.name, configuration)


class Ensembles:
    """The ensembles of a session."""

    def __init__(self, configuration: Configuration, host: EnsembleHost = EnsembleHost()) -> None:
        self._configuration = configuration
        self._host = host
        self._rows: dict[str, Ensemble] = {}
        self._opened: list[Ensemble] = []

    async def open(
        self, named: Iterable[str | Ensemble], tell: Callable[[str], None]
    ) -> Sequence[Ensemble]:
        """Ensembles by the names of their rows, or as they are; all opened at the same time.

        One that cannot be opened is told and left out, unless its row says that it is `required`.
        What is wrong with the configuration is raised once none is being opened any more.
        """
        # Whoever is named twice is opened once.
        wanted = dict.fromkeys(self._access(one) if isinstance(one, str) else one for one in named)
        self._opened += [one for one in wanted if one not in self._opened]
        failures = await asyncio.gather(*map(_open, wanted))
        opened: list[Ensemble] = []
        for one, failure in zip(wanted, failures, strict=True):
            if failure is None:
                opened.append(one)
            elif not isinstance(failure, EnsembleFailed) or self._is_required(one.name):
                raise failure
            else:
                tell(f"{failure}; its tools are left out")
        return opened

    async def open_one(self, name: str) -> Ensemble:
        """The ensemble of a row, open; what keeps it from that is raised."""
        ensemble = self._access(name)
        if ensemble not in self._opened:
            self._opened.append(ensemble)
        await ensemble.open()
        return ensemble

    async def close(self) -> None:
        """Close all of them at the same time; safe to call twice."""
        opened, self._opened, self._rows = self._opened, [], {}
        await asyncio.gather(*(one.close() for one in opened))

    def _access(self, name: str) -> Ensemble:
        if name not in self._rows:
            rows = {row.name: row for row in self._configuration.rows(ENSEMBLES)}
            if name not in rows:
                known = ", ".join(rows) or "none"
                raise ConfigurationError(
                    f"there is no {name!r}; there are {known}", table=ENSEMBLES
                )
            settings = EnsembleConfiguration(self._configuration, rows[name].settings, self._host)
            self._rows[name] = access_ensemble(rows[name], settings)
        return self._rows[name]

    def _is_required(self, name: str) -> bool:
        row = self._configuration.tree.get(ENSEMBLES, {}).get(name, {})
        return row.get("required") is True


async def _open(ensemble: Ensemble) -> VibeLlmsError | None:
    try:
        await ensemble.open()
    except VibeLlmsError as error:
        return error
    return None
