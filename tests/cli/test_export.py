"""Conversations as files to send: whole, readable, and harmless whatever was said in them."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import time
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import vibe_llms
from tests.cli.command import invoke
from tests.fakes.canisters import produce_canisters
from tests.faults.archives import FAST, produce_details
from vibe_llms.cli.export import form_of
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    Provenance,
    ResultCanister,
    SupervisorCanister,
    Usage,
    UserCanister,
)
from vibe_llms.messages.codecs import decode_canister
from vibe_llms.messages.contents import (
    Citation,
    Content,
    FileContent,
    ImageContent,
    Location,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.messages.markdown import escape_html
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.transcripts.exports import export

pytestmark = pytest.mark.usefixtures("warm")

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
SOURCE = Provenance("module", "anthropic", "claude-test")
#: What a page may contain, and with which attributes.
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "article", "header", "span"),
    *("time", "div", "dl", "dt", "dd", "details", "summary", "pre", "code", "p", "a", "img"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "table", "thead", "tbody", "tr"),
    *("th", "td", "blockquote", "strong", "em", "s", "br", "hr", "audio", "video"),
    *("figure", "figcaption", "aside"),
}
ATTRIBUTES = {
    *("lang", "dir", "charset", "http-equiv", "content", "name", "class", "datetime", "alt"),
    *("src", "href", "rel", "download", "start", "tabindex", "title", "controls"),
}
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[a](javascript:alert(1))",
    "[a](  JaVaScRiPt:alert(1))",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "![a](https://evil.example/pixel.png)",
    '[a](https://e.example/"onmouseover="alert(1))',
    "<https://e.example/><svg onload=alert(1)>",
    "</style></title></textarea><script>alert(1)</script>",
    '"><script>alert(1)</script>',
    "```html onload=x\n</code></pre><script>alert(1)</script>\n```",
    "&lt;script&gt;&#x3c;script&#x3e;",
    "[a][b]\n\n[b]: javascript:alert(1)",
    "| <b>x</b> | y |\n| --- | --- |\n| </table><script> | z |",
    "\x00<scr\x00ipt>\x1b[2J\u202e\ud800",
)


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def check(self) -> None:
        """Nothing runs, and nothing is loaded from elsewhere."""
        for tag, attributes in self.tags:
            assert tag in TAGS, tag
            assert set(attributes) <= ATTRIBUTES, attributes
            assert "src" not in attributes or attributes["src"].startswith("data:")
            if "href" in attributes and "download" not in attributes:
                assert attributes["href"].lower().startswith(("https://", "http://", "mailto:"))
                assert attributes["rel"] == "noopener noreferrer"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a <b>c</b> <!-- d -->", "a &lt;b>c&lt;/b> &lt;!-- d -->"),
        ("<script>\nalert(1)\n</script>", "&lt;script>\nalert(1)\n&lt;/script>"),
        ("`<b>` and ``a ` <b>`` <i>", "`<b>` and ``a ` <b>`` &lt;i>"),
        ("a `b\n\n<i> c`", "a `b\n\n&lt;i> c`"),
        ("```html\n<b>\n```\n<i>", "```html\n<b>\n```\n&lt;i>"),
        ("1.  a\n\n    ```\n    <b>\n    ```", "1.  a\n\n    ```\n    <b>\n    ```"),
        ("```\n<b>", "```\n<b>\n```"),
        ("<!--\n```\n-->\n```\n<b>", "&lt;!--\n```\n-->\n```\n&lt;b>"),
        ("| `List<A>` | `a` |", "| `List<A>` | `a` |"),
        (
            "<https://e.example/a> <javascript:alert(1)>",
            "<https://e.example/a> &lt;javascript:alert(1)>",
        ),
        ("1 < 2 <3", "1 < 2 <3"),
    ],
)
async def test_markdown_shows_html_as_text(text: str, written: str) -> None:
    assert escape_html(text) == written
    drawn = await export([UserCanister.from_text(text)], None, "md")
    assert f"## You\n\n{written}" in drawn


IMAGE = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    "text",
    [
        f"\\`{IMAGE}`",
        f"a `\n`{IMAGE}`",
        f"a `b\n`{IMAGE} `",
        f"| ` | {IMAGE}` |\n| - | - |\n| ` | {IMAGE}` |",
        f"\\<https://a`b> `{IMAGE}`",
        f"<https://a`b> ` ` {IMAGE} `",
        f"https://a`b `c` {IMAGE} `",
        f"[a]: /b\n    {IMAGE}",
        f"- ```\n{IMAGE}",
        f"> ```\n{IMAGE}",
        f"- a\n\n      {IMAGE}",
        f"``` {IMAGE}",
        f"~~~ a | {IMAGE}\n| - | - |",
        f"<!--\n```\n-->\n```\n{IMAGE}",
        "```\na",
        "  ```",
        "- a",
        f"  ```\n{IMAGE}\n```",
        f"a>\n{IMAGE}",
        *HOSTILE,
    ],
)
async def test_no_html_of_others_is_left_in_markdown(text: str) -> None:
    source = Provenance("module", text, text)
    cited = TextualContent(text, citations=(Citation(title=text, quote=text),))
    others: list[Content] = [
        FileContent(b"x", text, text),
        ImageContent(PICTURE, text),
        ImageContent(Location(text)),
        ImageContent(Location(f"https://{text}")),
        ReasoningContent(text),
    ]
    said: list[Canister] = [
        UserCanister((TextualContent("- a"), TextualContent(text), *others)),
        AssistantCanister((cited, TextualContent(f"  ```\n{IMAGE}\n```")), provenance=source),
        SupervisorCanister.from_text(text),
        DocumentCanister((TextualContent(text),), title=text),
        InvocationCanister(text, text),
        ResultCanister((TextualContent(text), *others), invocation="1"),
        UserCanister.from_text(f"`{IMAGE}`"),
    ]
    drawn = await export(said, None, "md", name=text)
    tokens = MarkdownIt("commonmark").enable("table").parse(drawn)
    blocks = [one.content.strip() for one in tokens if one.type == "html_block"]
    inline = [one for token in tokens for one in token.children or ()]
    assert [one.content for one in inline if one.type == "html_inline"] == []
    ours = re.compile(r"<details>\n<summary>[^<]*</summary>|</details>")
    assert [one for one in blocks if not ours.fullmatch(one)] == []
    # The last message is whole: none before it has left a block open.
    assert inline[-1].content == IMAGE


def test_brackets_without_end_are_exported_in_little_time() -> None:
    begun = time.process_time()
    assert escape_html("[" * 80_000) == "[" * 80_000
    assert time.process_time() - begun < 3


def converse(*, said: str = "What is pi?", answer: str = "About **3.14**.") -> Sequence[Canister]:
    call = InvocationCanister(
        "python/run", json.dumps({"code": "a = 1\nb = 2"}), reply="1", provenance=SOURCE
    )
    ending = Ending("finished", usage=Usage(uncached_input_tokens=1000, output_tokens=20))
    return (
        SupervisorCanister.from_text("Be brief."),
        DocumentCanister((TextualContent("some notes"),), title="notes.txt"),
        UserCanister((TextualContent(said), ImageContent(PICTURE, "image/png"))),
        AssistantCanister((ReasoningContent("Hm."),), reply="1", provenance=SOURCE),
        call,
        ResultCanister((TextualContent("3.14159"),), invocation=call.identity),
        AssistantCanister((TextualContent(answer),), reply="2", provenance=SOURCE, ending=ending),
        UserCanister((FileContent(b"%PDF", "application/pdf", "a.pdf"),)),
    )


def keep(home: Path, canisters: Sequence[Canister], name: str = "") -> DirectoryArchive:
    archive = DirectoryArchive(home, FAST)
    archive.create_now("exported", produce_details(name), canisters)
    return archive


def test_a_page_has_all_that_was_said_and_its_images(home: Path) -> None:
    keep(home, converse(), "On pi")
    outcome = invoke("export", "exported", "--format", "html")
    assert outcome.status == 0
    page = Page(outcome.output)
    page.check()
    for words in ("On pi", "anthropic/claude-test", "1,000 tokens in, 20 out", "What is pi?"):
        assert words in page.text
    for words in ("Be brief.", "some notes", "Hm.", "3.14159", "a = 1\nb = 2", "About 3.14."):
        assert words in page.text
    assert "<strong>3.14</strong>" in outcome.output
    images = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert images == [f"data:image/png;base64,{base64.b64encode(PICTURE).decode()}"]
    files = [attributes for tag, attributes in page.tags if "download" in attributes]
    assert [one["download"] for one in files] == ["a.pdf"]
    # The call and its result are one thing to unfold.
    call = outcome.output.partition("Tool call")[2].partition("</details>")[0]
    assert "3.14159" in call
    policy = [one["content"] for tag, one in page.tags if one.get("http-equiv")]
    assert policy
    assert policy[0].startswith("default-src 'none'")
    # The style is that of the web page, and no other one is allowed.
    style = outcome.output.partition("<style>")[2].partition("</style>")[0].encode()
    assert style.startswith(
        (Path(vibe_llms.__file__).parent / "page/style/messages.css").read_bytes()
    )
    digest = base64.b64encode(hashlib.sha256(style).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy[0]


@pytest.mark.parametrize("text", HOSTILE)
async def test_nothing_in_a_page_runs_or_loads(text: str) -> None:
    said = [*converse(said=text, answer=text), DocumentCanister(title=text, source=text)]
    call = InvocationCanister(text, text)
    result = ResultCanister((TextualContent(text),), invocation=call.identity, failed=True)
    said += [
        call,
        result,
        ResultCanister((TextualContent(text),), invocation="nowhere"),
        UserCanister(
            (
                ImageContent(PICTURE, f"image/{text}"),
                ImageContent(Location(text), "image/png"),
                FileContent(b"x", text, text),
            )
        ),
    ]
    Page(await export(said, None, "html", name=text)).check()


@pytest.mark.storm
async def test_no_mixture_of_hostile_texts_runs(rounds: object) -> None:
    count = rounds(50, 5_000)  # type: ignore[operator]
    chance = random.Random(7)
    for _ in range(count):
        pieces = [chance.choice(HOSTILE) for _ in range(chance.randrange(1, 6))]
        text = "".join(piece[: chance.randrange(len(piece) + 1)] for piece in pieces)
        Page(await export(converse(said=text, answer=text), None, "html", name=text)).check()


@pytest.mark.parametrize("form", ["md", "html", "json"])
async def test_every_conversation_that_the_types_allow_can_be_exported(form: str) -> None:
    text = await export([*produce_canisters(3, 300)], None, form_of(f"x.{form}"))
    assert text.encode()


def test_markdown_has_all_that_was_said(home: Path) -> None:
    keep(home, converse(answer="See:\n```\n```` in code\n```"), "On pi")
    text = invoke("export", "exported").output
    assert text.startswith("# On pi\n\n- Model: anthropic/claude-test\n")
    assert "## You\n\nWhat is pi?\n\n![image](data:image/png;base64," in text
    assert "## anthropic/claude-test\n\nSee:" in text
    assert "<summary>Tool call: python/run</summary>" in text
    assert text.endswith("\n")


def test_json_has_every_message_with_its_data(home: Path) -> None:
    said = converse()
    keep(home, said)
    made = invoke("export", "exported", "--format", "json").json
    assert set(made) == {"id", "name", "title", "models", "usage", "messages"}
    assert (made["name"], made["title"]) == ("", "What is pi?")
    assert made["models"] == ["anthropic/claude-test"]
    read = [decode_canister(json.dumps(one).encode()) for one in made["messages"]]
    assert read == list(said)


@pytest.mark.parametrize(
    ("file", "start"), [("a.html", "<!DOCTYPE"), ("a.md", "# What"), ("a.json", "{"), ("a", "# ")]
)
def test_the_name_of_the_file_decides_on_the_form(
    home: Path, tmp_path: Path, file: str, start: str
) -> None:
    keep(home, converse())
    path = tmp_path / file
    path.write_text("older")
    refused = invoke("export", "exported", "-o", str(path))
    assert (refused.status, refused.error) == (2, "not a terminal; use -y to overwrite it")
    assert path.read_text() == "older"
    outcome = invoke("export", "exported", "-y", "-o", str(path))
    assert (outcome.status, outcome.output) == (0, "")
    assert path.read_text("utf-8").startswith(start)
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    path.mkdir()
    assert invoke("export", "exported", "-o", str(path)).status == 2


def test_what_is_gone_from_the_archive_is_named_where_it_was(home: Path) -> None:
    archive = keep(home, converse())
    digest = next(iter(archive.contents.survey()))
    for digest in archive.contents.survey():
        archive.contents.remove(digest)
    page = Page(invoke("export", "exported", "--format", "html").output)
    assert "[image image/png]" in page.text
    assert "What is pi?" in page.text
    assert digest


async def test_a_conversation_that_is_not_kept_can_be_exported() -> None:
    text = await export((UserCanister.from_text("Hello\nthere"),), None, "md")
    assert text.startswith("# Hello there\n")


@pytest.mark.parametrize("file", ["a.pdf", "a.txt", "a.md.bak", "notes.docx"])
def test_an_ending_that_says_no_form_is_refused_before_anything_is_written(
    home: Path, tmp_path: Path, file: str
) -> None:
    keep(home, converse())
    path = tmp_path / file
    outcome = invoke("export", "exported", "-o", str(path))
    assert outcome.status == 2
    assert "; use .html, .md or .json, or --format" in outcome.error
    assert not path.exists()
    assert invoke("export", "exported", "--format", "md", "-o", str(path)).status == 0
    assert path.read_text().startswith("# ")


def test_without_an_id_the_latest_conversation_is_exported_and_shown() -> None:
    for command in ("export", "show"):
        outcome = invoke(command)
        assert outcome.status == 66
        assert outcome.error == "no conversations yet; start one: vibe-llms chat"
    for prompt in ("hello", "forks?"):
        invoke("chat", "-m", "scripted/demo", prompt)
    for command in ("export", "show"):
        assert invoke(command) == invoke(command, "-1")
        assert "forks?" in invoke(command).output


def test_messages_are_counted_as_they_are_listed_and_numbered() -> None:
    options = ("chat", "-m", "scripted/demo", "-s", "Be brief.", "--td", "-T", "python")
    invoke(*options, "hello")
    (listed,) = invoke("list", "--json").json
    numbered = re.findall(r"^(\d+) \w+ ", invoke("show").output, re.MULTILINE)
    assert numbered[-1] == str(listed["messages"]) == "3"
    assert "- Messages: 3\n" in invoke("export").output
