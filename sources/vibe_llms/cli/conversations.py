"""The commands list, show, search, fork, rename, tag and rm, and the display of conversations."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
import msgspec

from vibe_llms.base.configuration import LOCAL, load_configuration
from vibe_llms.base.exceptions import (
    ConversationNotFound,
    ForkPointInvalid,
    RequestError,
    StorageError,
)
from vibe_llms.cli.caching import draw_caching, encode_caching
from vibe_llms.cli.completion import complete_conversations
from vibe_llms.cli.markdown import Drawing
from vibe_llms.cli.progress import IndexProgress
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.shared_options import json_option, yes_option
from vibe_llms.cli.terminal import (
    BOLD,
    DIM,
    can_redraw,
    columns,
    has_colours,
    is_terminal,
    note,
    shown,
    styled,
    write,
    write_json,
)
from vibe_llms.cli.text import cut, width, wrap
from vibe_llms.conversations.history import History, locate
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
    role_of,
)
from vibe_llms.messages.contents import (
    Content,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.messages.hidden import one_line, visible
from vibe_llms.storage.backends import opened_backend
from vibe_llms.storage.descriptions import (
    ConversationSummary,
    Fork,
    FoundMessage,
    encode_conversation,
)
from vibe_llms.storage.interfaces import Archive, ContentArchive, Gap, Summary
from vibe_llms.transcripts.citations import list_citations
from vibe_llms.transcripts.loading import load_content, load_text

_SHOWN = 50

P = ParamSpec("P")
T = TypeVar("T")

_every_option = click.option(
    "--all", "every", is_flag=True, help="Include conversations that /undo or /regenerate replaced."
)


#: Argument for a conversation; the default is the newest one.
newest_argument = click.argument(
    "conversation",
    required=False,
    default="-1",
    metavar="[ID]",
    shell_complete=complete_conversations,
)


class HandleCommand(click.Command):
    """A command that takes conversations; `-1` means the newest one instead of an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Treat a dash with a number as an argument."""
        ctx.ignore_unknown_options = any(re.fullmatch(r"-\d+", one) for one in args)
        return super().parse_args(ctx, args)


@asynccontextmanager
async def open_archive() -> AsyncIterator[Archive]:
    """Open the archive of the user's configuration."""
    configuration = load_configuration()
    progress = IndexProgress()
    async with opened_backend(configuration) as backend:
        archive = backend.open_archive(LOCAL, configuration.places, report=progress.report)
        try:
            yield archive
        finally:
            await archive.close()
            progress.clear()


def with_archive(
    work: Callable[Concatenate[Archive, P], Coroutine[Any, Any, T]],
) -> Callable[P, T]:
    """Make a command that runs with the archive of the user's configuration."""

    @asynchronous
    @functools.wraps(work)
    async def command(*arguments: P.args, **options: P.kwargs) -> T:
        async with open_archive() as archive:
            return await work(archive, *arguments, **options)

    return command


@click.command("list")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=_SHOWN,
    show_default=True,
    metavar="N",
    help="List at most N; 0 lists all.",
)
@click.option("--tag", default="", metavar="TAG", help="List only conversations with this tag.")
@click.option("--reverse", is_flag=True, help="List the newest last.")
@_every_option
@json_option
def list_conversations(limit: int, tag: str, reverse: bool, every: bool, as_json: bool) -> None:
    """List conversations, newest first.

    On a terminal, a list longer than the screen opens in a pager, except with --reverse.
    """
    paged, more = _list(limit, tag, every, reverse, as_json)
    if paged:
        click.echo_via_pager(paged)
        _note_rest(more)


@with_archive
async def _list(
    archive: Archive, limit: int, tag: str, every: bool, reverse: bool, as_json: bool
) -> tuple[Sequence[str], int]:
    """Print the list, or return its lines for a pager; also return how many are not listed."""
    summaries = await archive.survey(limit=limit or None, tag=tag, superseded=every)
    more = 0
    if len(summaries) == limit:
        more = await archive.count(tag=tag, superseded=every) - limit
    if reverse:
        summaries = summaries[::-1]
    # Printed here, because closing the archive waits for a check of all files.
    if as_json:
        write_json(_dump([ConversationSummary.of(one) for one in summaries]))
        return (), 0
    if not summaries:
        note("no conversations yet; start one: vibe-llms chat")
    lines = [f"{draw_summary(one)}\n" for one in summaries]
    if not reverse and is_pageable(len(lines)):
        return lines, more
    write(sys.stdout, "".join(lines))
    _note_rest(more)
    return (), 0


def _note_rest(more: int) -> None:
    if more > 0:
        note(f"{more} more; to list all: vibe-llms list --limit 0", dim=True)


def is_pageable(lines: int) -> bool:
    """Return True if this number of lines would not fit on the terminal."""
    if not can_redraw(sys.stdout) or not is_terminal(sys.stdin):
        return False
    return lines >= os.get_terminal_size(sys.stdout.fileno()).lines


@click.command(cls=HandleCommand)
@newest_argument
@click.option("--lenient", is_flag=True, help="Show what is readable of a damaged conversation.")
@click.option("--render/--raw", default=None, help="Render Markdown, or print it unchanged.")
@click.option(
    "--caching",
    is_flag=True,
    help="Show how many tokens of each request the provider's prompt cache held instead.",
)
@json_option
@with_archive
async def show(
    archive: Archive,
    conversation: str,
    as_json: bool,
    lenient: bool,
    render: bool | None,
    caching: bool,
) -> None:
    """Show a conversation, by its id, 4 or more characters of it, or its name; else the latest.

    Messages are numbered; `fork --at` takes these numbers.
    """
    identity = await archive.resolve(conversation)
    restored = await archive.restore(identity, lenient=lenient)
    for notice in restored.notices:
        note(f"note: {notice.text}")
    if caching:
        if as_json:
            write_json(encode_caching(restored.canisters))
        else:
            _print("\n".join(draw_caching(restored.canisters)))
        return
    if as_json:
        write_json(encode_conversation(restored).decode())
        return
    drawn = has_colours(sys.stdout) if render is None else render
    drawing = Drawing(sys.stdout) if drawn else None
    gaps = {gap.line: gap for gap in restored.gaps}
    line = 0
    for number, canister in enumerate(restored.canisters, 1):
        line += 1
        while line in gaps:
            _print(draw_gap(gaps.pop(line)))
            line += 1
        _print(await draw_canister(canister, archive, number, drawing))
    for gap in gaps.values():
        _print(draw_gap(gap))


@click.command()
@click.argument("text", nargs=-1, required=True)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Find at most N messages.",
)
@_every_option
@json_option
@with_archive
async def search(
    archive: Archive, text: tuple[str, ...], limit: int, every: bool, as_json: bool
) -> None:
    """Find messages that contain all of the words."""
    findings = await archive.search(" ".join(text), limit=limit, superseded=every)
    if as_json:
        write_json(_dump([*map(FoundMessage.of, findings)]))
        return
    for finding in findings:
        name = f"  {visible(one_line(finding.title))}" if finding.title else ""
        excerpt = f"    {visible(one_line(f'{finding.role}: {finding.excerpt}'))}"
        if is_terminal(sys.stdout):
            excerpt = "\n".join(wrap(excerpt, columns(sys.stdout)))
        _print(f"{styled(finding.conversation, BOLD)}{name}\n{excerpt}")
    if not findings:
        note("no messages found")


@click.command(cls=HandleCommand)
@click.argument("conversation", metavar="ID", shell_complete=complete_conversations)
@click.option(
    "--at",
    metavar="N|MESSAGE",
    help="The last message to keep: its number in `show`, or its id.",
)
@click.option("--name", default="", metavar="NAME", help="Name the fork.")
@json_option
@with_archive
async def fork(
    archive: Archive, conversation: str, at: str | None, name: str, as_json: bool
) -> None:
    """Fork a conversation, whole or up to a message.

    `--at 3` keeps the messages 1 to 3 of `vibe-llms show`; `--at -2` keeps all but the last one.
    """
    identity = await archive.resolve(conversation)
    history, notices = await History.restore(archive, identity)
    for notice in notices:
        note(f"note: {notice.text}")
    twin = await history.fork(_locate(history.canisters, at), name=name)
    if as_json:
        made = Fork(id=twin.identity, forked_from=identity, messages=len(twin.canisters))
        write_json(_dump(made))
    else:
        _print(twin.identity)


@click.command(cls=HandleCommand)
@click.argument("conversation", metavar="ID", shell_complete=complete_conversations)
@click.argument("name")
@with_archive
async def rename(archive: Archive, conversation: str, name: str) -> None:
    """Rename a conversation; an empty NAME removes its name."""
    await archive.revise(await archive.resolve(conversation), name=name)


@click.command(cls=HandleCommand)
@click.argument("conversation", metavar="ID", shell_complete=complete_conversations)
@click.argument("tags", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Remove the tags.")
@with_archive
async def tag(archive: Archive, conversation: str, tags: tuple[str, ...], remove: bool) -> None:
    """Add tags to a conversation, or remove them."""
    identity = await archive.resolve(conversation)
    kept = await archive.revise(
        identity, add_tags=() if remove else tags, remove_tags=tags if remove else ()
    )
    note(", ".join(kept.tags) or "no tags")


@click.command("rm", cls=HandleCommand)
@click.argument(
    "conversations",
    nargs=-1,
    required=True,
    metavar="ID...",
    shell_complete=complete_conversations,
)
@yes_option
def remove(conversations: tuple[str, ...], yes: bool) -> int:
    """Delete conversations, and the contents that no other conversation uses.

    With -y, a name must be complete.
    """
    identities = _resolve(conversations, whole=yes)
    count = len(identities)
    what = "this conversation" if count == 1 else f"these {count} conversations"
    # Asked outside the event loop, where Ctrl-C would wait for the answer.
    if not confirm(f"Delete {what} permanently?", yes=yes, about=identities.values()):
        note("nothing was deleted")
        return 1
    _remove(identities)
    note(f"deleted: {', '.join(identities)}")
    return 0


@with_archive
async def _resolve(
    archive: Archive, conversations: Sequence[str], *, whole: bool
) -> Mapping[str, str]:
    """Return the named conversations by id, each with its line in a list."""
    wanted = {one: await archive.resolve(one) for one in conversations}
    found = {one.identity: one for one in await archive.survey(superseded=True)}
    for text, identity in wanted.items() if whole else ():
        if not names_wholly(text, identity, found.get(identity)):
            raise RequestError(
                f"{text!r} is only part of a name; with -y, give the whole name or {identity}"
            )
    return {
        one: draw_summary(found[one], plain=True) if one in found else one
        for one in wanted.values()
    }


@with_archive
async def _remove(archive: Archive, identities: Iterable[str]) -> None:
    from vibe_llms.runs.core import forget_runs

    names = [*identities]
    async with opened_backend(load_configuration()) as backend:
        await forget_runs(backend, names)
    await archive.remove(*names)
    try:
        await archive.collect()
    except StorageError as error:
        # An unreadable conversation may use any of the contents.
        note(f"note: unused contents are kept for now: {error}")


def names_wholly(text: str, identity: str, summary: Summary | None) -> bool:
    """Return True for a whole name, the beginning of an id, or a position such as `-1`."""
    named = summary is not None and summary.name.casefold() == text.casefold()
    return named or identity.startswith(text.lower()) or text.startswith("-")


COMMANDS: dict[str, click.Command] = {
    "list": list_conversations,
    "show": show,
    "search": search,
    "fork": fork,
    "rename": rename,
    "tag": tag,
    "rm": remove,
}


#: Messages of prose, which wraps at words; the output of programs does not.
_PROSE = (DigestCanister, DocumentCanister, SupervisorCanister, UserCanister)
_MIN_TITLE = 17


def draw_summary(summary: Summary, *, plain: bool = False) -> str:
    """Draw a conversation as one line of a list, cut to the terminal; `plain` has no style."""
    tags = "".join(f" #{tag}" for tag in summary.tags)
    fork = " (fork)" if summary.forked_from else ""
    fork = " (superseded)" if summary.superseded_by else fork
    problem = f"cannot be read: {summary.problem}" if summary.problem else ""
    head = f"{summary.updated.astimezone():%Y-%m-%d %H:%M}  {summary.messages:>4}  "
    text = visible(one_line(problem or f"{summary.title}{tags}{fork}"))
    if is_terminal(sys.stdout):
        room = columns(sys.stdout) - len(summary.identity) - 2
        if room - len(head) < _MIN_TITLE:
            head = f"{summary.updated.astimezone():%m-%d}  "
        text = cut(text, max(_MIN_TITLE, room - len(head)))
    return f"{summary.identity if plain else styled(summary.identity, BOLD)}  {head}{text}"


async def draw_canister(
    canister: Canister,
    archive: Archive,
    number: int | None = None,
    drawing: Drawing | None = None,
) -> str:
    """Draw a message with its contents loaded; `drawing` renders the model's Markdown."""
    head = role_of(canister)
    match canister:
        case DocumentCanister(title=title):
            head = f"document {title}".strip()
        case InvocationCanister(name=name):
            head = f"invocation {name}"
        case DigestCanister(before=before, after=after) if before:
            head = f"digest (about {before:,} to {after:,} tokens)"
        case ResultCanister(failed=True):
            head = "result (failed)"
        case AssistantCanister(ending=ending) if ending is not None and ending.interrupted:
            head = f"assistant ({ending.reason})"
    counted = "" if number is None else f"{number} "
    title = shown(one_line(f"{counted}{head}"))
    wide = width(title) + 1 + len(canister.identity) > columns(sys.stdout)
    gap = "\n" if wide and is_terminal(sys.stdout) else " "
    parts = [f"{styled(title, BOLD)}{gap}{styled(shown(canister.identity), DIM)}"]
    if isinstance(canister, InvocationCanister):
        parts.append(shown(canister.arguments))
    spoken = drawing if isinstance(canister, AssistantCanister) else None
    if isinstance(canister, ResultCanister) and canister.display:
        parts.append(shown(canister.display))
    else:
        for content in canister.contents:
            drawn = await _draw_content(content, archive, spoken)
            if isinstance(canister, _PROSE) and is_terminal(sys.stdout):
                drawn = "\n".join(wrap(drawn, columns(sys.stdout)))
            parts.append(drawn)
        parts += [styled(f"[source] {line}", DIM) for line in list_citations(canister.contents)]
    return "\n".join(parts) + "\n"


def draw_gap(gap: Gap) -> str:
    """Draw a line that cannot be read."""
    return shown(f"--- line {gap.line} ({gap.size} bytes) cannot be read: {gap.reason} ---\n")


async def load_whole(canister: Canister, archive: ContentArchive) -> Canister:
    """Return the canister with its data loaded from the archive."""
    if not canister.contents:
        return canister
    loaded = [await load_content(content, archive) for content in canister.contents]
    return msgspec.structs.replace(canister, contents=tuple(loaded))


async def _draw_content(content: Content, archive: ContentArchive, drawing: Drawing | None) -> str:
    match content:
        case TextualContent(data=data):
            text = await load_text(data, archive)
            if drawing is None:
                return shown(text)
            return "\n".join(row.text for row in drawing.render(visible(text)))
        case ReasoningContent(data=data):
            return styled(f"[reasoning] {shown(await load_text(data, archive))}", DIM)
        case _:
            kind = str(content.__struct_config__.tag)
            words = [getattr(content, name, "") for name in ("label", "mimetype", "name")]
            return styled(shown(f"[{' '.join(part for part in (kind, *words) if part)}]"), DIM)


def _locate(canisters: Sequence[Canister], at: str | None) -> int:
    """Return the number of messages to keep; errors use the numbers that `show` prints."""
    point: str | int | None = at
    if at is not None and re.fullmatch(r"-?[0-9]{1,9}", at):
        number = int(at)
        if not 1 <= abs(number) <= len(canisters):
            raise ConversationNotFound(
                f"no message {at}; the messages are numbered 1 to {len(canisters)}"
            )
        point = number - 1 if number > 0 else number
    try:
        return locate(canisters, point)
    except ForkPointInvalid as error:
        numbers = [
            str(number)
            for number, canister in enumerate(canisters, 1)
            if canister.identity in error.nearest
        ]
        raise ForkPointInvalid(
            f"cannot cut at message {at}, inside a reply or between calls and their results; "
            f"the nearest messages are {' and '.join(numbers)}",
            nearest=error.nearest,
        ) from error


def _dump(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


def _print(text: str) -> None:
    write(sys.stdout, f"{text}\n")
