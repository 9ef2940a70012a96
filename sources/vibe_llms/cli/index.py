"""The command `index`: named collections of files and folders that models can search."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from vibe_llms.base.exceptions import CollectionNotFound
from vibe_llms.cli.completion import complete_paths
from vibe_llms.cli.display import print_notices
from vibe_llms.cli.progress import Waiting
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.shared_options import follow_links_option, json_option, yes_option
from vibe_llms.cli.terminal import BOLD, DIM, note, shown, styled, write, write_json
from vibe_llms.documents.catalog import CatalogCollection
from vibe_llms.documents.collections import Collection, CollectionFile
from vibe_llms.documents.core import Documents
from vibe_llms.documents.store import Refreshed
from vibe_llms.messages.hidden import one_line
from vibe_llms.opening import open_session

P = ParamSpec("P")
T = TypeVar("T")

#: Number of unreadable files that are named.
_NAMED = 10


@click.group("index")
def index() -> None:
    """Manage collections of documents.

    A collection is a name for files and folders, whose text is kept so that models can search it:
    vibe-llms ask --docs NAME "QUESTION".
    """


def _with_documents(
    work: Callable[Concatenate[Documents, P], Coroutine[Any, Any, T]],
) -> Callable[P, T]:
    """Make a command that runs with the documents of the user's configuration."""

    @asynchronous
    @functools.wraps(work)
    async def command(*arguments: P.args, **options: P.kwargs) -> T:
        async with open_session(event_handler=print_notices()) as session:
            return await work(session.access_documents(), *arguments, **options)

    return command


@index.command("add")
@click.argument("name")
@click.argument("paths", nargs=-1, shell_complete=complete_paths)
@follow_links_option
@json_option
@_with_documents
async def add(
    documents: Documents, name: str, paths: tuple[str, ...], follow_links: bool, as_json: bool
) -> int:
    """Add files and folders to a collection, and read what is new or changed.

    Without PATHS, reads what has changed since the last time. After Ctrl-C, what was read is kept;
    the same command continues. With --follow-links, the collection keeps following links.
    """
    if paths or follow_links:
        paths_added = map(Path, paths)
        await documents.store.add_to_collection(name, paths_added, follow_links=follow_links)
    done = await refresh(documents, name)
    if as_json:
        write_json(json.dumps(_encode(done)))
    else:
        _report(name, done)
    return 0


async def refresh(documents: Documents, name: str, *, quiet: bool = False) -> Refreshed:
    """Read the changed files of a collection, with progress on stderr."""
    waiting = Waiting(enabled=not quiet)
    begun = False

    def report(done: int, total: int, path: str) -> None:
        nonlocal begun
        words = f"reading {name}: {done:,} of {total:,} · {Path(path).name}"
        if begun:
            waiting.change(one_line(words))
        else:
            begun = True
            waiting.show(one_line(words))

    try:
        try:
            return await documents.store.refresh(name, documents.reader, report)
        except CollectionNotFound:
            # It may consist of uploaded files.
            return await documents.refresh(name, report, failed=True)
    except asyncio.CancelledError:
        waiting.clear()
        note(f"interrupted; the files read so far are kept. Continue: vibe-llms index add {name}")
        raise
    finally:
        waiting.clear()


@index.command("list")
@json_option
@_with_documents
async def list_collections(documents: Documents, as_json: bool) -> None:
    """List the collections."""
    uploaded = [_convert(one) for one in await documents.catalog.survey() if one.own]
    found = [*await documents.store.survey_collections(), *uploaded]
    if as_json:
        write_json(json.dumps([_describe(one) for one in found], ensure_ascii=False))
        return
    for one in found:
        unread = sum(bool(file.problem) for file in one.files)
        size = f"{len(one.files) - unread:,} files" + (f", {unread:,} not read" if unread else "")
        paths = ", ".join(one.paths) or "uploaded"
        write(sys.stdout, f"{styled(shown(one.name), BOLD)}  {size}  {styled(shown(paths), DIM)}\n")
    if not found:
        note("no collections; make one: vibe-llms index add NAME PATH")


@index.command("status")
@click.argument("name")
@json_option
@_with_documents
async def status(documents: Documents, name: str, as_json: bool) -> None:
    """Show the files of a collection, and why some cannot be read."""
    collection = await _access(documents, name)
    if as_json:
        write_json(json.dumps(_describe(collection), ensure_ascii=False))
        return
    for file in collection.files:
        problem = f"  {styled(shown(one_line(file.problem)), DIM)}" if file.problem else ""
        write(sys.stdout, f"{shown(one_line(file.path))}{problem}\n")


@index.command("rm")
@click.argument("name")
@yes_option
@_with_documents
async def remove(documents: Documents, name: str, yes: bool) -> int:
    """Remove a collection. Its files stay, except those that were uploaded."""
    collection = await _access(documents, name)
    question = f"Remove the collection {name} of {len(collection.files):,} files?"
    if not collection.paths:
        question = f"Delete the {len(collection.files):,} uploaded files of the collection {name}?"
    if not confirm(question, yes=yes, about=collection.paths):
        return 1
    if collection.paths:
        await documents.store.remove_collection(name)
    else:
        uploaded = await documents.catalog.access(name)
        await documents.catalog.remove(name, [one.id for one in uploaded.documents])
    note(f"removed {name}")
    return 0


COMMANDS: dict[str, click.Command] = {"index": index}


async def _access(documents: Documents, name: str) -> Collection:
    """Return a collection of files and folders, or one of uploaded files, which has no paths."""
    try:
        return await documents.store.access_collection(name)
    except CollectionNotFound:
        return _convert(await documents.catalog.access(name))


def _convert(uploaded: CatalogCollection) -> Collection:
    files = [
        CollectionFile(one.name, one.size, hash=one.hash, problem=one.problem)
        for one in uploaded.documents
    ]
    return Collection(uploaded.name, files=tuple(files))


def _report(name: str, done: Refreshed) -> None:
    counts = {"read": len(done.read), "unchanged": done.unchanged, "removed": done.removed}
    words = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    write(sys.stdout, f"{shown(name)}: {words or 'no files'}\n")
    for path, problem in [*done.problems.items()][:_NAMED]:
        note(f"note: not read: {one_line(f'{path}: {problem}')}")
    if len(done.problems) > _NAMED:
        more = len(done.problems) - _NAMED
        note(f"note: {more:,} more were not read; see: vibe-llms index status {name}")


def _encode(done: Refreshed) -> dict[str, Any]:
    return {
        "read": done.read,
        "unchanged": done.unchanged,
        "removed": done.removed,
        "problems": done.problems,
    }


def _describe(collection: Collection) -> dict[str, Any]:
    return {
        "name": collection.name,
        "paths": collection.paths,
        "files": [
            {"path": file.path, "size": file.size, "problem": file.problem}
            for file in collection.files
        ],
    }
