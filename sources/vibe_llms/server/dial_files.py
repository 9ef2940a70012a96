"""The endpoints of DIAL's storage: files of a user by path.

A user has one bucket. `files/BUCKET/PATH` is the URL of a file in attachments of messages.

Source: `resources/files.py`, `resources/bucket.py` and `types/metadata.py` of aidial-client 0.18.0.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct

from vibe_llms.conversations.attachments import UNKNOWN_TYPE
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.files import (
    BUCKET_PREFIX,
    DIAL_PREFIX,
    LONGEST_NAME,
    SAFE_HEADERS,
    check_count,
    find_file,
    identify_path,
    keep_file,
    load_file,
    name_bucket,
    remove_file,
)
from vibe_llms.server.forms import read_form
from vibe_llms.server.spaces import UserSpace
from vibe_llms.storage.interfaces import UploadedFile


class DialBucket(Struct):
    """The bucket of the user."""

    bucket: str


class DialFile(Struct, rename="camel"):
    """A file in a bucket; `url` is its URL in attachments, and times are in milliseconds."""

    name: str
    parent_path: str | None
    bucket: str
    url: str
    created_at: int
    updated_at: int
    etag: str
    content_length: int
    content_type: str
    node_type: str = "ITEM"
    resource_type: str = "FILE"


class DialForm(Struct):
    """An upload."""

    file: Annotated[str, Meta(extra_json_schema={"contentMediaType": UNKNOWN_TYPE})]


async def show_bucket(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show the bucket of the user, which begins the paths of files."""
    await exchange.reply(msgspec.json.encode(DialBucket(name_bucket(space.user))))


async def put_dial_file(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Store the file in the part `file` under a path, and replace an earlier one there.

    With `If-None-Match: *` or `If-Match: ETAG`, an unexpected earlier file is not replaced.
    """
    reference, path = _read_path(exchange, space)
    if path.endswith("/") or len(path) > LONGEST_NAME:
        raise Rejected(f"a path has a name at its end and at most {LONGEST_NAME} characters")
    if not await _check_earlier(exchange, space, reference):
        await check_count(space)
    body = await exchange.receive(core.settings)
    header = exchange.headers.get(b"content-type", b"")
    form = await exchange.offload(lambda: read_form(body, header))
    await _check_earlier(exchange, space, reference)
    file = await keep_file(
        space, form.file.data, path, form.file.mimetype, identity=identify_path(path)
    )
    await exchange.reply(msgspec.json.encode(_describe(space, file)))


async def post_dial_file(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Store the file in the part `file` under a path, like `PUT`."""
    await put_dial_file(core, exchange, space)


async def load_dial_file(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Send the bytes of the file with a path."""
    reference, _path = _read_path(exchange, space)
    file = await find_file(space, reference)
    await _check_earlier(exchange, space, reference)
    data = await load_file(space, file, reference)
    headers = (*SAFE_HEADERS, (b"etag", file.hash.encode()))
    await exchange.reply(data, media_type=UNKNOWN_TYPE.encode(), headers=headers)


async def delete_dial_file(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Delete the file with a path; its bytes are kept while a message refers to them."""
    reference, _path = _read_path(exchange, space)
    await _check_earlier(exchange, space, reference)
    file = await remove_file(space, reference)
    await exchange.reply(msgspec.json.encode(_describe(space, file)))


def _read_path(exchange: HttpExchange, space: UserSpace) -> tuple[str, str]:
    """Return the URL and the path of a file in the user's own bucket."""
    bucket, _, path = f"{BUCKET_PREFIX}{exchange.argument}".partition("/")
    url = f"{DIAL_PREFIX}{bucket}/{quote(path)}"
    if bucket != name_bucket(space.user) or not path:
        raise Rejected(f"file {url!r} not found", status=404, code="file_not_found")
    return url, path


async def _check_earlier(exchange: HttpExchange, space: UserSpace, reference: str) -> bool:
    """Return True if a path has a file; `Rejected` if the client expects another one."""
    try:
        etag = (await find_file(space, reference)).hash
    except Rejected:
        etag = ""
    expected = exchange.headers.get(b"if-match", b"").decode("latin-1").strip('"')
    if (expected and etag and expected not in ("*", etag)) or (
        etag and exchange.headers.get(b"if-none-match") == b"*"
    ):
        raise Rejected(
            f"file {reference!r} has the ETag {etag!r}, which the request excludes",
            status=412,
            code="precondition_failed",
        )
    return bool(etag)


def _describe(space: UserSpace, file: UploadedFile) -> DialFile:
    folder, _, name = file.name.rpartition("/")
    bucket = name_bucket(space.user)
    created = int(datetime.fromisoformat(file.created).timestamp() * 1000)
    return DialFile(
        name=name,
        parent_path=folder or None,
        bucket=bucket,
        url=f"{DIAL_PREFIX}{bucket}/{quote(file.name)}",
        created_at=created,
        updated_at=created,
        etag=file.hash,
        content_length=file.size,
        content_type=file.mimetype,
    )
