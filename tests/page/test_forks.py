"""Branches: buttons at the message where they part, the tree, and two side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import Site
from tests.page.test_conversation import ask

pytestmark = pytest.mark.browser

#: A model that says which request of a conversation it answers.
COUNTING = """
[[replies]]
when = "(?i)long"
parts = [{ text = "LONG" }]

[[replies]]
when = "."
parts = [{ text = "Reply to this." }]
""".replace("LONG", "\\n\\n".join(f"Paragraph {number}." for number in range(40)))


def begin(site: Site, *prompts: str) -> str:
    """Have a conversation; returns its id."""
    identity = site.say(prompts[0], "scripted/counting")
    for one in prompts[1:]:
        site.say(one, conversation=identity)
    return identity


def branch(site: Site, conversation: str, prompt: str, at: str, **order: Any) -> str:
    """Send a prompt in a fork that ends with a message, and wait for the reply."""
    order |= {"prompt": prompt, "conversation": conversation, "fork_at": at}
    return site.finish(site.call("POST", "/api/runs", order))


def read(site: Site, conversation: str) -> list[dict[str, Any]]:
    """The messages of a conversation."""
    shown: list[dict[str, Any]] = site.call(
        "GET", f"/api/conversations/{conversation}/messages?limit=1000"
    )["messages"]
    return shown


def title_rows(page: Page) -> Locator:
    """The conversations that the list shows."""
    return page.locator(".conversations .row")


@pytest.fixture
def site(site: Site) -> Site:
    """The server, with the model of these tests."""
    site.scripts["counting"] = COUNTING
    site.scripts["failing"] = '[[replies]]\nparts = [{ error = "unreachable" }]\n'
    return site


def open_conversation(page: Page, site: Site, identity: str) -> None:
    """Show a conversation whose messages are loaded."""
    page.goto(f"{site.url}/#/c/{identity}")
    expect(page.locator(".message").first).to_be_visible()


@pytest.mark.main
def test_an_edited_message_shows_both_versions_and_the_list_shows_one(
    page: Page, site: Site
) -> None:
    first = begin(site, "One", "Two")
    open_conversation(page, site, first)
    expect(title_rows(page)).to_have_count(1)
    edited = page.locator(".message.user").last
    edited.get_by_role("button", name="Edit and send as a branch").click()
    box = page.get_by_label("Message", exact=True)
    expect(box).to_have_value("Two")
    ask(page, "Two, edited")
    group = page.get_by_role("group", name="Branch 2 of 2")
    expect(group).to_have_text("2/2")
    # The buttons are at the message that differs.
    expect(page.locator(".message.user").last.get_by_role("group")).to_have_text("2/2")
    expect(page.locator(".message.user").last).to_contain_text("Two, edited")
    assert first not in page.url
    assert len(site.call("GET", "/api/conversations")["conversations"]) == 1
    expect(title_rows(page)).to_have_count(1)
    expect(page.locator(".conversations .row.current")).to_have_count(1)
    group.get_by_role("button", name="Previous branch").click()
    expect(page.locator(".message.user").last.get_by_role("group")).to_have_text("1/2")
    expect(page.locator(".message.user .said").last).to_have_text("Two")
    assert page.url.endswith(first)
    # The list has a row for the family, which stays marked.
    expect(page.locator(".conversations .row.current")).to_have_count(1)
    expect(page.locator(".heading h1")).to_have_text("One")


def test_branches_are_changed_by_keyboard_and_the_reader_stays_in_place(
    page: Page, site: Site
) -> None:
    first = begin(site, "Long one", "Two", "Long three")
    at = read(site, first)[1]["identity"]
    for number in (2, 3):
        other = branch(site, first, f"Version {number}", at)
        site.say("Long four", conversation=other)
    open_conversation(page, site, first)
    group = page.get_by_role("group", name="Branch 1 of 3")
    group.scroll_into_view_if_needed()
    place = group.bounding_box()
    assert place is not None
    group.get_by_role("button", name="Next branch").focus()
    for number in (2, 3):
        page.keyboard.press("Enter")
        group = page.get_by_role("group", name=f"Branch {number} of 3")
        expect(group).to_be_in_viewport()
        expect(page.locator(".message.user").nth(1)).to_contain_text(f"Version {number}")
        button = "Next branch" if number < 3 else "Previous branch"
        expect(group.get_by_role("button", name=button)).to_be_focused()
        moved = group.bounding_box()
        assert moved is not None
        assert abs(moved["y"] - place["y"]) < 3
    page.keyboard.press("Enter")
    expect(page.get_by_role("group", name="Branch 2 of 3")).to_be_in_viewport()
    # Back leaves the branches.
    page.go_back()
    expect(page.get_by_role("group")).to_have_count(0)


def test_a_message_is_answered_again_and_both_replies_are_kept(page: Page, site: Site) -> None:
    first = begin(site, "One")
    open_conversation(page, site, first)
    page.get_by_role("button", name="Answer again as a branch").focus()
    page.keyboard.press("Enter")
    reply = page.locator(".message.assistant")
    expect(reply.get_by_role("group")).to_have_text("2/2")
    expect(reply).to_have_count(1)
    expect(title_rows(page)).to_have_count(1)
    expect(page.locator(".message.user").get_by_role("group")).to_have_count(0)


def test_a_reply_that_fails_when_it_is_asked_for_again_leaves_a_way_to_the_first(
    page: Page, site: Site
) -> None:
    first = begin(site, "One")
    open_conversation(page, site, first)
    page.get_by_label("Model or agent").select_option("scripted/failing")
    page.get_by_role("button", name="Answer again as a branch").click()
    expect(page.get_by_text("This branch ends here; another one goes on.")).to_be_visible()
    expect(page.locator(".message.assistant")).to_have_count(0)
    page.get_by_role("link", name="Open it").click()
    expect(page.locator(".message.assistant")).to_contain_text("Reply to this.")
    assert page.url.endswith(first)


def test_a_message_in_the_middle_of_a_long_conversation_is_edited(page: Page, site: Site) -> None:
    first = begin(site, *(f"Prompt {number}" for number in range(33)))
    open_conversation(page, site, first)
    # The first message that is loaded has others before it.
    loaded = page.locator(".message.user").filter(has_text="Prompt 3").first
    loaded.get_by_role("button", name="Edit and send as a branch").click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("Prompt 3")
    ask(page, "Prompt 3, edited")
    expect(page.locator(".message.user")).to_have_count(4)
    expect(page.locator(".message.user").last.get_by_role("group")).to_have_text("2/2")
    page.get_by_role("button", name="Previous branch").click()
    expect(page.get_by_role("group", name="Branch 1 of 2")).to_be_in_viewport()
    expect(page.locator(".message.user .said").nth(3)).to_have_text("Prompt 3")


def test_a_first_message_is_edited(page: Page, site: Site) -> None:
    open_conversation(page, site, begin(site, "One"))
    page.get_by_role("button", name="Edit and send as a branch").click()
    expect(page.get_by_label("Message", exact=True)).to_have_value("One")
    ask(page, "Another one")
    first = page.locator(".message.user")
    expect(first.get_by_role("group")).to_have_text("2/2")
    page.get_by_role("button", name="Previous branch").click()
    expect(first.locator(".said")).to_have_text("One")


def test_a_branch_from_a_message_has_a_name_of_its_own_and_a_way_back(
    page: Page, site: Site
) -> None:
    first = begin(site, "One", "Two")
    open_conversation(page, site, first)
    reply = page.locator(".message.assistant").first
    reply.get_by_role("button", name="Branch from here").click()
    expect(page.locator(".heading h1")).to_have_text("One (branch 2)")
    expect(title_rows(page)).to_have_count(2)
    expect(page.get_by_text("This branch ends here; another one goes on.")).to_be_visible()
    page.get_by_role("link", name="Open it").click()
    expect(page.locator(".message.user")).to_have_count(2)
    assert page.url.endswith(first)


def test_going_to_a_branch_opens_its_newest_version(page: Page, site: Site) -> None:
    first = begin(site, "One", "Two")
    messages = read(site, first)
    second = branch(site, first, "Deux", messages[1]["identity"])
    site.say("Trois", conversation=second)
    newest = branch(site, second, "Three", read(site, second)[3]["identity"], supersede=True)
    open_conversation(page, site, first)
    page.get_by_role("button", name="Next branch").click()
    expect(page.locator(".message.user").last).to_contain_text("Three")
    assert page.url.endswith(newest)
    # Coming back, the version that was read is shown again.
    inner = page.locator(".message.user").last
    inner.get_by_role("button", name="Previous branch").click()
    expect(inner).to_contain_text("Trois")
    page.locator(".message.user").nth(1).get_by_role("button", name="Previous branch").click()
    expect(page.locator(".message.user .said").last).to_have_text("Two")
    page.get_by_role("button", name="Next branch").click()
    expect(inner).to_contain_text("Trois")


@pytest.mark.main
def test_the_tree_shows_the_family_and_opens_a_branch_by_keyboard(page: Page, site: Site) -> None:
    first = begin(site, "One", "Two")
    at = read(site, first)[1]["identity"]
    second = branch(site, first, "Deux", at)
    third = branch(site, first, "Zwei", at, supersede=True)
    page.goto(f"{site.url}/#/forks/{second}")
    rows = page.locator(".forks li")
    expect(rows).to_have_count(3)
    expect(page.get_by_role("heading", name="Fork tree")).to_be_visible()
    expect(page.locator("svg.family path.current")).to_have_count(2)
    expect(page.locator("svg.family circle.current")).to_have_count(1)
    expect(rows.nth(0)).to_contain_text("You: One")
    expect(rows.nth(1)).to_contain_text("You: Deux")
    expect(rows.nth(1)).to_contain_text("From message 2 of branch 1")
    expect(rows.nth(1).get_by_role("link")).to_have_attribute("aria-current", "true")
    expect(rows.nth(2)).to_contain_text("You: Zwei")
    expect(rows.nth(0)).to_contain_text("Replaced by a newer branch")
    rows.nth(1).get_by_role("link").focus()
    page.keyboard.press("ArrowDown")
    expect(rows.nth(2).get_by_role("link").first).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator(".message.user").last).to_contain_text("Zwei")
    assert page.url.endswith(third)
    page.get_by_role("link", name="Show branches").click()
    expect(rows).to_have_count(3)
    rows.nth(0).locator("a").first.click()
    expect(page.locator(".message.user").last).to_contain_text("Two")
    page.go_back()
    page.locator("svg.family rect").nth(1).click()
    expect(page.locator(".message.user").last).to_contain_text("Deux")


@pytest.mark.main
def test_two_branches_are_side_by_side_with_the_shared_part_folded(page: Page, site: Site) -> None:
    first = begin(site, "One", "Two")
    at = read(site, first)[1]["identity"]
    second = branch(site, first, "Deux", at)
    open_conversation(page, site, first)
    page.get_by_role("link", name="Compare branches").focus()
    page.keyboard.press("Enter")
    assert page.url.endswith(f"#/compare/{first}/{second}")
    columns = page.locator(".compare section")
    expect(columns).to_have_count(2)
    expect(columns.nth(0).locator(".message")).to_have_count(2)
    expect(columns.nth(0)).to_contain_text("Two")
    expect(columns.nth(1)).to_contain_text("Deux")
    left, right = (columns.nth(place).bounding_box() for place in (0, 1))
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    shared = page.get_by_text("2 messages in common")
    expect(page.locator(".shared .message")).to_have_count(0)
    shared.click()
    expect(page.locator(".shared .message")).to_have_count(2)
    page.set_viewport_size({"width": 390, "height": 844})
    left, right = (columns.nth(place).bounding_box() for place in (0, 1))
    assert left is not None
    assert right is not None
    assert left["y"] + left["height"] <= right["y"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_long_branch_is_compared_in_pages(page: Page, site: Site) -> None:
    first = begin(site, "One")
    second = branch(site, first, "Un", "")
    for number in range(30):
        site.say(f"Prompt {number}", conversation=second)
    page.goto(f"{site.url}/#/compare/{first}/{second}")
    expect(page.get_by_text("These branches have no message in common.")).to_be_visible()
    right = page.locator(".compare section").nth(1)
    expect(right.locator(".message")).to_have_count(50)
    right.get_by_role("button", name="Show more").click()
    expect(right.locator(".message")).to_have_count(62)
    expect(right.locator(".message.user").last).to_contain_text("Prompt 29")
    expect(right.get_by_role("button", name="Show more")).to_have_count(0)


def test_branches_whose_parent_was_deleted_are_still_a_family(page: Page, site: Site) -> None:
    first = begin(site, "One", "Two")
    at = read(site, first)[1]["identity"]
    second = branch(site, first, "Deux", at)
    third = branch(site, first, "Zwei", at, supersede=True)
    site.call("DELETE", f"/api/conversations/{first}")
    open_conversation(page, site, second)
    group = page.get_by_role("group", name="Branch 1 of 2")
    group.get_by_role("button", name="Next branch").click()
    expect(page.locator(".message.user").last).to_contain_text("Zwei")
    page.goto(f"{site.url}/#/forks/{third}")
    expect(page.locator(".forks li")).to_have_count(2)
    expect(page.locator(".forks li").first).to_contain_text("From a branch that was deleted")
    page.goto(f"{site.url}/#/compare/{second}/{third}")
    expect(page.get_by_text("2 messages in common")).to_be_visible()
    expect(page.locator(".compare .message")).to_have_count(4)


def test_a_deleted_conversation_has_no_tree_and_nothing_to_compare(page: Page, site: Site) -> None:
    first = begin(site, "One")
    other = begin(site, "Something else")
    page.goto(f"{site.url}/#/forks/unknown")
    expect(page.get_by_role("alert")).to_contain_text("not found")
    page.goto(f"{site.url}/#/compare/{first}/{other}")
    expect(page.get_by_text("These conversations are not branches")).to_be_visible()
    page.goto(f"{site.url}/#/compare/{first}/{first}")
    expect(page.locator(".compare")).to_contain_text("Nothing of its own yet.")


@pytest.mark.slow
def test_a_family_of_200_branches_is_drawn(
    page: Page, site: Site, open_page: Callable[..., Page]
) -> None:
    first = begin(site, "One", "Two", "Three")
    places = [one["identity"] for one in read(site, first)]
    for number in range(200):
        order = {"at": places[1 + number % 5], "name": f"Branch {number}"}
        site.call("POST", f"/api/conversations/{first}/fork", order)
    page.goto(f"{site.url}/#/forks/{first}")
    expect(page.locator(".forks li")).to_have_count(201)
    expect(page.locator("svg.family circle")).to_have_count(201)
    page.locator(".forks li a").first.focus()
    page.keyboard.press("End")
    expect(page.locator(".forks li").last).to_be_in_viewport()
    phone = open_page(viewport={"width": 320, "height": 700})
    phone.goto(page.url)
    expect(phone.locator(".forks li")).to_have_count(201)
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
