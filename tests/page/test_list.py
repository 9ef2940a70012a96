"""The list of conversations: rename, tag, delete with undo, search, and a great number of them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import Site

pytestmark = pytest.mark.browser


def row(page: Page, title: str) -> Locator:
    """The row of a conversation."""
    return page.locator(".conversations .row", has_text=title)


def choose(page: Page, title: str, label: str) -> None:
    """Choose an action in the menu of a conversation, by mouse."""
    row(page, title).get_by_role("button", name="Actions for").click()
    page.get_by_role("menuitem", name=label, exact=True).click()


@pytest.mark.main
def test_a_conversation_of_another_program_appears_and_is_unread(page: Page, site: Site) -> None:
    expect(page.get_by_text("No conversations yet.")).to_be_visible()
    site.say("Hello from a terminal")
    found = row(page, "Hello from a terminal")
    expect(found).to_be_visible()
    expect(found.get_by_label("New messages")).to_be_visible()
    found.get_by_role("link").click()
    expect(page.locator(".message.assistant")).to_contain_text("scripted/demo")
    expect(page.get_by_role("heading", level=1)).to_have_text("Hello from a terminal")
    expect(found.get_by_label("New messages")).to_be_hidden()


@pytest.mark.main
def test_rename_and_tag_by_mouse(page: Page, site: Site) -> None:
    site.say("Hello")
    choose(page, "Hello", "Rename")
    page.get_by_role("textbox", name="Rename").fill("Greetings")
    page.get_by_role("button", name="OK").click()
    expect(row(page, "Greetings")).to_be_visible()
    choose(page, "Greetings", "Tags, separated by commas")
    page.get_by_role("dialog").get_by_role("textbox").fill("work, later")
    page.get_by_role("button", name="OK").click()
    expect(row(page, "Greetings").locator(".tag")).to_have_text(["later", "work"])
    site.say("Untagged")
    expect(row(page, "Untagged")).to_be_visible()
    choose(page, "Greetings", "Show only “work”")
    expect(row(page, "Untagged")).to_be_hidden()
    page.get_by_role("button", name="Show all conversations").click()
    expect(row(page, "Untagged")).to_be_visible()


@pytest.mark.main
def test_rename_and_delete_by_keyboard(page: Page, site: Site) -> None:
    conversation = site.say("Hello")
    link = row(page, "Hello").get_by_role("link")
    link.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("By keyboard")
    page.keyboard.press("Enter")
    expect(row(page, "By keyboard")).to_be_visible()
    row(page, "By keyboard").get_by_role("button").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    expect(page.get_by_role("menuitem", name="Delete")).to_be_focused()
    page.keyboard.press("Enter")
    expect(row(page, "By keyboard")).to_be_hidden()
    page.get_by_role("button", name="Undo").press("Enter")
    expect(row(page, "By keyboard")).to_be_visible()
    assert site.call("GET", f"/api/conversations/{conversation}")["name"] == "By keyboard"


def test_a_deleted_conversation_is_gone_once_it_cannot_be_undone(page: Page, site: Site) -> None:
    site.say("Hello")
    choose(page, "Hello", "Delete")
    undo = page.get_by_role("button", name="Undo")
    expect(undo).to_be_visible()
    expect(undo).to_be_hidden(timeout=15_000)
    assert site.call("GET", "/api/conversations")["conversations"] == []


def test_the_arrow_keys_move_between_conversations(page: Page, site: Site) -> None:
    for text in ("First", "Second", "Third"):
        site.say(text)
    expect(row(page, "Third")).to_be_visible()
    row(page, "Third").get_by_role("link").focus()
    page.keyboard.press("ArrowDown")
    expect(row(page, "Second").get_by_role("link")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("First")


@pytest.mark.main
def test_search_shows_each_hit_and_opens_it(page: Page, site: Site) -> None:
    site.say("The violin is in the attic")
    site.say("Nothing about it")
    page.keyboard.press("Control+k")
    box = page.get_by_label("Search all conversations")
    expect(box).to_be_focused()
    box.fill("violin")
    expect(page.get_by_text("1 message found")).to_be_visible()
    expect(page.locator(".hits mark")).to_have_text("violin")
    page.locator(".hits a").click()
    expect(page).to_have_url(re.compile("#/c/.+/.+"))
    expect(page.locator(".message.user")).to_be_focused()


def test_a_conversation_deleted_elsewhere_is_told_in_place(page: Page, site: Site) -> None:
    conversation = site.say("Hello")
    row(page, "Hello").get_by_role("link").click()
    expect(page.locator(".message.assistant")).to_be_visible()
    site.call("DELETE", f"/api/conversations/{conversation}")
    expect(page.get_by_text("This conversation was deleted")).to_be_visible()
    expect(row(page, "Hello")).to_be_hidden()


def test_another_device_sees_the_reply_that_is_being_written(
    page: Page, open_page: Callable[..., Page], site: Site
) -> None:
    other = open_page(viewport={"width": 390, "height": 844})
    other.goto(site.url)
    page.get_by_label("Message", exact=True).fill("Tell me a story.")
    page.keyboard.press("Enter")
    other.get_by_role("button", name="Show the menu").click()
    expect(other.get_by_label("A reply is being written")).to_be_visible()
    row(other, "Tell me a story.").get_by_role("link").click()
    expect(other.locator(".message.live")).to_contain_text("There was once a library")
    other.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("The reply was stopped.")).to_be_visible()
