"""The endpoints under `/api/files` and `/api/contents`: files of a user, bytes of messages."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import ContentMissing
from vibe_llms.messages.contents import Reference
from vibe_llms.server import files
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.pages import PageQuery, take_page
from vibe_llms.server.reading import read_query
from vibe_llms.server.spaces import UserSpace
from vibe_llms.storage.interfaces import UploadedFile

_LOGGER = get_logger("vibe_llms.server")
_PART = re.compile(rb"bytes=(\d{0,18})-(\d{0,18})")


class FileList(Struct):
    """Files, newest first."""

    files: list[UploadedFile]
    has_more: bool


class UploadQuery(Struct):
    """Name of the file, used for display and to detect text types."""

    name: Annotated[str, Meta(min_length=1, max_length=files.LONGEST_NAME)] = "file"


async def list_files(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List files, newest first."""
    query = read_query(PageQuery, exchange.query)
    page, more = take_page(await files.survey_files(space), query, lambda one: one.id)
    await exchange.reply(msgspec.json.encode(FileList([*page], more)))


async def upload_file(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Store a file whose bytes are the body; the same bytes again are the same file.

    Its type is the header `Content-Type`, or is detected from the bytes and the name.
    """
    name, kind = read_query(UploadQuery, exchange.query).name, check_type(exchange.media_type)
    await files.check_count(space)
    data = await exchange.receive(core.settings)
    file = await files.keep_file(space, data, name, kind)
    await exchange.reply(msgspec.json.encode(file), status=201)


def check_type(kind: str) -> str:
    """Return the media type of an upload; `Rejected` if the body is not only the file."""
    if kind and (kind.startswith("multipart/") or not files.TYPE.fullmatch(kind)):
        raise Rejected(
            "send only the bytes of the file, with its type in Content-Type and ?name=NAME",
            status=415,
            code="unsupported_media_type",
        )
    return kind


async def show_file(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show the metadata of a file; get its bytes from `/api/contents` by its `hash`."""
    file = await files.find_file(space, exchange.argument)
    await exchange.reply(msgspec.json.encode(file))


async def remove_file(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Delete a file; its bytes are kept while a message refers to them."""
    file = await files.remove_file(space, exchange.argument)
    await exchange.reply(msgspec.json.encode(file))


async def load_content(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Send the bytes of a file, or of a reference in a message, by their SHA-256.

    Pictures, sound and videos that every browser can show have their type. Everything else is sent
    for download only.
    """
    try:
        data = await space.archive.load(Reference(exchange.argument, 0))
    except ContentMissing as error:
        await _report_lost(exchange, space, error)
        raise files.refuse_missing(exchange.argument) from error
    media, headers = files.describe_bytes(data)
    status, size = 200, len(data)
    if (part := _find_part(exchange, size)) is not None:
        status, data = 206, data[part.start : part.stop]
        shown = f"bytes {part.start}-{part.stop - 1}/{size}"
        headers = (*headers, (b"content-range", shown.encode()))
    await exchange.reply(data, status=status, media_type=media.encode(), headers=headers)


def _find_part(exchange: HttpExchange, size: int) -> range | None:
    """Return the part of the bytes that a request asks for, or None for all.

    Players skip in a video by this. Source: RFC 9110, section 14.2.
    """
    match = _PART.fullmatch(exchange.headers.get(b"range", b"").strip())
    if match is None or match[0] == b"bytes=-":
        # What is not understood is ignored, such as several parts.
        return None
    first, last = (int(one) if one else None for one in match.groups())
    if first is None:
        # The last bytes.
        part = range(max(0, size - (last or 0)), size)
    else:
        part = range(first, size if last is None else min(last + 1, size))
    if part:
        return part
    if first is not None and last is not None and last < first:
        return None
    exchange.headers_sent = (*exchange.headers_sent, (b"content-range", b"bytes */%d" % size))
    raise Rejected("the content is shorter", status=416, code="range_not_satisfiable")


async def _report_lost(exchange: HttpExchange, space: UserSpace, error: ContentMissing) -> None:
    """Log that expected bytes are missing, because the client cannot tell."""
    known = (one.hash for one in await files.survey_files(space))
    if error.lost or exchange.argument in known:
        _LOGGER.warning("%s: %s", exchange.request_id, error)
