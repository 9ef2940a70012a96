"""Controls of a client as the model that answers takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.controls import ControlRange, Controls
from vibe_llms.providers.attributes import ModelAttributes, settle_controls
from vibe_llms.providers.interfaces import Model
from vibe_llms.server.fitting import fit_controls
from vibe_llms.server.omissions import Omissions

LEVELS = ControlRange(choices=("low", "medium", "high"))
BUDGET = ControlRange(minimum=0, maximum=60_000)


class Taking:
    """A model that takes the controls of its attributes."""

    def __init__(self, controls: Mapping[str, ControlRange] | None) -> None:
        self.attributes = ModelAttributes(controls=controls)

    def check(self, canisters: Sequence[Canister], controls: Controls) -> None:
        """Refuse what the attributes do not have; budgets are for models that are known."""
        settle_controls(controls, Controls(), self.attributes, "m")
        if self.attributes.controls is None and controls.reasoning_tokens is not None:
            raise ControlInvalid("no budget", control="reasoning-tokens", unsupported=True)


async def fit(taken: Mapping[str, ControlRange] | None, **asked: Any) -> tuple[dict[str, Any], str]:
    omissions = Omissions()
    model = cast("Model", Taking(taken))
    fitted = await fit_controls(model, Controls(**asked), omissions)
    return fitted.given(), str(omissions)


@pytest.mark.parametrize(
    ("taken", "asked", "sent", "named"),
    [
        # A budget becomes an effort.
        ({"effort": LEVELS}, {"reasoning_tokens": 1_024}, {"effort": "low"}, "effort:low"),
        ({"effort": LEVELS}, {"reasoning_tokens": 10_000}, {"effort": "medium"}, "effort:medium"),
        ({"effort": LEVELS}, {"reasoning_tokens": 90_000}, {"effort": "high"}, "effort:high"),
        (None, {"reasoning_tokens": 4_000}, {"effort": "low"}, "effort:low"),
        ({"effort": LEVELS}, {"reasoning_tokens": 0}, {}, "reasoning-tokens"),
        (
            {"effort": ControlRange(choices=("none", "low"))},
            {"reasoning_tokens": 0},
            {"effort": "none"},
            "effort:none",
        ),
        # The effort that was asked for besides is kept.
        (
            {"effort": LEVELS},
            {"reasoning_tokens": 1_024, "effort": "high"},
            {"effort": "high"},
            "reasoning-tokens",
        ),
        # An effort becomes a budget, which leaves room for the answer.
        (
            {"reasoning-tokens": BUDGET},
            {"effort": "medium"},
            {"reasoning-tokens": 16_384},
            "effort/reasoning-tokens:16384",
        ),
        (
            {"reasoning-tokens": BUDGET, "output-tokens": ControlRange()},
            {"effort": "high", "output_tokens": 10_000},
            {"reasoning-tokens": 8_000, "output-tokens": 10_000},
            "reasoning-tokens:8000",
        ),
        (
            {"reasoning-tokens": BUDGET, "output-tokens": ControlRange()},
            {"effort": "high", "output_tokens": 1_000},
            {"output-tokens": 1_000},
            "effort",
        ),
        ({"reasoning-tokens": BUDGET}, {"effort": "max"}, {"reasoning-tokens": 60_000}, ":60000"),
        ({"reasoning-tokens": BUDGET}, {"effort": "none"}, {"reasoning-tokens": 0}, ":0"),
        # An effort becomes the nearest one.
        ({"effort": LEVELS}, {"effort": "max"}, {"effort": "high"}, "effort/effort:high"),
        ({"effort": LEVELS}, {"effort": "minimal"}, {"effort": "low"}, "effort/effort:low"),
        # There is nothing to take either.
        ({}, {"effort": "high", "reasoning_tokens": 2_000}, {}, "effort"),
        # Another control is left out, and a schema is asked for in words.
        ({"top-p": ControlRange()}, {"top_p": 0.5, "seed": 1}, {"top-p": 0.5}, "control seed"),
        ({}, {"response_schema": {"type": "object"}}, {}, ""),
        ({"service-tier": LEVELS}, {"service_tier": "standard_only"}, {}, "control service-tier"),
        # What is taken stays as it is.
        (None, {"effort": "ultra", "top_k": 5}, {"effort": "ultra", "top-k": 5}, ""),
        (
            {"effort": LEVELS, "reasoning-tokens": BUDGET},
            {"effort": "low", "reasoning_tokens": 5},
            {"effort": "low", "reasoning-tokens": 5},
            "",
        ),
    ],
)
async def test_a_control_is_sent_as_what_the_model_takes(
    taken: Mapping[str, ControlRange] | None,
    asked: dict[str, Any],
    sent: dict[str, Any],
    named: str,
) -> None:
    given, omitted = await fit(taken, **asked)
    assert given == sent
    assert named in omitted
    assert bool(named) == bool(omitted)


@pytest.mark.parametrize(
    ("asked", "control"),
    [({"temperature": 9.0}, "temperature"), ({"effort": "a lot"}, "effort")],
)
async def test_a_value_that_no_model_takes_is_refused(asked: dict[str, Any], control: str) -> None:
    taken = {"temperature": ControlRange(maximum=2), "effort": LEVELS}
    with pytest.raises(ControlInvalid) as caught:
        await fit(taken, **asked)
    assert caught.value.control == control
