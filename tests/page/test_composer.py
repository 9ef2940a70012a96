"""The box in which the user writes: files, steering, stopping, models, and errors in place."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.page.conftest import Site
from tests.page.test_conversation import ask
from tests.pictures import make_png

pytestmark = pytest.mark.browser


@pytest.mark.main
def test_a_message_is_added_to_a_running_reply_and_can_be_taken_back(
    page: Page, site: Site
) -> None:
    ask(page, "Tell me a story.")
    expect(page.locator(".message.live")).to_contain_text("There was once")
    ask(page, "In French, please.")
    queued = page.get_by_text("Waits for the next request: In French, please.")
    expect(queued).to_be_visible()
    page.get_by_role("button", name="Take back").click()
    expect(queued).to_be_hidden()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("The reply was stopped.")).to_be_visible()
    assert page.locator(".message.user").count() == 1


@pytest.mark.main
def test_a_picture_is_attached_shown_and_sent(page: Page, tmp_path: Path) -> None:
    picture = tmp_path / "boat.png"
    picture.write_bytes(make_png())
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach files").click()
    chooser.value.set_files(picture)
    expect(page.get_by_role("button", name="Remove boat.png")).to_be_visible()
    page.reload()
    expect(page.locator(".attachments")).to_contain_text("boat.png")
    ask(page, "What is this?")
    image = page.locator(".message.user img")
    expect(image).to_be_visible()
    assert image.evaluate("(one) => one.naturalWidth") > 0
    expect(page.locator(".attachments")).to_have_count(0)
    # An edited message keeps its files.
    expect(page.locator(".message.assistant")).to_have_count(1)
    page.get_by_role("button", name="Edit and send as a branch").click()
    expect(page.locator(".attachments li")).to_have_count(1)
    ask(page, "Describe it.")
    expect(page.locator(".message.user .said")).to_contain_text("Describe it.")
    expect(image).to_be_visible()


def test_files_are_pasted_and_dropped(page: Page) -> None:
    transfer = """() => {
        const one = new DataTransfer();
        one.items.add(new File(["text"], "notes.txt", { type: "text/plain" }));
        return one;
    }"""
    data = page.evaluate_handle(transfer)
    page.dispatch_event("form.composer", "drop", {"dataTransfer": data})
    expect(page.locator(".attachments li")).to_have_count(1)
    page.evaluate(
        """() => {
            const data = new DataTransfer();
            data.items.add(new File(["more"], "more.txt", { type: "text/plain" }));
            const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true });
            document.querySelector("textarea").dispatchEvent(event);
        }"""
    )
    expect(page.locator(".attachments li")).to_have_count(2)
    page.get_by_role("button", name="Remove notes.txt").click()
    expect(page.locator(".attachments li")).to_have_text("more.txt")


def test_an_upload_that_is_refused_is_told(site: Site, page: Page) -> None:
    page.route("**/api/files?*", lambda route: route.fulfill(
        status=413, json={"error": {"message": "the body is larger than 10 bytes", "code": "x"}}
    ))  # fmt: skip
    data = page.evaluate_handle(
        """() => {
            const one = new DataTransfer();
            one.items.add(new File(["text"], "notes.txt", { type: "text/plain" }));
            return one;
        }"""
    )
    page.dispatch_event("form.composer", "drop", {"dataTransfer": data})
    expect(page.get_by_text("the body is larger than 10 bytes")).to_be_visible()
    expect(page.locator(".attachments")).to_have_count(0)


@pytest.mark.main
def test_the_model_is_switched_at_the_input_and_the_change_is_shown(page: Page, site: Site) -> None:
    ask(page, "Hello")
    expect(page.locator(".message.assistant")).to_have_count(1)
    page.get_by_label("Model or agent").select_option("scripted/slow")
    ask(page, "Hello again")
    expect(page.locator(".message.assistant")).to_have_count(2)
    expect(page.get_by_text("From here on: scripted/slow")).to_be_visible()


def test_a_model_that_is_not_there_keeps_the_text(page: Page, site: Site) -> None:
    page.evaluate("localStorage.setItem('vibe-llms:model', '\"scripted/none\"')")
    page.reload()
    ask(page, "Hello")
    expect(page.get_by_role("alert")).to_contain_text("scripted/none")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Hello")
    page.get_by_label("Model or agent").select_option("scripted/demo")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".message.assistant")).to_have_count(1)


@pytest.mark.main
def test_what_fills_the_context_window_is_shown(page: Page, site: Site) -> None:
    ask(page, "Hello")
    page.get_by_role("button", name="Context window").click()
    panel = page.get_by_role("region", name="What fills the context window")
    expect(panel).to_contain_text("Messages")
    expect(panel).to_contain_text("Free")
    page.get_by_role("button", name="Context window").press("Enter")
    expect(panel).to_be_hidden()


@pytest.mark.main
def test_a_stopped_reply_is_continued(page: Page, site: Site) -> None:
    page.get_by_label("Model or agent").select_option("scripted/slow")
    ask(page, "Slow, please")
    expect(page.locator(".message.live")).to_contain_text("One two")
    page.get_by_role("button", name="Stop").press("Enter")
    expect(page.get_by_text("The reply was stopped.")).to_be_visible()
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".message.user").last).to_contain_text("Continue where you stopped.")
    expect(page.locator(".message.assistant").last).to_contain_text("Done.")


def test_a_message_without_an_answer_can_be_answered(page: Page, site: Site) -> None:
    site.stop()
    site.scripts["broken"] = '[[replies]]\nparts = [{ error = "overloaded" }]\n'
    site.start()
    page.reload()
    page.get_by_label("Model or agent").select_option("scripted/broken")
    ask(page, "Hello")
    expect(page.locator(".messages .problem").first).to_be_visible()
    page.get_by_label("Model or agent").select_option("scripted/demo")
    page.get_by_role("button", name="Get an answer").click()
    expect(page.locator(".message.assistant")).to_contain_text("scripted/demo")
    expect(page.locator(".message.user")).to_have_count(1)


def test_a_failed_reply_says_why_and_can_be_tried_again(page: Page, site: Site) -> None:
    site.stop()
    site.scripts["broken"] = '[[replies]]\nparts = [{ text = "Half " }, { error = "overloaded" }]\n'
    site.start()
    page.reload()
    page.get_by_label("Model or agent").select_option("scripted/broken")
    ask(page, "Hello")
    expect(page.locator(".messages .problem").first).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_be_enabled()
    page.get_by_label("Model or agent").select_option("scripted/demo")
    page.get_by_role("button", name="Answer again as a branch").last.click()
    expect(page.locator(".message.assistant")).to_contain_text("scripted/demo")


def test_what_was_typed_returns_after_an_earlier_message_was_edited(page: Page) -> None:
    ask(page, "Hello")
    expect(page.locator(".message.assistant")).to_have_count(1)
    box = page.get_by_label("Message", exact=True)
    box.fill("Half a thought")
    page.get_by_role("button", name="Edit and send as a branch").click()
    expect(box).to_have_value("Hello")
    page.reload()
    expect(page.get_by_text("You are editing an earlier message.")).to_be_visible()
    box.press("Escape")
    expect(box).to_have_value("Half a thought")
    page.get_by_role("button", name="Edit and send as a branch").click()
    box.fill("What can you do?")
    address = page.url
    box.press("Enter")
    expect(page.locator(".message.assistant")).to_contain_text("Ask me about")
    expect(page.locator(".message.user .said")).to_have_text("What can you do?")
    assert page.url != address
    page.goto(address)
    expect(box).to_have_value("Half a thought")


def test_what_was_added_to_a_reply_that_was_stopped_goes_back_into_the_box(page: Page) -> None:
    ask(page, "Tell me a story.")
    expect(page.locator(".message.live")).to_contain_text("There was once")
    ask(page, "In French, please.")
    expect(page.get_by_text("Waits for the next request: In French")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    unsent = page.get_by_text("Not sent before the reply ended: In French, please.")
    expect(unsent).to_be_visible()
    page.reload()
    expect(unsent).to_be_visible()
    box = page.get_by_label("Message", exact=True)
    box.fill("And briefly.")
    page.get_by_role("button", name="Take back").press("Enter")
    expect(box).to_have_value("And briefly.\n\nIn French, please.")
    expect(unsent).to_be_hidden()


def test_a_message_that_comes_as_the_reply_ends_is_the_next_message(page: Page, site: Site) -> None:
    page.get_by_label("Model or agent").select_option("scripted/slow")
    ask(page, "Slow, please")
    expect(page.locator(".message.live")).to_contain_text("One")

    def delay(route: Route) -> None:
        site.finish(site.call("GET", "/api/runs?limit=1")["runs"][0])
        route.continue_()

    page.route("**/steer", delay, times=1)
    ask(page, "And now?")
    expect(page.locator(".message.assistant").last).to_contain_text("Done.")
    expect(page.locator(".message.user .said")).to_have_text(["Slow, please", "And now?"])
    expect(page.get_by_label("Message", exact=True)).to_have_value("")


def test_a_message_whose_answer_was_lost_is_not_sent_twice_after_its_run_ended(
    page: Page, site: Site
) -> None:
    ask(page, "Tell me a story.")
    expect(page.locator(".message.live")).to_contain_text("There was once")

    def lose(route: Route) -> None:
        assert route.fetch().ok
        route.abort()

    page.route("**/steer", lose, times=1)
    ask(page, "In French, please.")
    expect(page.get_by_role("alert")).to_contain_text("Not sent")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("The reply was stopped.")).to_be_visible()
    box = page.get_by_label("Message", exact=True)
    box.press("Enter")
    expect(box).to_have_value("")
    expect(page.get_by_text("Not sent before the reply ended")).to_have_count(1)
    assert len(site.call("GET", "/api/runs")["runs"]) == 1


def test_another_tab_that_sends_the_same_message_removes_nothing_that_was_typed_since(
    page: Page,
) -> None:
    other = page.context.new_page()
    other.goto(page.url)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    other.route("**/api/runs", hold, times=1)
    ask(other, "Hello")
    other.wait_for_timeout(100)
    # The first tab is opened again meanwhile, and sends what is not acknowledged.
    page.reload()
    expect(page.locator(".message.assistant")).to_have_count(1)
    page.goto(page.url.split("#")[0] + "#/")
    page.get_by_label("Message", exact=True).fill("Another thought")
    held[0].continue_()
    expect(other.locator(".message.assistant")).to_have_count(1)
    page.reload()
    expect(page.get_by_label("Message", exact=True)).to_have_value("Another thought")
