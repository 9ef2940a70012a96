"""The endpoints `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.conversations.context_window import CHARACTERS_PER_TOKEN
from vibe_llms.messages.canisters import Canister, DigestCanister, Usage
from vibe_llms.messages.contents import TextualContent, repair_text
from vibe_llms.server.answers import answer
from vibe_llms.server.compactions import CompactionSigner, is_own
from vibe_llms.server.context_orders import ContextOrder, ManagedContext
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.files import gather_files
from vibe_llms.server.messages_context import CompactionBlock, describe_edits
from vibe_llms.server.messages_replies import EventWriter
from vibe_llms.server.messages_requests import (
    AnthropicMessage,
    CountRequest,
    ThinkingBlock,
    read_count,
    read_order,
    read_request,
)
from vibe_llms.server.spaces import UserSpace
from vibe_llms.server.turns import (
    RecordedTurn,
    ServedTurn,
    TurnOrder,
    count_tokens,
    estimate_tokens,
)


class OriginalTokens(Struct):
    """Number of tokens before the edits of the context."""

    original_input_tokens: int


class TokensCounted(Struct, omit_defaults=True):
    """Number of tokens that the model would read."""

    input_tokens: int
    context_management: OriginalTokens | None = None


async def create_message(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Answer a request with a turn, streamed or whole; a disconnect cancels the turn."""
    request = await exchange.decode(
        partial(read_request, omissions=exchange.omissions), core.settings
    )
    signer = await _find_signer(core, space, request)
    order = await _read_order(exchange, space, request, signer)
    estimate = await exchange.offload(lambda: estimate_tokens(order.said, order.tools))

    def produce_writer(served: ServedTurn | RecordedTurn) -> EventWriter:
        return EventWriter(
            request.model,
            {tool.name for tool in order.tools},
            input_tokens=estimate,
            thinking=request.thinking is None or request.thinking.display != "omitted",
            context=_ReportedContext(request, served.managed),
        )

    await answer(core, exchange, space, order, produce_writer, stream=bool(request.stream))


async def count_message_tokens(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Count the tokens that the model would read, without calling it or storing anything."""
    request = await exchange.decode(
        partial(read_count, omissions=exchange.omissions), core.settings
    )
    signer = await _find_signer(core, space, request)
    order = await _read_order(exchange, space, request, signer)
    async with exchange.until_disconnect(), core.turn_limit():
        counted = await count_tokens(space, order)
        original = None
        if request.context_management is not None:
            unedited = replace(order, context=ContextOrder())
            original = OriginalTokens((await count_tokens(space, unedited)).tokens)
        await exchange.reply(msgspec.json.encode(TokensCounted(counted.tokens, original)))


class _ReportedContext:
    """The `ContextReport` of one request."""

    def __init__(self, request: CountRequest, managed: ManagedContext) -> None:
        self._request = request
        self._managed = managed

    @property
    def edits(self) -> Mapping[str, Any] | None:
        management = self._request.context_management
        if management is None:
            return None
        thinking = _measure_thinking(self._request.messages)
        return describe_edits(management, self._managed.cleared, thinking)

    @property
    def block(self) -> Mapping[str, Any] | None:
        compaction = self._managed.compaction
        if compaction is None:
            return None
        text = compaction.text or None
        return {"type": "compaction", "content": text, "encrypted_content": compaction.opaque}

    @property
    def usage(self) -> Usage | None:
        return None if self._managed.compaction is None else self._managed.compaction.usage

    @property
    def ends(self) -> bool:
        return self._managed.ends


async def _find_signer(
    core: ServerCore, space: UserSpace, request: CountRequest
) -> CompactionSigner | None:
    """Return the signer of compactions, or None if the request needs none."""
    asked = request.compaction is not None or request.context_management is not None
    if not asked and _find_compaction(request.messages) is None:
        return None
    return CompactionSigner(await core.secrets.access(), space.user)


async def _read_order(
    exchange: HttpExchange,
    space: UserSpace,
    request: CountRequest,
    signer: CompactionSigner | None,
) -> TurnOrder:
    files = await gather_files(exchange, space, request)

    def read() -> TurnOrder:
        short, compacted = request, list[Canister]()
        found = _find_compaction(request.messages)
        if found is not None and signer is not None:
            place, index, block = found
            compacted += _read_compaction(block, signer, f"messages[{place}].content[{index}]")
            if block.encrypted_content and not is_own(block.encrypted_content):
                # Of a summary that others made, the text is read.
                exchange.omissions.add("content", "compaction")
            message = request.messages[place]
            rest = replace(message, content=message.content[index + 1 :])
            messages = [rest, *request.messages[place + 1 :]]
            short = replace(request, messages=messages)
        return read_order(short, exchange.omissions, files, compacted)

    order = await exchange.offload(read)
    return replace(order, context=replace(order.context, signer=signer))


def _find_compaction(
    messages: Sequence[AnthropicMessage],
) -> tuple[int, int, CompactionBlock] | None:
    """Return the last compaction with content, and the indexes of its message and block."""
    for place in range(len(messages) - 1, -1, -1):
        content = messages[place].content
        for index in range(len(content) - 1, -1, -1) if not isinstance(content, str) else ():
            block = content[index]
            if isinstance(block, CompactionBlock) and (
                block.content or is_own(block.encrypted_content or "")
            ):
                return place, index, block
    return None


def _read_compaction(
    block: CompactionBlock, signer: CompactionSigner, param: str
) -> Sequence[Canister]:
    """Return the messages of a compaction; of one that others made, only its text."""
    if is_own(block.encrypted_content or ""):
        return signer.read(block.encrypted_content or "", f"{param}.encrypted_content")
    summary = TextualContent(repair_text(block.content or ""))
    return [DigestCanister((summary,), trusted=False)]


def _measure_thinking(messages: Sequence[AnthropicMessage]) -> Sequence[int]:
    """Return the tokens of the thinking in each reply that has some."""
    measured: list[int] = []
    for message in messages:
        blocks = [one for one in message.content if isinstance(one, ThinkingBlock)]
        if blocks:
            size = sum(len(one.thinking or "") for one in blocks)
            measured.append(size // CHARACTERS_PER_TOKEN)
    return measured
