"""Prompts of the client as messages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from vibe_llms.acp.requests import BlockParams, ResourceParams
from vibe_llms.acp.rpc import INVALID_PARAMS, RpcError, quote
from vibe_llms.conversations.attachments import produce_attachment
from vibe_llms.messages.canisters import Canister, DocumentCanister, UserCanister
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    ImageContent,
    TextualContent,
    repair_text,
)


def read_prompt_blocks(blocks: Sequence[BlockParams]) -> Sequence[Canister]:
    """Return the messages of a prompt: the files that come with it, then the user's message.

    The text of a file is a document, and a link in the message stands where it was. Raises
    `RpcError` for a block that cannot be read.
    """
    documents: list[Canister] = []
    contents: list[Content] = []
    text = ""
    for number, block in enumerate(blocks):
        match block.type:
            case "text":
                text += _require(block.text, number, "text")
            case "resource_link":
                uri = _require(block.uri, number, "uri")
                text += _link(block.name or uri, uri)
            case "resource":
                if (resource := block.resource) is None:
                    raise _refuse(number, "has no resource")
                title = _title_of(resource.uri)
                text += _link(title, resource.uri)
                if resource.text is not None:
                    documents.append(_produce_document(resource, resource.text, title))
                else:
                    data = _decode(resource.blob, number, "blob")
                    contents.append(produce_attachment(data, title, resource.mime_type or ""))
            case "image":
                data = _decode(block.data, number, "data")
                contents.append(ImageContent(data, _require(block.mime_type, number, "mimeType")))
            case "audio":
                data = _decode(block.data, number, "data")
                contents.append(AudioContent(data, _require(block.mime_type, number, "mimeType")))
            case kind:
                raise _refuse(number, f"has the unknown type {quote(kind)}")
    if text.strip() or not contents:
        contents.append(TextualContent(repair_text(text)))
    return (*documents, UserCanister(tuple(contents)))


def _produce_document(resource: ResourceParams, text: str, title: str) -> DocumentCanister:
    content = TextualContent(repair_text(text), mimetype=resource.mime_type or "text/plain")
    return DocumentCanister((content,), title=repair_text(title), source=repair_text(resource.uri))


def _link(name: str, uri: str) -> str:
    return f"[{name}]({uri})"


def _title_of(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2] or uri


def _require(value: str | None, number: int, member: str) -> str:
    if value is None:
        raise _refuse(number, f"has no {member}")
    return value


def _decode(value: str | None, number: int, member: str) -> bytes:
    try:
        data = base64.b64decode(_require(value, number, member), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refuse(number, f"has {member} that is not base64: {error}") from error
    if not data:
        raise _refuse(number, f"has empty {member}")
    return data


def _refuse(number: int, problem: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"the block {number + 1} of the prompt {problem}")
