"""Fits the controls of a client to the model that answers.

A thinking budget becomes an effort for a model that has no budgets, and an effort a budget for one
that has no efforts. A control that the model has no equal for is left out and named. A value that
no model takes is still refused. See adr/0092.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from msgspec.structs import replace

from vibe_llms.controls import ControlRange, Controls
from vibe_llms.exceptions import ControlInvalid
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import Model, as_inquiring
from vibe_llms.server.omissions import Omissions

#: Thinking budgets in tokens by efforts, in ascending order.
_BUDGETS = {
    "none": 0,
    "minimal": 1_024,
    "low": 4_096,
    "medium": 16_384,
    "high": 32_768,
    "xhigh": 49_152,
    "max": 65_536,
}
_EFFORTS = (*_BUDGETS,)
#: Efforts of models of which nothing is known.
_COMMON = ("low", "medium", "high")
#: The smallest budget with which a model thinks at all.
_LEAST_BUDGET = 1_024
_THINKING = ("effort", "reasoning-tokens")
#: An effort and a thinking budget.
_Thinking: TypeAlias = tuple[str | None, int | None]


async def fit_controls(model: Model, controls: Controls, omissions: Omissions) -> Controls:
    """Return the controls that a model takes; `omissions` names those that it does not take.

    Raises:
        ControlInvalid: A value is wrong, such as a temperature out of range.
    """
    if (inquiring := as_inquiring(model)) is not None:
        await inquiring.inquire((), Controls())
    controls = _fit_thinking(model, controls, omissions)
    while True:
        try:
            model.check((), controls)
        except ControlInvalid as error:
            name = error.control
            left_out = error.unsupported or name == "service-tier"
            if name not in controls.given() or not left_out:
                raise
            if name != "response-schema":
                # A schema is asked for in words instead.
                omissions.add("control", name)
            controls = replace(controls, **{name.replace("-", "_"): None})
        else:
            return controls


def _fit_thinking(model: Model, controls: Controls, omissions: Omissions) -> Controls:
    asked = (controls.effort, controls.reasoning_tokens)
    if asked == (None, None):
        return controls
    refused: ControlInvalid | None = None
    for effort, budget in _survey_thinking(controls, model.attributes):
        fitted = replace(controls, effort=effort, reasoning_tokens=budget)
        try:
            model.check((), replace(fitted, response_schema=None, service_tier=None))
        except ControlInvalid as error:
            if error.control in _THINKING:
                refused = refused or error
                continue
        if asked != (effort, budget):
            omissions.add("control", _describe(asked, (effort, budget)))
        return fitted
    assert refused is not None
    raise refused


def _survey_thinking(controls: Controls, attributes: ModelAttributes) -> Iterator[_Thinking]:
    """Yield what may be sent of an effort and a budget, the nearest to what was asked first."""
    effort, budget = controls.effort, controls.reasoning_tokens
    yield effort, budget
    if effort is None:
        if budget is not None:
            yield _find_effort(budget, attributes), None
        yield None, None
        return
    if budget is not None:
        yield effort, None
    if effort not in _BUDGETS and attributes.takes("effort"):
        # The word is wrong.
        return
    if effort == "none" and attributes.controls is not None:
        yield None, 0
    if attributes.takes("effort"):
        yield _find_nearest(effort, _range(attributes, "effort").choices or _COMMON), None
    if budget is not None:
        yield None, budget
    yield None, _find_budget(effort, controls, attributes)
    yield None, None


def _describe(asked: _Thinking, sent: _Thinking) -> str:
    """Return the control that was changed, and what it became: `reasoning-tokens/effort:low`."""
    changed = [
        name for name, one, other in zip(_THINKING, asked, sent, strict=True) if one != other
    ]
    became = [
        f"{name}:{other}"
        for name, one, other in zip(_THINKING, asked, sent, strict=True)
        if other is not None and one != other
    ]
    given = [name for name, one in zip(_THINKING, asked, strict=True) if one is not None]
    return "/".join([next(one for one in changed if one in given), *became])


def _range(attributes: ModelAttributes, name: str) -> ControlRange:
    return (attributes.controls or {}).get(name, ControlRange())


def _find_effort(budget: int, attributes: ModelAttributes) -> str | None:
    """Return the effort for a thinking budget, if the model takes efforts."""
    if not attributes.takes("effort"):
        return None
    choices = _range(attributes, "effort").choices or _COMMON
    if budget <= 0:
        return "none" if "none" in choices else None
    wanted = next((one for one in _EFFORTS if _BUDGETS[one] >= budget), "max")
    return _find_nearest(wanted, choices)


def _find_nearest(effort: str, choices: tuple[str, ...]) -> str | None:
    """Return the choice that is nearest to an effort, the smaller one of two."""
    known = [one for one in _EFFORTS if one in choices and (one != "none" or effort == "none")]
    place = _EFFORTS.index(effort)
    return min(known, key=lambda one: abs(_EFFORTS.index(one) - place), default=None)


def _find_budget(effort: str, controls: Controls, attributes: ModelAttributes) -> int | None:
    """Return the thinking budget for an effort, if the model takes budgets of that size."""
    budget = _BUDGETS.get(effort, 0)
    if attributes.controls is None or not attributes.takes("reasoning-tokens") or not budget:
        return None
    bounds = _range(attributes, "reasoning-tokens")
    if controls.output_tokens is not None:
        # The rest is for the answer.
        budget = min(budget, controls.output_tokens * 4 // 5)
    if bounds.maximum is not None:
        budget = min(budget, int(bounds.maximum))
    return budget if budget >= max(_LEAST_BUDGET, bounds.minimum or 0) else None
