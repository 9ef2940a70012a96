"""The box: which keys send, on which windows, and that nothing typed is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Site

pytestmark = pytest.mark.browser

_PRESS = """(area, options) => {
    const { before, ...rest } = options;
    if (before) area.dispatchEvent(new CompositionEvent(before, { bubbles: true, data: "x" }));
    const event = new KeyboardEvent(
        "keydown", { key: "Enter", bubbles: true, cancelable: true, ...rest });
    area.dispatchEvent(event);
    return event.defaultPrevented;
}"""


def press(page: Page, **options: Any) -> bool:
    """Press Enter as an input method does; return True if the page took it to send."""
    box = page.get_by_label("Message", exact=True)
    sent: bool = box.evaluate(_PRESS, options)
    return sent


@pytest.mark.parametrize(
    "options",
    [{"isComposing": True}, {"keyCode": 229}, {"before": "compositionend"}, {"shiftKey": True}],
    ids=str,
)
def test_an_enter_of_an_input_method_sends_nothing(page: Page, options: dict[str, Any]) -> None:
    box = page.get_by_label("Message", exact=True)
    box.fill("日本")
    assert not press(page, **options)
    expect(box).to_have_value("日本")
    # A moment later, Enter is the user's own.
    page.wait_for_timeout(100)
    assert press(page)
    expect(page.locator(".message.user")).to_contain_text("日本")


def test_enter_begins_a_line_for_those_who_prefer_ctrl_enter(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/#/settings")
    page.get_by_label("Enter sends the message").uncheck()
    page.goto(f"{site.url}/#/")
    box = page.get_by_label("Message", exact=True)
    box.fill("One")
    box.press("End")
    box.press("Enter")
    box.press_sequentially("two")
    expect(box).to_have_value("One\ntwo")
    box.press("Control+Enter")
    expect(page.locator(".message.user")).to_contain_text("One\ntwo")


def test_shift_enter_begins_a_line(page: Page) -> None:
    box = page.get_by_label("Message", exact=True)
    box.press_sequentially("One")
    box.press("Shift+Enter")
    box.press_sequentially("two")
    expect(box).to_have_value("One\ntwo")


@pytest.mark.main
def test_a_page_that_goes_offline_keeps_what_is_typed_and_sends_it_later(page: Page) -> None:
    box = page.get_by_label("Message", exact=True)
    page.context.set_offline(True)
    box.fill("Typed offline")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Not sent")
    expect(box).to_have_value("Typed offline")
    page.context.set_offline(False)
    page.get_by_role("button", name="Try again").first.click()
    expect(page.locator(".message.user")).to_have_count(1)
    expect(box).to_have_value("")


def test_the_box_fits_on_the_smallest_phone(site: Site, open_page: Callable[..., Page]) -> None:
    site.start()
    page = open_page(viewport={"width": 320, "height": 568})
    page.goto(site.url)
    box = page.get_by_label("Message", exact=True)
    box.fill("a line\n" * 60 + "W" * 400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    expect(page.get_by_role("button", name="Send")).to_be_in_viewport()
