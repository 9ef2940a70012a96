"""Providers: code that all share, and one folder for each.

`__all__` lists all names that a custom provider needs; they are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vibe_llms.base.meta import export_lazily

# fmt: off
if TYPE_CHECKING:
    from vibe_llms.messages.controls import Controls
    from vibe_llms.base.exceptions import (
        ContentUnsupported, ContextOverflow, ControlInvalid, CredentialRefused, ModelUnavailable,
        PaymentRequired, ProviderError, ProviderOverloaded, RateLimited, ReplyMalformed,
        RequestRefused, RequestTooLarge,
    )
    from vibe_llms.invocation.invokers import Invoker
    from vibe_llms.messages.canisters import (
        AssistantCanister, DocumentCanister, InvocationCanister, ResultCanister, StopReason,
        SupervisorCanister, Usage, UserCanister,
    )
    from vibe_llms.messages.contents import (
        Citation, ImageContent, NativeContent, ReasoningContent, TextualContent,
    )
    from vibe_llms.providers.accumulators import Accumulator
    from vibe_llms.providers.assimilators import (
        EventAssimilator, LineAssimilator, StreamAssimilator,
    )
    from vibe_llms.providers.attributes import ModelAttributes, settle_controls
    from vibe_llms.providers.conversions import (
        Conversion, name_content, name_document, name_file, nativize_arguments,
    )
    from vibe_llms.providers.deltas import (
        ArgumentsDelta, CitationDelta, ContentClosed, ContentOpened, ContentReceived, Delta,
        InvocationClosed, InvocationOpened, ReasoningDelta, ReplyClosed, ReplyOpened, TextDelta,
        UsageDelta,
    )
    from vibe_llms.providers.histories import WireHistory
    from vibe_llms.providers.http_errors import ErrorMap, ErrorObject
    from vibe_llms.providers.interfaces import (
        Client, EmbeddingClient, Embeddings, InquiringModel, Model, Provider, ProviderConfiguration,
        TokenCount, TurnContext,
    )
    from vibe_llms.providers.models import (
        HttpClient, HttpModel, HttpProvider, HttpSettings, ModelInput,
    )
    from vibe_llms.providers.registry import register
    from vibe_llms.providers.requests import HistoryCache, Request
    from vibe_llms.providers.round_trip import attempt_reply
    from vibe_llms.providers.tool_names import nativize_name
    from vibe_llms.providers.transport import Incoming, Outgoing, Transport
    from vibe_llms.providers.watch import Watch
else:
    __getattr__, __dir__ = export_lazily(__name__, {
        "..messages.controls": "Controls",
        "..base.exceptions": (
            "ContentUnsupported ContextOverflow ControlInvalid CredentialRefused ModelUnavailable "
            "PaymentRequired ProviderError ProviderOverloaded RateLimited ReplyMalformed "
            "RequestRefused RequestTooLarge"
        ),
        "..invocation.invokers": "Invoker",
        "..messages.canisters": (
            "AssistantCanister DocumentCanister InvocationCanister ResultCanister StopReason "
            "SupervisorCanister Usage UserCanister"
        ),
        "..messages.contents": (
            "Citation ImageContent NativeContent ReasoningContent TextualContent"
        ),
        ".accumulators": "Accumulator",
        ".assimilators": "EventAssimilator LineAssimilator StreamAssimilator",
        ".attributes": "ModelAttributes settle_controls",
        ".conversions": "Conversion name_content name_document name_file nativize_arguments",
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
    "Accumulator", "ArgumentsDelta", "AssistantCanister", "Citation", "CitationDelta", "Client",
    "ContentClosed", "ContentOpened", "ContentReceived", "ContentUnsupported", "ContextOverflow",
    "ControlInvalid", "Controls", "Conversion", "CredentialRefused", "Delta", "DocumentCanister",
    "EmbeddingClient", "Embeddings", "ErrorMap", "ErrorObject", "EventAssimilator", "HistoryCache",
    "HttpClient", "HttpModel", "HttpProvider", "HttpSettings", "ImageContent", "Incoming",
    "InquiringModel", "InvocationCanister", "InvocationClosed", "InvocationOpened", "Invoker",
    "LineAssimilator", "Model", "ModelAttributes", "ModelInput", "ModelUnavailable",
    "NativeContent", "Outgoing", "PaymentRequired", "Provider", "ProviderConfiguration",
    "ProviderError", "ProviderOverloaded", "RateLimited", "ReasoningContent", "ReasoningDelta",
    "ReplyClosed", "ReplyMalformed", "ReplyOpened", "Request", "RequestRefused", "RequestTooLarge",
    "ResultCanister", "StopReason", "StreamAssimilator", "SupervisorCanister", "TextDelta",
    "TextualContent", "TokenCount", "Transport", "TurnContext", "Usage", "UsageDelta",
    "UserCanister", "Watch", "WireHistory", "attempt_reply", "name_content", "name_document",
    "name_file", "nativize_arguments", "nativize_name", "register", "settle_controls",
]
# fmt: on
