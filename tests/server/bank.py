"""Tools with effects, as an ensemble that a row of a server names: `module = "tests.server.bank"`.

Each appends the call that it runs to a file, so that a test counts its effects.
"""

from __future__ import annotations

import asyncio
import os

from vibe_llms.ensembles.core import register
from vibe_llms.ensembles.functions import FunctionEnsemble
from vibe_llms.ensembles.interfaces import EnsembleConfiguration
from vibe_llms.invocation.invokers import InvocationContext


def produce_bank(name: str, configuration: EnsembleConfiguration) -> FunctionEnsemble:
    """The tools of a bank; `effects` is the path of the file. They take some time."""
    tools, path = FunctionEnsemble(name), configuration.settings["effects"]

    async def have_effect(context: InvocationContext) -> None:
        await asyncio.sleep(0.02)
        effect = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(effect, f"{context.invocation.identity}\n".encode())
        os.close(effect)
        await asyncio.sleep(0.02)

    @tools.register()
    async def transfer(context: InvocationContext, sum: int) -> str:  # noqa: A002
        """Transfer a sum."""
        await have_effect(context)
        return f"sent {sum}"

    @tools.register(approval="ask")
    async def withdraw(context: InvocationContext, sum: int) -> str:  # noqa: A002
        """Withdraw a sum."""
        await have_effect(context)
        return f"withdrew {sum}"

    return tools


register("bank", produce_bank)
