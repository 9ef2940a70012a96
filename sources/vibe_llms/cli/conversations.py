"""The commands on stored conversations: list, show, search, fork, rename, tag, rm."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import click
import msgspec

from vibe_llms.cli.completion import complete_conversations
from vibe_llms.cli.drawing import Drawing
from vibe_llms.cli.layout import cut, wrap
from vibe_llms.cli.running import run
from vibe_llms.cli.terminal import (
    BOLD,
    DIM,
    columns,
    has_colours,
    is_terminal,
    note,
    obeys,
    one_line,
    shown,
    styled,
    visible,
    write,
    write_json,
)
from vibe_llms.configuration import load_configuration
from vibe_llms.exceptions import ConversationNotFound, ForkPointInvalid, RequestError, StorageError
from vibe_llms.ledger import Ledger, locate
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
    role_of,
)
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.messages.contents import (
    Content,
    ReasoningContent,
    Reference,
    TextualContent,
)
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Archive, Finding, Gap, Restored, Summary

_SHOWN = 50


class HandleCommand(click.Command):
    """A command that takes conversations, where `-1` is the newest one and not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take what is a dash and a number for an argument."""
        ctx.ignore_unknown_options = any(re.fullmatch(r"-\d+", one) for one in args)
        return super().parse_args(ctx, args)


@asynccontextmanager
async def open_archive() -> AsyncIterator[DirectoryArchive]:
    """The archive of the user's configuration."""
    configuration = load_configuration()
    archive = DirectoryArchive(configuration.places.data, configuration.storage)
    try:
        yield archive
    finally:
        await archive.close()


@click.command("list")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=_SHOWN,
    show_default=True,
    metavar="N",
    help="At most so many; 0 for all.",
)
@click.option("--tag", default="", metavar="TAG", help="Only those with this tag.")
@click.option("--reverse", is_flag=True, help="The newest last, next to the prompt.")
@click.option("--all", "every", is_flag=True, help="Also what /undo and /regenerate left behind.")
@click.option("--json", "as_json", is_flag=True, help="An array of objects.")
def list_conversations(limit: int, tag: str, reverse: bool, every: bool, as_json: bool) -> None:
    """List conversations, the most recent first.

    On a terminal a list that is longer than the screen opens in a pager, unless it is reversed.
    """

    async def work() -> Sequence[Summary]:
        async with open_archive() as archive:
            return await archive.survey(tag=tag, superseded=every)

    found = run(work())
    summaries = found[: limit or None]
    if reverse:
        summaries = summaries[::-1]
    if as_json:
        write_json(json.dumps([describe_summary(one) for one in summaries], ensure_ascii=False))
        return
    if not found:
        note("no conversations yet; begin one: vibe-llms chat")
    lines = [f"{draw_summary(one)}\n" for one in summaries]
    if not reverse and is_pageable(len(lines)):
        click.echo_via_pager(lines)
    else:
        write(sys.stdout, "".join(lines))
    if more := len(found) - len(summaries):
        note(f"{more} more; all of them: vibe-llms list --limit 0", dim=True)


def is_pageable(lines: int) -> bool:
    """Whether a person would see only the end of so many lines."""
    if not obeys(sys.stdout) or not is_terminal(sys.stdin):
        return False
    return lines >= os.get_terminal_size(sys.stdout.fileno()).lines


@click.command(cls=HandleCommand)
@click.argument("conversation", metavar="ID", shell_complete=complete_conversations)
@click.option("--json", "as_json", is_flag=True, help="Its details and its messages as stored.")
@click.option("--lenient", is_flag=True, help="Show what can be read of a damaged one.")
@click.option("--render/--raw", default=None, help="Draw Markdown, or show it as it is written.")
def show(conversation: str, as_json: bool, lenient: bool, render: bool | None) -> None:
    """Show a conversation, by its identity, 4 or more characters of it, or its name.

    The numbers of the messages are those that `fork --at` takes.
    """

    async def work() -> None:
        async with open_archive() as archive:
            identity = await archive.resolve(conversation)
            restored = await archive.restore(identity, lenient=lenient)
            for notice in restored.notices:
                note(f"note: {notice.text}")
            if as_json:
                write_json(encode_conversation(restored))
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

    run(work())


@click.command()
@click.argument("text", nargs=-1, required=True)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="At most so many.",
)
@click.option("--all", "every", is_flag=True, help="Also what /undo and /regenerate left behind.")
@click.option("--json", "as_json", is_flag=True, help="An array of objects.")
def search(text: tuple[str, ...], limit: int, every: bool, as_json: bool) -> None:
    """Find messages that hold all of the words."""

    async def work() -> None:
        async with open_archive() as archive:
            findings = await archive.search(" ".join(text), limit=limit, superseded=every)
        if as_json:
            write_json(json.dumps(list(map(describe_finding, findings)), ensure_ascii=False))
        elif not findings:
            note("nothing was found")
        for finding in () if as_json else findings:
            name = f"  {shown(one_line(finding.title))}" if finding.title else ""
            excerpt = f"    {shown(one_line(f'{finding.role}: {finding.excerpt}'))}"
            if is_terminal(sys.stdout):
                excerpt = "\n".join(wrap(excerpt, columns(sys.stdout)))
            _print(f"{styled(finding.conversation, BOLD)}{name}\n{excerpt}")

    run(work())


@click.command(cls=HandleCommand)
@click.argument("conversation", metavar="ID", shell_complete=complete_conversations)
@click.option(
    "--at",
    metavar="N|MESSAGE",
    help="The last message to keep: its number as `show` prints it, or its id.",
)
@click.option("--name", default="", metavar="NAME", help="The name of the fork.")
@click.option("--json", "as_json", is_flag=True, help="An object.")
def fork(conversation: str, at: str | None, name: str, as_json: bool) -> None:
    """Make an independent copy of a conversation, whole or up to a message.

    `--at 3` keeps the messages 1 to 3 of `vibe-llms show`; `--at -2` keeps all but the last one.
    """

    async def work() -> None:
        async with open_archive() as archive:
            identity = await archive.resolve(conversation)
            ledger, notices = await Ledger.restore(archive, identity)
            for notice in notices:
                note(f"note: {notice.text}")
            twin = await ledger.fork(_locate(ledger.canisters, at), name=name)
        if as_json:
            made = {"id": twin.identity, "forked_from": identity, "messages": len(twin.canisters)}
            write_json(json.dumps(made))
        else:
            _print(twin.identity)

    run(work())


@click.command(cls=HandleCommand)
@click.argument("conversation", metavar="ID", shell_complete=complete_conversations)
@click.argument("name")
def rename(conversation: str, name: str) -> None:
    """Give a conversation a name; an empty one takes it away."""

    async def work() -> None:
        async with open_archive() as archive:
            await archive.revise(await archive.resolve(conversation), name=name)

    run(work())


@click.command(cls=HandleCommand)
@click.argument("conversation", metavar="ID", shell_complete=complete_conversations)
@click.argument("tags", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Take them away.")
def tag(conversation: str, tags: tuple[str, ...], remove: bool) -> None:
    """Add tags to a conversation, or take them away."""

    async def work() -> None:
        async with open_archive() as archive:
            identity = await archive.resolve(conversation)
            kept = await archive.revise(
                identity, add_tags=() if remove else tags, remove_tags=tags if remove else ()
            )
        note(", ".join(kept.tags) or "no tags")

    run(work())


@click.command("rm", cls=HandleCommand)
@click.argument(
    "conversations",
    nargs=-1,
    required=True,
    metavar="ID...",
    shell_complete=complete_conversations,
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def remove(conversations: tuple[str, ...], yes: bool) -> int:
    """Remove conversations, and the contents that no other one uses.

    With -y, a part of a name is not enough.
    """

    async def resolve() -> dict[str, str]:
        async with open_archive() as archive:
            wanted = {one: await archive.resolve(one) for one in conversations}
            found = {one.identity: one for one in await archive.survey(superseded=True)}
            for text, identity in wanted.items() if yes else ():
                if not names_wholly(text, identity, found.get(identity)):
                    raise RequestError(
                        f"{text!r} is only a part of a name; with -y give the name or {identity}"
                    )
            return {
                one: draw_summary(found[one], plain=True) if one in found else one
                for one in wanted.values()
            }

    async def work() -> None:
        async with open_archive() as archive:
            await archive.remove(*identities)
            try:
                await archive.collect()
            except StorageError as error:
                # What another conversation needs cannot be known while it cannot be read.
                note(f"note: contents that nothing needs any more are kept for now: {error}")

    identities = run(resolve())
    if not yes:
        if not is_terminal(sys.stdin):
            raise RequestError("not a terminal; use -y to skip the question")
        # Not within the event loop, where Ctrl-C would wait for the answer.
        for line in identities.values():
            note(line)
        count = len(identities)
        what = "this conversation" if count == 1 else f"these {count} conversations"
        if not click.confirm(f"Remove {what} for good?", err=True):
            note("nothing was removed")
            return 1
    run(work())
    note(f"removed: {', '.join(identities)}")
    return 0


def names_wholly(text: str, identity: str, summary: Summary | None) -> bool:
    """Whether a text is a whole name, the beginning of an id, or a place such as `-1`."""
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


def describe_summary(summary: Summary) -> dict[str, Any]:
    """A conversation for programs; this form is stable."""
    origin = summary.forked_from
    return {
        "id": summary.identity,
        "name": summary.name,
        "title": summary.title,
        "created": summary.created.isoformat(),
        "updated": summary.updated.isoformat(),
        "model": summary.model,
        "tags": list(summary.tags),
        "forked_from": None if origin is None else origin.conversation,
        "messages": summary.messages,
        "problem": summary.problem,
        "superseded_by": summary.superseded_by or None,
    }


def describe_finding(finding: Finding) -> dict[str, Any]:
    """A message that was found, for programs."""
    return {
        "conversation": finding.conversation,
        "name": finding.name,
        "title": finding.title,
        "message": finding.canister,
        "role": finding.role,
        "created": finding.created.isoformat(),
        "excerpt": finding.excerpt,
    }


def encode_conversation(restored: Restored) -> str:
    """A conversation for programs: its details, and its messages just as they are stored."""
    details = restored.details
    origin = details.forked_from
    head = {
        "id": restored.identity,
        "name": details.name,
        "created": details.created.isoformat(),
        "model": details.model,
        "tags": list(details.tags),
        "forked_from": None if origin is None else origin.conversation,
        "gaps": msgspec.to_builtins(restored.gaps),
    }
    lines = ",".join(encode_canister(canister).decode() for canister in restored.canisters)
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "messages": [{lines}]}}'


#: What is no output of a program, and wraps at words.
_PROSE = (DocumentCanister, SupervisorCanister, UserCanister)
_LEAST_TITLE = 17


def draw_summary(summary: Summary, *, plain: bool = False) -> str:
    """A conversation as one line of a list, as long as a terminal is wide; `plain` has no style."""
    tags = "".join(f" #{tag}" for tag in summary.tags)
    fork = " (fork)" if summary.forked_from else ""
    fork = " (superseded)" if summary.superseded_by else fork
    problem = f"cannot be read: {summary.problem}" if summary.problem else ""
    head = f"{summary.updated.astimezone():%Y-%m-%d %H:%M}  {summary.messages:>4}  "
    text = one_line(problem or f"{summary.title}{tags}{fork}")
    if is_terminal(sys.stdout):
        room = columns(sys.stdout) - len(summary.identity) - 2
        if room - len(head) < _LEAST_TITLE:
            head = f"{summary.updated.astimezone():%m-%d}  "
        text = cut(visible(text), max(_LEAST_TITLE, room - len(head)))
    return f"{summary.identity if plain else styled(summary.identity, BOLD)}  {head}{text}"


async def draw_canister(
    canister: Canister,
    archive: Archive,
    number: int | None = None,
    drawing: Drawing | None = None,
) -> str:
    """A message for people; what lies in the archive is loaded.

    With a `drawing`, what a model said is drawn as Markdown.
    """
    head = role_of(canister)
    match canister:
        case DocumentCanister(title=title):
            head = f"document {title}".strip()
        case InvocationCanister(name=name):
            head = f"invocation {name}"
        case ResultCanister(failed=True):
            head = "result (failed)"
        case AssistantCanister(ending=ending) if ending is not None and ending.interrupted:
            head = f"assistant ({ending.reason})"
    counted = "" if number is None else f"{number} "
    title = styled(shown(one_line(f"{counted}{head}")), BOLD)
    parts = [f"{title} {styled(shown(canister.identity), DIM)}"]
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
    return "\n".join(parts) + "\n"


def draw_gap(gap: Gap) -> str:
    """A line that could not be read."""
    return shown(f"--- line {gap.line} ({gap.size} bytes) cannot be read: {gap.reason} ---\n")


async def load_whole(canister: Canister, archive: Archive) -> Canister:
    """The canister with all its data in it, so that it needs the archive no longer."""
    if not canister.contents:
        return canister
    loaded = [await load_content(content, archive) for content in canister.contents]
    return msgspec.structs.replace(canister, contents=tuple(loaded))


async def load_content(content: Content, archive: Archive) -> Content:
    """The content with its data in it."""
    loaded: dict[str, str | bytes] = {}
    for member in ("data", "whole"):
        reference = getattr(content, member, None)
        if isinstance(reference, Reference):
            if isinstance(content, TextualContent | ReasoningContent):
                loaded[member] = await _load_text(reference, archive)
            else:
                loaded[member] = await archive.load(reference)
    return msgspec.structs.replace(content, **loaded) if loaded else content


async def _draw_content(content: Content, archive: Archive, drawing: Drawing | None) -> str:
    match content:
        case TextualContent(data=data):
            text = await _load_text(data, archive)
            if drawing is None:
                return shown(text)
            return "\n".join(row.text for row in drawing.render(visible(text)))
        case ReasoningContent(data=data):
            return styled(f"[reasoning] {shown(await _load_text(data, archive))}", DIM)
        case _:
            kind = str(content.__struct_config__.tag)
            words = [getattr(content, name, "") for name in ("label", "mimetype", "name")]
            return styled(shown(f"[{' '.join(part for part in (kind, *words) if part)}]"), DIM)


async def _load_text(data: str | Reference, archive: Archive) -> str:
    if isinstance(data, str):
        return data
    return (await archive.load(data)).decode("utf-8", "replace")


def _locate(canisters: Sequence[Canister], at: str | None) -> int:
    """How many messages to keep; errors speak of numbers as `show` prints them."""
    point: str | int | None = at
    if at is not None and re.fullmatch(r"-?[0-9]{1,9}", at):
        number = int(at)
        if not 1 <= abs(number) <= len(canisters):
            raise ConversationNotFound(
                f"there is no message {at}; `show` numbers them from 1 to {len(canisters)}"
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
            f"a conversation cannot be cut at {at}, within a reply or between calls and their "
            f"results; the nearest messages are {' and '.join(numbers)}",
            nearest=error.nearest,
        ) from error


def _print(text: str) -> None:
    write(sys.stdout, f"{text}\n")
