"""Stored messages as updates, for a client that opens a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vibe_llms.acp.blocks import Blobs, PartIds, produce_blocks
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
    NewToolCall,
    SentFile,
    SentResource,
    SentText,
    ThoughtChunk,
    ToolContent,
    UserChunk,
)
from vibe_llms.base.exceptions import ContentDamaged, ContentMissing
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ReasoningContent, Reference, TextualContent
from vibe_llms.storage.interfaces import ContentArchive

#: Messages whose contents are loaded together.
_BATCH = 50


async def replay(
    canisters: Sequence[Canister],
    archive: ContentArchive,
    client: SessionClient,
    tools: Mapping[str, Invoker],
) -> None:
    """Send messages to the client in order; each call comes with its result.

    Instructions and digests are left out, because they are not for people.
    """
    results = {one.invocation: one for one in canisters if isinstance(one, ResultCanister)}
    replayer = _Replayer(client, tools, results)
    for start in range(0, len(canisters), _BATCH):
        batch = canisters[start : start + _BATCH]
        answered = [results[one.identity] for one in batch if one.identity in results]
        blobs = await _load((*batch, *answered), archive)
        for canister in batch:
            replayer.send(canister, blobs)
        await client.drain()


class _Replayer:
    def __init__(
        self,
        client: SessionClient,
        tools: Mapping[str, Invoker],
        results: Mapping[str, ResultCanister],
    ) -> None:
        self._client = client
        self._tools = tools
        self._results = results
        self._ids = PartIds()

    def send(self, canister: Canister, blobs: Blobs) -> None:
        match canister:
            case UserCanister(identity=identity, contents=contents):
                for block in produce_blocks(contents, blobs):
                    self._client.send(UserChunk(message_id=identity, content=block))
            case DocumentCanister(identity=identity):
                block = SentResource(_embed(canister, blobs))
                self._client.send(UserChunk(message_id=identity, content=block))
            case AssistantCanister():
                self._send_reply(canister, blobs)
            case InvocationCanister():
                self._send_call(canister, blobs)
            case _:
                return

    def _send_reply(self, reply: AssistantCanister, blobs: Blobs) -> None:
        for content in reply.contents:
            if isinstance(content, ReasoningContent):
                text = TextualContent(content.data)
                for block in produce_blocks([text], blobs):
                    name = self._ids.find(reply.identity, thinks=True)
                    self._client.send(ThoughtChunk(message_id=name, content=block))
                continue
            for block in produce_blocks([content], blobs):
                name = self._ids.find(reply.identity, thinks=False)
                self._client.send(AgentChunk(message_id=name, content=block))

    def _send_call(self, call: InvocationCanister, blobs: Blobs) -> None:
        result = self._results.get(call.identity)
        content = [ToolContent(SentText(NO_RESULT))]
        if result is not None:
            content = produce_content(result, blobs)
        self._client.send(
            NewToolCall(
                tool_call_id=call.identity,
                title=call.name,
                kind=find_kind(call.name, self._tools),
                status="failed" if result is None else status_of(result),
                content=content,
                raw_input=raw_input(call),
                raw_output=None if result is None else raw_output(result, text_of_blocks(content)),
            )
        )


def _embed(document: DocumentCanister, blobs: Blobs) -> SentFile:
    blocks = produce_blocks(document.contents, blobs)
    text = "".join(block.text for block in blocks if isinstance(block, SentText))
    return SentFile(document.source or f"document:{document.identity}", text)


async def _load(canisters: Iterable[Canister], archive: ContentArchive) -> Blobs:
    """Return the bytes of the references in contents; missing ones are left out."""
    wanted = {
        data.hash: data
        for one in canisters
        for content in one.contents
        if isinstance(data := getattr(content, "data", None), Reference)
    }
    try:
        return await archive.load_all([*wanted.values()])
    except (ContentMissing, ContentDamaged):
        pass
    found: dict[str, bytes] = {}
    for reference in wanted.values():
        try:
            found[reference.hash] = await archive.load(reference)
        except (ContentMissing, ContentDamaged):
            continue
    return found
