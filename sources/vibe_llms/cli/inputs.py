"""The input of a turn: the prompt, piped text, attachments, and documents from files or the web."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from glob import glob

import click
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.exceptions import AttachmentUnreadable, RequestError
from vibe_llms.cli.notes import merge_notices
from vibe_llms.cli.options import STANDARD_INPUT, Options, read_system
from vibe_llms.cli.terminal import is_terminal, note
from vibe_llms.conversations.attachments import (
    MOST_FILES,
    find_documents,
    find_folder,
    is_address,
    is_pattern,
    produce_attachment,
    produce_document,
    read_attachment,
    read_document,
    read_text,
)
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import Content, TextualContent, repair_text
from vibe_llms.messages.events import Notice
from vibe_llms.session.core import Session

_INPUT_NAME = "standard input"


class PromptInput(Struct, frozen=True):
    """The input of a turn: documents and instructions, and the contents of the message."""

    before: tuple[Canister, ...] = ()
    contents: tuple[Content, ...] = ()

    def canisters(self) -> Sequence[Canister]:
        """Return all input as canisters; raise `RequestError` if the message is empty."""
        if not self.contents:
            raise RequestError("the message is empty")
        return [*self.before, UserCanister(self.contents)]


def read_input(options: Options) -> PromptInput:
    """Read the input from the options, the arguments and standard input; piped text is first."""
    before: list[Canister] = []
    system = read_system(options)
    if system is not None and options.continues:
        before.append(SupervisorCanister.from_text(system))
    for fragment in options.fragments:
        if fragment == STANDARD_INPUT:
            before.append(produce_document(_read_standard_input(), _INPUT_NAME, _INPUT_NAME))
        elif is_address(fragment):
            # Fetched later, because it needs a session.
            before.append(DocumentCanister(title=fragment, source=fragment))
        else:
            before += _read_documents(fragment, options)
    if options.expanded:
        before += _read_each(options.expanded, options)
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
            contents += read_attachments(source, kind)
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
    return PromptInput(tuple(before), tuple(contents))


async def fetch_pages(
    session: Session, canisters: Sequence[Canister], *, quiet: bool
) -> Sequence[Canister]:
    """Return the messages with the web pages of `-f` fetched, one after the other."""
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
    """Read the documents of a file, a folder or a pattern; omit unreadable ones of several."""
    sources = find_documents(fragment)
    if sources == [fragment]:
        return [read_document(fragment)]
    folder = "" if options.follow_links else find_folder(fragment)
    return _read_each(sources, options, folder)


def _read_each(sources: Sequence[str], options: Options, folder: str = "") -> Sequence[Canister]:
    found: list[Canister] = []
    failures: list[Notice] = []
    for source in sources:
        try:
            if os.path.isdir(source):
                found += _read_documents(source, options)
            else:
                found.append(read_document(source, folder=folder))
        except AttachmentUnreadable as error:
            failures.append(Notice("documents", f"left out: {error}", name=source))
    for text in () if options.quiet else merge_notices(failures):
        note(f"note: {text}")
    if not found:
        raise AttachmentUnreadable(
            f"{sources[0]} and {len(sources) - 1} more: none of these files can be read"
        )
    return found


def read_attachments(source: str, mimetype: str = "") -> Sequence[Content]:
    """Read a file, or all files that match a pattern such as `*.png`."""
    sources = find_documents(source) if is_pattern(source) else [source]
    return [read_attachment(one, mimetype) for one in sources]


def take_expanded(options: Options) -> Options:
    """Move files that the shell put in place of a pattern from the prompt to `-f` or `-a`.

    The shell turns `-f *.md "question"` into `-f a.md b.md c.md "question"`. Raises `UsageError` if
    a file may also be a word of the prompt.
    """
    paths = [one for one in options.prompt if os.path.exists(one)]
    files = [one for one in paths if os.path.isfile(one) or os.sep in one]
    if not files:
        return options
    words = [one for one in options.prompt if one not in paths]
    if not (options.fragments or options.attachments):
        if any(" " in one for one in words):
            raise click.UsageError(
                f"{files[0]!r} is a file. To attach it: -f {files[0]}. To send its name, put it "
                "into the quotes of the prompt."
            )
        named = [one for one in files if "." in one or os.sep in one]
        if named and not options.quiet:
            note(f"note: {named[0]} is sent as text; to attach the file: -f {named[0]}")
        return options
    if len(words) > 1 or (options.fragments and options.attachments):
        raise click.UsageError(
            f"{files[0]!r} is a file, and may be a word of the prompt. To attach it, put -f or -a "
            "before each file, or the pattern in quotes: -f '*.md'. To send its name, put the "
            "whole prompt in quotes."
        )
    if len(paths) > MOST_FILES:
        raise click.UsageError(
            f"{len(paths)} files are too many to attach, at most {MOST_FILES}; make a collection "
            "of them: vibe-llms index add NAME PATH."
        )
    if options.fragments:
        # `-f` has the first file of a pattern.
        first = [one for one in options.fragments if os.path.isfile(one)]
        return replace(
            options,
            prompt=tuple(words),
            fragments=tuple(one for one in options.fragments if one not in first),
            expanded=(*first, *paths),
        )
    return replace(options, prompt=tuple(words), attachments=(*options.attachments, *paths))


def split_question(words: Sequence[str]) -> tuple[Sequence[str], str]:
    """Split the arguments of `ask` into files and the question, which is usually the last.

    Raises `UsageError` if the question is missing, as after an unquoted pattern.
    """
    *files, question = words
    if not os.path.exists(question):
        return files, question
    others = [one for one in words if not _names_files(one)]
    if len(others) != 1:
        raise click.UsageError(
            f"The question is missing: the last argument, {question!r}, is a file. Put the "
            "question in quotes at the end."
        )
    return [one for one in words if one != others[0]], others[0]


def _names_files(word: str) -> bool:
    if os.path.exists(word) or word == STANDARD_INPUT or is_address(word):
        return True
    return is_pattern(word) and bool(glob(os.path.expanduser(word), recursive=True))


def read_piped(data: bytes) -> str | Content:
    """Decode piped input as text, or else as an image or a file like `-a -`."""
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
