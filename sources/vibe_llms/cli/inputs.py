"""The input of a turn: the prompt, piped text, attachments, and documents from files or the web."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.attachments import (
    find_documents,
    find_folder,
    is_address,
    produce_attachment,
    produce_document,
    read_attachment,
    read_document,
    read_text,
)
from vibe_llms.cli.options import STANDARD_INPUT, Options, read_system
from vibe_llms.cli.terminal import is_terminal, note
from vibe_llms.exceptions import AttachmentUnreadable, RequestError
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import Content, TextualContent, repair_text
from vibe_llms.session import Session

_INPUT_NAME = "standard input"


class Said(Struct, frozen=True):
    """The input of a turn: documents and instructions, and the contents of the message."""

    before: tuple[Canister, ...] = ()
    contents: tuple[Content, ...] = ()

    def canisters(self) -> Sequence[Canister]:
        """All of it as canisters; `RequestError` if the message is empty."""
        if not self.contents:
            raise RequestError("the message is empty")
        return [*self.before, UserCanister(self.contents)]


def read_said(options: Options) -> Said:
    """The input from the options, the arguments and standard input; piped text comes first."""
    before: list[Canister] = []
    system = read_system(options)
    if system is not None and options.continues:
        before.append(SupervisorCanister.from_text(system))
    for fragment in options.fragments:
        if fragment == STANDARD_INPUT:
            before.append(produce_document(_read_standard_input(), _INPUT_NAME, _INPUT_NAME))
        elif is_address(fragment):
            # Fetched once there is a session.
            before.append(DocumentCanister(title=fragment, source=fragment))
        else:
            before += _read_documents(fragment, options)
    if options.trust:
        before = [
            replace(one, trusted=True) if isinstance(one, DocumentCanister) else one
            for one in before
        ]
    contents: list[Content] = []
    for source, kind in (*((one, "") for one in options.attachments), *options.typed_attachments):
        if source == STANDARD_INPUT:
            contents.append(produce_attachment(_read_standard_input(), _INPUT_NAME, kind))
        else:
            contents.append(read_attachment(source, kind))
    spoken = repair_text(" ".join(options.prompt))
    replaced = spoken != " ".join(options.prompt)
    texts = [spoken]
    if not options.reads_standard_input and not is_terminal(sys.stdin):
        piped = read_piped(sys.stdin.buffer.read())
        if isinstance(piped, str):
            replaced = replaced or "\ufffd" in piped
            texts.insert(0, piped)
        else:
            contents.append(piped)
    if replaced and not options.quiet:
        note("note: invalid characters were replaced by U+FFFD")
    if text := "\n\n".join(part for part in texts if part.strip()):
        contents.append(TextualContent(text))
    return Said(tuple(before), tuple(contents))


async def fetch_pages(
    session: Session, canisters: Sequence[Canister], *, quiet: bool
) -> Sequence[Canister]:
    """The messages with what is at the web addresses of `-f`, one after the other."""
    found: list[Canister] = []
    for canister in canisters:
        if isinstance(canister, DocumentCanister) and not canister.contents:
            fetched = await session.access_documents().fetch(canister.source)
            if not quiet:
                note(f"fetched {fetched.source}: {fetched.title}", dim=True)
            found.append(replace(fetched, trusted=canister.trusted))
        else:
            found.append(canister)
    return found


def _read_documents(fragment: str, options: Options) -> Sequence[Canister]:
    """The documents of a file, a folder or a pattern; of several, those that can be read."""
    sources = find_documents(fragment)
    if sources == [fragment]:
        return [read_document(fragment)]
    folder = "" if options.follow_links else find_folder(fragment)
    found: list[Canister] = []
    for source in sources:
        try:
            found.append(read_document(source, folder=folder))
        except AttachmentUnreadable as error:
            if not options.quiet:
                note(f"note: left out: {error}")
    if not found:
        raise AttachmentUnreadable(f"{fragment}: none of its {len(sources)} files can be read")
    return found


def read_piped(data: bytes) -> str | Content:
    """Piped input: text, or an image or a file as `-a -` attaches it."""
    text = read_text(data)
    if text is None:
        try:
            return produce_attachment(data, _INPUT_NAME)
        except AttachmentUnreadable:
            if b"\0" in data:
                raise
            text = data.decode("utf-8", "replace")
    return text.strip("\n")


def _read_standard_input() -> bytes:
    data = sys.stdin.buffer.read()
    if not data:
        raise AttachmentUnreadable("standard input is empty")
    return data
