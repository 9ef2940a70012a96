"""Pages of HTML: what each kind of message and content looks like. `test_export` attacks them."""

from __future__ import annotations

import re

import pytest

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    Provenance,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Citation,
    Content,
    FileContent,
    ImageContent,
    Location,
    ReasoningContent,
    Reference,
    TextualContent,
    VideoContent,
)
from vibe_llms.transcripts.pages import describe_content, draw_page, model_of


def draw(*canisters: Canister) -> str:
    return draw_page("A <title>", {"Model": "a & b"}, canisters).partition("<body>")[2]


def shown(*contents: Content) -> str:
    return draw(AssistantCanister(contents))


def test_the_heading_and_the_facts_are_escaped() -> None:
    page = draw()
    assert "<h1>A &lt;title&gt;</h1>" in page
    assert "<dt>Model</dt><dd>a &amp; b</dd>" in page


def test_every_kind_of_message_is_shown() -> None:
    page = draw(
        SupervisorCanister.from_text("Be brief."),
        DocumentCanister((TextualContent("# not drawn"),), title="notes.md"),
        UserCanister.from_text("one\ntwo"),
        AssistantCanister.from_text("**bold**"),
    )
    assert "<summary>Instructions</summary>" in page
    assert "<summary>Document: notes.md</summary>" in page
    assert "# not drawn" in page
    # What users type is shown as it is, as on the web page.
    assert '<div class="said"><div class="plain">one\ntwo</div></div>' in page
    assert "<strong>bold</strong>" in page


def test_a_result_is_shown_with_its_call() -> None:
    call = InvocationCanister(name="look", arguments='{"code": "a\\nb", "n": [1]}')
    result = ResultCanister((TextualContent("warm"),), invocation=call.identity, failed=True)
    page = draw(call, result)
    assert page.count("<details") == 1
    assert "Tool call: <code>look</code>" in page
    assert '<details class="tool failed">' in page
    assert '<span class="hint">failed</span>' in page
    # A text of several lines keeps its lines.
    assert '<pre class="exact" tabindex="0">a\nb</pre>' in page
    assert '<pre class="exact" tabindex="0">warm</pre>' in page
    assert '<span class="hint">no result</span>' in draw(call)
    assert "<summary>Result of a tool (failed)</summary>" in draw(result)
    broken = InvocationCanister(name="look", arguments="{")
    assert '<pre class="exact" tabindex="0">{</pre>' in draw(broken)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (ImageContent(b"x", "image/png"), '<img alt="image" src="data:image/png;base64,eA==">'),
        (ImageContent(b"x", 'image/png" onload="a'), "data:application/octet-stream;base64,eA=="),
        (AudioContent(b"x", "audio/wav"), '<audio controls src="data:audio/wav;base64,eA==">'),
        (VideoContent(b"x", "video/mp4"), '<video controls src="data:video/mp4;base64,eA==">'),
        (
            FileContent(b"x", "text/html", name="a.html"),
            'download="a.html" href="data:application/',
        ),
        (ImageContent(Location("https://e.org/a.png"), ""), '<a href="https://e.org/a.png" rel='),
        (ImageContent(Location("javascript:alert(1)"), ""), '<p class="hint">[image]</p>'),
        (ReasoningContent("why <b>"), '<div class="plain">why &lt;b&gt;</div>'),
        (TextualContent("![a](https://e.org/b.png)"), '<a href="https://e.org/b.png"'),
        (TextualContent("[a](javascript:b)"), "[a](javascript:b)"),
        (TextualContent("<script>"), "&lt;script&gt;"),
    ],
)
def test_every_kind_of_content_is_shown_or_named(content: Content, words: str) -> None:
    page = shown(content)
    assert words in page
    assert "<script" not in page
    assert 'href="javascript' not in page


def test_texts_that_follow_one_another_are_one_text() -> None:
    page = shown(
        TextualContent("It **stood"), TextualContent(" there** for"), TextualContent(" long.")
    )
    assert "<p>It <strong>stood there</strong> for long.</p>" in page


def test_markdown_has_the_markup_of_the_web_page() -> None:
    page = shown(
        TextualContent("# a\n\n```py x\n<b>\n```\n\n| a |\n| ---: |\n| b |\n\n1. c\n\n"),
        TextualContent("***\n\n    indented"),
    )
    assert '<div class="markdown"><h3>a</h3>' in page
    assert (
        '<figure class="code"><figcaption><span>py</span></figcaption>'
        '<pre tabindex="0"><code>&lt;b&gt;\n</code></pre></figure>'
    ) in page
    assert '<span>text</span></figcaption><pre tabindex="0"><code>indented' in page
    assert '<div class="table" tabindex="0"><table>' in page
    assert '<td class="to-right">b</td>' in page
    assert "</table></div>" in page


def test_every_class_of_the_markup_has_a_rule_in_the_style() -> None:
    call = InvocationCanister(name="look", arguments="{}")
    cited = (Citation(title="notes"),)
    page = draw_page(
        "title",
        {"Model": "a"},
        [
            SupervisorCanister.from_text("Be brief."),
            UserCanister.from_text("one"),
            AssistantCanister(
                (
                    ReasoningContent("why"),
                    TextualContent("```\na\n```\n\n| a |\n| :-: |\n| b |", citations=cited),
                    ImageContent(b"x", "image/png"),
                ),
                ending=Ending(StopReason.FAILED, detail="lost"),
            ),
            call,
            ResultCanister((TextualContent("x"),), invocation=call.identity, failed=True),
        ],
    )
    style, _, body = page.partition("</style>")
    used = {one for found in re.findall(r'class="([^"]*)"', body) for one in found.split()}
    assert {"message", "markdown", "code", "tool", "exact", "citations", "problem"} <= used
    # Roles are for readers of the markup; only that of users has a rule.
    roles = {"supervisor", "assistant", "invocation"}
    assert sorted(one for one in used - roles if f".{one}" not in style) == []


def test_an_empty_message_is_left_out_and_an_incomplete_one_is_marked() -> None:
    assert "<article" not in shown(TextualContent(" "), ReasoningContent(""))

    def end(reason: str, *, interrupted: bool = False, detail: str = "") -> str:
        ending = Ending(reason, interrupted=interrupted, detail=detail)
        return draw(AssistantCanister((TextualContent("x"),), ending=ending))

    assert '<p class="problem">The reply was stopped.</p>' in end("finished", interrupted=True)
    assert "The reply failed. &lt;lost&gt;</p>" in end(StopReason.FAILED, detail="<lost>")
    assert "problem" not in end("finished") + end("of a newer version")


def test_a_content_is_named_by_what_is_known_of_it() -> None:
    missing = FileContent(Reference.from_bytes(b"x"), "text/plain", name="a\nb.txt")
    assert describe_content(missing) == "file text/plain a b.txt"


def test_the_model_of_a_reply_is_its_address() -> None:
    provenance = Provenance("anthropic", "row", "model")
    reply = AssistantCanister((), provenance=provenance)
    assert model_of(reply) == f"{provenance.row}/{provenance.model}"
    assert model_of(UserCanister.from_text("x")) == ""
