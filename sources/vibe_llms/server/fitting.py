"""Adjustment of a client's controls to the model that answers.

For a model without thinking budgets, a budget becomes an effort; for one without efforts, an effort
becomes a budget. Controls without an equivalent are left out and named. Values that no model
accepts are still refused. See adr/0092.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from msgspec.structs import replace

from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.messages.controls import ControlRange, Controls
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import Model, as_inquiring
from vibe_llms.server.omissions import Omissions

#: Thinking budgets in tokens by effort, in ascending order.
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
#: Efforts assumed for models without known choices.
_COMMON_EFFORTS = ("low", "medium", "high")
#: Smallest budget, in tokens, with which models think.
_LEAST_BUDGET = 1_024
_THINKING = ("effort", "reasoning-tokens")
#: An effort and a thinking budget.
_Thinking: TypeAlias = tuple[str | None, int | None]


async def fit_controls(model: Model, controls: Controls, omissions: Omissions) -> Controls:
    """Return the controls that a model accepts, and add the others to `omissions`.

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
                # The schema is requested in words instead.
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
    """Yield possible efforts and budgets, closest to the request first."""
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
        # An unknown effort.
        return
    if effort == "none" and attributes.controls is not None:
        yield None, 0
    if attributes.takes("effort"):
        yield _find_nearest(effort, _range(attributes, "effort").choices or _COMMON_EFFORTS), None
    if budget is not None:
        yield None, budget
    yield None, _find_budget(effort, controls, attributes)
    yield None, None


def _describe(asked: _Thinking, sent: _Thinking) -> str:
    """Return the changed control and its replacement, such as `reasoning-tokens/effort:low`."""
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
    """Return the effort for a thinking budget, or None if the model has no efforts."""
    if not attributes.takes("effort"):
        return None
    choices = _range(attributes, "effort").choices or _COMMON_EFFORTS
    if budget <= 0:
        return "none" if "none" in choices else None
    wanted = next((one for one in _EFFORTS if _BUDGETS[one] >= budget), "max")
    return _find_nearest(wanted, choices)


def _find_nearest(effort: str, choices: tuple[str, ...]) -> str | None:
    """Return the choice closest to an effort, preferring the smaller one."""
    known = [one for one in _EFFORTS if one in choices and (one != "none" or effort == "none")]
    place = _EFFORTS.index(effort)
    return min(known, key=lambda one: abs(_EFFORTS.index(one) - place), default=None)


def _find_budget(effort: str, controls: Controls, attributes: ModelAttributes) -> int | None:
    """Return the thinking budget for an effort, or None if the model has no such budgets."""
    budget = _BUDGETS.get(effort, 0)
    if attributes.controls is None or not attributes.takes("reasoning-tokens") or not budget:
        return None
    bounds = _range(attributes, "reasoning-tokens")
    if controls.output_tokens is not None:
        # The rest is reserved for the answer.
        budget = min(budget, controls.output_tokens * 4 // 5)
    if bounds.maximum is not None:
        budget = min(budget, int(bounds.maximum))
    return budget if budget >= max(_LEAST_BUDGET, bounds.minimum or 0) else None
