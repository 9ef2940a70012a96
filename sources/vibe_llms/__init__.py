"""Conversations with large language models: one interface for all providers.

Names are loaded from their modules at first use, to keep the import of this package cheap
(documentation/adr/0012-lazy-public-names.md). The public names are those in `__all__`, and all of
`vibe_llms.base.exceptions`, `vibe_llms.synchronous`, and `vibe_llms.testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vibe_llms.base.meta import __version__, export_lazily

# fmt: off
if TYPE_CHECKING:
    from vibe_llms.conversations.attachments import read_attachment, read_document
    from vibe_llms.messages.controls import Controls
    from vibe_llms.conversations.context_use import ContextUse
    from vibe_llms.conversations.conversation import Conversation
    from vibe_llms.ensembles.functions import FunctionEnsemble
    from vibe_llms.invocation.questions import (
        ElicitationAnswer, ElicitationField, ElicitationRequest, Elicitor,
    )
    from vibe_llms.messages.events import (
        Event, EventHandler, InvocationChunk, InvocationCompletedEvent, InvocationFailedEvent,
        InvocationProgressEvent, InvocationStartedEvent, MessageCompletedEvent, MessageFailedEvent,
        MessageProgressEvent, MessageStartedEvent, MessageUpdatedEvent, Notice, NoticeEvent,
        ReasoningChunk, SteeringDeliveredEvent, SteeringQueuedEvent, SteeringWithdrawnEvent,
        TextChunk, TurnEndedEvent,
    )
    from vibe_llms.base.exceptions import (
        ConfigurationError, ContextOverflow, ConversationBusy, ProviderError, RateLimited,
        RequestError, StorageError, TurnInterrupted, VibeLlmsError,
    )
    from vibe_llms.invocation.approval import ApprovalRequest, Approver, Decision
    from vibe_llms.invocation.invokers import InvocationContext, Invoker, invoker
    from vibe_llms.invocation.results import InvocationOutput
    from vibe_llms.messages.canisters import (
        AssistantCanister, Canister, DigestCanister, DocumentCanister, Ending, InvocationCanister,
        Provenance, ResultCanister, StopReason, SupervisorCanister, Turn, UnknownCanister, Usage,
        UserCanister,
    )
    from vibe_llms.messages.contents import (
        AudioContent, Citation, Content, FileContent, ImageContent, Location, NativeContent,
        NativePayload, ReasoningContent, Reference, TextualContent, UnknownContent, Upload,
        VideoContent,
    )
    from vibe_llms.conversations.streams import EventStream
    from vibe_llms.opening import open_session
    from vibe_llms.session.core import Session
else:
    __getattr__, __dir__ = export_lazily(__name__, {
        ".conversations.attachments": "read_attachment read_document",
        ".messages.controls": "Controls",
        ".conversations.context_use": "ContextUse",
        ".conversations.conversation": "Conversation",
        ".ensembles.functions": "FunctionEnsemble",
        ".invocation.questions": "ElicitationAnswer ElicitationField ElicitationRequest Elicitor",
        ".messages.events": (
            "Event EventHandler InvocationChunk InvocationCompletedEvent InvocationFailedEvent "
            "InvocationProgressEvent InvocationStartedEvent MessageCompletedEvent "
            "MessageFailedEvent MessageProgressEvent MessageStartedEvent MessageUpdatedEvent "
            "Notice NoticeEvent ReasoningChunk SteeringDeliveredEvent SteeringQueuedEvent "
            "SteeringWithdrawnEvent TextChunk TurnEndedEvent"
        ),
        ".base.exceptions": (
            "ConfigurationError ContextOverflow ConversationBusy ProviderError RateLimited "
            "RequestError StorageError TurnInterrupted VibeLlmsError"
        ),
        ".invocation.approval": "ApprovalRequest Approver Decision",
        ".invocation.invokers": "InvocationContext Invoker invoker",
        ".invocation.results": "InvocationOutput",
        ".messages.canisters": (
            "AssistantCanister Canister DigestCanister DocumentCanister Ending InvocationCanister "
            "Provenance ResultCanister StopReason SupervisorCanister Turn UnknownCanister Usage "
            "UserCanister"
        ),
        ".messages.contents": (
            "AudioContent Citation Content FileContent ImageContent Location NativeContent "
            "NativePayload ReasoningContent Reference TextualContent UnknownContent Upload "
            "VideoContent"
        ),
        ".conversations.streams": "EventStream",
        ".opening": "open_session",
        ".session.core": "Session",
    })

__all__ = [
    "ApprovalRequest", "Approver", "AssistantCanister", "AudioContent", "Canister", "Citation",
    "ConfigurationError", "Content", "ContextOverflow", "ContextUse", "Controls", "Conversation",
    "ConversationBusy", "Decision", "DigestCanister", "DocumentCanister", "ElicitationAnswer",
    "ElicitationField", "ElicitationRequest", "Elicitor", "Ending", "Event", "EventHandler",
    "EventStream", "FileContent", "FunctionEnsemble", "ImageContent", "InvocationCanister",
    "InvocationChunk", "InvocationCompletedEvent", "InvocationContext", "InvocationFailedEvent",
    "InvocationOutput", "InvocationProgressEvent", "InvocationStartedEvent", "Invoker", "Location",
    "MessageCompletedEvent", "MessageFailedEvent", "MessageProgressEvent", "MessageStartedEvent",
    "MessageUpdatedEvent", "NativeContent", "NativePayload", "Notice", "NoticeEvent", "Provenance",
    "ProviderError", "RateLimited", "ReasoningChunk", "ReasoningContent", "Reference",
    "RequestError", "ResultCanister", "Session", "SteeringDeliveredEvent", "SteeringQueuedEvent",
    "SteeringWithdrawnEvent", "StopReason", "StorageError", "SupervisorCanister", "TextChunk",
    "TextualContent", "Turn", "TurnEndedEvent", "TurnInterrupted", "UnknownCanister",
    "UnknownContent", "Upload", "Usage", "UserCanister", "VibeLlmsError", "VideoContent",
    "__version__", "invoker", "open_session", "read_attachment", "read_document",
]
# fmt: on
