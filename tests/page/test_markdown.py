"""Markdown on the page: what public reports show that others draw wrong, and growing text."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.page.test_conversation import ask

pytestmark = pytest.mark.browser

_DRAW = """async ({ texts }) => {
    const base = document.querySelector("script").src.replace(/boot\\.js$/, "");
    const { html, render } = await import(`${base}vendor/ui.js`);
    const { Markdown } = await import(`${base}markdown/markdown.js`);
    return texts.map((text) => {
        const place = document.createElement("div");
        render(html`<${Markdown} text=${text} />`, place);
        return place.innerHTML;
    });
}"""
_GROW = """async ({ text, size }) => {
    const base = document.querySelector("script").src.replace(/boot\\.js$/, "");
    const { html, render } = await import(`${base}vendor/ui.js`);
    const { GrowingMarkdown } = await import(`${base}markdown/growing.js`);
    const { Markdown } = await import(`${base}markdown/markdown.js`);
    const growing = new GrowingMarkdown();
    const [place, whole] = [document.createElement("div"), document.createElement("div")];
    for (let start = 0; start < text.length; start += size) {
        growing.add(text.slice(start, start + size));
        growing.update();
        render(html`<${Markdown} growing=${growing} />`, place);
    }
    const grown = place.innerHTML;
    const last = place.querySelector("h3");
    render(html`<${Markdown} text=${text} />`, place);
    render(html`<${Markdown} text=${text} />`, whole);
    const kept = last === place.querySelector("h3");
    return { grown, stored: place.innerHTML, whole: whole.innerHTML, kept };
}"""


#: Markdown, words that its HTML must have, and words that it must not have.
CASES = {
    # SciLink#636, opencode#40878: two prices became a formula.
    "prices": ("It costs $5 and $6.", ["It costs $5 and $6."], ["formula"]),
    "price and name": ("From $10 to US$20", ["From $10 to US$20"], ["formula"]),
    "formula in dollars": ("Here $x^2$ is", ['class="formula"', "x^2"], ["$"]),
    "formula in parentheses": (r"Here \(a_1 + b\) is", ['class="formula"', "a_1 + b"], ["\\("]),
    "formula of its own": ("$$\na = b\n$$\n", ["formula display"], ["$"]),
    "brackets": (r"\[ \frac12 \]", ["formula display", "\\frac12"], []),
    # open-webui/open-webui#24746: what is in the code is not Markdown.
    "code": ("`a $x$ **b**`", ["<code>a $x$ **b**</code>"], ["strong", "formula"]),
    "html is text": ("a <b>b</b> <script>x</script>", ["&lt;b&gt;", "&lt;script&gt;"], ["<b>"]),
    "comment is text": ("<!-- hidden -->", ["&lt;!-- hidden --&gt;"], []),
    "link": ("[a](https://example.com/x)", ['href="https://example.com/x"', "noopener"], []),
    "script in a link": ("[a](javascript:alert(1))", ["[a](javascript"], ["href"]),
    "data in a link": ("[a](data:text/html,x)", ["[a](data"], ["href"]),
    "relative link": ("[a](/etc/passwd)", ["[a](/etc/passwd)"], ["href"]),
    "image is a link": ("![plan](https://example.com/a.png)", ["<a ", ">plan<"], ["<img"]),
    "mail": ("<ada@example.com>", ["mailto:ada@example.com"], []),
    "entity": ("a &amp; b &lt; c &#8364;", ["a &amp; b &lt; c €"], ["&amp;amp;"]),
    "tasks": ("- [x] done\n- [ ] open", ['type="checkbox"', "disabled"], []),
    "start of a list": ("7. a\n8. b", ['<ol start="7">'], []),
    "table": ("|a|b|\n|-|:-:|\n|1|2|", ["<th", 'class="to-center"'], ["|"]),
    "heading": ("# a", ["<h3>a</h3>"], []),
    "language that is a property": ("```__proto__\nx\n```", ["__proto__"], []),
    "nested": ("> 1. a\n>    - b", ["<blockquote><ol", "<ul><li>"], []),
}


@pytest.mark.main
def test_what_others_draw_wrong_is_drawn_as_written(page: Page) -> None:
    drawn: list[str] = page.evaluate(_DRAW, {"texts": [text for text, _, _ in CASES.values()]})
    wrong = {
        name: html
        for (name, (_, wanted, unwanted)), html in zip(CASES.items(), drawn, strict=True)
        if not all(one in html for one in wanted) or any(one in html for one in unwanted)
    }
    assert wrong == {}


TEXT = """# Title

A paragraph with **bold** text that
goes on, and a [link](https://example.com).

- one
- two

  with a paragraph

  ```python
  print(1)
  ```

1. first
2. second

| a | b |
| - | - |
| 1 | 2 |

> A quote
> goes on

Setext
======

~~~
``` not the end
~~~

$$
x = 1
$$

The end, with [a reference][r] and <https://example.com/>.
"""


@pytest.mark.parametrize("size", [1, 3, 7, 50, 1000])
def test_text_that_grows_ends_as_if_it_had_been_whole(page: Page, size: int) -> None:
    drawn = page.evaluate(_GROW, {"text": TEXT, "size": size})
    assert drawn["grown"].replace(' class="source"', "") == drawn["whole"].replace(
        ' class="source"', ""
    )
    assert drawn["stored"] == drawn["whole"]
    # What was drawn stays when the reply is stored.
    assert drawn["kept"]


def test_a_link_that_is_defined_at_the_end_is_a_link_once_the_text_is_whole(page: Page) -> None:
    text = "### Title\n\nSee [the page][r].\n\nMore.\n\n[r]: https://example.com/\n"
    drawn = page.evaluate(_GROW, {"text": text, "size": 5})
    assert 'href="https://example.com/"' not in drawn["grown"]
    assert drawn["stored"] == drawn["whole"]
    assert 'href="https://example.com/"' in drawn["stored"]


@pytest.mark.main
def test_the_source_of_a_reply_and_of_code_is_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "Show me some Markdown.")
    expect(page.get_by_role("button", name="Copy as Markdown")).to_have_count(2)

    def read() -> Any:
        return page.evaluate("navigator.clipboard.readText()")

    page.get_by_role("button", name="Copy the code").click()
    assert read().startswith("def greet(name: str) -> str:")
    page.get_by_role("button", name="Copy as Markdown").last.press("Enter")
    while "**bold**" not in read():
        page.wait_for_timeout(50)
    assert "| model | price |" in read()
