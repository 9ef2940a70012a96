"""The tools of a conversation: its own, those of its ensembles, and the withheld ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.exceptions import RequestError
from vibe_llms.invocation.ensembles import Ensemble, InstructingEnsemble
from vibe_llms.invocation.invokers import Invoker, gather_invokers

Tool: TypeAlias = Invoker | Callable[..., Any]
#: Returns the tools of an ensemble in the form in which they may be called.
Survey: TypeAlias = Callable[[Ensemble], Sequence[Invoker]]
#: Opens an ensemble by the name of its row.
Opening: TypeAlias = Callable[[str], Awaitable[Sequence[Ensemble]]]


class Toolbox(Struct, frozen=True):
    """The tools of a conversation, offered and withheld; a change creates a new value."""

    survey: Survey = lambda ensemble: ensemble.invokers
    own: tuple[Invoker, ...] = ()
    ensembles: tuple[Ensemble, ...] = ()
    withheld: frozenset[str] = frozenset()

    @property
    def all_tools(self) -> Mapping[str, Invoker]:
        """All tools, withheld or not."""
        return gather_invokers([*self.own, *chain.from_iterable(map(self.survey, self.ensembles))])

    @property
    def offered(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers to the model."""
        tools = self.all_tools.items()
        return {name: one for name, one in tools if not self.withheld & {name, one.ensemble}}

    def withhold(self, name: str) -> Toolbox:
        """Withhold a tool or all tools of an ensemble; raises `RequestError` for other names."""
        if name not in self._ensemble_names and name not in self.all_tools:
            raise RequestError(self._unknown(name))
        return replace(self, withheld=self.withheld | {name})

    async def offer(self, name: str, open_row: Opening) -> Toolbox:
        """Offer a withheld tool or ensemble, or an ensemble that is opened for this."""
        tools = self.all_tools
        if (tool := tools.get(name)) is not None:
            withheld = self.withheld
            if tool.ensemble in withheld:
                # The whole ensemble is withheld: its other tools stay withheld.
                withheld |= {key for key, one in tools.items() if one.ensemble == tool.ensemble}
            return replace(self, withheld=withheld - {name, tool.ensemble})
        if name in self._ensemble_names:
            members = {key for key, one in tools.items() if one.ensemble == name}
            return replace(self, withheld=self.withheld - members - {name})
        if "/" in name:
            raise RequestError(self._unknown(name))
        return replace(self, ensembles=(*self.ensembles, *await open_row(name)))

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
