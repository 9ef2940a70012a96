"""Calls to decide and questions to answer on the page, in the conversation and in the list."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from playwright.sync_api import Locator, Page, expect

from tests import fakes
from tests.page.conftest import Site

pytestmark = pytest.mark.browser

BANK = """
from pathlib import Path

from vibe_llms import FunctionEnsemble
from vibe_llms.conversations.hosts import register_ensemble

bank = FunctionEnsemble("bank")


@bank.register(approval="ask")
def transfer(sum: int, note: str = "") -> str:
    '''Transfer money.'''
    with open(Path(__file__).with_name("transfers"), "a") as file:
        file.write(f"{sum}\\n")
    return f"sent {sum}"


register_ensemble("bank", lambda name, configuration: bank)
"""
#: A note with a mark that turns the text after it around, and an end that is easily cut.
NOTE = "for tea\u202e" + "\n".join(f"line {number}" for number in range(200)) + "\nthe very end"


def call(tool: str, **arguments: Any) -> str:
    """Return a part of a scripted reply that calls a tool."""
    return json.dumps({"invocation": tool, "arguments": arguments})


def script(*parts: str) -> str:
    """Return a script whose first reply has the parts, and whose second one ends the turn."""
    first = "".join(_inline(json.loads(part)) + ", " for part in parts)
    return f'[[replies]]\nparts = [{first}]\n[[replies]]\nparts = [{{ text = "All settled." }}]\n'


def _inline(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_inline(one)}" for name, one in value.items()) + " }"
    return json.dumps(value)


AGENTS = {
    "clerk": ("bank", script(call("bank/transfer", sum=3, note=NOTE))),
    "pair": ("bank", 2 * script(call("bank/transfer", sum=1), call("bank/transfer", sum=2))),
    "asker": ("user", script(call("user/ask", question="Which tea?", choices=["green", "black"]))),
    "host": ("asking", script(call("asking/book"))),
    "cashier": ("asking", script(call("asking/visit", address="https://pay.example/x?y=1"))),
}


@pytest.fixture
def bank(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The site, with agents whose tools ask."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    (folder / "bank.py").write_text(BANK)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    command = [sys.executable, str(Path(fakes.__file__).with_name("mcp_asking.py"))]
    rows = [
        '[ensembles.bank]\nmodule = "bank"',
        "\n".join(
            [
                "[ensembles.asking]",
                'module = "vibe_llms.ensembles.mcp"',
                f"command = {json.dumps(command)}",
                'protocol = "handshake"',
            ]
        ),
    ]
    for name, (ensemble, text) in AGENTS.items():
        site.scripts[name] = text
        rows.append(f'[agents.{name}]\nmodel = "scripted/{name}"\nensembles = ["{ensemble}"]')
    site.configuration = "\n".join(rows)
    return site


def transfers(bank: Site) -> list[int]:
    """Return the sums that were transferred."""
    file = bank.home.parent / "plugin" / "transfers"
    return [*map(int, file.read_text().split())] if file.exists() else []


def begin(bank: Site, page: Page, agent: str) -> dict[str, Any]:
    """Start a run of an agent from elsewhere, open its conversation, and return the run."""
    run: dict[str, Any] = bank.call("POST", "/api/runs", {"prompt": "Go on.", "model": agent})
    page.goto(f"{bank.url}/#/c/{run['conversation']}")
    return run


def card(page: Page) -> Locator:
    """Return the cards of what waits."""
    return page.locator(".card.waiting")


def button(page: Page, name: str) -> Locator:
    """Return a button or link of a card, once it works."""
    found = (
        card(page).get_by_role("button", name=name).or_(card(page).get_by_role("link", name=name))
    )
    expect(found.first).to_be_enabled()
    return found


def press(page: Page, name: str, key: str = "Enter") -> None:
    """Move the focus to a button of a card with Tab, and press a key on it."""
    wanted = button(page, name)
    for _ in range(60):
        if wanted.evaluate("one => one === document.activeElement"):
            break
        page.keyboard.press("Tab")
    else:
        raise AssertionError(f"Tab does not lead to {name}")
    page.keyboard.press(key)


def spoken(page: Page) -> Locator:
    """Return the hidden status line."""
    return page.locator("p.outside[role=status]")


@pytest.mark.main
def test_a_call_is_shown_whole_and_allowed_by_mouse(bank: Site, page: Page) -> None:
    begin(bank, page, "clerk")
    one = card(page)
    expect(one).to_contain_text("The model wants to use bank/transfer.")
    expect(one).to_contain_text("the tools “bank”")
    expect(one).to_contain_text("the tool needs approval")
    expect(one).to_contain_text("the very end")
    expect(one.locator("mark")).to_have_text("U+202E")
    box = one.locator(".exact")
    assert box.evaluate("one => one.scrollHeight <= one.clientHeight + 1"), "it is cut"
    expect(spoken(page)).to_have_text("The model wants to use bank/transfer.")
    expect(page.get_by_label("1 decision waits", exact=True)).to_be_visible()
    assert transfers(bank) == []
    button(page, "Allow once").click()
    expect(page.locator(".message.assistant").last).to_contain_text("All settled.")
    expect(card(page)).to_have_count(0)
    expect(page.get_by_label("1 decision waits", exact=True)).to_have_count(0)
    assert transfers(bank) == [3]


def test_enter_decides_nothing_until_a_button_is_chosen(bank: Site, page: Page) -> None:
    begin(bank, page, "clerk")
    expect(card(page)).to_be_visible()
    button(page, "Allow once")
    for _ in range(3):
        page.keyboard.press("Enter")
    reason = card(page).get_by_label("Reason for refusing")
    reason.fill("Not today.")
    page.keyboard.press("Enter")
    expect(card(page)).to_be_visible()
    assert transfers(bank) == []
    press(page, "Refuse")
    expect(page.locator(".message.assistant").last).to_contain_text("All settled.")
    assert page.evaluate("document.activeElement.className").startswith("message invocation")
    page.locator(".tool summary").click()
    expect(page.locator(".tool")).to_contain_text("Their reason: Not today.")
    assert transfers(bank) == []


def test_a_click_on_a_card_that_has_just_come_decides_nothing(bank: Site, page: Page) -> None:
    page.evaluate(
        """new MutationObserver(() => {
            for (const one of document.querySelectorAll('.card.waiting .actions button'))
                if (!one.dataset.met) { one.dataset.met = '1'; one.click(); }
        }).observe(document.body, { childList: true, subtree: true })"""
    )
    begin(bank, page, "clerk")
    button(page, "Allow once")
    assert card(page).locator("button[data-met]").count() == 3
    expect(card(page)).to_be_visible()
    assert transfers(bank) == []


@pytest.mark.main
def test_all_that_waits_is_decided_in_one_list_by_keyboard(bank: Site, page: Page) -> None:
    for agent in ("pair", "asker"):
        bank.call("POST", "/api/runs", {"prompt": f"Ask {agent}.", "model": agent})
    expect(page.get_by_label("3 decisions wait", exact=True)).to_be_visible()
    page.get_by_role("link", name="Decisions").press("Enter")
    expect(page.get_by_role("heading", name="Decisions", level=1)).to_be_visible()
    expect(card(page)).to_have_count(3)
    first = card(page).filter(has_text='"sum": 1')
    expect(first.get_by_role("button", name="Allow once")).to_be_enabled()
    first.get_by_role("button", name="Allow once").press(" ")
    expect(first).to_have_count(0)
    page.wait_for_function("document.activeElement.tagName === 'H1'")
    second = card(page).filter(has_text='"sum": 2')
    expect(second.get_by_role("button", name="Refuse")).to_be_enabled()
    second.get_by_role("button", name="Refuse").press("Enter")
    expect(second).to_have_count(0)
    question = card(page).filter(has_text="Which tea?")
    question.get_by_role("radio", name="green").press(" ")
    page.keyboard.press("Enter")
    expect(question).to_be_visible()
    expect(question.get_by_role("button", name="Answer")).to_be_enabled()
    question.get_by_role("button", name="Answer").press("Enter")
    expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    assert transfers(bank) == [1]


def test_a_tool_is_allowed_for_the_rest_of_the_conversation(bank: Site, page: Page) -> None:
    run = begin(bank, page, "pair")
    expect(card(page)).to_have_count(2)
    button(page, "Always allow in this conversation").first.press("Enter")
    expect(page.locator(".message.assistant").last).to_contain_text("All settled.")
    assert sorted(transfers(bank)) == [1, 2]
    again = {"prompt": "Again.", "conversation": run["conversation"]}
    bank.call("POST", "/api/runs", again)
    expect(page.locator(".message.user")).to_have_count(2)
    expect(page.locator(".tool").filter(has_text="done")).to_have_count(4)
    expect(card(page)).to_have_count(0)
    assert sorted(transfers(bank)) == [1, 1, 2, 2]


def test_a_card_goes_when_another_device_decides(
    bank: Site, page: Page, open_page: Callable[..., Page]
) -> None:
    run = begin(bank, page, "pair")
    other = open_page(viewport={"width": 390, "height": 844})
    other.goto(f"{bank.url}/#/waiting")
    expect(card(page)).to_have_count(2)
    expect(card(other)).to_have_count(2)
    button(other, "Allow once").first.click()
    expect(card(other)).to_have_count(1)
    expect(card(page)).to_have_count(1)
    button(page, "Refuse").click()
    expect(card(other)).to_have_count(0)
    expect(page.locator(".message.assistant").last).to_contain_text("All settled.")
    assert bank.call("GET", f"/api/runs/{run['id']}")["status"] == "completed"


def test_a_list_that_comes_late_hides_nothing_newer(bank: Site, page: Page) -> None:
    begin(bank, page, "asker")
    expect(card(page)).to_have_count(1)
    boot = page.locator("script[type=module]").evaluate("one => one.src")
    module = json.dumps(boot.replace("boot.js", "waiting.js"))
    load = f"import({module}).then((it) => it.loadWaiting())"
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/api/waiting", hold, times=1)
    with page.expect_request("**/api/waiting"):
        page.evaluate(f"() => {{ void {load} }}")
    page.evaluate(load)
    with page.expect_response("**/api/waiting"):
        held[0].fulfill(json={"calls": [], "questions": []})
    page.evaluate("new Promise((done) => setTimeout(done, 200))")
    expect(card(page)).to_have_count(1, timeout=100)


def test_a_second_decision_gets_the_error_in_its_place(bank: Site, page: Page) -> None:
    run = begin(bank, page, "pair")
    expect(card(page)).to_have_count(2)
    one = card(page).filter(has_text='"sum": 1')
    expect(one.get_by_role("button", name="Refuse")).to_be_enabled()
    invocation = bank.call("GET", f"/api/runs/{run['id']}")["approvals"][0]["invocation"]

    def decide_first(route: Any) -> None:
        order = {"invocation": invocation, "allowed": True}
        bank.call("POST", f"/api/runs/{run['id']}/decide", order)
        route.continue_()

    page.route("**/decide", decide_first)
    one.get_by_role("button", name="Refuse").click()
    expect(one.get_by_role("alert")).to_contain_text("was already allowed")
    expect(one.get_by_role("button", name="Allow once")).to_have_count(0)
    one.get_by_role("button", name="Close").click()
    expect(card(page)).to_have_count(1)
    with pytest.raises(HTTPError):
        bank.call("POST", f"/api/runs/{run['id']}/decide", {"invocation": "?", "allowed": True})


def test_a_decision_that_does_not_arrive_can_be_made_again(bank: Site, page: Page) -> None:
    begin(bank, page, "clerk")
    allow = button(page, "Allow once")
    bank.kill()
    allow.click()
    expect(card(page).get_by_role("alert")).to_contain_text("The server does not answer.")
    bank.start()
    button(page, "Allow once").click()
    last = page.locator(".message.assistant").last
    expect(last).to_contain_text("All settled.", timeout=60_000)
    assert transfers(bank) == [3]


def test_a_form_of_a_server_is_filled_in(bank: Site, page: Page) -> None:
    begin(bank, page, "host")
    one = card(page)
    expect(one).to_contain_text("The server “asking” asks you.")
    expect(one).to_contain_text("Book a table?")
    name = one.get_by_label("Your name")
    name.fill("A")
    button(page, "Answer").click()
    expect(one.get_by_role("alert")).to_contain_text("at least 2 characters")
    name.fill("Ada")
    one.get_by_label("seats").fill("4")
    page.reload()
    expect(one.get_by_label("Your name")).to_have_value("Ada")
    one.get_by_role("group", name="smoking").get_by_label("Yes").check()
    one.get_by_label("fish").check()
    button(page, "Answer").click()
    expect(page.locator(".message.assistant").last).to_contain_text("All settled.")
    page.locator(".tool summary").click()
    expect(page.locator(".tool")).to_contain_text("Ada 4 True fish")
    assert page.evaluate("Object.keys(localStorage).filter((one) => one.includes('answer:'))") == []


def test_a_required_field_is_asked_for_and_a_question_is_declined(bank: Site, page: Page) -> None:
    begin(bank, page, "asker")
    expect(card(page)).to_contain_text("The model asks you.")
    button(page, "Answer").click()
    expect(card(page)).to_be_visible()
    assert card(page).get_by_label("green").evaluate("one => one.matches(':invalid')")
    press(page, "Decline", " ")
    expect(page.locator(".message.assistant").last).to_contain_text("All settled.")
    page.locator(".tool summary").click()
    expect(page.locator(".tool")).to_contain_text("The user declined to answer.")


def test_an_address_is_shown_whole_and_opens_in_a_new_tab(bank: Site, page: Page) -> None:
    begin(bank, page, "cashier")
    expect(card(page)).to_contain_text("Please pay.")
    expect(card(page).locator(".exact")).to_have_text("https://pay.example/x?y=1")
    page.context.route("https://pay.example/**", lambda route: route.fulfill(body="paid"))
    with page.expect_popup() as popup:
        press(page, "Open in a new tab")
    popup.value.wait_for_url("https://pay.example/x?y=1")
    assert popup.value.evaluate("window.opener") is None
    expect(page.locator(".message.assistant").last).to_contain_text("All settled.")
    page.locator(".tool summary").click()
    expect(page.locator(".tool")).to_contain_text("accept")
