"""Settings on the page: they are kept by the browser, and list the keys that work everywhere."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Site

pytestmark = pytest.mark.browser


@pytest.mark.main
def test_settings_are_kept_by_the_browser(site: Site, page: Page) -> None:
    page.get_by_role("link", name="Settings").press("Enter")
    page.get_by_label("Dark").press(" ")
    page.get_by_label("Text size").press("ArrowRight")
    page.get_by_label("Enter sends the message").click()
    page.reload()
    expect(page.get_by_label("Dark")).to_be_checked()
    expect(page.get_by_text("110 %")).to_be_visible()
    expect(page.get_by_label("Enter sends the message")).not_to_be_checked()
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "dark")
    expect(root).to_have_css("font-size", "17.6px")


def test_the_listed_keys_work(site: Site, page: Page) -> None:
    page.goto(f"{site.url}/#/settings")
    keys = page.get_by_role("listitem").filter(has=page.locator("kbd"))
    expect(keys).to_have_text(["Ctrl+Shift+O New conversation", "Ctrl+K Search"])
    page.keyboard.press("Control+k")
    expect(page.get_by_role("heading", name="Search", level=1)).to_be_visible()
    page.keyboard.press("Control+Shift+O")
    expect(page.get_by_role("heading", name="What would you like to know?")).to_be_visible()
