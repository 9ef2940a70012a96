"""The endpoint `POST /openai/deployments/{agent}/chat/completions`, as DIAL and Azure have it.

It is Chat Completions with the agent in the path, and with `custom_content`: attachments, stages,
and a signed state, so that the client keeps what the agent's tools did, and the server need not.

Source: `aidial_sdk/chat_completion/request.py` and `chunks.py` of aidial-sdk, and seed 003.
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
    ChatRequest,
    Message,
    check_request,
    read_data_url,
    read_each,
    read_forms,
    read_order,
)
from vibe_llms.server.continuations import Chain
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import Exchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.pairing import order_results
from vibe_llms.server.reading import find_last_reply, is_web_address, read_base64, read_body
from vibe_llms.server.spaces import UserSpace
from vibe_llms.server.states import ReplyState, StateSigner
from vibe_llms.server.turns import TurnOrder


class Attachment(Struct):
    """An image or a file: its data in base64, or as text for a type of text, or where it is."""

    type: str = "text/markdown"
    title: str | None = None
    data: str | None = None
    url: str | None = None


class CustomContent(Struct):
    """What DIAL adds to a message."""

    attachments: list[Attachment] | None = None
    state: ReplyState | None = None


class DialMessage(Message):
    """A message of any role."""

    custom_content: CustomContent | None = None


class DeploymentRequest(ChatRequest, kw_only=True):
    """The body of a request; attachments of the request are those of its last message."""

    model: str = ""
    messages: Annotated[list[DialMessage], Meta(min_length=1)]  # type: ignore[assignment]
    custom_content: CustomContent | None = None


class DeploymentQuery(Struct):
    """The version that the client speaks; it makes no difference."""

    version: str = msgspec.field(name="api-version", default="")


_DECODER = msgspec.json.Decoder(DeploymentRequest)


async def complete_deployment(core: ServerCore, exchange: Exchange, space: UserSpace) -> None:
    """Answer a request with a turn, with stages and a state; a disconnect cancels the turn."""
    request = await exchange.decode(_read_request, core.settings)
    name = exchange.argument
    agent, _ = await space.resolve_model(name)
    signer = StateSigner(await core.secrets.access(), space.user, agent or name)

    def read() -> TurnOrder:
        said, states = _read_messages(request, agent or "", signer)
        return read_order(replace(request, model=name), exchange.omissions, said, states)

    order = await exchange.offload(read)
    await answer(
        *(core, exchange, space, replace(order, media=True)),
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
    request: DeploymentRequest, agent: str, signer: StateSigner
) -> tuple[Sequence[Canister], Mapping[str, Sequence[Canister]]]:
    """What was said, and what the agent is known to have done before its messages."""
    said: list[Canister] = []
    #: First messages and states of replies, with their places, by the last messages.
    given: dict[str, tuple[str, ReplyState, str]] = {}
    last = find_last_reply(one.role for one in request.messages)
    read = read_each(request.messages)
    for index, message in enumerate(request.messages):
        canisters = read[index]
        param = f"messages[{index}]"
        custom = [message.custom_content] if message.custom_content else []
        if index + 1 == len(request.messages) and request.custom_content:
            custom.append(request.custom_content)
        for one in custom:
            if one.attachments:
                place = f"{param}.custom_content.attachments"
                canisters = _attach(canisters, one.attachments, place, new=index > last)
        said += canisters
        state = custom[0].state if custom else None
        if state is not None and canisters and message.role == "assistant":
            place = f"{param}.custom_content.state"
            given[canisters[-1].identity] = canisters[0].identity, state, place
    ordered, states = order_results(said), dict[str, Sequence[Canister]]()
    visible = Chain(agent)
    for canister in ordered:
        # A state is signed with the history in this order.
        visible.extend([canister])
        if (found := given.get(canister.identity)) is not None:
            first, state, place = found
            states[first] = signer.read(state, visible.value, place)
    return ordered, states


def _attach(
    canisters: Sequence[Canister], attachments: Sequence[Attachment], param: str, *, new: bool
) -> Sequence[Canister]:
    """A message of the user with attachments; those of other messages are for people only."""
    return [
        replace(one, contents=(*one.contents, *(_read(each, param, new) for each in attachments)))
        if isinstance(one, UserCanister)
        else one
        for one in canisters
    ]


def _read(attachment: Attachment, param: str, new: bool) -> Content:
    try:
        return _read_attachment(attachment, param)
    except Rejected as refused:
        if new:
            raise
        return TextualContent(f"[attachment that cannot be read: {refused}]")


def _read_attachment(attachment: Attachment, param: str) -> Content:
    mimetype, name = attachment.type, repair_text(attachment.title or "")
    data: bytes | Location
    match attachment:
        case Attachment(data=str(encoded)):
            textual = mimetype.startswith("text/")
            data = repair_text(encoded).encode() if textual else read_base64(encoded, param)
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
