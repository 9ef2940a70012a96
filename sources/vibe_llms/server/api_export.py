"""The endpoint `/api/conversations/{conversation}/export`: a conversation as one file."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from msgspec import Struct

from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.files import SAFE_HEADERS
from vibe_llms.server.reading import read_query
from vibe_llms.server.spaces import UserSpace
from vibe_llms.transcripts.exports import Form, Transcript, draw, load_transcript

_TYPES = {
    "md": b"text/markdown; charset=utf-8",
    "html": b"text/html; charset=utf-8",
    "json": b"application/json",
}


class ExportQuery(Struct):
    """Format of a file: Markdown, an HTML page without scripts, or JSON."""

    form: Form = "md"


async def export_conversation(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Send a conversation as one file to read or to keep, with its pictures in it."""
    query = read_query(ExportQuery, exchange.query)
    restored = await space.archive.restore(exchange.argument)
    identity = exchange.conversation = exchange.argument
    transcript = await load_transcript(
        restored.canisters, space.archive, identity=identity, name=restored.details.name
    )
    text = await asyncio.to_thread(_draw, transcript, query.form)
    # Source: RFC 6266, section 4.3; old clients take the first name.
    named = quote(f"{transcript.title}.{query.form}", safe="")
    plain = f'attachment; filename="{identity}.{query.form}"'
    headers = dict(SAFE_HEADERS)
    headers[b"content-disposition"] = f"{plain}; filename*=UTF-8''{named}".encode()
    await exchange.reply(text, media_type=_TYPES[query.form], headers=headers.items())


def _draw(transcript: Transcript, form: Form) -> bytes:
    return draw(transcript, form).encode("utf-8", "replace")
