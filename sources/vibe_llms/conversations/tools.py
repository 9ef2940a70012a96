"""The tools of a conversation: its own, those of its ensembles, and the withheld ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.exceptions import RequestError
from vibe_llms.invocation.ensembles import Ensemble, InstructingEnsemble
from vibe_llms.invocation.invokers import Invoker, find_invoker, gather_invokers

Tool: TypeAlias = Invoker | Callable[..., Any]
#: Returns the tools of an ensemble in the form in which they may be called.
Survey: TypeAlias = Callable[[Ensemble], Sequence[Invoker]]
#: Opens an ensemble by the name of its row.
Opening: TypeAlias = Callable[[str], Awaitable[Sequence[Ensemble]]]


class Toolbox(Struct, frozen=True):
    """The tools of a conversation, offered and withheld; a change creates a new value.

    The tools that are `singled` out are offered although their ensemble is withheld.
    """

    survey: Survey = lambda ensemble: ensemble.invokers
    own: tuple[Invoker, ...] = ()
    ensembles: tuple[Ensemble, ...] = ()
    withheld: frozenset[str] = frozenset()
    singled: frozenset[str] = frozenset()

    @property
    def all_tools(self) -> Mapping[str, Invoker]:
        """All tools, withheld or not."""
        return gather_invokers([*self.own, *chain.from_iterable(map(self.survey, self.ensembles))])

    @property
    def offered(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers to the model."""
        return {
            name: one
            for name, one in self.all_tools.items()
            if name not in self.withheld
            and (one.ensemble not in self.withheld or name in self.singled)
        }

    def withhold(self, name: str) -> Toolbox:
        """Withhold a tool or all tools of an ensemble; raises `RequestError` for other names."""
        if name in self._ensemble_names:
            members = self._members(name)
        else:
            members = {name := self._find(name).name}
        return replace(self, withheld=self.withheld | {name}, singled=self.singled - members)

    async def offer(self, name: str, open_row: Opening) -> Toolbox:
        """Offer a withheld tool or ensemble, or an ensemble that is opened for this."""
        tools = self.all_tools
        if name in self._ensemble_names and name not in tools:
            return replace(self, withheld=self.withheld - self._members(name) - {name})
        if (tool := find_invoker(tools, name)) is not None:
            # If the whole ensemble is withheld, its other tools stay so.
            singled = self.singled | ({tool.name} if tool.ensemble in self.withheld else set())
            return replace(self, withheld=self.withheld - {tool.name}, singled=singled)
        if "/" in name:
            raise RequestError(self._unknown(name))
        return replace(self, ensembles=(*self.ensembles, *await open_row(name)))

    def single_out(self, names: Iterable[str]) -> Toolbox:
        """Offer of the ensembles of these tools only these; raises `RequestError` for others."""
        tools = [self._find(name) for name in names]
        return replace(
            self,
            withheld=self.withheld | {tool.ensemble for tool in tools},
            singled=self.singled | {tool.name for tool in tools},
        )

    def _members(self, ensemble: str) -> set[str]:
        return {name for name, one in self.all_tools.items() if one.ensemble == ensemble}

    def _find(self, name: str) -> Invoker:
        if (tool := find_invoker(self.all_tools, name)) is None:
            raise RequestError(self._unknown(name))
        return tool

    def instruct(self, tools: Iterable[Invoker]) -> Sequence[str]:
        """Return the instructions of the ensembles that these tools belong to."""
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
        known = ", ".join([*sorted(self._ensemble_names), *self.all_tools]) or "none"
        return f"tool or ensemble {name!r} not found; known: {known}"
