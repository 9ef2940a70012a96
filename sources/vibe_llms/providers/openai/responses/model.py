"""A model that speaks Responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from vibe_llms.base.exceptions import ProviderError
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.models import HttpProvider
from vibe_llms.providers.openai.client import OpenAIClient
from vibe_llms.providers.openai.model import OpenAIModel, OpenaiSettings, describe
from vibe_llms.providers.openai.responses.controls import nativize_controls
from vibe_llms.providers.openai.responses.messages import MODULE, PLACES, ResponsesHistory
from vibe_llms.providers.openai.responses.streams import ResponsesAssimilator
from vibe_llms.providers.requests import Request
from vibe_llms.providers.spending import access_spending

#: Members that the compacting endpoint accepts in addition to the messages, and its service tiers.
#: Source: `ResponseCompactParams` of the package openai 3.57.
_COMPACTED = (
    "model",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
)
_COMPACTED_TIERS = ("auto", "default", "fast", "flex", "priority")


class ResponsesSettings(OpenaiSettings, frozen=True):
    """Settings of a provider row.

    `state` is where the conversation is kept: with `none`, it is sent with every request and OpenAI
    stores nothing; with `server`, OpenAI stores the replies, and only new items are sent. `summary`
    asks for summaries of reasoning from models that give them. With `compaction = "native"`, OpenAI
    makes an encrypted summary of a long conversation, besides our own digest.
    """

    state: Literal["none", "server"] = "none"
    summary: Literal["auto", "concise", "detailed", "off"] = "auto"
    compaction: Literal["own", "native"] = "own"


class ResponsesModel(OpenAIModel[ResponsesSettings]):
    """A model that speaks Responses."""

    module = MODULE
    path = "/responses"
    assimilator = ResponsesAssimilator
    places = PLACES
    reserved = ("stream", "input", "instructions", "previous_response_id", "conversation", "store")
    count_path = "/responses/input_tokens"
    #: Members that the counting endpoint accepts in addition to the messages.
    counted = (
        "model",
        "parallel_tool_calls",
        "previous_response_id",
        "reasoning",
        "text",
        "tool_choice",
        "truncation",
    )

    @property
    def stateful(self) -> bool:
        """True if OpenAI keeps the conversation."""
        return self.settings.state == "server"

    @property
    def compacts(self) -> bool:
        """True if OpenAI summarizes long conversations."""
        return self.settings.compaction == "native"

    def produce_history(self) -> ResponsesHistory:
        """Return an empty history for this model."""
        return ResponsesHistory(self, stateful=self.stateful)

    def nativize_controls(self, controls: Controls, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the members for the controls, and ask for encrypted reasoning if needed."""
        members = nativize_controls(controls, self, names, self.settings.summary)
        if self.attributes.reasoning and not self.stateful:
            members["include"] = ["reasoning.encrypted_content"]
        return members

    def nativize_invoker(self, invoker: Invoker) -> Mapping[str, Any]:
        """Return the declaration of a tool.

        The member `strict` is required. It is false because a strict schema might be rewritten, and
        we check arguments ourselves.
        """
        return {"type": "function", **describe(invoker), "strict": False}

    def frame_members(self, *, streaming: bool) -> dict[str, Any]:
        """Return the members that set streaming and storage by OpenAI."""
        return {"stream": streaming, "store": self.stateful}

    async def assemble(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        controls: Controls,
        context: TurnContext,
    ) -> Request:
        """Assemble the request of a round trip, without items that OpenAI keeps."""
        if context.compacts:
            whole = self.build(await self.prepare(canisters, (), controls, context), context)
            members = {name: one for name, one in whole.members.items() if name in _COMPACTED}
            if members.get("service_tier") not in _COMPACTED_TIERS:
                members.pop("service_tier", None)
            return msgspec.structs.replace(whole, members=members, path=f"{self.path}/compact")
        prepared = await self.prepare(canisters, invokers, controls, context)
        # Under a budget, everything is sent: stored items are billed but not measured here.
        spending = access_spending()
        if not (kept := prepared.history.kept) or (spending is not None and spending.bounded):
            return self.build(prepared, context)
        members = {**prepared.members, "previous_response_id": kept}
        later = msgspec.structs.replace(prepared, members=members)

        def send_whole(error: ProviderError) -> Request | None:
            # Responses expire; then the whole history is sent again.
            forgot = error.code == "previous_response_not_found"
            return self.build(prepared, context) if forgot else None

        brief = self.build(later, context, later=True)
        return msgspec.structs.replace(brief, otherwise=send_whole)


ResponsesProvider = HttpProvider.of(
    ResponsesModel, ResponsesSettings, OpenAIClient[ResponsesModel, ResponsesSettings]
)
