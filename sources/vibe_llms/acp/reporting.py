"""The events of a turn as updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vibe_llms.acp.blocks import PartIds, produce_blocks
from vibe_llms.acp.calls import (
    NO_RESULT,
    find_kind,
    produce_content,
    raw_input,
    raw_output,
    status_of,
    text_of_blocks,
)
from vibe_llms.acp.client import SessionClient
from vibe_llms.acp.updates import (
    AgentChunk,
    ChangedToolCall,
    NewToolCall,
    SentText,
    ThoughtChunk,
    ToolContent,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import AssistantCanister, InvocationCanister, ResultCanister
from vibe_llms.messages.contents import ReasoningContent, TextualContent
from vibe_llms.messages.events import (
    Event,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    Notice,
    NoticeEvent,
    ReasoningChunk,
    SteeringWithdrawnEvent,
    TextChunk,
)

_CUT = "The call did not arrive completely, so it did not run."


class TurnReporter:
    """An event handler that sends the events of turns to the client of a session."""

    def __init__(
        self, client: SessionClient, survey_tools: Callable[[], Mapping[str, Invoker]]
    ) -> None:
        self._client = client
        self._survey_tools = survey_tools
        self._ids = PartIds()
        #: Identities of the calls that have not ended.
        self._open: dict[str, None] = {}

    def __call__(self, event: Event) -> None:
        """Send an event."""
        match event:
            case MessageStartedEvent(role="invocation", name=name, message=message):
                self._begin_call(message, name)
            case MessageProgressEvent(chunk=TextChunk(text), message=message) if text:
                name = self._ids.find(message, thinks=False)
                self._client.send(AgentChunk(message_id=name, content=SentText(text)))
            case MessageProgressEvent(chunk=ReasoningChunk(text), message=message) if text:
                name = self._ids.find(message, thinks=True)
                self._client.send(ThoughtChunk(message_id=name, content=SentText(text)))
            case MessageCompletedEvent(canister=InvocationCanister() as call):
                self._client.send(
                    ChangedToolCall(tool_call_id=call.identity, raw_input=raw_input(call))
                )
            case MessageCompletedEvent(canister=AssistantCanister() as message):
                self._send_media(message)
            case MessageFailedEvent(message=message) if message in self._open:
                self._fail(message, _CUT)
            case InvocationStartedEvent(invocation=call):
                if call.identity not in self._open:
                    # A call of a reply from before this turn.
                    self._begin_call(call.identity, call.name)
                self._client.send(ChangedToolCall(tool_call_id=call.identity, status="in_progress"))
            case InvocationProgressEvent():
                self._report_progress(event)
            case InvocationCompletedEvent() | InvocationFailedEvent():
                self._end_call(event.result)
            case NoticeEvent(notice=notice):
                self._client.show(notice)
            case SteeringWithdrawnEvent(reason=str(reason)) if reason:
                self._client.show(Notice("steering", f"a message was not sent: {reason}"))
            case _:
                # Usage, citations, and messages that the client itself has sent.
                return

    def finish(self) -> None:
        """Report that the calls without an end did not run, at the end of a turn."""
        for call in [*self._open]:
            self._fail(call, NO_RESULT)

    def _begin_call(self, identity: str, name: str) -> None:
        self._open[identity] = None
        kind = find_kind(name, self._survey_tools())
        self._client.send(
            NewToolCall(tool_call_id=identity, title=name, kind=kind, status="pending")
        )

    def _report_progress(self, event: InvocationProgressEvent) -> None:
        text = event.text
        if event.done is not None:
            whole = "" if event.total is None else f" of {event.total:g}"
            text = f"{event.done:g}{whole} {text}".rstrip()
        self._client.send(
            ChangedToolCall(
                tool_call_id=event.invocation.identity, content=[ToolContent(SentText(text))]
            )
        )

    def _end_call(self, result: ResultCanister) -> None:
        self._open.pop(result.invocation, None)
        content = produce_content(result, {})
        self._client.send(
            ChangedToolCall(
                tool_call_id=result.invocation,
                status=status_of(result),
                content=content,
                raw_output=raw_output(result, text_of_blocks(content)),
            )
        )

    def _fail(self, call: str, text: str) -> None:
        self._open.pop(call, None)
        self._client.send(
            ChangedToolCall(
                tool_call_id=call, status="failed", content=[ToolContent(SentText(text))]
            )
        )

    def _send_media(self, message: AssistantCanister) -> None:
        """Send images and other contents of a reply that have no pieces."""
        media = [
            one
            for one in message.contents
            if not isinstance(one, TextualContent | ReasoningContent)
        ]
        for block in produce_blocks(media, {}):
            self._client.send(AgentChunk(message_id=message.identity, content=block))
