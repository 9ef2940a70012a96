"""A conversation as one HTML page that loads nothing and runs no scripts.

All texts are untrusted. They are escaped, or rendered by a Markdown parser that allows no HTML.
Links lead to the web and to mail only. The policy of the page allows only its own style and images.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from vibe_llms.cli.citations import list_citations
from vibe_llms.cli.terminal import one_line, visible
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
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
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from markdown_it.utils import OptionsDict

_REL = "noopener noreferrer"
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_MIMETYPE = re.compile(r"[\w.+-]{1,80}/[\w.+-]{1,80}", re.ASCII)
_STYLE = """
:root { color-scheme: light dark; --page: #fdfdfc; --ink: #1d1d1f; --soft: #6b6b70;
  --line: #e3e3e0; --user: #eef3fb; --code: #f4f4f1; --link: #0b57b0; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #17181a; --ink: #e7e7ea; --soft: #9a9aa2;
  --line: #33343a; --user: #20283a; --code: #222328; --link: #8ab8ff; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); overflow-wrap: break-word;
  font: 17px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .75rem; }
.facts { display: flex; flex-wrap: wrap; gap: .2rem 1.5rem; margin: 0 0 2rem; padding: 0 0 1.25rem;
  border-bottom: 1px solid var(--line); color: var(--soft); font-size: .88rem; }
.facts div { display: flex; gap: .4rem; }
.facts dt::after { content: ":"; } .facts dd { margin: 0; }
article { margin: 1.6rem 0; }
article.user { background: var(--user); border-radius: .8rem; padding: .9rem 1.1rem; }
article header { display: flex; gap: .75rem; align-items: baseline; margin-bottom: .3rem; }
.who { font-weight: 600; font-size: .92rem; } time { color: var(--soft); font-size: .8rem; }
.text > :first-child { margin-top: 0; } .text > :last-child { margin-bottom: 0; }
.text h1, .text h2, .text h3, .text h4 {
  font-size: 1.12rem; line-height: 1.35; margin: 1.4em 0 .5em; }
.plain { white-space: pre-wrap; }
pre { background: var(--code); border-radius: .5rem; padding: .8rem 1rem; overflow-x: auto;
  margin: .8em 0; font: .86rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas,
  "DejaVu Sans Mono", monospace; }
pre.wrapped { white-space: pre-wrap; }
code { font: .88em ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre > code { font: inherit; }
:not(pre) > code { background: var(--code); border-radius: .3rem; padding: .1em .3em; }
a { color: var(--link); } hr { border: 0; border-top: 1px solid var(--line); margin: 1.5em 0; }
blockquote { margin: .8em 0; padding: 0 0 0 1em; color: var(--soft);
  border-left: 3px solid var(--line); }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: .8em 0;
  font-size: .93rem; }
th, td { border: 1px solid var(--line); padding: .35rem .7rem; text-align: left; }
img, video { max-width: 100%; height: auto; border-radius: .5rem; display: block; margin: .8em 0; }
audio { width: 100%; margin: .8em 0; }
details { border: 1px solid var(--line); border-radius: .6rem; padding: .5rem .9rem; margin: 1rem 0;
  font-size: .93rem; }
summary { cursor: pointer; color: var(--soft); } details[open] > summary { margin-bottom: .6rem; }
details h2 { font-size: .82rem; color: var(--soft); margin: .8rem 0 .2rem; font-weight: 600; }
.bad { color: var(--bad); } .note { color: var(--soft); font-size: .9rem; font-style: italic; }
@media print { body { font-size: 11pt; } article, details { break-inside: avoid; } }
"""


def draw_page(title: str, facts: Mapping[str, str], canisters: Sequence[Canister]) -> str:
    """Draw the page of a conversation with its data."""
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
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="generator" content="vibe-llms">\n'
        f"<title>{heading}</title>\n<style>{_STYLE}</style></head>\n"
        f'<body><main>\n<h1>{heading}</h1>\n<dl class="facts">{rows}</dl>\n{body}\n'
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
            return _draw_message("user", "You", canister)
        case AssistantCanister():
            return _draw_message("assistant", model_of(canister) or "Assistant", canister)
        case SupervisorCanister():
            return _fold("Instructions", _draw_plain(canister.contents))
        case DocumentCanister(title=title):
            return _fold(f"Document: {title}", _draw_plain(canister.contents))
        case InvocationCanister():
            return _draw_call(canister, results.get(canister.identity))
        case ResultCanister():
            return _fold("Tool result", _draw_result(canister)) + _draw_media(canister.contents)
        case DigestCanister():
            return _fold("Summary of earlier messages", _draw_plain(canister.contents))
        case _:
            return f'<p class="note">[{_text(getattr(canister, "label", "message"))}]</p>'


def _draw_message(kind: str, who: str, canister: UserCanister | AssistantCanister) -> str:
    # Keep the user's line breaks.
    parser = _access_parser(breaks=isinstance(canister, UserCanister))
    parts = [_draw_content(content, parser) for content in canister.contents]
    sources = "".join(f"<li>{_text(line)}</li>" for line in list_citations(canister.contents))
    parts.append(f'<ul class="note">{sources}</ul>' if sources else "")
    ending = canister.ending if isinstance(canister, AssistantCanister) else None
    if ending is not None and ending.interrupted:
        parts.append('<p class="note">(interrupted)</p>')
    if not any(parts):
        return ""
    created = canister.created.astimezone()
    return (
        f'<article class="{kind}"><header><span class="who">{_text(who)}</span>'
        f'<time datetime="{created.isoformat()}">{created:%Y-%m-%d %H:%M}</time></header>\n'
        f"{''.join(parts)}</article>"
    )


def _draw_call(call: InvocationCanister, result: ResultCanister | None) -> str:
    state = "no result" if result is None else "failed" if result.failed else ""
    mark = f' <span class="bad">({state})</span>' if state else ""
    body = f"<h2>Arguments</h2>{_draw_arguments(call.arguments)}"
    media = ""
    if result is not None:
        body += f"<h2>Result</h2>{_draw_result(result)}"
        media = _draw_media(result.contents)
    return (
        f"<details><summary>Tool call: <code>{_text(one_line(call.name))}</code>{mark}</summary>"
        f"{body}</details>{media}"
    )


def _draw_arguments(arguments: str) -> str:
    """Draw arguments as HTML; multi-line texts keep their line breaks."""
    try:
        tree = json.loads(arguments)
    except (ValueError, RecursionError):
        return _draw_code(arguments)
    if isinstance(tree, dict) and any(isinstance(v, str) and "\n" in v for v in tree.values()):
        return "".join(
            f"<h2>{_text(name)}</h2>{_draw_code(value if isinstance(value, str) else _dump(value))}"
            for name, value in tree.items()
        )
    return _draw_code(_dump(tree))


def _draw_result(result: ResultCanister) -> str:
    texts = [one.text for one in result.contents if isinstance(one, TextualContent)]
    return "".join(map(_draw_code, filter(None, texts)))


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
                return f'<div class="text">{parser.render(text)}</div>'
            return f'<div class="text plain">{escape(text)}</div>'
        case ReasoningContent(data=str() as text) if text.strip():
            return _fold("Reasoning", f'<div class="plain">{_text(text)}</div>')
        case ReasoningContent():
            return ""
        case ImageContent(data=bytes() as data, mimetype=mimetype):
            return f'<img alt="image" src="{_encode(data, mimetype)}">'
        case AudioContent(data=bytes() as data, mimetype=mimetype):
            return f'<audio controls src="{_encode(data, mimetype)}"></audio>'
        case VideoContent(data=bytes() as data, mimetype=mimetype):
            return f'<video controls src="{_encode(data, mimetype)}"></video>'
        case FileContent(data=bytes() as data, name=name):
            title = _text(one_line(name)) or "file"
            # Always downloaded and never shown, because its type is untrusted.
            address = _encode(data, "application/octet-stream")
            return f'<p><a download="{title}" href="{address}">{title}</a></p>'
    place = getattr(content, "data", None)
    if isinstance(place, Location) and _LINK.match(place.url):
        url = _text(place.url)
        return f'<p><a href="{url}" rel="{_REL}">{url}</a></p>'
    return f'<p class="note">[{_text(describe_content(content))}]</p>'


def _draw_code(text: str) -> str:
    return f'<pre class="wrapped"><code>{_text(text)}</code></pre>'


def _fold(summary: str, body: str) -> str:
    return f"<details><summary>{_text(one_line(summary))}</summary>{body}</details>"


def _encode(data: bytes, mimetype: str) -> str:
    known = mimetype if _MIMETYPE.fullmatch(mimetype) else "application/octet-stream"
    return f"data:{known};base64,{base64.b64encode(data).decode()}"


def _dump(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _text(text: str) -> str:
    return escape(visible(text))


@cache
def _access_parser(*, breaks: bool) -> MarkdownIt:
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML

    class Parser(MarkdownIt):
        """Markdown whose links lead to the web and to mail only."""

        def validateLink(self, url: str) -> bool:  # noqa: N802
            return _LINK.match(url.strip()) is not None

    class Renderer(RendererHTML):
        """HTML with links for images, because loading one reveals the reader to its server."""

        def image(
            self,
            tokens: Sequence[Token],
            idx: int,
            options: OptionsDict,
            env: MutableMapping[str, Any],
        ) -> str:
            address = escape(str(tokens[idx].attrGet("src") or ""))
            label = escape(tokens[idx].content or "image")
            return f'<a href="{address}" rel="{_REL}">{label}</a>'

        def link_open(
            self,
            tokens: Sequence[Token],
            idx: int,
            options: OptionsDict,
            env: MutableMapping[str, Any],
        ) -> str:
            tokens[idx].attrSet("rel", _REL)
            return self.renderToken(tokens, idx, options, env)

    parser = Parser("commonmark", {"html": False, "breaks": breaks}, renderer_cls=Renderer)
    return parser.enable(["table", "strikethrough"])
