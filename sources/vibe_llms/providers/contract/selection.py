"""Decides how tools are offered: by the model's own calls, by the contract, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.configuration import ToolMode
from vibe_llms.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.providers.interfaces import Model


def settle_tools(
    model: Model, invokers: Sequence[Invoker], mode: ToolMode, *, asked: bool = False
) -> tuple[Model, Sequence[Invoker]]:
    """The model to ask and the tools to offer it, for a mode.

    `ControlInvalid` if native calls are `asked` for and the model has none. If only the
    configuration wants them, the provider reports that no tools are offered.
    """
    if mode == "off" or not invokers:
        return model, ()
    own = model.attributes.tools
    if mode == "native" and own != "native" and asked:
        raise ControlInvalid(
            f"{model.provider}/{model.name} has no tool calls of its own; "
            "use the tool mode auto or contract",
            control="tool-mode",
            model=model.name,
        )
    if mode == "contract" or (mode == "auto" and own == "contract"):
        # Most conversations never need it, and every start would pay for it.
        from vibe_llms.providers.contract.model import ContractModel

        return ContractModel(model), invokers
    return model, invokers
