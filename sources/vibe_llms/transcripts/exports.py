"""A conversation as one self-contained text: Markdown, HTML (`pages`) or JSON."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import StorageError
from vibe_llms.base.files import describe_size
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
from vibe_llms.messages.hidden import one_line, visible
from vibe_llms.messages.markdown import TAG, escape_html
from vibe_llms.storage.interfaces import Archive, ContentArchive
from vibe_llms.transcripts.citations import list_citations
from vibe_llms.transcripts.loading import load_content
from vibe_llms.transcripts.pages import describe_content, draw_page, model_of
from vibe_llms.transcripts.usages import describe_usage

Form: TypeAlias = Literal["md", "html", "json"]

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
    return draw(await load_transcript(canisters, archive, identity=identity, name=name), form)


async def load_transcript(
    canisters: Sequence[Canister],
    archive: ContentArchive | None,
    *,
    identity: str = "",
    name: str = "",
) -> Transcript:
    """Return a conversation with its data loaded."""
    loaded = tuple([await _load(canister, archive) for canister in canisters])
    return Transcript(name, name or _find_title(loaded), identity, loaded)


def draw(transcript: Transcript, form: Form) -> str:
    """Return a transcript as one self-contained text."""
    match form:
        case "md":
            return _draw_markdown(transcript)
        case "html":
            return draw_page(transcript.title, transcript.facts, transcript.canisters)
        case "json":
            return _encode(transcript)


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
