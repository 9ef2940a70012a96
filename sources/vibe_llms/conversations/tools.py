"""The tools of a conversation: its own, those of its ensembles, and which of them are withheld."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.ensembles.interfaces import Ensemble, InstructingEnsemble
from vibe_llms.exceptions import RequestError
from vibe_llms.invocation.invokers import Invoker, gather_invokers

Tool: TypeAlias = Invoker | Callable[..., Any]
#: Gives the tools of an ensemble as they may be called.
Survey: TypeAlias = Callable[[Ensemble], Sequence[Invoker]]
#: Opens an ensemble by the name of its row.
Opening: TypeAlias = Callable[[str], Awaitable[Sequence[Ensemble]]]


class Toolbox(Struct, frozen=True):
    """What may be offered to the model, and what is; a change makes a new one."""

    survey: Survey = lambda ensemble: ensemble.invokers
    own: tuple[Invoker, ...] = ()
    ensembles: tuple[Ensemble, ...] = ()
    withheld: frozenset[str] = frozenset()

    @property
    def every(self) -> Mapping[str, Invoker]:
        """All tools, withheld or not."""
        return gather_invokers([*self.own, *chain.from_iterable(map(self.survey, self.ensembles))])

    @property
    def offered(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers to the model."""
        every = self.every.items()
        return {name: one for name, one in every if not self.withheld & {name, one.ensemble}}

    def withhold(self, name: str) -> Toolbox:
        """No longer offer a tool, or all tools of an ensemble; `RequestError` for another name."""
        if name not in self._ensemble_names and name not in self.every:
            raise RequestError(self._unknown(name))
        return replace(self, withheld=self.withheld | {name})

    async def offer(self, name: str, open_row: Opening) -> Toolbox:
        """Offer a tool or an ensemble that was withheld, or one that is opened for it."""
        every = self.every
        if (tool := every.get(name)) is not None:
            withheld = self.withheld
            if tool.ensemble in withheld:
                # Its ensemble is withheld as a whole: the others of it stay so.
                withheld |= {key for key, one in every.items() if one.ensemble == tool.ensemble}
            return replace(self, withheld=withheld - {name, tool.ensemble})
        if name in self._ensemble_names:
            members = {key for key, one in every.items() if one.ensemble == name}
            return replace(self, withheld=self.withheld - members - {name})
        if "/" in name:
            raise RequestError(self._unknown(name))
        return replace(self, ensembles=(*self.ensembles, *await open_row(name)))

    def instruct(self, tools: Iterable[Invoker]) -> Sequence[str]:
        """The instructions of the ensembles that some tools belong to."""
        offered = {tool.ensemble for tool in tools}
        return [
            one.instructions
            for one in self.ensembles
            if one.name in offered and isinstance(one, InstructingEnsemble) and one.instructions
        ]

    @property
    def _ensemble_names(self) -> set[str]:
        return {one.name for one in self.ensembles}

    def _unknown(self, name: str) -> str:
        known = ", ".join([*sorted(self._ensemble_names), *self.every]) or "none"
        return f"there is no tool or ensemble {name!r} here; there are {known}"
