"""A tool with which a model asks the user; in a run it waits for the answer and holds nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vibe_llms.ensembles.core import ENSEMBLES, register
from vibe_llms.ensembles.interfaces import EnsembleConfiguration, EnsembleRules
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.questions import ElicitationField, ElicitationRequest

_ANSWER = "answer"


class UserEnsemble:
    """The tool `ask`."""

    def __init__(self, name: str, configuration: EnsembleConfiguration) -> None:
        self._name = name
        self._rules = configuration.configuration.read(
            EnsembleRules, configuration.settings, ENSEMBLES, name
        )
        self._invokers: tuple[Invoker, ...] = ()

    @property
    def name(self) -> str:
        """The name of its row."""
        return self._name

    @property
    def invokers(self) -> Sequence[Invoker]:
        """The tool, once it is open."""
        return self._invokers

    async def open(self) -> None:
        """Offer the tool."""
        tool = Invoker.from_function(_ask, name=f"{self._name}/ask")
        tool = msgspec.structs.replace(tool, ensemble=self._name, question=_produce_question)
        self._invokers = (self._rules.settle(tool, reads_only=True),)

    async def close(self) -> None:
        """Offer nothing."""
        self._invokers = ()


def _ask(question: str, choices: Sequence[str] = ()) -> str:
    """Ask the user a question, and get the answer.

    Ask only for what you need to continue and cannot find out otherwise.

    Args:
        question: The question, with all that the user needs to know to answer it.
        choices: The possible answers; leave it out for an answer in the user's own words.
    """
    raise NotImplementedError("the answer is asked for in its place")


def _produce_question(arguments: Mapping[str, Any]) -> ElicitationRequest:
    choices = [one for one in dict.fromkeys(arguments.get("choices") or ()) if one]
    field = ElicitationField(
        name=_ANSWER,
        kind="choice" if choices else "text",
        required=True,
        choices=tuple((one, one) for one in choices),
    )
    return ElicitationRequest(
        ensemble="the model", message=str(arguments["question"]), fields=(field,)
    )


register("user", UserEnsemble)
