"""The tools of a conversation: its own, those of its ensembles, and which of them are withheld."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from vibe_llms.ensembles.interfaces import Ensemble, InstructingEnsemble
from vibe_llms.exceptions import RequestError
from vibe_llms.invocation.invokers import Invoker, gather_invokers

Tool: TypeAlias = Invoker | Callable[..., Any]
#: Gives the tools of an ensemble as they may be called.
Survey: TypeAlias = Callable[[Ensemble], Sequence[Invoker]]
#: Opens an ensemble by the name of its row.
Opening: TypeAlias = Callable[[str], Awaitable[Sequence[Ensemble]]]


class Toolbox:
    """What may be offered to the model, and what is."""

    def __init__(
        self,
        invokers: Iterable[Tool],
        ensembles: Sequence[Ensemble],
        *,
        survey: Survey,
        withheld: Iterable[str] = (),
    ) -> None:
        self._own = gather_invokers(invokers)
        self.ensembles = tuple(ensembles)
        self._survey = survey
        self._withheld = set(withheld)

    @property
    def every(self) -> Mapping[str, Invoker]:
        """All tools, withheld or not."""
        found = chain.from_iterable(map(self._survey, self.ensembles))
        return gather_invokers([*self._own.values(), *found])

    @property
    def offered(self) -> Mapping[str, Invoker]:
        """The tools that the next turn offers to the model."""
        every = self.every
        return {name: one for name, one in every.items() if not self._withholds(one)}

    def withhold(self, name: str) -> None:
        """Offer a tool, or all tools of an ensemble, no more; `RequestError` for another name."""
        if name not in self._ensemble_names and name not in self.every:
            raise RequestError(self._unknown(name))
        self._withheld.add(name)

    async def offer(self, name: str, open_row: Opening) -> None:
        """Offer a tool or an ensemble that was withheld, or one that is opened for it."""
        every = self.every
        if name in every or name in self._ensemble_names:
            # A tool of an ensemble that is withheld as a whole: its others stay so.
            one = every.get(name)
            if one is not None and one.ensemble in self._withheld:
                self._withheld.discard(one.ensemble)
                self._withheld |= {key for key, o in every.items() if o.ensemble == one.ensemble}
            if one is None:
                self._withheld -= {key for key, o in every.items() if o.ensemble == name}
            self._withheld.discard(name)
            return
        if "/" in name:
            raise RequestError(self._unknown(name))
        self.ensembles = (*self.ensembles, *await open_row(name))

    def instruct(self, tools: Iterable[Invoker]) -> Sequence[str]:
        """What the ensembles of some tools tell the model."""
        offered = {tool.ensemble for tool in tools}
        return [
            one.instructions
            for one in self.ensembles
            if one.name in offered and isinstance(one, InstructingEnsemble) and one.instructions
        ]

    def copy(self) -> Toolbox:
        """The same tools for another conversation."""
        return Toolbox(
            self._own.values(), self.ensembles, survey=self._survey, withheld=self._withheld
        )

    @property
    def _ensemble_names(self) -> set[str]:
        return {one.name for one in self.ensembles}

    def _withholds(self, invoker: Invoker) -> bool:
        return bool(self._withheld & {invoker.name, invoker.ensemble})

    def _unknown(self, name: str) -> str:
        known = ", ".join([*sorted(self._ensemble_names), *self.every]) or "none"
        return f"there is no tool and no ensemble {name!r} here; there are {known}"
