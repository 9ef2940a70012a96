"""The pictures that a turn brought: named on stderr, and saved where `--save` asks for it."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from pathlib import Path

from vibe_llms.cli.terminal import note
from vibe_llms.exceptions import RequestError
from vibe_llms.messages.canisters import AssistantCanister, ResultCanister, Turn
from vibe_llms.messages.contents import ImageContent, Reference
from vibe_llms.session import Session
from vibe_llms.storage.archive import DirectoryArchive

_NAME_CHARACTERS = 12


async def report_pictures(session: Session, turn: Turn, *, folder: str | None, quiet: bool) -> None:
    """Tell where each picture lies that a tool or the model made: saved, or in the archive."""
    for picture in find_pictures(turn):
        path: Path | None
        if folder is not None:
            path = save_picture(Path(folder), await _load(session, picture), picture.mimetype)
        else:
            path = _locate(session, picture)
        if quiet:
            continue
        if path is None:
            note("a picture came and is not kept; to keep one: --save FOLDER")
        else:
            note(f"picture: {path}")


def find_pictures(turn: Turn) -> Iterator[ImageContent]:
    """The pictures of a turn that can be kept, each once."""
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


def save_picture(folder: Path, data: bytes, mimetype: str) -> Path:
    """Write a picture into a folder under a name made of its hash; what is there already stays."""
    suffix = mimetypes.guess_extension(mimetype) or ".bin"
    path = folder / f"{Reference.from_bytes(data).hash[:_NAME_CHARACTERS]}{suffix}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        if not path.is_file():
            raise RequestError(f"the picture cannot be saved: {path} is in the way") from None
    except OSError as error:
        raise RequestError(f"the picture cannot be saved to {path}: {error.strerror}") from error
    return path


def _reference(picture: ImageContent) -> Reference:
    data = picture.data
    if isinstance(data, bytes):
        return Reference.from_bytes(data)
    assert isinstance(data, Reference)
    return data


async def _load(session: Session, picture: ImageContent) -> bytes:
    data = picture.data
    if isinstance(data, bytes):
        return data
    assert isinstance(data, Reference)
    return await session.load(data)


def _locate(session: Session, picture: ImageContent) -> Path | None:
    archive = session.archive
    assert isinstance(archive, DirectoryArchive)
    return archive.contents.locate(_reference(picture))
