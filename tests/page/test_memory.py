"""Memory on the page: its owner reads, searches, edits, adds and deletes what is remembered."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Site

pytestmark = pytest.mark.browser


#: Finds one fact, as a model would.
_NOTES = """
[[replies]]
when = "."
parts = [{ text = '''{"facts": [{"statement": "The user's cat is called Tom"}]}''' }]
"""


@pytest.fixture
def memory(site: Site) -> Site:
    """A site whose conversations use memory, with versions of the entries."""
    site.configuration = "[memory]\nenabled = true\nversioning = true\n"
    return site


def remember(site: Site, *facts: str) -> list[str]:
    """Add facts, and return their ids."""
    return [site.call("POST", "/api/memory", {"content": fact})["id"] for fact in facts]


def survey(site: Site) -> list[str]:
    """The texts of all entries."""
    return [one["content"] for one in site.call("GET", "/api/memory")["entries"]]


@pytest.mark.main
def test_an_entry_is_added_and_edited_by_keyboard(memory: Site, page: Page) -> None:
    page.get_by_role("link", name="Memory").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Nothing is remembered yet.")).to_be_visible()
    page.get_by_role("button", name="Add an entry").press("Enter")
    expect(page.get_by_label("Text", exact=True)).to_be_focused()
    page.keyboard.type("My cat is called Tom.")
    page.keyboard.press("Tab")
    page.keyboard.type("cats, home")
    page.keyboard.press("Control+Enter")
    entry = page.get_by_role("article", name="My cat is called Tom.")
    expect(entry).to_contain_text("Fact")
    expect(entry).to_contain_text("home")
    entry.get_by_role("button", name="Edit").press("Enter")
    expect(page.get_by_label("Text", exact=True)).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("My cat is called Tim.")
    page.keyboard.press("Control+Enter")
    changed = page.get_by_role("article", name="My cat is called Tim.")
    expect(changed.get_by_role("button", name="Edit")).to_be_focused()
    assert survey(memory) == ["My cat is called Tim."]


def test_what_is_typed_stays_if_it_cannot_be_stored(memory: Site, page: Page) -> None:
    remember(memory, "My cat is called Tom.")
    page.goto(f"{memory.url}/#/memory")
    page.get_by_role("button", name="Edit").click()
    text = page.get_by_label("Text", exact=True)
    secret = "my key is sk-ant-api03-" + "a1B2" * 20
    text.fill(secret)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("secret")
    expect(text).to_have_value(secret)
    text.fill("My cat is called Tim.")
    page.reload()
    page.get_by_role("button", name="Edit").click()
    expect(text).to_have_value("My cat is called Tim.")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Edit").click()
    expect(text).to_have_value("My cat is called Tom.")


def test_a_deleted_entry_can_be_brought_back_for_some_seconds(memory: Site, page: Page) -> None:
    remember(memory, "I sail.", "I play the cello.")
    page.goto(f"{memory.url}/#/memory")
    entry = page.get_by_role("article", name="I sail.")
    entry.get_by_role("button", name="Delete").click()
    expect(entry).to_be_hidden()
    page.get_by_role("button", name="Undo").click()
    expect(entry).to_be_visible()
    entry.get_by_role("button", name="Delete").press("Enter")
    expect(entry).to_be_hidden()
    assert len(survey(memory)) == 2
    # It is deleted at once when the page is left.
    page.goto("about:blank")
    page.goto(f"{memory.url}/#/memory")
    expect(page.get_by_role("article", name="I play the cello.")).to_be_visible()
    assert survey(memory) == ["I play the cello."]
    expect(entry).to_be_hidden()


def test_a_deletion_takes_effect_after_some_seconds(memory: Site, page: Page) -> None:
    identity, _ = remember(memory, "I sail.", "I play the cello.")
    page.clock.install()
    page.goto(f"{memory.url}/#/memory/{identity}")
    page.reload()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Memory", exact=True)).to_be_visible()
    expect(page.get_by_role("article", name="I play the cello.")).to_be_visible()
    assert len(survey(memory)) == 2
    with page.expect_response("**/api/memory?**"):
        page.clock.fast_forward(10_000)
    assert survey(memory) == ["I play the cello."]
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()
    expect(page.get_by_role("article")).to_have_count(1)


def test_entries_are_found_and_their_history_is_shown(memory: Site, page: Page) -> None:
    identity, _ = remember(memory, "Ada lives in Lisbon.", "Ben sails.")
    path = f"/api/memory/{identity}"
    memory.call("GET", f"{path}/history")
    memory.call("PATCH", path, {"content": "Ada lives in Porto."})
    page.goto(f"{memory.url}/#/memory")
    expect(page.get_by_role("article")).to_have_count(2)
    page.get_by_role("searchbox").fill("Where does Ada live?")
    expect(page.get_by_role("article")).to_have_count(1)
    expect(page.get_by_role("status").filter(has_text="1 entry found")).to_be_visible()
    page.get_by_role("link", name="History", exact=True).click()
    expect(page.locator(".changes > li")).to_have_count(2)
    expect(page.locator(".changes > li").nth(0)).to_contain_text("Changed")
    expect(page.locator(".changes > li").nth(1)).to_contain_text("Ada lives in Lisbon.")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Memory", exact=True)).to_be_visible()
    expect(page.get_by_role("article", name="Ben sails.")).to_be_visible()
    expect(page.get_by_role("article")).to_have_count(1)


def test_the_history_of_a_deleted_entry_can_be_read(memory: Site, page: Page) -> None:
    (identity,) = remember(memory, "I sail.")
    memory.call("DELETE", f"/api/memory/{identity}")
    page.goto(f"{memory.url}/#/memory/{identity}")
    expect(page.get_by_text("This entry was deleted.")).to_be_visible()
    expect(page.locator(".changes > li").nth(0)).to_contain_text("Deleted")
    page.goto(f"{memory.url}/#/memory/nothing")
    expect(page.get_by_role("alert")).to_contain_text("not found")


def test_a_message_shows_what_was_remembered_for_it(memory: Site, page: Page) -> None:
    kept, gone = remember(memory, "Heron Ann lives at the pond.", "Heron Bob lives at the lake.")
    conversation = memory.say("Where do the herons live?")
    memory.call("DELETE", f"/api/memory/{gone}")
    page.goto(f"{memory.url}/#/c/{conversation}")
    message = page.locator(".message.user")
    message.get_by_text("Remembered for this message").focus()
    page.keyboard.press("Enter")
    expect(message.get_by_text("1 more was deleted or replaced since.")).to_be_visible()
    message.get_by_text("As the model read it").click()
    expect(message).to_contain_text("Notes from earlier conversations")
    message.get_by_role("link", name="Heron Ann").click()
    expect(page).to_have_url(f"{memory.url}/#/memory/{kept}")
    expect(page.get_by_role("article")).to_contain_text("Heron Ann lives at the pond.")


def test_an_entry_leads_to_the_message_where_it_was_said(
    memory: Site, open_page: Callable[..., Page]
) -> None:
    memory.scripts["notes"] = _NOTES
    memory.configuration += '[memory.ingestion]\nmodel = "scripted/notes"\n'
    memory.start()
    conversation = memory.say("My cat is called Tom.")
    page = open_page()
    for _ in range(200):
        if survey(memory):
            break
        page.wait_for_timeout(50)
    page.goto(f"{memory.url}/#/memory")
    page.get_by_role("link", name="Where it was said").click()
    expect(page).to_have_url(re.compile(f"#/c/{conversation}/"))
    expect(page.locator(".message.user:focus")).to_contain_text("My cat is called Tom.")
