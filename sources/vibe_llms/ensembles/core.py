"""The registry of ensembles, and those of a session: opened when first named, closed with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from vibe_llms.configuration import Configuration
from vibe_llms.ensembles.interfaces import Ensemble, EnsembleConfiguration, EnsembleFactory
from vibe_llms.exceptions import ConfigurationError, EnsembleFailed
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

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._held: dict[str, Ensemble] = {}

    async def open(
        self, named: Iterable[str | Ensemble], tell: Callable[[str], None]
    ) -> Sequence[Ensemble]:
        """Ensembles by the names of their rows, or as they are; all opened at the same time.

        One that cannot be opened is told and left out, unless its row says that it is `required`.
        """
        wanted = [self._access(one) if isinstance(one, str) else one for one in named]
        failures = await asyncio.gather(*map(_open, wanted))
        opened: list[Ensemble] = []
        for one, failure in zip(wanted, failures, strict=True):
            if failure is None:
                self._held[one.name] = one
                opened.append(one)
            elif self._is_required(one.name):
                raise failure
            else:
                tell(f"{failure}; its tools are left out")
        return opened

    async def close(self) -> None:
        """Close all of them at the same time; safe to call twice."""
        held, self._held = self._held, {}
        await asyncio.gather(*(one.close() for one in held.values()))

    def _access(self, name: str) -> Ensemble:
        if name not in self._held:
            rows = {row.name: row for row in self._configuration.rows(ENSEMBLES)}
            if name not in rows:
                known = ", ".join(rows) or "none"
                raise ConfigurationError(
                    f"there is no {name!r}; there are {known}", table=ENSEMBLES
                )
            settings = EnsembleConfiguration(self._configuration, rows[name].settings)
            self._held[name] = access_ensemble(rows[name], settings)
        return self._held[name]

    def _is_required(self, name: str) -> bool:
        row = self._configuration.tree.get(ENSEMBLES, {}).get(name, {})
        return row.get("required") is True


async def _open(ensemble: Ensemble) -> EnsembleFailed | None:
    try:
        await ensemble.open()
    except EnsembleFailed as error:
        return error
    return None
