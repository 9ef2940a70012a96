"""The ensembles of a session: opened when first named, closed with the session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import (
    ConfigurationError,
    CredentialMissing,
    EnsembleFailed,
    PackageMissing,
    VibeLlmsError,
)
from vibe_llms.conversations.hosts import (
    ENSEMBLES,
    EnsembleConfiguration,
    EnsembleHost,
    access_ensemble,
)
from vibe_llms.invocation.ensembles import Ensemble, OutsideEnsemble, RecallingEnsemble
from vibe_llms.invocation.invokers import Invoker

if TYPE_CHECKING:
    from vibe_llms.ensembles.pins import PinGuard


class EnsembleStatus(Struct, frozen=True):
    """State of a row: its tools, or the `failure` of opening it.

    It is `known` if its tools are; their first call may have to start it. `details` are facts about
    a server that has been started.
    """

    name: str
    known: bool
    outside: bool = False
    details: Mapping[str, str] = {}
    invokers: Sequence[Invoker] = ()
    failure: VibeLlmsError | None = None


class Ensembles:
    """The ensembles of a session, by the names of their rows."""

    def __init__(self, configuration: Configuration, host: EnsembleHost = EnsembleHost()) -> None:
        self._configuration = configuration
        self._host = msgspec.structs.replace(host, open_tools=self.open_tools)
        self._rows: dict[str, Ensemble] = {}
        self._opened: list[Ensemble] = []
        self._guards: dict[Ensemble, PinGuard] = {}

    async def open(
        self, named: Iterable[str | Ensemble], notify: Callable[[str], None]
    ) -> Sequence[Ensemble]:
        """Open ensembles at the same time, given as names of rows or as objects.

        An ensemble that remembers its tools is opened by the first call. One that cannot be opened
        is reported and omitted, unless its row says that it is `required`. Configuration errors are
        raised after all ensembles have finished opening.
        """
        wanted = dict.fromkeys(self._access(one) if isinstance(one, str) else one for one in named)
        failures = await self._open_all(wanted, recall=True)
        opened: list[Ensemble] = []
        for one, failure in zip(wanted, failures, strict=True):
            if failure is None:
                opened.append(one)
            elif not isinstance(failure, EnsembleFailed) or self._is_required(one.name):
                raise failure
            else:
                notify(f"{failure}; its tools are left out")
        return opened

    async def open_available(
        self, names: Iterable[str], notify: Callable[[str], None]
    ) -> Sequence[Ensemble]:
        """Open the ensembles of rows, and omit those that lack a package or a key.

        Other failures are reported as in `open`.
        """
        found = await self.attempt(dict.fromkeys(names), recall=True)
        missing = {
            name
            for name, one in found.items()
            if isinstance(one, PackageMissing | CredentialMissing)
        }
        return await self.open([name for name in found if name not in missing], notify)

    async def attempt(
        self, names: Iterable[str], *, recall: bool = False
    ) -> Mapping[str, Ensemble | VibeLlmsError]:
        """Open ensembles by the names of their rows; return each one, or the error.

        With `recall`, an ensemble that remembers its tools is opened by the first call.
        """
        found: dict[str, Ensemble | VibeLlmsError] = {}
        for name in names:
            try:
                found[name] = self._access(name)
            except VibeLlmsError as error:
                found[name] = error
        wanted = [one for one in found.values() if not isinstance(one, VibeLlmsError)]
        failures = await self._open_all(wanted, recall=recall)
        for one, failure in zip(wanted, failures, strict=True):
            if failure is not None:
                found[one.name] = failure
        return found

    async def inspect(
        self, names: Iterable[str], *, start: bool = False
    ) -> Sequence[EnsembleStatus]:
        """Return the states of rows. With `start`, open those that are not open.

        Otherwise modules are imported, and no server is started or asked.
        """
        found: Mapping[str, Ensemble | VibeLlmsError]
        found = await self.attempt(names) if start else {one: self._recall(one) for one in names}
        return [
            EnsembleStatus(name, known=False, failure=one)
            if isinstance(one, VibeLlmsError)
            else EnsembleStatus(
                name,
                known=start or bool(one.invokers),
                outside=isinstance(one, OutsideEnsemble),
                details=one.details if isinstance(one, OutsideEnsemble) else {},
                invokers=self.survey_invokers(one),
            )
            for name, one in found.items()
        ]

    def _recall(self, name: str) -> Ensemble | VibeLlmsError:
        """Return an ensemble, with the tools that it remembers, or the error."""
        try:
            ensemble = self._access(name)
            if not ensemble.invokers and isinstance(ensemble, RecallingEnsemble):
                ensemble.recall()
        except VibeLlmsError as error:
            return error
        return ensemble

    def survey_names(self, *, shipped: bool = False) -> Sequence[str]:
        """Return the names of the rows that can be opened.

        `shipped` includes the rows that the user's file does not mention; these are off by default.
        """
        return [
            row.name
            for row in self._configuration.rows(ENSEMBLES)
            if shipped or self._configuration.is_of_the_user(ENSEMBLES, row.name)
        ]

    def survey_invokers(self, ensemble: Ensemble) -> Sequence[Invoker]:
        """Return an ensemble's current tools; those changed since their approval are blocked."""
        guard = self.guard(ensemble)
        return ensemble.invokers if guard is None else guard.invokers

    def guard(self, ensemble: Ensemble) -> PinGuard | None:
        """Return the guard that compares an ensemble's tools with the approved ones.

        None if this program describes the tools itself, or the row says `pin-tools = false`.
        """
        if ensemble not in self._guards:
            unpinned = self._row(ensemble.name).get("pin-tools") is False
            if unpinned or not isinstance(ensemble, OutsideEnsemble):
                return None
            from vibe_llms.ensembles.pins import PinGuard

            self._guards[ensemble] = PinGuard(ensemble, self._configuration.places.state)
        return self._guards[ensemble]

    async def open_one(self, name: str) -> Ensemble:
        """Open the ensemble of a row; raise an error if it cannot be opened."""
        ensemble = self._access(name)
        (failure,) = await self._open_all([ensemble])
        if failure is not None:
            raise failure
        return ensemble

    async def open_tools(self, name: str) -> Sequence[Invoker]:
        """Open the ensemble of a row, and return its tools; changed ones are blocked."""
        return self.survey_invokers(await self.open_one(name))

    async def close(self) -> None:
        """Close all ensembles at the same time; safe to call twice."""
        opened, self._opened, self._rows, self._guards = self._opened, [], {}, {}
        await asyncio.gather(*(one.close() for one in opened))

    async def _open_all(
        self, wanted: Collection[Ensemble], *, recall: bool = False
    ) -> Sequence[VibeLlmsError | None]:
        """Open ensembles at the same time; return an error or None for each."""
        if not wanted:
            return ()
        # An ensemble that failed may still have something to close.
        self._opened += [one for one in wanted if one not in self._opened]
        return await asyncio.gather(
            *(_open(one, recall=recall and not self._is_required(one.name)) for one in wanted)
        )

    def _access(self, name: str) -> Ensemble:
        if name not in self._rows:
            rows = {row.name: row for row in self._configuration.rows(ENSEMBLES)}
            if name not in rows:
                known = ", ".join(rows) or "none"
                raise ConfigurationError(
                    f"ensemble {name!r} not found; known ensembles: {known}", table=ENSEMBLES
                )
            settings = EnsembleConfiguration(self._configuration, rows[name].settings, self._host)
            self._rows[name] = access_ensemble(rows[name], settings)
        return self._rows[name]

    def is_row(self, ensemble: Ensemble) -> bool:
        """Return True if an ensemble was opened by the name of its row."""
        return self._rows.get(ensemble.name) is ensemble

    def _is_required(self, name: str) -> bool:
        return self._row(name).get("required") is True

    def _row(self, name: str) -> Mapping[str, Any]:
        row: Mapping[str, Any] = self._configuration.tree.get(ENSEMBLES, {}).get(name, {})
        return row


async def _open(ensemble: Ensemble, *, recall: bool) -> VibeLlmsError | None:
    try:
        if not (recall and isinstance(ensemble, RecallingEnsemble) and ensemble.recall()):
            await ensemble.open()
    except VibeLlmsError as error:
        return error
    return None
