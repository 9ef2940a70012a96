"""A conversation on the page: it streams, outlives the tab, and loses nothing that was typed."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, Route, expect

from tests.page.conftest import Site
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.messages.canisters import AssistantCanister, Canister, UserCanister
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Details

pytestmark = pytest.mark.browser


def ask(page: Page, text: str) -> None:
    """Type a message and send it by keyboard."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


@pytest.mark.main
def test_a_new_user_asks_closes_the_tab_and_finds_the_answer_whole(
    page: Page, open_page: Callable[..., Page], site: Site
) -> None:
    ask(page, "Tell me a story.")
    expect(page.locator(".message.live")).to_contain_text("There was once a library")
    address = page.url
    assert "#/c/" in address
    page.close()
    again = open_page()
    again.goto(address)
    last = again.locator(".message.assistant").last
    expect(last).to_contain_text("in plain writing that anyone can read.", timeout=20_000)
    expect(last).to_contain_text("There was once a library")
    assert again.locator(".message.user").count() == 1


def test_a_reply_continues_after_the_server_was_killed_and_started_again(
    page: Page, site: Site
) -> None:
    ask(page, "Tell me a story.")
    expect(page.locator(".message.live")).to_contain_text("There was once a library")
    site.kill()
    # If the page was loading something at that moment, it says so there too.
    expect(page.locator(".banner")).to_contain_text("The server does not answer.")
    page.get_by_label("Message", exact=True).fill("Typed while it was gone")
    site.start()
    last = page.locator(".message.assistant").last
    expect(last).to_contain_text("in plain writing that anyone can read.", timeout=60_000)
    expect(page.get_by_text("The server does not answer.")).to_have_count(0)
    expect(page.get_by_label("Message", exact=True)).to_have_value("Typed while it was gone")


@pytest.mark.main
def test_what_is_typed_survives_a_reload_and_a_failed_request(page: Page, site: Site) -> None:
    box = page.get_by_label("Message", exact=True)
    box.fill("An unfinished thought")
    page.reload()
    expect(box).to_have_value("An unfinished thought")
    site.kill()
    page.keyboard.press("Escape")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Not sent")
    expect(box).to_have_value("An unfinished thought")
    site.start()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".message.user")).to_contain_text("An unfinished thought")
    expect(box).to_have_value("")


def test_a_conversation_that_is_stored_late_is_shown(
    page: Page, open_page: Callable[..., Page], site: Site
) -> None:
    """Its run stores it, and the page may ask for the messages and the run before that."""
    missing = {"messages": 1, "runs": 2}

    def answer_early(route: Route) -> None:
        what = "runs" if "/api/runs" in route.request.url else "messages"
        missing[what] -= 1
        if missing[what] < 0:
            route.fallback()
        elif what == "runs":
            route.fulfill(json={"runs": [], "has_more": False})
        else:
            route.fulfill(status=404, json={"error": {"message": "gone"}})

    run = site.call("POST", "/api/runs", {"prompt": "Slow, please", "model": "scripted/slow"})
    page.route(re.compile(r"/api/runs\?.*conversation=|/messages\?"), answer_early)
    page.evaluate("(hash) => { location.hash = hash; }", f"#/c/{run['conversation']}")
    expect(page.get_by_role("heading", name="Conversation not found")).to_be_visible()
    site.finish(run)
    expect(page.locator(".message.assistant").last).to_contain_text("One two three four.")


def test_a_conversation_of_1_000_messages_is_read_from_its_end_to_its_beginning(
    page: Page, site: Site
) -> None:
    messages: list[Canister] = []
    for number in range(500):
        messages.append(UserCanister.from_text(f"Question {number}"))
        messages.append(AssistantCanister.from_text(f"Answer {number}.\n\n" + "More words. " * 40))
    details = Details(created=datetime.now(UTC), name="long", model="scripted/demo")
    archive = DirectoryArchive(site.home, StorageSettings(durability="fast"))
    archive.create_now("long", details, messages)
    page.evaluate("location.hash = '#/c/long'")
    shown = page.locator(".message")
    expect(shown.last).to_contain_text("Answer 499.")
    assert shown.count() <= 100
    while page.get_by_role("button", name="Earlier messages").count():
        reading = shown.first.get_attribute("id")
        page.locator(".scroll").evaluate("(box) => { box.scrollTop = 0; }")
        page.wait_for_function("(id) => document.querySelector('.message').id !== id", arg=reading)
        # What was read stays where it was.
        expect(page.locator(f"#{reading}")).to_be_in_viewport()
    expect(shown).to_have_count(1000)
    expect(shown.first).to_contain_text("Question 0")
    ask(page, "What can you do?")
    expect(shown.last).to_contain_text("Ask me about")
    expect(shown.last).to_be_in_viewport()


def test_two_tabs_show_the_same_and_outlive_each_other(page: Page, site: Site) -> None:
    ask(page, "What can you do?")
    expect(page.locator(".message.assistant")).to_contain_text("Ask me about")
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator(".message.assistant")).to_contain_text("Ask me about")
    ask(other, "And forks?")
    expect(page.locator(".message.assistant")).to_have_count(2)
    # The first tab follows the changes for both.
    page.close()
    site.say("From a terminal")
    expect(other.locator(".conversations .row").first).to_contain_text("From a terminal")


def test_reasoning_is_open_until_the_answer_begins(page: Page, site: Site) -> None:
    site.stop()
    site.scripts["thinker"] = (
        '[[replies]]\nparts = [{ reasoning = "First, think." }, { delay-seconds = 1.0 },'
        ' { text = "Then " }, { delay-seconds = 1.0 }, { text = "talk." }]\n'
    )
    site.start()
    page.reload()
    page.get_by_label("Model or agent").select_option("scripted/thinker")
    ask(page, "Go on.")
    thought = page.get_by_text("First, think.")
    expect(thought).to_be_visible()
    expect(page.locator(".message.live")).to_contain_text("Then")
    expect(thought).to_be_hidden()
    expect(page.locator(".message.assistant:not(.live)")).to_contain_text("Then talk.")
    page.get_by_text("Reasoning", exact=True).click()
    expect(thought).to_be_visible()
