"""axe-core finds nothing in any view, light and dark, wide and on a small phone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from tests.page.conftest import Site
from tests.page.test_exported import save_export
from tests.pictures import make_png
from tests.server.test_api_imports import export, lossy, talk
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    Provenance,
    ResultCanister,
    SupervisorCanister,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Citation,
    FileContent,
    ImageContent,
    ReasoningContent,
    TextualContent,
    VideoContent,
)
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Details

pytestmark = pytest.mark.browser

AXE = Path(__file__).parents[2] / ".auxiliary/page/node_modules/axe-core/axe.min.js"
WIDE = ViewportSize(width=1280, height=800)
_NUMBERS = itertools.count(2)
NARROW = ViewportSize(width=320, height=640)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
MARKDOWN = """# Heading

Text with **strong**, *soft*, ~~old~~ words, `code`, and [a link](https://example.org).

- one
- [x] done
- [ ] open

1. first
2. second

> quoted

| left | right |
| :-- | --: |
| a | 1 |

```python
def double(number):
    return 2 * number  # a comment
```

$$\\sum_{i=1}^n i$$

---

And $x^2$ in a line.
"""


def fill(home: Path) -> None:
    """Write a conversation with every kind of message and of content."""
    archive = DirectoryArchive(home, StorageSettings(durability="fast"))
    first = Provenance(module="scripted", row="scripted", model="demo")
    call = InvocationCanister(name="search", arguments='{"text": "a\\u200bb"}', provenance=first)
    ended = Ending(reason="finished", usage=Usage(uncached_input_tokens=9, output_tokens=5))
    messages: list[Canister] = [
        SupervisorCanister.from_text("Be brief."),
        DocumentCanister(contents=(TextualContent("Text."),), title="A document", source="x.md"),
        UserCanister(
            contents=(
                TextualContent("Look at these."),
                ImageContent(make_png(), mimetype="image/png"),
                AudioContent(b"RIFF", mimetype="audio/wav"),
                VideoContent(b"x", mimetype="video/mp4"),
                FileContent(b"x", mimetype="application/pdf", name="report.pdf"),
            )
        ),
        AssistantCanister(
            contents=(
                ReasoningContent("Let me think."),
                TextualContent(
                    MARKDOWN, citations=(Citation("words", "Title", "https://example.org"),)
                ),
            ),
            provenance=first,
        ),
        call,
        ResultCanister(contents=(TextualContent("Found."),), invocation=call.identity),
        UserCanister(contents=(TextualContent("Wait."),), steered=True),
        DigestCanister(contents=(TextualContent("A summary."),)),
        AssistantCanister(
            contents=(TextualContent("Broken off."),),
            provenance=Provenance(module="scripted", row="scripted", model="other"),
            ending=Ending(reason="interrupted", usage=ended.usage),
        ),
    ]
    details = Details(created=datetime.now(UTC), name="Everything", tags=("work", "draft"))
    archive.create_now("everything", details, messages)
    archive.create_now(
        "unnamed", Details(created=datetime.now(UTC)), [UserCanister.from_text("Hello")]
    )


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server with a conversation that holds everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VIBE_LLMS_HOME", raising=False)
        site = Site(tmp_path_factory.mktemp("furnished") / "home")
        fill(site.home)
        site.start()
        yield site
        site.stop()


def show_new(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/#/")
    expect(page.get_by_label("Message", exact=True)).to_be_visible()


def show_conversation(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/#/c/everything")
    expect(page.locator(".message.digest")).to_be_attached()
    expect(page.locator(".code-keyword").first).to_be_attached()
    expect(page.locator("math").first).to_be_attached()


def show_unfolded(page: Page, site: Site) -> None:
    show_conversation(page, site)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.locator(".meter").click()


def show_menu(page: Page, site: Site) -> None:
    show_conversation(page, site)
    page.locator("header.heading .menu > button").click()
    expect(page.get_by_role("menu")).to_be_visible()


def show_dialog(page: Page, site: Site) -> None:
    show_menu(page, site)
    page.get_by_role("menuitem", name="Rename").click()
    expect(page.get_by_role("dialog")).to_be_visible()


def show_editing(page: Page, site: Site) -> None:
    show_conversation(page, site)
    page.get_by_role("button", name=re.compile("^Edit")).first.click()


def show_side(page: Page, site: Site) -> None:
    show_new(page, site)
    toggle = page.locator("button.toggle")
    if toggle.is_visible():
        toggle.click()
    expect(page.locator(".conversations .row").first).to_be_visible()


def show_search(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/#/search?q=Look")
    expect(page.locator(".hits li").first).to_be_visible()


def show_offline(page: Page, site: Site) -> None:
    show_new(page, site)
    page.route("**/api/**", lambda route: route.abort())
    page.get_by_label("Message", exact=True).fill("Hello")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()


def show_missing(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/#/c/missing")
    expect(page.locator(".problem")).to_be_visible()


def show_unknown(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/#/unknown")
    expect(page.locator(".problem")).to_be_visible()


def show_login(page: Page, site: Site) -> None:
    refused = {"error": {"message": "no key", "code": "missing_key", "type": "x"}}
    page.route("**/api/**", lambda route: route.fulfill(status=401, json=refused))
    page.goto(f"{site.url}/")
    expect(page.get_by_label("Your key")).to_be_visible()


def show_exported(page: Page, site: Site) -> None:
    save_export(site, "everything", site.home / "export.html")
    page.goto((site.home / "export.html").as_uri())
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")


def show_import(page: Page, site: Site) -> None:
    data = export(talk(1), lossy(next(_NUMBERS)), {"title": "Broken", "mapping": 7})
    site.upload("/api/imports?name=export.zip&dry_run=true", data)
    page.goto(f"{site.url}/#/import")
    expect(page.locator(".problems > li")).to_have_count(2)


def show_imported(page: Page, site: Site) -> None:
    show_import(page, site)
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.get_by_role("link", name="Show the conversations")).to_be_visible()
    expect(page.locator(".problems > li")).to_have_count(2)


def show_importing(page: Page, site: Site) -> None:
    one = site.upload("/api/imports?name=export.zip&dry_run=true", export(talk(1)))
    listed = {"imports": [{**one, "state": "running"}], "most_bytes": 9}
    page.route("**/api/imports", lambda route: route.fulfill(json=listed))
    page.goto(f"{site.url}/#/import")
    expect(page.get_by_role("progressbar")).to_be_visible()


def view(name: str) -> Callable[[Page, Site], None]:
    """Return a function that shows a view that has an address and a heading."""

    def show(page: Page, site: Site) -> None:
        page.goto(f"{site.url}/#/{name}")
        expect(page.locator("main h1")).to_be_visible()
        page.wait_for_load_state("load")

    show.__name__ = name.replace("/", "_")
    return show


#: Functions that show what axe looks at. A view that comes with something of its own gets a line.
VIEWS = (
    show_conversation,
    show_new,
    show_unfolded,
    show_menu,
    show_dialog,
    show_editing,
    show_side,
    show_search,
    show_offline,
    show_missing,
    show_unknown,
    show_login,
    show_exported,
    show_import,
    show_imported,
    show_importing,
    *(view(name) for name in ("settings", "waiting", "runs", "memory", "documents", "models")),
)


def find_violations(page: Page, *tags: str) -> list[str]:
    """Return what axe-core and the width of the page complain about.

    With tags, axe-core looks only at the rules that have one of them.
    """
    assert AXE.is_file(), ".auxiliary/page/types installs axe-core"
    page.evaluate(AXE.read_text())
    found: Any = page.evaluate("tags => axe.run(tags.length ? {runOnly: tags} : {})", [*tags])
    wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    return ["the page is wider than the window"] * wide + [
        f"{one['id']}: {node['html'][:200]} ({node['failureSummary'][:300]})"
        for one in found["violations"]
        for node in one["nodes"]
    ]


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("show", [pytest.param(VIEWS[0], marks=pytest.mark.main), *VIEWS[1:]])
def test_axe_finds_nothing(
    browser: Browser, furnished: Site, show: Callable[[Page, Site], None], size: Any
) -> None:
    # Scripts of a test run only without the page's policy.
    context = browser.new_context(viewport=size, bypass_csp=True, reduced_motion="reduce")
    page = context.new_page()
    found = []
    show(page, furnished)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        found += [f"{scheme}: {one}" for one in find_violations(page)]
    context.close()
    assert found == []


@pytest.mark.parametrize(
    "fault",
    [
        "document.querySelector('h1').remove()",
        "document.querySelector('textarea').outerHTML = '<textarea></textarea>'",
        "document.querySelector('main p, main h2, main h1').style.color = '#999'",
        "document.querySelector('.controls button').outerHTML = '<button></button>'",
        "document.querySelector('main').style.minWidth = '2000px'",
    ],
)
def test_a_fault_is_found(browser: Browser, furnished: Site, fault: str) -> None:
    context = browser.new_context(viewport=WIDE, bypass_csp=True)
    page = context.new_page()
    show_new(page, furnished)
    page.evaluate(fault)
    assert find_violations(page)
    context.close()
