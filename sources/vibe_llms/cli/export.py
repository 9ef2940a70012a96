"""The command `export`: writes a conversation to a file of Markdown, HTML or JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import click

from vibe_llms.base.exceptions import RequestError
from vibe_llms.base.files import LARGEST_FILE
from vibe_llms.base.folders import replace_file, storage_errors
from vibe_llms.cli.completion import complete_paths
from vibe_llms.cli.conversations import HandleCommand, newest_argument, with_archive
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.shared_options import yes_option
from vibe_llms.cli.terminal import note, shown, write
from vibe_llms.storage.interfaces import Archive
from vibe_llms.transcripts.exports import Form, export

_STANDARD_OUTPUT = "-"
_ENDINGS: Mapping[str, Form] = {
    **dict.fromkeys(("md", "markdown"), "md"),
    **dict.fromkeys(("html", "htm"), "html"),
    "json": "json",
}


def form_of(file: str, form: Form | None = None) -> Form:
    """Return the given format, or else that of the file name; Markdown without an ending.

    Raises `RequestError` for an unknown ending.
    """
    suffix = Path(file).suffix.lower().lstrip(".")
    if form is None and suffix and suffix not in _ENDINGS:
        raise RequestError(
            f"{file}: unknown file type .{suffix}; use .html, .md or .json, or --format"
        )
    return form or _ENDINGS.get(suffix, "md")


def check_target(file: str, *, yes: bool = False) -> bool:
    """Return True if an export may replace this file; ask if the file exists, unless `yes`."""
    path = Path(file).expanduser()
    if not path.exists():
        return True
    if not path.is_file():
        raise RequestError(f"{file} is not a file; for standard output: -o -")
    return confirm(f"{file} exists. Overwrite it?", yes=yes, remedy="use -y to overwrite it")


def write_export(file: str, text: str) -> None:
    """Write an export to a file that only its owner can read; replace the file atomically."""
    path = Path(file).expanduser()
    with storage_errors(path):
        replace_file(path, text.encode("utf-8", "replace"), LARGEST_FILE)


@click.command("export", cls=HandleCommand)
@newest_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(get_args(Form)),
    help="Set the format (default: by the name of FILE, or md).",
)
@click.option(
    "-o",
    "--output",
    "file",
    default=_STANDARD_OUTPUT,
    metavar="FILE",
    shell_complete=complete_paths,
    help="Write to FILE instead of standard output (-).",
)
@yes_option
def export_conversation(conversation: str, form: Form | None, file: str, yes: bool) -> int:
    """Export a conversation to one file to read or to send; without an ID, the latest one.

    Images are embedded. HTML loads nothing and runs no scripts. Asks before it overwrites FILE.
    """
    text = _export(conversation, form_of("" if file == _STANDARD_OUTPUT else file, form))
    if file == _STANDARD_OUTPUT:
        write(sys.stdout, shown(text))
        return 0
    # Asked outside the event loop, where Ctrl-C would wait for the answer.
    if not check_target(file, yes=yes):
        note("nothing was written")
        return 1
    write_export(file, text)
    note(f"written to {file}")
    return 0


@with_archive
async def _export(archive: Archive, conversation: str, form: Form) -> str:
    identity = await archive.resolve(conversation)
    restored = await archive.restore(identity)
    for notice in restored.notices:
        note(f"note: {notice.text}")
    return await export(
        restored.canisters, archive, form, identity=identity, name=restored.details.name
    )


COMMANDS: dict[str, click.Command] = {"export": export_conversation}
