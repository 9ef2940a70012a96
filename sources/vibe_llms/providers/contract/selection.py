"""Choice of how tools are offered: natively, by the contract, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.base.configuration import ToolMode
from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.providers.interfaces import Model


def settle_tools(
    model: Model, invokers: Sequence[Invoker], mode: ToolMode, *, asked: bool = False
) -> tuple[Model, Sequence[Invoker]]:
    """Return the model to use and the tools to offer it in a mode.

    Raise `ControlInvalid` if native calls are `asked` for and the model has none. If only the
    configuration wants them, the provider reports that no tools are offered.
    """
    if mode == "off" or not invokers:
        return model, ()
    own = model.attributes.tools
    if mode == "native" and own != "native" and asked:
        raise ControlInvalid(
            f"{model.provider}/{model.name} does not support native tool calls; "
            "set the tool mode to auto or contract",
            control="tool-mode",
            model=model.name,
        )
    if mode == "contract" or (mode == "auto" and own == "contract"):
        # Imported here: most conversations never need it, and it would slow every start.
        from vibe_llms.providers.contract.model import ContractModel

        return ContractModel(model), invokers
    return model, invokers
