"""The view of runs: what runs, waits, and failed, with its errors; cancelling and following."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import Site

pytestmark = pytest.mark.browser

SCRIPTS = {
    "stalls": '[[replies]]\nparts = [{ text = "I begin " }, { stall = true }]\n',
    "fails": '[[replies]]\nparts = [{ error = "refused", message = "<b>no\u202e</b>" }]\n',
    "asks": (
        '[[replies]]\nparts = [{ invocation = "user/ask", arguments = { question = "Why?" } }]\n'
        '[[replies]]\nparts = [{ text = "Fine." }]\n'
    ),
}


@pytest.fixture
def runs(site: Site) -> Site:
    """The site, with a script for each way in which a run may go."""
    site.scripts |= SCRIPTS
    site.configuration = '[agents.asker]\nmodel = "scripted/asks"\nensembles = ["user"]\n'
    return site


def start(site: Site, model: str, text: str) -> str:
    """Start a run from elsewhere, and return its id."""
    return str(site.call("POST", "/api/runs", {"prompt": text, "model": model})["id"])


def row(page: Page, text: str) -> Locator:
    """Return the row of the run that began with a text."""
    return page.locator(".runs > li").filter(has_text=text)


@pytest.mark.main
def test_runs_are_listed_with_their_state_and_their_error(runs: Site, page: Page) -> None:
    runs.say("A quick one")
    runs.say("One that fails", "scripted/fails")
    start(runs, "scripted/stalls", "One that stalls")
    start(runs, "asker", "One that asks")
    page.get_by_role("link", name="Runs").click()
    expect(page.get_by_role("heading", name="Runs", level=1)).to_be_visible()
    expect(page.get_by_role("heading", name="Today")).to_be_visible()
    expect(row(page, "A quick one")).to_contain_text("Completed")
    expect(row(page, "One that stalls")).to_contain_text("Running")
    expect(row(page, "One that asks")).to_contain_text("Waiting for you")
    failed = row(page, "One that fails")
    expect(failed).to_contain_text("Failed")
    expect(failed.locator(".problem")).not_to_be_empty()
    titles = page.locator(".runs .name").all_inner_texts()
    assert titles == ["One that asks", "One that stalls", "One that fails", "A quick one"]
    page.get_by_role("link", name="Failed").press("Enter")
    expect(page.locator(".runs > li")).to_have_count(1)
    expect(page).to_have_url(f"{runs.url}/#/runs/failed")
    page.go_back()
    expect(page.locator(".runs > li")).to_have_count(4)
    row(page, "One that asks").get_by_role("link", name="Decide").press("Enter")
    expect(page.locator(".card.waiting")).to_contain_text("Why?")


@pytest.mark.parametrize("by_keyboard", [False, True])
def test_a_run_is_cancelled(runs: Site, page: Page, by_keyboard: bool) -> None:
    run = start(runs, "scripted/stalls", "One that stalls")
    page.goto(f"{runs.url}/#/runs/running")
    cancel = page.get_by_role("button", name="Cancel “One that stalls”")
    if by_keyboard:
        cancel.press("Enter")
    else:
        cancel.click()
    expect(page.get_by_text("There are no such runs.")).to_be_visible()
    page.get_by_role("link", name="Cancelled").click()
    expect(row(page, "One that stalls").locator(".status")).to_have_text("Cancelled")
    expect(page.get_by_role("button", name="Cancel “")).to_have_count(0)
    assert runs.call("GET", f"/api/runs/{run}")["status"] == "cancelled"


@pytest.mark.main
def test_a_run_is_followed_from_another_device(
    runs: Site, page: Page, open_page: Callable[..., Page]
) -> None:
    page.get_by_label("Message", exact=True).fill("Tell me a story.")
    page.keyboard.press("Enter")
    expect(page.locator(".message.live")).to_contain_text("There was once")
    phone = open_page(viewport={"width": 390, "height": 844})
    phone.goto(f"{runs.url}/#/runs")
    expect(row(phone, "Tell me a story.")).to_contain_text("Running")
    row(phone, "Tell me a story.").get_by_role("link", name="Tell me a story.").click()
    expect(phone.locator(".message.live")).to_contain_text("There was once")
    phone.go_back()
    expect(row(phone, "Tell me a story.")).to_contain_text("Completed", timeout=20_000)


@pytest.mark.slow
def test_earlier_runs_are_loaded_on_demand(runs: Site, page: Page) -> None:
    conversation = runs.say("Number 0")
    for number in range(1, 52):
        runs.say(f"Number {number}", conversation=conversation)
    page.goto(f"{runs.url}/#/runs")
    expect(page.locator(".runs > li")).to_have_count(50)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator(".runs > li")).to_have_count(52)
    expect(page.get_by_role("button", name="Show more")).to_have_count(0)
    assert page.locator(".runs .name").last.inner_text() == "Number 0"


def test_an_error_of_the_server_is_told_in_place(runs: Site, page: Page) -> None:
    runs.say("A quick one")
    page.route("**/api/runs?*", lambda route: route.abort())
    page.evaluate("location.hash = '#/runs'")
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
    page.unroute("**/api/runs?*")
    page.get_by_role("button", name="Try again").click()
    expect(row(page, "A quick one")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
