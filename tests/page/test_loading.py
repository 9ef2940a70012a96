"""How the page begins: all files at once, and words instead of a blank page if one is missing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.page.conftest import Site
from vibe_llms.server.page import load_page

pytestmark = pytest.mark.browser


@pytest.mark.main
def test_each_file_is_requested_once_and_no_other_is_needed(
    site: Site, open_page: Callable[..., Page]
) -> None:
    site.start()
    page = open_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(site.url)
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    files = [url.split("/page/")[1].split("/", 1)[1] for url in asked if "/page/" in url]
    assert len(files) == len(set(files))
    index = load_page().files["index.html"].data.decode()
    linked = set(re.findall(r'"/page/\w+/([^"]+)"', index))
    assert set(files) - {"icon.svg"} == linked - {"icon.svg"}


@pytest.mark.parametrize("name", ["conversation/history.js", "words/en.js", "vendor/ui.js"])
def test_a_module_that_is_missing_is_told(browser: Browser, site: Site, name: str) -> None:
    site.start()
    context = browser.new_context()
    page = context.new_page()
    lost = True
    page.route(
        re.compile(re.escape(name)), lambda route: route.abort() if lost else route.continue_()
    )
    page.goto(site.url)
    expect(page.get_by_role("alert")).to_contain_text("not loaded whole")
    lost = False
    page.get_by_role("button", name="Load it again").click()
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()
    context.close()


def test_without_colors_and_formulas_the_page_shows_text(page: Page, site: Site) -> None:
    site.scripts["rich"] = (
        "[[replies]]\nwhen = '.'\n"
        "parts = [{ text = '''$$x^2$$\n\n```python\nprint(1)\n```\n\nend''' }]"
    )
    page.route(re.compile(r"vendor/(prism|math)\.js"), lambda route: route.abort())
    site.stop()
    site.start()
    identity = site.say("Show me", model="scripted/rich")
    page.goto(f"{site.url}/#/c/{identity}")
    expect(page.locator(".message.assistant")).to_contain_text("end")
    expect(page.locator(".formula")).to_have_text("x^2")
    expect(page.locator("pre")).to_have_text("print(1)")


def test_a_server_that_does_not_answer_yet_is_asked_again(site: Site, page: Page) -> None:
    site.say("Hello")
    refusals = iter([503, 503])

    def refuse(route: Route) -> None:
        if (status := next(refusals, 0)) == 0:
            route.fallback()
        else:
            route.fulfill(status=status, json={"error": {"message": "not yet"}})

    page.route("**/api/session", refuse)
    # The list cannot be loaded at first either; the changes that follow load it.
    page.route("**/api/conversations?*", lambda route: route.abort(), times=1)
    page.reload()
    expect(page.locator("[aria-busy=true] h1")).to_have_text("vibe-llms")
    assert page.get_by_role("textbox").count() == 0
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    expect(page.locator(".conversations .row")).to_contain_text("Hello")
