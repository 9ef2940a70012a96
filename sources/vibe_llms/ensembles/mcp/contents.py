"""Converts the results of an MCP server to contents."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    TextualContent,
    repair_text,
)

if TYPE_CHECKING:
    from mcp_types import CallToolResult


def assimilate_result(result: CallToolResult) -> InvocationOutput:
    """Convert the result of a call; use structured content only if there are no contents."""
    contents = [content for block in result.content for content in assimilate_block(block)]
    if not contents and result.structured_content is not None:
        text = msgspec.json.encode(result.structured_content).decode()
        contents.append(TextualContent(text, "application/json"))
    return InvocationOutput(tuple(contents), failed=result.is_error)


def assimilate_block(block: Any) -> Iterator[Content]:
    """Yield the contents of a block of a result or prompt; describe unsupported blocks in words."""
    match block.type:
        case "text":
            yield TextualContent(repair_text(block.text))
        case "image":
            yield _media(ImageContent, block.data, block.mime_type)
        case "audio":
            yield _media(AudioContent, block.data, block.mime_type)
        case "resource":
            yield from assimilate_resource(block.resource)
        case "resource_link":
            name = block.title or block.name
            about = f": {block.description}" if block.description else ""
            yield TextualContent(repair_text(f"[resource {name} at {block.uri}{about}]"))
        case kind:
            yield TextualContent(f"[the server sent a {kind!r}, which is not supported]")


def assimilate_user_block(block: Any) -> Iterator[Content]:
    """Yield the contents of a user's message in a prompt; the text of a resource becomes a file.

    The user picked the prompt, but did not write the resource: files are untrusted.
    """
    resource = getattr(block, "resource", None)
    if not (text := getattr(resource, "text", "")):
        yield from assimilate_block(block)
        return
    mimetype = getattr(resource, "mime_type", None) or ""
    # All providers accept text files.
    mimetype = mimetype if mimetype.startswith("text/") else "text/plain"
    yield FileContent(repair_text(text).encode(), mimetype, _name_of(resource))


def assimilate_resource(resource: Any) -> Iterator[Content]:
    """Yield the contents of a resource, read or embedded."""
    mimetype = resource.mime_type or ""
    if (text := getattr(resource, "text", None)) is not None:
        yield TextualContent(repair_text(text), mimetype or "text/plain")
        return
    kind = mimetype.partition("/")[0]
    if kind == "image":
        yield _media(ImageContent, resource.blob, mimetype)
    elif kind == "audio":
        yield _media(AudioContent, resource.blob, mimetype)
    else:
        content = _media(FileContent, resource.blob, mimetype)
        if isinstance(content, FileContent):
            content = msgspec.structs.replace(content, name=_name_of(resource))
        yield content


def _name_of(resource: Any) -> str:
    uri = str(resource.uri)
    return uri.rpartition("/")[2] or uri


def _media(kind: Any, data: str, mimetype: str) -> Content:
    try:
        content: Content = kind(base64.b64decode(data, validate=True), mimetype)
    except (binascii.Error, ValueError) as error:
        return TextualContent(f"[the server sent a {mimetype} that is not valid base64: {error}]")
    return content
