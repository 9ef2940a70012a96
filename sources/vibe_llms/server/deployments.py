"""The endpoint `POST /openai/deployments/{agent}/chat/completions` of DIAL and Azure.

This is Chat Completions with the agent in the path and with `custom_content`: attachments, stages,
and a signed state, which lets the client keep the tool calls of the agent instead of the server.

Source: `aidial_sdk/chat_completion/request.py` and `chunks.py` of aidial-sdk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    Location,
    TextualContent,
    repair_text,
)
from vibe_llms.server.answers import answer
from vibe_llms.server.chat_history import rewrite_request
from vibe_llms.server.chat_replies import ChunkWriter
from vibe_llms.server.chat_requests import (
    ChatMessage,
    ChatRequest,
    check_request,
    read_data_url,
    read_each,
    read_forms,
    read_order,
)
from vibe_llms.server.continuations import Chain
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.files import DIAL_PREFIX, RequestFiles, gather_files
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.pairing import order_results
from vibe_llms.server.reading import find_last_reply, is_web_address, read_base64, read_body
from vibe_llms.server.spaces import UserSpace
from vibe_llms.server.states import ReplyState, StateSigner
from vibe_llms.server.turns import TurnOrder


class Attachment(Struct):
    """An image or a file: its data (base64, or text for a text type) or its address."""

    type: str = "text/markdown"
    title: str | None = None
    data: str | None = None
    url: str | None = None


class CustomContent(Struct):
    """DIAL's extension of a message."""

    attachments: list[Attachment] | None = None
    state: ReplyState | None = None


class DialMessage(ChatMessage):
    """A message of any role."""

    custom_content: CustomContent | None = None


class DeploymentRequest(ChatRequest, kw_only=True):
    """The body of a request; its own attachments belong to its last message."""

    model: str = ""
    messages: Annotated[list[DialMessage], Meta(min_length=1)]  # type: ignore[assignment]
    custom_content: CustomContent | None = None


class DeploymentQuery(Struct):
    """API version of the client, which is ignored."""

    version: str = msgspec.field(name="api-version", default="")


_DECODER = msgspec.json.Decoder(DeploymentRequest)


async def complete_deployment(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Answer a request with a turn, with stages and a state; a disconnect cancels the turn."""
    request = await exchange.decode(_read_request, core.settings)
    name = exchange.argument
    agent, _ = await space.resolve_model(name)
    files = await gather_files(exchange, space, request)
    signer = StateSigner(await core.secrets.access(), space.user, agent or name)

    def read() -> TurnOrder:
        said, states = _read_messages(request, agent or "", signer, files, exchange.omissions)
        return read_order(replace(request, model=name), exchange.omissions, said, states)

    order = await exchange.offload(read)
    await answer(
        core,
        exchange,
        space,
        replace(order, media=True),
        lambda served: ChunkWriter(
            name,
            {tool.name for tool in order.tools},
            usage=request.includes_usage,
            stages=True,
            hidden=served.hidden,
            signer=signer,
            forms=read_forms(request),
        ),
        stream=bool(request.stream),
    )


def _read_request(body: bytes) -> DeploymentRequest:
    request = read_body(_DECODER, body, rewrite_request)
    check_request(request)
    return request


def _read_messages(
    request: DeploymentRequest,
    agent: str,
    signer: StateSigner,
    files: RequestFiles,
    omissions: Omissions,
) -> tuple[Sequence[Canister], Mapping[str, Sequence[Canister]]]:
    """Return the messages, and the verified messages of the agent that precede its replies."""
    said: list[Canister] = []
    #: Id of the first message, state, and its place in the request, by id of the last message.
    given: dict[str, tuple[str, ReplyState, str]] = {}
    last = find_last_reply(one.role for one in request.messages)
    read = read_each(request.messages, files=files)
    for index, message in enumerate(request.messages):
        canisters = read[index]
        param = f"messages[{index}]"
        custom = [message.custom_content] if message.custom_content else []
        if index + 1 == len(request.messages) and request.custom_content:
            custom.append(request.custom_content)
        for one in custom:
            if one.attachments:
                place = f"{param}.custom_content.attachments"
                canisters = _attach(canisters, one.attachments, place, files, new=index > last)
        said += canisters
        state = custom[0].state if custom else None
        if state is not None and canisters and message.role == "assistant":
            place = f"{param}.custom_content.state"
            given[canisters[-1].identity] = canisters[0].identity, state, place
    ordered, states = order_results(said), dict[str, Sequence[Canister]]()
    visible = Chain(agent)
    for canister in ordered:
        # States are signed over the history in this order.
        visible.extend([canister])
        if (found := given.get(canister.identity)) is not None:
            first, state, place = found
            try:
                states[first] = signer.read(state, visible.value, place)
            except Rejected:
                if not files.missing:
                    raise
                # Files of the history that were deleted since have changed it.
                omissions.add("state", place)
    return ordered, states


def _attach(
    canisters: Sequence[Canister],
    attachments: Sequence[Attachment],
    param: str,
    files: RequestFiles,
    *,
    new: bool,
) -> Sequence[Canister]:
    """Attach files to a user's message; attachments of other messages are for people only."""
    return [
        replace(
            one, contents=(*one.contents, *(_read(each, param, files, new) for each in attachments))
        )
        if isinstance(one, UserCanister)
        else one
        for one in canisters
    ]


def _read(attachment: Attachment, param: str, files: RequestFiles, new: bool) -> Content:
    try:
        return _read_attachment(attachment, param, files)
    except Rejected as refused:
        if new:
            raise
        return TextualContent(f"[attachment that cannot be read: {refused}]")


def _read_attachment(attachment: Attachment, param: str, files: RequestFiles) -> Content:
    mimetype, name = attachment.type, repair_text(attachment.title or "")
    data: bytes | Location
    match attachment:
        case Attachment(data=str(encoded)):
            textual = mimetype.startswith("text/")
            data = repair_text(encoded).encode() if textual else read_base64(encoded, param)
        case Attachment(url=str(url)) if url.startswith(DIAL_PREFIX):
            return files.read(url, param)
        case Attachment(url=str(url)) if is_web_address(url):
            data = Location(repair_text(url))
        case Attachment(url=str(url)):
            data, known = read_data_url(url, param)
            mimetype = known or mimetype
        case _:
            raise Rejected("an attachment needs data or url", param=param)
    match mimetype.partition("/")[0]:
        case "image":
            return ImageContent(data, mimetype)
        case "audio":
            return AudioContent(data, mimetype)
    return FileContent(data, mimetype, name)
