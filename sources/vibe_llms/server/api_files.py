"""The endpoints under `/api/files` and `/api/contents`: files of a user, bytes of messages."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from contextlib import suppress
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import AttachmentUnreadable, ContentMissing
from vibe_llms.conversations.attachments import UNKNOWN_TYPE, detect_type
from vibe_llms.messages.contents import Reference
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.pages import PageQuery, take_page
from vibe_llms.server.reading import read_query
from vibe_llms.server.spaces import UserSpace
from vibe_llms.storage.interfaces import UploadedFile

T = TypeVar("T")
_LOGGER = get_logger("vibe_llms.server")

_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
#: Media types sent by clients that do not know the type.
_UNKNOWN_TYPES = ("", UNKNOWN_TYPE, "application/x-www-form-urlencoded")
#: Keeps browsers from rendering a user's bytes as a page of this server.
_SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-disposition", b"attachment"),
    (b"content-security-policy", b"sandbox"),
)


class FileList(Struct):
    """Files, newest first."""

    files: list[UploadedFile]
    has_more: bool


class UploadQuery(Struct):
    """Name of the file, used for display and to detect text types."""

    name: Annotated[str, Meta(min_length=1, max_length=255)] = "file"


async def list_files(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List files, newest first."""
    query = read_query(PageQuery, exchange.query)
    page, more = take_page(await space.archive.survey_files(), query, lambda one: one.id)
    await exchange.reply(msgspec.json.encode(FileList([*page], more)))


async def upload_file(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Store a file whose bytes are the body; the same bytes again are the same file.

    Its type is the header `Content-Type`, or is detected from the bytes and the name.
    """
    name = read_query(UploadQuery, exchange.query).name
    kind = exchange.media_type
    if kind and (kind.startswith("multipart/") or not _TYPE.fullmatch(kind)):
        raise Rejected(
            "send only the bytes of the file, with its type in Content-Type and ?name=NAME",
            status=415,
            code="unsupported_media_type",
        )
    if len(await space.archive.survey_files()) >= core.settings.user_files:
        raise Rejected(
            f"{core.settings.user_files} files is the limit (user-files); delete some",
            status=409,
            code="too_many_files",
        )
    data = await exchange.receive(core.settings)
    if not data:
        raise Rejected("the file is empty", code="empty_file")
    if kind in _UNKNOWN_TYPES:
        try:
            kind = detect_type(data, name)
        except AttachmentUnreadable:
            kind = UNKNOWN_TYPE
    file = await space.archive.upload(data, name, kind)
    await exchange.reply(msgspec.json.encode(file), status=201)


async def show_file(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show the metadata of a file; get its bytes from `/api/contents`."""
    file = await _find(exchange, space.archive.access_file(exchange.argument))
    await exchange.reply(msgspec.json.encode(file))


async def remove_file(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Delete a file; its bytes are kept while a message refers to them."""
    file = await _find(exchange, space.archive.remove_file(exchange.argument))
    space.collect_later()
    await exchange.reply(msgspec.json.encode(file))


async def load_content(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Send the bytes of a file, or of a reference in a message, by their SHA-256."""
    try:
        data = await _find(exchange, space.archive.load(Reference(exchange.argument, 0)))
    except Rejected as refusal:
        await _report_lost(exchange, space, refusal.__cause__)
        raise
    await exchange.reply(data, media_type=UNKNOWN_TYPE.encode(), headers=_SAFE_HEADERS)


async def _report_lost(exchange: HttpExchange, space: UserSpace, error: object) -> None:
    """Log that expected bytes are missing, because the client cannot tell."""
    lost = isinstance(error, ContentMissing) and error.lost
    if not lost:
        with suppress(ContentMissing):
            lost = bool(await space.archive.access_file(exchange.argument))
    if lost:
        _LOGGER.warning("%s: %s", exchange.request_id, error)


async def access_file(space: UserSpace, identity: str, param: str) -> tuple[UploadedFile, bytes]:
    """Return a file and its bytes."""
    try:
        file = await space.archive.access_file(identity)
        try:
            return file, await space.archive.load(Reference(file.id, file.size))
        except ContentMissing as error:
            _LOGGER.warning("the content of a file is missing: %s", error)
            raise
    except ContentMissing:
        raise Rejected(
            f"file {identity!r} not found", status=404, code="file_not_found", param=param
        ) from None


async def _find(exchange: HttpExchange, wanted: Awaitable[T]) -> T:
    try:
        return await wanted
    except ContentMissing as error:
        raise Rejected(
            f"file {exchange.argument!r} not found", status=404, code="file_not_found"
        ) from error
