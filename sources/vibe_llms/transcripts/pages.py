"""A conversation as one HTML file that loads nothing and runs no scripts.

It looks like a conversation on the web page, with the same markup and the same stylesheet, which is
embedded. All texts are untrusted. They are escaped, or rendered by a Markdown parser that allows no
HTML. Links lead to the web and to mail only. The policy allows only embedded media and that style.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from vibe_llms.base.files import LARGEST_FILE, read_file
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    Location,
    ReasoningContent,
    TextualContent,
    VideoContent,
    text_of,
)
from vibe_llms.messages.hidden import one_line, visible
from vibe_llms.transcripts.citations import list_citations

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

_REL = "noopener noreferrer"
_POLICY = (
    "default-src 'none'; style-src 'sha256-{style}'; img-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_MIMETYPE = re.compile(r"[\w.+-]{1,80}/[\w.+-]{1,80}", re.ASCII)
#: The style of the web page's messages, and of what surrounds them in a file.
_STYLES = ("messages.css", "exported.css")
_FOLDER = Path(__file__).parents[1] / "page/style"
#: Why a reply is not complete, in the words of the web page.
_ENDINGS: Mapping[str, str] = {
    StopReason.LENGTH: "The reply reached its length limit.",
    StopReason.REFUSED: "The model refused to answer.",
    StopReason.INTERRUPTED: "The reply was stopped.",
    StopReason.FAILED: "The reply failed.",
}


def draw_page(title: str, facts: Mapping[str, str], canisters: Sequence[Canister]) -> str:
    """Draw the page of a conversation with its data."""
    style = "\n".join(read_file(_FOLDER / one, LARGEST_FILE).decode() for one in _STYLES)
    policy = _POLICY.format(
        style=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    )
    results = {one.invocation: one for one in canisters if isinstance(one, ResultCanister)}
    calls = {one.identity for one in canisters if isinstance(one, InvocationCanister)}
    rows = "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(text)}</dd></div>" for name, text in facts.items()
    )
    body = "\n".join(
        _draw_canister(one, results)
        for one in canisters
        # Results are shown with their calls.
        if not (isinstance(one, ResultCanister) and one.invocation in calls)
    )
    heading = _text(one_line(title))
    return (
        "<!DOCTYPE html>\n"
        '<html lang="und" dir="auto"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="generator" content="vibe-llms">\n'
        f"<title>{heading}</title>\n<style>{style}</style></head>\n"
        '<body><main class="exported">\n'
        f'<h1>{heading}</h1>\n<dl class="facts">{rows}</dl>\n{body}\n'
        "</main></body></html>\n"
    )


def model_of(canister: Canister) -> str:
    """Return the model that wrote a message, as provider/model; empty if none did."""
    source = getattr(canister, "provenance", None)
    return "" if source is None else f"{source.row}/{source.model}"


def describe_content(content: Content) -> str:
    """Describe a content that cannot be shown, in a few words."""
    kind = str(content.__struct_config__.tag)
    words = [getattr(content, name, "") for name in ("label", "mimetype", "name")]
    return visible(one_line(" ".join(word for word in (kind, *words) if word)))


def _draw_canister(canister: Canister, results: Mapping[str, ResultCanister]) -> str:
    match canister:
        case UserCanister():
            body = _draw_plain(canister.contents)
            return _draw_said(canister, "You", body and f'<div class="said">{body}</div>')
        case AssistantCanister():
            return _draw_said(canister, model_of(canister) or "Assistant", _draw_reply(canister))
        case SupervisorCanister():
            return _fold("supervisor", "Instructions", canister)
        case DocumentCanister(title=title):
            return _fold("document", f"Document: {title}", canister)
        case InvocationCanister():
            return _draw_call(canister, results.get(canister.identity))
        case ResultCanister():
            summary = f"Result of a tool{' (failed)' if canister.failed else ''}"
            folded = f"<summary>{summary}</summary>{_draw_result(canister)}"
            media = _draw_media(canister.contents)
            return _draw_message("result", f'<details class="tool">{folded}</details>{media}')
        case DigestCanister():
            return _fold("digest", "Summary of earlier messages", canister)
        case _:
            return f'<p class="hint">[{_text(getattr(canister, "label", "message"))}]</p>'


def _draw_message(role: str, body: str) -> str:
    return f'<article class="message {role}">{body}</article>'


def _draw_said(canister: UserCanister | AssistantCanister, who: str, body: str) -> str:
    if not body:
        return ""
    created = canister.created.astimezone()
    header = (
        f'<header><h2 class="who">{_text(who)}</h2>'
        f'<time datetime="{created.isoformat()}">{created:%Y-%m-%d %H:%M}</time></header>\n'
    )
    return _draw_message(
        "user" if isinstance(canister, UserCanister) else "assistant", header + body
    )


def _draw_reply(canister: AssistantCanister) -> str:
    parts = [_draw_content(one, _access_parser()) for one in _join_texts(canister.contents)]
    sources = "".join(f"<li>{_text(line)}</li>" for line in list_citations(canister.contents))
    parts.append(f'<aside class="citations"><ol>{sources}</ol></aside>' if sources else "")
    ending = canister.ending
    if ending is not None:
        reason = StopReason.INTERRUPTED if ending.interrupted else ending.reason
        problem = f"{_ENDINGS[reason]} {ending.detail}".strip() if reason in _ENDINGS else ""
        parts.append(f'<p class="problem">{_text(problem)}</p>' if problem else "")
    return "".join(parts)


def _join_texts(contents: Sequence[Content]) -> Iterator[Content]:
    """Yield contents with texts that follow one another as one: a sentence may be in several."""
    for textual, some in groupby(contents, lambda one: isinstance(one, TextualContent)):
        if textual:
            yield TextualContent(text_of(tuple(some)))
        else:
            yield from some


def _draw_call(call: InvocationCanister, result: ResultCanister | None) -> str:
    state = "no result" if result is None else "failed" if result.failed else "done"
    kind = "tool failed" if state == "failed" else "tool"
    body = f"<h3>Arguments</h3>{_draw_arguments(call.arguments)}"
    media = ""
    if result is not None:
        body += f"<h3>Result</h3>{_draw_result(result)}"
        media = _draw_media(result.contents)
    return _draw_message(
        "invocation",
        f'<details class="{kind}"><summary>Tool call: <code>{_text(one_line(call.name))}</code> '
        f'<span class="hint">{state}</span></summary>{body}</details>{media}',
    )


def _draw_arguments(arguments: str) -> str:
    """Draw arguments as HTML; multi-line texts keep their line breaks."""
    try:
        tree = json.loads(arguments)
    except (ValueError, RecursionError):
        return _draw_exact(arguments)
    if isinstance(tree, dict) and any(isinstance(v, str) and "\n" in v for v in tree.values()):
        return "".join(
            f"<h3>{_text(name)}</h3>"
            + _draw_exact(value if isinstance(value, str) else _dump(value))
            for name, value in tree.items()
        )
    return _draw_exact(_dump(tree))


def _draw_result(result: ResultCanister) -> str:
    texts = [one.text for one in result.contents if isinstance(one, TextualContent)]
    return "".join(map(_draw_exact, filter(None, texts)))


def _draw_media(contents: Sequence[Content]) -> str:
    return "".join(_draw_content(one) for one in contents if not isinstance(one, TextualContent))


def _draw_plain(contents: Sequence[Content]) -> str:
    return "".join(_draw_content(content) for content in contents)


def _draw_content(content: Content, parser: MarkdownIt | None = None) -> str:
    match content:
        case TextualContent():
            text = visible(content.text)
            if not text.strip():
                return ""
            if parser is not None:
                return f'<div class="markdown">{parser.render(text)}</div>'
            return f'<div class="plain">{escape(text)}</div>'
        case ReasoningContent(data=str() as text) if text.strip():
            return (
                '<details class="reasoning"><summary>Reasoning</summary>'
                f'<div class="plain">{_text(text)}</div></details>'
            )
        case ReasoningContent():
            return ""
        case ImageContent(data=bytes() as data, mimetype=mimetype):
            return f'<p class="image"><img alt="image" src="{_encode(data, mimetype)}"></p>'
        case AudioContent(data=bytes() as data, mimetype=mimetype):
            return f'<audio controls src="{_encode(data, mimetype)}"></audio>'
        case VideoContent(data=bytes() as data, mimetype=mimetype):
            return f'<video controls src="{_encode(data, mimetype)}"></video>'
        case FileContent(data=bytes() as data, name=name):
            title = _text(one_line(name)) or "file"
            # Always downloaded and never shown, because its type is untrusted.
            address = _encode(data, "application/octet-stream")
            return f'<p class="file"><a download="{title}" href="{address}">{title}</a></p>'
    place = getattr(content, "data", None)
    if isinstance(place, Location) and _LINK.match(place.url):
        url = _text(place.url)
        return f'<p class="file"><a href="{url}" rel="{_REL}">{url}</a></p>'
    return f'<p class="hint">[{_text(describe_content(content))}]</p>'


def _draw_exact(text: str) -> str:
    return f'<pre class="exact" tabindex="0">{_text(text)}</pre>'


def _fold(role: str, summary: str, canister: Canister) -> str:
    return _draw_message(
        role,
        f'<details class="folded"><summary>{_text(one_line(summary))}</summary>'
        f"{_draw_plain(canister.contents)}</details>",
    )


def _encode(data: bytes, mimetype: str) -> str:
    known = mimetype if _MIMETYPE.fullmatch(mimetype) else "application/octet-stream"
    return f"data:{known};base64,{base64.b64encode(data).decode()}"


def _dump(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _text(text: str) -> str:
    return escape(visible(text))


@cache
def _access_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    class Parser(MarkdownIt):
        """Markdown whose links lead to the web and to mail only."""

        def validateLink(self, url: str) -> bool:  # noqa: N802
            return _LINK.match(url.strip()) is not None

    parser = Parser("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.core.ruler.push("page", _adapt_tokens)
    parser.add_render_rule("image", _draw_image)
    parser.add_render_rule("fence", _draw_code)
    parser.add_render_rule("code_block", _draw_code)
    parser.add_render_rule("table_open", lambda *_: '<div class="table" tabindex="0"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return parser


def _adapt_tokens(state: StateCore) -> None:
    """Give the tokens of Markdown the elements and classes that the web page has for them."""
    for block in state.tokens:
        for token in (block, *(block.children or ())):
            match token.type:
                case "link_open":
                    token.attrSet("rel", _REL)
                case "heading_open" | "heading_close":
                    # The first two levels are those of the page.
                    token.tag = f"h{min(int(token.tag[1]) + 2, 6)}"
                case "th_open" | "td_open" if side := token.attrs.pop("style", ""):
                    token.attrSet("class", f"to-{str(side).removeprefix('text-align:')}")


def _draw_image(_: object, tokens: Sequence[Token], place: int, *_more: object) -> str:
    # A link, because loading the image would reveal the reader to its server.
    address = escape(str(tokens[place].attrGet("src") or ""))
    return f'<a href="{address}" rel="{_REL}">{escape(tokens[place].content or "image")}</a>'


def _draw_code(_: object, tokens: Sequence[Token], place: int, *_more: object) -> str:
    token = tokens[place]
    language = escape((token.info.split() or ["text"])[0])
    return (
        f'<figure class="code"><figcaption><span>{language}</span></figcaption>'
        f'<pre tabindex="0"><code>{escape(token.content)}</code></pre></figure>\n'
    )
