"""Uploaded files of a user, as all dialects refer to them, and the files of a request."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

from msgspec import Struct

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import AttachmentUnreadable, ContentMissing
from vibe_llms.base.offloading import LOOP_BYTES, offload
from vibe_llms.conversations.attachments import UNKNOWN_TYPE, detect_type, produce_attachment
from vibe_llms.messages.contents import Content, ImageContent, Reference
from vibe_llms.server.exchanges import Headers, HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.request_limits import refuse_many
from vibe_llms.server.spaces import UserSpace
from vibe_llms.storage.interfaces import UploadedFile

_LOGGER = get_logger("vibe_llms.server")

#: Begins ids below `/v1`, because clients of OpenAI tell ids from data by it.
PREFIX = "file-"
#: Begins the URL of a file in DIAL's storage.
DIAL_PREFIX = "files/"
#: Begins the name of a bucket.
BUCKET_PREFIX = "dial-"
LONGEST_NAME = 255
TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
#: Media types sent by clients that do not know the type.
_UNKNOWN_TYPES = ("", UNKNOWN_TYPE, "application/x-www-form-urlencoded")
#: Members of messages and parts that contain references to files.
_CONTAINERS = ("attachments", "content", "custom_content", "file", "output", "source")
#: Keeps browsers from rendering a user's bytes as a page of this server.
SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-disposition", b"attachment"),
    (b"content-security-policy", b"sandbox"),
)


#: Keeps pages of other sites from showing a user's pictures.
_OWN = {b"cross-origin-resource-policy": b"same-origin"}
#: Types that browsers show without running anything, by their names in the package filetype. SVG
#: is not one of them: it can have scripts.
_SHOWN_TYPES = {
    **{
        name: name
        for name in (
            *("image/apng", "image/avif", "image/bmp", "image/gif", "image/jpeg", "image/png"),
            *("image/webp", "audio/aac", "audio/mp4", "audio/mpeg", "audio/ogg", "video/mp4"),
            "video/webm",
        )
    },
    "audio/x-flac": "audio/flac",
    "audio/x-wav": "audio/wav",
}


class RequestFiles(Struct, frozen=True):
    """Files that a request refers to, and their bytes, by reference; `missing` if some are not."""

    found: Mapping[str, tuple[UploadedFile, bytes]] = {}
    missing: bool = False

    def read(self, reference: str, param: str, *, image: bool = False) -> Content:
        """Return the content of a file; `Rejected` if it is not found or not of the kind."""
        if reference not in self.found:
            raise refuse_missing(reference, param)
        file, data = self.found[reference]
        try:
            content = produce_attachment(data, file.name.rpartition("/")[2], file.mimetype)
        except AttachmentUnreadable as error:
            raise Rejected(f"file {reference!r}: {error}", param=param) from error
        if image and not isinstance(content, ImageContent):
            raise Rejected(
                f"file {reference!r} is not an image, but {file.mimetype}; send it as a file",
                param=param,
                code="invalid_file_type",
            )
        return content


NO_FILES = RequestFiles()


async def gather_files(exchange: HttpExchange, space: UserSpace, request: object) -> RequestFiles:
    """Load the files that a request refers to; name those that are not found as left out.

    In total, they may have as many bytes as a body.
    """
    if not (references := survey_references(request)):
        return NO_FILES
    most, count = space.settings.body_bytes, space.settings.user_files
    if len(references) > count:
        raise refuse_many(None, "files", count, "user-files", f"{len(references):,}")
    found: dict[str, tuple[UploadedFile, bytes]] = {}
    contents: dict[str, bytes] = {}
    for reference in references:
        try:
            file = await find_file(space, reference)
        except Rejected:
            # It is refused in a new message, and becomes text in an earlier one.
            exchange.omissions.add("file", reference)
            continue
        if file.hash not in contents:
            if sum(map(len, contents.values())) + file.size > most:
                raise refuse_many(None, "bytes in the files", most, "body-bytes")
            exchange.reserve(file.size)
            try:
                contents[file.hash] = await space.archive.load(Reference(file.hash, file.size))
            except ContentMissing as error:
                _LOGGER.warning("the content of a file is missing: %s", error)
                exchange.omissions.add("file", reference)
                continue
        found[reference] = file, contents[file.hash]
    return RequestFiles(found, missing=len(found) < len(references))


def survey_references(request: object) -> Sequence[str]:
    """Return the references to files in the messages of a request.

    >>> survey_references({"input": [{"content": [{"type": "input_file", "file_id": "file-1"}]}]})
    ['file-1']
    """
    references: dict[str, None] = {}
    waiting = [_get(request, name) for name in ("messages", "input", "custom_content")]
    while waiting:
        match waiting.pop():
            case list() as items:
                waiting.extend(reversed(items))
            case dict() | Struct() as item:
                for reference in (_get(item, "file_id"), _get(item, "url")):
                    dial = isinstance(reference, str) and reference.startswith(DIAL_PREFIX)
                    if isinstance(reference, str) and (dial or reference == _get(item, "file_id")):
                        references[reference] = None
                waiting.extend(_get(item, name) for name in _CONTAINERS)
    return [*references]


def _get(item: object, name: str) -> object:
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)


async def survey_files(space: UserSpace) -> Sequence[UploadedFile]:
    """Return the files of a user, newest first, and delete those that have expired."""
    kept = []
    for file in await space.archive.survey_files():
        if _has_expired(file):
            await _discard(space, file)
        else:
            kept.append(file)
    return kept


async def find_file(space: UserSpace, reference: str, param: str | None = None) -> UploadedFile:
    """Return the file with an id, or with the URL of its path in DIAL's storage."""
    try:
        file = await space.archive.access_file(_identify(space.user, reference))
    except ContentMissing:
        raise refuse_missing(reference, param) from None
    if _has_expired(file):
        await _discard(space, file)
        raise refuse_missing(reference, param)
    return file


async def check_count(space: UserSpace) -> None:
    """Raise `Rejected` if the user may not store another file."""
    most = space.settings.user_files
    if len(await survey_files(space)) >= most:
        raise Rejected(
            f"{most} files is the limit (user-files); delete some",
            status=409,
            code="too_many_files",
        )


async def keep_file(
    space: UserSpace,
    data: bytes,
    name: str,
    kind: str,
    *,
    identity: str = "",
    purpose: str = "",
    seconds: int | None = None,
) -> UploadedFile:
    """Store a file; its type is detected from its bytes and name if the client does not know it.

    Args:
        identity: The id of the file, if it is not the hash of its bytes.
        seconds: The time after which the file is deleted.
    """
    kind = await detect_kind(data, name, kind)
    expires = None
    if seconds is not None:
        expires = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    return await space.archive.upload(
        data, name, kind, identity=identity, purpose=purpose, expires=expires
    )


def describe_bytes(data: bytes) -> tuple[str, Headers]:
    """Return the media type with which bytes are sent to a browser, and the headers for it.

    The type is detected: neither the model nor the user who named one can make a page of a picture.
    """
    import filetype

    shown = _SHOWN_TYPES.get(filetype.guess_mime(data) or "")
    headers = {**dict(SAFE_HEADERS), b"accept-ranges": b"bytes", **_OWN}
    if shown is not None:
        headers[b"content-disposition"] = b"inline"
    return shown or UNKNOWN_TYPE, tuple(headers.items())


async def detect_kind(data: bytes, name: str, kind: str) -> str:
    """Return the type of a file: the client's, or that of its bytes and name if it is unknown."""
    if not data:
        raise Rejected("the file is empty", code="empty_file", param="file")
    if kind in _UNKNOWN_TYPES or not TYPE.fullmatch(kind):
        try:
            return await offload(len(data) > LOOP_BYTES, detect_type, data, name)
        except AttachmentUnreadable:
            return UNKNOWN_TYPE
    return kind


async def load_file(space: UserSpace, file: UploadedFile, reference: str) -> bytes:
    """Return the bytes of a file; log that they are missing, because the client cannot tell."""
    try:
        return await space.archive.load(Reference(file.hash, file.size))
    except ContentMissing as error:
        _LOGGER.warning("the content of a file is missing: %s", error)
        raise refuse_missing(reference) from None


async def remove_file(space: UserSpace, reference: str) -> UploadedFile:
    """Delete a file; its bytes are kept while a message refers to them."""
    file = await find_file(space, reference)
    await _discard(space, file)
    return file


def refuse_missing(reference: str, param: str | None = None) -> Rejected:
    """Return the error for a file that the user does not have."""
    return Rejected(f"file {reference!r} not found", status=404, code="file_not_found", param=param)


def name_bucket(user: str) -> str:
    """Return the name of a user's bucket in DIAL's storage."""
    return BUCKET_PREFIX + hashlib.sha256(user.encode()).hexdigest()[:32]


def identify_path(path: str) -> str:
    """Return the id of the file with a path in DIAL's storage."""
    return hashlib.sha256(f"{DIAL_PREFIX}\0{path}".encode()).hexdigest()[:32]


def _identify(user: str, reference: str) -> str:
    if reference.startswith(DIAL_PREFIX):
        bucket, _, path = unquote(reference.removeprefix(DIAL_PREFIX)).partition("/")
        return identify_path(path) if bucket == name_bucket(user) else ""
    return reference.removeprefix(PREFIX)


def _has_expired(file: UploadedFile) -> bool:
    return file.expires is not None and datetime.fromisoformat(file.expires) <= datetime.now(UTC)


async def _discard(space: UserSpace, file: UploadedFile) -> None:
    try:
        await space.archive.remove_file(file.id)
    except ContentMissing:
        # Another request has deleted it.
        return
    space.collect_later()
