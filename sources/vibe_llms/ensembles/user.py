"""A tool with which a model asks the user; a run that waits for the answer uses no resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vibe_llms.conversations.hosts import ENSEMBLES, EnsembleConfiguration, register_ensemble
from vibe_llms.invocation.ensembles import EnsembleRules
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.questions import ElicitationField, ElicitationRequest

_ANSWER = "answer"


class UserEnsemble:
    """An ensemble with one tool, `ask`."""

    def __init__(self, name: str, configuration: EnsembleConfiguration) -> None:
        self._name = name
        self._rules = configuration.configuration.read(
            EnsembleRules, configuration.settings, ENSEMBLES, name
        )
        self._invokers: tuple[Invoker, ...] = ()

    @property
    def name(self) -> str:
        """Name of its row."""
        return self._name

    @property
    def invokers(self) -> Sequence[Invoker]:
        """Tool `ask`, once it is open."""
        return self._invokers

    async def open(self) -> None:
        """Offer the tool."""
        tool = Invoker.from_function(_ask, name=f"{self._name}/ask")
        tool = msgspec.structs.replace(tool, ensemble=self._name, question=_produce_question)
        self._invokers = (self._rules.apply(tool, reads_only=True),)

    async def close(self) -> None:
        """Stop offering the tool."""
        self._invokers = ()


def _ask(question: str, choices: Sequence[str] = ()) -> str:
    """Ask the user a question, and get the answer.

    Ask only for what you need to continue and cannot find out otherwise.

    Args:
        question: The question, with all that the user needs to know to answer it.
        choices: The possible answers; leave it out for an answer in the user's own words.
    """
    raise NotImplementedError("the user answers in place of this function")


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


register_ensemble("user", UserEnsemble)
