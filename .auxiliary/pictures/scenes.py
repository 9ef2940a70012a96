"""The scenes of the pictures: each opens a part of the page, in the state that is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from home import Home
from playwright.sync_api import Page, expect

_WIDE = {"viewport": {"width": 1280, "height": 800}}
_PHONE = {
    "viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True
}  # fmt: skip
#: The devices by the names that pictures end with.
DEVICES: Mapping[str, Mapping[str, Any]] = {
    "light": {**_WIDE, "color_scheme": "light"},
    "dark": {**_WIDE, "color_scheme": "dark"},
    "phone-light": {**_PHONE, "color_scheme": "light"},
    "phone-dark": {**_PHONE, "color_scheme": "dark"},
}


def settle(page: Page) -> None:
    """Wait for the parts of the page that every scene shows."""
    if page.url.startswith("file:"):
        return
    expect(page.locator(".conversations .row").first).to_be_attached()
    expect(page.locator(".count").first).to_be_attached()
    if page.locator(".composer").count():
        expect(page.locator(".composer option").first).to_be_attached()


@dataclass(frozen=True)
class Scene:
    """A state of the page, and the devices on which it is taken."""

    name: str
    devices: Sequence[str]
    show: Callable[[Page, Home], None]


SCENES: list[Scene] = []


def scene(*devices: str) -> Callable[[Callable[[Page, Home], None]], None]:
    """Add a function as a scene with its name, for some devices."""

    def add(show: Callable[[Page, Home], None]) -> None:
        SCENES.append(Scene(show.__name__.replace("_", "-"), devices, show))

    return add


def open_view(page: Page, home: Home, view: str, heading: str) -> None:
    """Open a view, and wait for its heading."""
    page.goto(f"{home.url}/#/{view}")
    expect(page.get_by_role("heading", name=heading, level=1, exact=True)).to_be_visible()


def open_conversation(page: Page, home: Home, name: str) -> None:
    """Open a conversation, and wait for its last message."""
    page.goto(f"{home.url}/#/c/{home.ids[name]}")
    expect(page.locator(".message").last).to_be_visible()


@scene("light")
def start(page: Page, home: Home) -> None:
    page.goto(f"{home.url}/#/")
    expect(page.get_by_role("heading", name="What would you like to know?")).to_be_visible()
    expect(page.get_by_text("The demo model needs no key.")).to_be_visible()
    page.locator("textarea").fill("Show me some Markdown.")


@scene("light", "dark", "phone-light", "phone-dark")
def conversation(page: Page, home: Home) -> None:
    open_conversation(page, home, "Crossing to Sund")
    expect(page.locator(".code-keyword").first).to_be_visible()


@scene("light")
def branches(page: Page, home: Home) -> None:
    open_conversation(page, home, "at noon")


@scene("light")
def tree(page: Page, home: Home) -> None:
    open_conversation(page, home, "at noon")
    open_view(page, home, f"forks/{home.ids['at noon']}", "Fork tree")
    expect(page.locator("svg.family")).to_be_visible()
    expect(page.get_by_text("You: And if we leave in the evening?")).to_be_visible()


@scene("light")
def compare(page: Page, home: Home) -> None:
    ids = f"{home.ids['at noon']}/{home.ids['in the evening']}"
    open_view(page, home, f"compare/{ids}", "Two branches")
    expect(page.get_by_text("Better not")).to_be_visible()


@scene("light", "phone-light")
def approve(page: Page, home: Home) -> None:
    open_conversation(page, home, "Berth in Sund")
    expect(page.get_by_role("button", name="Allow once")).to_be_enabled()
    page.get_by_role("button", name="Allow once").scroll_into_view_if_needed()


@scene("light")
def runs(page: Page, home: Home) -> None:
    open_view(page, home, "runs", "Runs")


@scene("light")
def memory(page: Page, home: Home) -> None:
    open_view(page, home, "memory", "Memory")
    expect(page.get_by_role("article").first).to_be_visible()


@scene("light")
def documents(page: Page, home: Home) -> None:
    open_view(page, home, "documents", "Documents")
    page.get_by_role("searchbox").fill("Who keeps the lighthouse?")
    expect(page.locator(".passages > li").first).to_be_visible()


@scene("light")
def models(page: Page, home: Home) -> None:
    open_view(page, home, "models", "Agents and models")


@scene("light")
def search(page: Page, home: Home) -> None:
    open_view(page, home, "search", "Search")
    page.get_by_role("searchbox").fill("wind")
    expect(page.locator(".hits a").first).to_be_visible()


@scene("dark")
def settings(page: Page, home: Home) -> None:
    open_view(page, home, "settings", "Settings")


@scene("phone-light")
def menu(page: Page, home: Home) -> None:
    page.goto(f"{home.url}/#/")
    page.locator("button.toggle").click()
    expect(page.get_by_role("link", name="Berth in Sund")).to_be_visible()


@scene("light")
def export(page: Page, home: Home) -> None:
    page.goto(home.export("Crossing to Sund").as_uri())
    page.locator("details.tool").evaluate("one => { one.open = true; }")


@scene("light")
def answering(page: Page, home: Home) -> None:
    open_conversation(page, home, "Lunch")
    expect(page.locator(".message.live")).to_contain_text("apples")
    page.locator("textarea").fill("One of us eats no milk products.")
