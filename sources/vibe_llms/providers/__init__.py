"""Who answers: what providers share, and one folder for each of them.

The names of `__all__` are for those who write a provider. They are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vibe_llms.meta import export_lazily

# fmt: off
if TYPE_CHECKING:
    from vibe_llms.providers.accumulators import Accumulator
    from vibe_llms.providers.assimilators import (
        EventAssimilator,
        LineAssimilator,
        StreamAssimilator,
    )
    from vibe_llms.providers.attributes import ModelAttributes
    from vibe_llms.providers.conversions import Conversion, name_content, name_document, name_file
    from vibe_llms.providers.deltas import (
        ArgumentsDelta,
        CitationDelta,
        ContentClosed,
        ContentOpened,
        ContentReceived,
        Delta,
        InvocationClosed,
        InvocationOpened,
        ReasoningDelta,
        ReplyClosed,
        ReplyOpened,
        TextDelta,
        UsageDelta,
    )
    from vibe_llms.providers.histories import WireHistory
    from vibe_llms.providers.http_errors import ErrorMap, ErrorObject
    from vibe_llms.providers.interfaces import (
        Client,
        EmbeddingClient,
        Embeddings,
        InquiringModel,
        Model,
        Provider,
        ProviderConfiguration,
        TokenCount,
        TurnContext,
    )
    from vibe_llms.providers.models import (
        HttpClient,
        HttpModel,
        HttpProvider,
        HttpSettings,
        ModelInput,
    )
    from vibe_llms.providers.registry import register
    from vibe_llms.providers.requests import HistoryCache, Request
    from vibe_llms.providers.round_trip import attempt_reply
    from vibe_llms.providers.tool_names import nativize_name
    from vibe_llms.providers.transport import Incoming, Outgoing, Transport
    from vibe_llms.providers.watch import Watch
else:
    __getattr__, __dir__ = export_lazily(__name__, {
        ".accumulators": "Accumulator",
        ".assimilators": "EventAssimilator LineAssimilator StreamAssimilator",
        ".attributes": "ModelAttributes",
        ".conversions": "Conversion name_content name_document name_file",
        ".deltas": (
            "ArgumentsDelta CitationDelta ContentClosed ContentOpened ContentReceived Delta "
            "InvocationClosed InvocationOpened ReasoningDelta ReplyClosed ReplyOpened TextDelta "
            "UsageDelta"
        ),
        ".histories": "WireHistory",
        ".http_errors": "ErrorMap ErrorObject",
        ".interfaces": (
            "Client EmbeddingClient Embeddings InquiringModel Model Provider ProviderConfiguration "
            "TokenCount TurnContext"
        ),
        ".models": "HttpClient HttpModel HttpProvider HttpSettings ModelInput",
        ".registry": "register",
        ".requests": "HistoryCache Request",
        ".round_trip": "attempt_reply",
        ".tool_names": "nativize_name",
        ".transport": "Incoming Outgoing Transport",
        ".watch": "Watch",
    })

__all__ = [
    "Accumulator", "ArgumentsDelta", "CitationDelta", "Client", "ContentClosed", "ContentOpened",
    "ContentReceived", "Conversion", "Delta", "EmbeddingClient", "Embeddings", "ErrorMap",
    "ErrorObject", "EventAssimilator", "HistoryCache", "HttpClient", "HttpModel", "HttpProvider",
    "HttpSettings", "Incoming", "InquiringModel", "InvocationClosed", "InvocationOpened",
    "LineAssimilator", "Model", "ModelAttributes", "ModelInput", "Outgoing", "Provider",
    "ProviderConfiguration", "ReasoningDelta", "ReplyClosed", "ReplyOpened", "Request",
    "StreamAssimilator", "TextDelta", "TokenCount", "Transport", "TurnContext", "UsageDelta",
    "Watch", "WireHistory", "attempt_reply", "name_content", "name_document", "name_file",
    "nativize_name", "register",
]
# fmt: on
