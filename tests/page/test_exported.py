"""Conversations exported as HTML: in a browser they look like the page, and break no policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Site

pytestmark = pytest.mark.browser

_SCRIPT = """
[[replies]]
when = "."
parts = [{ reasoning = "Hm." }, { text = '''
# Result

| a | b |
| :- | -: |
| 1 | `2` |

> quoted

```python
a = 1
```
''' }]
"""
#: Elements that both have, by their selectors.
_SHARED = (
    "body", ".message.user .said", ".message.assistant .who", ".message.assistant time",
    ".reasoning", ".reasoning > summary", ".markdown h3", ".table table", ".table th",
    ".table td.to-right", ".markdown blockquote", ".markdown code", ".code", ".code figcaption",
    ".code pre", ".code pre code",
)  # fmt: skip
_STYLES = """selectors => selectors.map((selector) => {
    const style = getComputedStyle(document.querySelector(selector));
    const names = ["backgroundColor", "color", "fontFamily", "fontSize", "fontWeight", "textAlign",
        "paddingTop", "paddingLeft", "borderTopWidth", "borderTopColor", "borderTopLeftRadius"];
    return [selector, ...names.map((name) => style[name])];
})"""


def save_export(site: Site, conversation: str, file: Path) -> None:
    """Save a conversation as HTML, as the page's menu does."""
    with urlopen(f"{site.url}/api/conversations/{conversation}/export?form=html") as reply:
        file.write_bytes(reply.read())


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.main), "dark"])
def test_an_export_looks_like_the_page(
    site: Site, open_page: Callable[..., Page], tmp_path: Path, scheme: str
) -> None:
    site.scripts["many"] = _SCRIPT
    site.start()
    conversation = site.say("Show all.", "scripted/many")
    page = open_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
    page.goto(f"{site.url}/#/c/{conversation}")
    expect(page.locator(".code pre")).to_be_visible()
    shown = page.evaluate(_STYLES, _SHARED)
    save_export(site, conversation, tmp_path / "export.html")
    page.goto((tmp_path / "export.html").as_uri())
    assert page.evaluate(_STYLES, _SHARED) == shown
    # A style that is not ours is refused, and so is a script.
    assert page.evaluate(
        """() => {
            const refused = [];
            addEventListener("securitypolicyviolation", (event) => {
                event.stopImmediatePropagation();
                refused.push(event.effectiveDirective);
            }, { capture: true });
            const style = document.createElement("style");
            style.textContent = "body { color: red }";
            const script = document.createElement("script");
            script.textContent = "globalThis.ran = true";
            document.head.append(style, script);
            const found = () => [refused.sort(), globalThis.ran];
            return new Promise((resolve) => setTimeout(() => resolve(found()), 50));
        }"""
    ) == [["script-src-elem", "style-src-elem"], None]
