"""Tools with effects, and a model that calls them: `module = "tests.server.bank"` in their rows.

Each appends the call that it runs to a file, so that a test counts its effects.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from vibe_llms.conversations.hosts import EnsembleConfiguration, register_ensemble
from vibe_llms.ensembles.functions import FunctionEnsemble
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.messages.canisters import AssistantCanister, Canister, InvocationCanister
from vibe_llms.providers.registry import register as register_provider
from vibe_llms.providers.scripted.client import ScriptedClient, ScriptedModel, ScriptedProvider
from vibe_llms.providers.scripted.scripts import ScriptedReply, read_script


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


class TellerClient(ScriptedClient):
    """Scripts whose reply depends on the history alone, whichever process asks, and how often."""

    async def access_model(self, name: str) -> ScriptedModel:
        """The model of a script."""
        script = await asyncio.to_thread(read_script, self._scripts[name])

        def choose(canisters: Sequence[Canister], _: Sequence[Invoker]) -> ScriptedReply:
            kinds = (AssistantCanister, InvocationCanister)
            answered = {one.reply for one in canisters if isinstance(one, kinds)}
            return script.choose("", len(answered))

        return ScriptedModel(self, name, choose)


class Teller(ScriptedProvider):
    """A row with such scripts."""

    def produce_client(self) -> TellerClient:
        """A new client; the caller closes it."""
        return TellerClient(
            self.name,
            self.event_handler,
            stream=self.stream,
            scripts=self.scripts,
            pace_seconds=self.pace_seconds,
        )


register_ensemble("bank", produce_bank)
register_provider("teller", Teller)
