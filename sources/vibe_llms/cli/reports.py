"""Output after a turn: JSON, usage and cost, images, and the reason if it ended early."""

from __future__ import annotations

import json
import mimetypes
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from vibe_llms.base.exceptions import PackageMissing, RequestError
from vibe_llms.cli.options import Options
from vibe_llms.cli.terminal import is_terminal, note, write_json
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    Cost,
    ReplyCanister,
    ResultCanister,
    StopReason,
    Turn,
)
from vibe_llms.messages.contents import ImageContent, Reference
from vibe_llms.session.core import Session
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.transcripts.citations import list_citations
from vibe_llms.transcripts.usages import describe_usage

_NAME_CHARACTERS = 12
#: Data of a request, perhaps in a data URL.
_DATA = re.compile(r"(?P<head>(?:data:[^,\"]{0,200},)?)(?P<data>[A-Za-z0-9+/]{100,}={0,2})")
_SHOWN_DATA = 16
#: Members of requests that hold messages, which are never shortened.
_WORDS = frozenset(("arguments", "content", "input", "output", "partial_json", "text"))


async def report_turn(
    session: Session,
    conversation: Conversation,
    turn: Turn,
    options: Options,
    facts: Mapping[str, Any] = {},
) -> None:
    """Print the output that the options ask for; `facts` are further members of its JSON."""
    cost = access_cost(session, turn.canisters) if options.usage else None
    if options.json:
        write_json(_encode_turn(conversation, turn, cost, options, facts))
    elif options.schema is not None and not options.jsonl and turn.output is not None:
        write_output(turn.output)
    if turn.stop_reason == StopReason.LENGTH and not options.quiet:
        note("note: the answer was cut off by its length limit (-o output-tokens N)")
    if turn.stop_reason == StopReason.REFUSED and not options.quiet:
        ending = getattr(turn.canisters[-1], "ending", None)
        reason = "" if ending is None or not ending.detail else f": {ending.detail}"
        note(f"note: the model refused to answer{reason}")
    if not options.quiet and not options.json and "sources" not in facts:
        for line in list_citations(chain.from_iterable(one.contents for one in turn.canisters)):
            note(f"source: {line}", dim=True)
    if options.usage:
        note(describe_usage(turn.usage, cost), dim=True)
    await _report_images(session, turn, options)


def write_output(output: object) -> None:
    """Print a typed answer: on one line in a pipe, indented on a terminal."""
    indent = 2 if is_terminal(sys.stdout) else None
    write_json(json.dumps(output, ensure_ascii=False, indent=indent))


def shorten_data(request: str) -> str:
    """Replace the data of images and files in a request's JSON by their size.

    >>> shorten_data(f'{{"type":"image","data":"{"aGk/" * 100}"}}')
    '{"type":"image","data":"aGk/aGk/aGk/aGk/… (300 bytes of base64)"}'
    """
    if _DATA.search(request) is None:
        return request
    try:
        tree = json.loads(request)
    except ValueError:
        return request
    return json.dumps(_shorten(tree), ensure_ascii=False, separators=(",", ":"))


def _shorten(value: Any, name: str = "") -> Any:
    match value:
        case dict():
            return {key: _shorten(one, key) for key, one in value.items()}
        case list():
            return [_shorten(one, name) for one in value]
        case str() if name not in _WORDS and (found := _DATA.fullmatch(value)):
            data = found["data"]
            size = len(data) * 3 // 4 - data.count("=")
            return f"{found['head']}{data[:_SHOWN_DATA]}… ({size:,} bytes of base64)"
        case _:
            return value


def access_cost(session: Session, canisters: Iterable[Canister]) -> Cost | None:
    """Return the cost of replies, or None without a list of prices or without theirs."""
    try:
        cost = session.estimate_cost(canisters)
    except PackageMissing:
        return None
    return cost if cost.dollars or not cost.unpriced else None


def address_of(conversation: Conversation) -> str:
    """Return the model of the conversation, as provider/model."""
    return f"{conversation.model.provider}/{conversation.model.name}"


def _encode_turn(
    conversation: Conversation,
    turn: Turn,
    cost: Cost | None,
    options: Options,
    facts: Mapping[str, Any],
) -> str:
    return msgspec.json.encode(
        {
            "conversation": None if options.no_log else conversation.identity,
            "model": _name_author(turn) or address_of(conversation),
            "text": turn.text,
            **({} if options.schema is None else {"output": turn.output}),
            "stop_reason": turn.stop_reason,
            "usage": turn.usage,
            "cost": None
            if cost is None
            else {
                "dollars": float(cost.dollars),
                "unpriced": cost.unpriced,
                "source": cost.source,
            },
            **facts,
        }
    ).decode()


def _name_author(turn: Turn) -> str:
    """Return the address of the model that wrote the last reply; empty if there is none."""
    for canister in reversed(turn.canisters):
        if isinstance(canister, ReplyCanister) and canister.provenance is not None:
            return f"{canister.provenance.row}/{canister.provenance.model}"
    return ""


async def _report_images(session: Session, turn: Turn, options: Options) -> None:
    """Print the path of each image of a tool or the model: in the --save folder or the archive."""
    for image in find_images(turn):
        path: Path | None
        if options.save is not None:
            data = image.data
            assert isinstance(data, bytes | Reference)
            loaded = data if isinstance(data, bytes) else await session.load(data)
            path = save_image(Path(options.save), loaded, image.mimetype)
        else:
            archive = session.archive
            path = None
            if isinstance(archive, DirectoryArchive):
                path = archive.contents.locate(_reference(image))
        if options.quiet:
            continue
        if path is None:
            note("an image was not saved; to save images: --save FOLDER")
        else:
            note(f"image: {path}")


def find_images(turn: Turn) -> Iterator[ImageContent]:
    """Yield the images of a turn whose data is here, each once."""
    seen: set[str] = set()
    for canister in turn.canisters:
        if not isinstance(canister, AssistantCanister | ResultCanister):
            continue
        for content in canister.contents:
            if isinstance(content, ImageContent) and isinstance(content.data, bytes | Reference):
                name = _reference(content).hash
                if name not in seen:
                    seen.add(name)
                    yield content


def save_image(folder: Path, data: bytes, mimetype: str) -> Path:
    """Write an image into a folder, named by its hash; an existing file is kept."""
    suffix = mimetypes.guess_extension(mimetype) or ".bin"
    path = folder / f"{Reference.from_bytes(data).hash[:_NAME_CHARACTERS]}{suffix}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        if not path.is_file():
            raise RequestError(f"cannot save the image: {path} is in the way") from None
    except OSError as error:
        raise RequestError(f"cannot save the image to {path}: {error.strerror}") from error
    return path


def _reference(image: ImageContent) -> Reference:
    data = image.data
    if isinstance(data, bytes):
        return Reference.from_bytes(data)
    assert isinstance(data, Reference)
    return data
