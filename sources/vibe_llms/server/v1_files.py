"""The endpoints under `/v1/files`, in the formats of OpenAI and of Anthropic.

They work with the same files as `/api/files`. Each upload is a file of its own.

Source: `types/file_object.py` and `file_create_params.py` of openai 3.57.0, and
`types/beta/beta_file_metadata.py` and `file_list_params.py` of anthropic 2.14.0.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct

from vibe_llms.conversations.attachments import UNKNOWN_TYPE
from vibe_llms.server.core import ServerCore
from vibe_llms.server.dialects import ANTHROPIC
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.files import (
    LONGEST_NAME,
    PREFIX,
    SAFE_HEADERS,
    check_count,
    find_file,
    keep_file,
    load_file,
    remove_file,
    survey_files,
)
from vibe_llms.server.forms import read_form
from vibe_llms.server.reading import read_query
from vibe_llms.server.spaces import UserSpace
from vibe_llms.storage.interfaces import UploadedFile

_PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
#: Purpose shown for files that were uploaded without one.
_PURPOSE = "user_data"
#: Bounds of the seconds after which a file expires.
_HOUR, _MONTH, _QUARTER = 3_600, 2_592_000, 7_776_000
_PAGE = "page_"
#: Most ids in a list request.
_MOST_IDS = 100


class FilesQuery(Struct):
    """A page of files: `after`, `order` and `purpose` are OpenAI's, the others Anthropic's."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    after: str = ""
    order: Literal["asc", "desc"] = "desc"
    purpose: str = ""
    page: str = ""
    after_id: str = ""
    before_id: str = ""


class UploadFields(Struct):
    """Fields of an upload: `purpose` and `expires_after` are OpenAI's, the last is Anthropic's."""

    purpose: str = ""
    anchor: Literal["created_at"] | None = msgspec.field(name="expires_after[anchor]", default=None)
    seconds: Annotated[int, Meta(ge=_HOUR, le=_MONTH)] | None = msgspec.field(
        name="expires_after[seconds]", default=None
    )
    expires_in_seconds: Annotated[int, Meta(ge=_HOUR, le=_QUARTER)] | None = None


class FileForm(UploadFields, kw_only=True):
    """An upload with its file."""

    file: Annotated[str, Meta(extra_json_schema={"contentMediaType": UNKNOWN_TYPE})]


async def create_file(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Store the file in the part `file`; clients refer to it in messages by its `id`."""
    await check_count(space)
    body = await exchange.receive(core.settings)
    header = exchange.headers.get(b"content-type", b"")
    form = await exchange.offload(lambda: read_form(body, header))
    _check_expiry(form.fields)
    fields = read_query(UploadFields, form.fields)
    if exchange.dialect is not ANTHROPIC and fields.purpose not in _PURPOSES:
        raise Rejected(
            f"purpose must be one of {', '.join(_PURPOSES)}"
            + (f", not {fields.purpose!r}" if fields.purpose else ""),
            param="purpose",
            code="invalid_value" if fields.purpose else "missing_required_parameter",
        )
    if (fields.anchor is None) != (fields.seconds is None):
        raise Rejected("expires_after needs anchor and seconds", param="expires_after")
    name = form.file.name.replace("\\", "/").rpartition("/")[2] or "unnamed"
    if len(name) > LONGEST_NAME:
        raise Rejected(f"the name has more than {LONGEST_NAME} characters", param="file")
    file = await keep_file(
        space,
        form.file.data,
        name,
        form.file.mimetype,
        identity=secrets.token_hex(16),
        purpose=fields.purpose,
        seconds=fields.seconds or fields.expires_in_seconds,
    )
    await _reply(exchange, _describe(exchange, file))


async def list_v1_files(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List files, newest first."""
    query, files = read_query(FilesQuery, exchange.query), await survey_files(space)
    if exchange.dialect is ANTHROPIC:
        page, more = _take_anthropic(files, query, _read_ids(exchange))
    else:
        if query.order == "asc":
            files = files[::-1]
        if query.purpose:
            files = [one for one in files if _read_purpose(one) == query.purpose]
        start = _find_place(files, query.after, "after") + 1 if query.after else 0
        page = files[start : start + (query.limit or 10_000)]
        more = len(files) > start + len(page)
    described = {
        "data": [_describe(exchange, one) for one in page],
        "has_more": more,
        "first_id": PREFIX + page[0].id if page else None,
        "last_id": PREFIX + page[-1].id if page else None,
    }
    if exchange.dialect is ANTHROPIC:
        described["next_page"] = f"{_PAGE}{page[-1].id}" if more else None
    else:
        described["object"] = "list"
    await _reply(exchange, described)


async def show_v1_file(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show the metadata of a file."""
    await _reply(exchange, _describe(exchange, await find_file(space, exchange.argument)))


async def load_v1_file(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Send the bytes of a file."""
    file = await find_file(space, exchange.argument)
    data = await load_file(space, file, exchange.argument)
    await exchange.reply(data, media_type=UNKNOWN_TYPE.encode(), headers=SAFE_HEADERS)


async def delete_v1_file(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Delete a file; its bytes are kept while a message refers to them."""
    file = await remove_file(space, exchange.argument)
    if exchange.dialect is ANTHROPIC:
        await _reply(exchange, {"id": PREFIX + file.id, "type": "file_deleted"})
    else:
        await _reply(exchange, {"id": PREFIX + file.id, "object": "file", "deleted": True})


def _check_expiry(fields: Mapping[str, str]) -> None:
    """Raise `Rejected` for an expiry in another form, because the file would be kept forever."""
    known = {one.encode_name for one in msgspec.structs.fields(UploadFields)}
    for name in fields:
        if name.startswith("expires") and name not in known:
            raise Rejected(
                f"{name} is not known; send expires_after[anchor] and expires_after[seconds]",
                param=name,
                code="unknown_parameter",
            )


def _describe(exchange: HttpExchange, file: UploadedFile) -> Mapping[str, Any]:
    """Return a file in the client's dialect."""
    if exchange.dialect is ANTHROPIC:
        return {
            "id": PREFIX + file.id,
            "type": "file",
            "filename": file.name,
            "mime_type": file.mimetype,
            "size_bytes": file.size,
            "created_at": file.created,
            "expires_at": file.expires,
            "downloadable": True,
        }
    return {
        "id": PREFIX + file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": _count_seconds(file.created),
        "expires_at": file.expires and _count_seconds(file.expires),
        "filename": file.name,
        "purpose": _read_purpose(file),
        "status": "processed",
        "status_details": None,
    }


def _read_purpose(file: UploadedFile) -> str:
    """Return the purpose of a file, of those that OpenAI's clients know."""
    return file.purpose if file.purpose in _PURPOSES else _PURPOSE


def _count_seconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp())


def _read_ids(exchange: HttpExchange) -> Sequence[str]:
    """Return the ids that Anthropic's clients ask for; the parameter is repeated."""
    pairs = parse_qsl(exchange.scope["query_string"].decode("latin-1"))
    ids = [*dict.fromkeys(value for name, value in pairs if name in ("ids", "ids[]"))]
    if len(ids) > _MOST_IDS:
        raise Rejected(f"at most {_MOST_IDS} ids are allowed", param="ids")
    return ids


def _take_anthropic(
    files: Sequence[UploadedFile], query: FilesQuery, ids: Sequence[str]
) -> tuple[Sequence[UploadedFile], bool]:
    """Return a page in Anthropic's terms, and True if more files follow."""
    if ids:
        wanted = {one.removeprefix(PREFIX) for one in ids}
        return [one for one in files if one.id in wanted], False
    limit = query.limit or 20
    if query.before_id:
        end = _find_place(files, query.before_id, "before_id")
        return files[max(0, end - limit) : end], end > limit
    after = query.page.removeprefix(_PAGE) or query.after_id
    start = _find_place(files, after, "page" if query.page else "after_id") + 1 if after else 0
    page = files[start : start + limit]
    return page, len(files) > start + len(page)


def _find_place(files: Sequence[UploadedFile], identity: str, param: str) -> int:
    wanted = identity.removeprefix(PREFIX)
    for place, file in enumerate(files):
        if file.id == wanted:
            return place
    raise Rejected(f"{identity!r} not found in the list", status=404, code="not_found", param=param)


async def _reply(exchange: HttpExchange, described: Mapping[str, Any]) -> None:
    await exchange.reply(msgspec.json.encode(described))
