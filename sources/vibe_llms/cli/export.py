"""The command `export`: writes a conversation to a file of Markdown, HTML (`pages`) or JSON."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import click
import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import RequestError, StorageError
from vibe_llms.base.files import LARGEST_FILE, describe_size
from vibe_llms.base.folders import replace_file, storage_errors
from vibe_llms.cli.citations import list_citations
from vibe_llms.cli.completion import complete_paths
from vibe_llms.cli.conversations import (
    HandleCommand,
    load_content,
    newest_argument,
    with_archive,
)
from vibe_llms.cli.display import describe_usage
from vibe_llms.cli.pages import describe_content, draw_page, model_of
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.shared_options import yes_option
from vibe_llms.cli.terminal import note, one_line, shown, visible, write
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
    usage_of,
)
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.messages.contents import (
    Content,
    FileContent,
    ImageContent,
    Location,
    ReasoningContent,
    Reference,
    TextualContent,
    text_of,
)
from vibe_llms.messages.markdown import TAG, escape_html
from vibe_llms.storage.interfaces import Archive, ContentArchive

Form: TypeAlias = Literal["md", "html", "json"]

_STANDARD_OUTPUT = "-"
_ENDINGS: Mapping[str, Form] = {
    **dict.fromkeys(("md", "markdown"), "md"),
    **dict.fromkeys(("html", "htm"), "html"),
    "json": "json",
}
_TITLE_LENGTH = 80


class Transcript(Struct, frozen=True):
    """A conversation with its data loaded, and its heading."""

    name: str
    title: str
    identity: str
    canisters: tuple[Canister, ...]

    @property
    def models(self) -> Sequence[str]:
        """Models that replied, in the order of their first replies."""
        return list(dict.fromkeys(filter(None, map(model_of, self.canisters))))

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts shown below the heading."""
        models = self.models
        usage = usage_of(self.canisters)
        facts = {"Models" if len(models) > 1 else "Model": ", ".join(models)}
        if self.canisters:
            begun = self.canisters[0].created.astimezone()
            ended = self.canisters[-1].created.astimezone()
            same = begun.date() == ended.date()
            until = "" if same else f" to {ended:%Y-%m-%d}"
            facts["Date"] = f"{begun:%Y-%m-%d}{until}"
        # As `list` counts and `show` numbers them.
        facts["Messages"] = str(len(self.canisters))
        facts["Usage"] = describe_usage(usage) if usage.total_tokens else ""
        return {name: text for name, text in facts.items() if text}


async def export(
    canisters: Sequence[Canister],
    archive: Archive | None,
    form: Form,
    *,
    identity: str = "",
    name: str = "",
) -> str:
    """Return a conversation as one self-contained text."""
    loaded = tuple([await _load(canister, archive) for canister in canisters])
    transcript = Transcript(name, name or _find_title(loaded), identity, loaded)
    match form:
        case "md":
            return _draw_markdown(transcript)
        case "html":
            return draw_page(transcript.title, transcript.facts, transcript.canisters)
        case "json":
            return _encode(transcript)


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


async def _load(canister: Canister, archive: ContentArchive | None) -> Canister:
    if not canister.contents:
        return canister
    contents = [await _load_content(content, archive) for content in canister.contents]
    if all(one is other for one, other in zip(contents, canister.contents, strict=True)):
        return canister
    return msgspec.structs.replace(canister, contents=tuple(contents), source_line=None)


async def _load_content(content: Content, archive: ContentArchive | None) -> Content:
    if archive is not None:
        # Missing contents are replaced by a text below.
        with suppress(StorageError):
            content = await load_content(content, archive)
    data = getattr(content, "data", None)
    if isinstance(data, Reference) and isinstance(content, TextualContent | ReasoningContent):
        words = f"[a text of {describe_size(data.size)} is missing from the archive]"
        return msgspec.structs.replace(content, data=words)
    return content


def _find_title(canisters: Sequence[Canister]) -> str:
    """Return the beginning of the first message of the user."""
    first = next((one for one in canisters if isinstance(one, UserCanister)), None)
    line = one_line(text_of(first.contents)) if first is not None else ""
    if not line:
        return "Conversation"
    return line if len(line) <= _TITLE_LENGTH else f"{line[: _TITLE_LENGTH - 1]}…"


def _encode(transcript: Transcript) -> str:
    usage = usage_of(transcript.canisters)
    head = {
        "id": transcript.identity,
        "name": transcript.name,
        "title": transcript.title,
        "models": transcript.models,
        "usage": msgspec.to_builtins(usage),
    }
    lines = ",\n".join(encode_canister(one).decode() for one in transcript.canisters)
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "messages": [\n{lines}\n]}}\n'


def _draw_markdown(transcript: Transcript) -> str:
    facts = [_escape_line(f"- {name}: {text}") for name, text in transcript.facts.items()]
    parts = [_escape_line(f"# {transcript.title}"), "\n".join(facts)]
    for canister in transcript.canisters:
        body = _draw_contents(canister.contents)
        match canister:
            case UserCanister():
                parts += ["## You", body]
            case AssistantCanister():
                parts += [_escape_line(f"## {model_of(canister) or 'Assistant'}"), body]
                cited = list_citations(canister.contents)
                parts.append("\n".join(_escape_line(f"- {line}") for line in cited))
                if canister.ending is not None and canister.ending.interrupted:
                    parts.append("*(interrupted)*")
            case SupervisorCanister():
                parts.append(_fold("Instructions", body))
            case DigestCanister():
                parts.append(_fold("Summary of earlier messages", body))
            case DocumentCanister(title=title):
                parts.append(_fold(f"Document: {title}", body))
            case InvocationCanister(name=name, arguments=arguments):
                parts.append(_fold(f"Tool call: {name}", _fence(_indent(arguments), "json")))
            case ResultCanister(failed=failed):
                head = "Tool result (failed)" if failed else "Tool result"
                text = text_of(canister.contents)
                media = [one for one in canister.contents if not isinstance(one, TextualContent)]
                parts.append(_fold(head, _fence(text) if text else ""))
                parts += filter(None, map(_draw_content, media))
    return "\n\n".join(part for part in parts if part) + "\n"


def _draw_contents(contents: Sequence[Content]) -> str:
    parts: list[str] = []
    for textual, some in groupby(contents, lambda one: isinstance(one, TextualContent)):
        if textual:
            # Joined, because the second text may continue a list of the first.
            parts.append(escape_html(visible("\n\n".join(text_of([one]) for one in some))))
        else:
            parts += map(_draw_content, some)
    return "\n\n".join(filter(None, parts))


def _draw_content(content: Content) -> str:
    match content:
        case ReasoningContent(data=str() as text) if text:
            return _fold("Reasoning", escape_html(visible(text)))
        case ImageContent(data=bytes() as data, mimetype=mimetype):
            encoded = base64.b64encode(data).decode()
            return f"![image](data:{_escape_line(mimetype)};base64,{encoded})"
        case ImageContent(data=Location(url=url)) | FileContent(data=Location(url=url)):
            return _escape_line(f"<{url}>")
        case _:
            return _escape_line(f"*[{describe_content(content)}]*")


def _escape_line(text: str) -> str:
    """Return one line of Markdown whose HTML is shown as text, also that in code."""
    return TAG.sub("&lt;", one_line(visible(text)))


def _fold(summary: str, body: str) -> str:
    text = one_line(visible(summary)).replace("&", "&amp;").replace("<", "&lt;")
    return f"<details>\n<summary>{text}</summary>\n\n{body}\n\n</details>"


def _fence(text: str, language: str = "") -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(text)}\n{fence}"


def _indent(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments
