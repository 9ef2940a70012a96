"""Agents, models and budgets on the page, and what a switch of the model would lose."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.fakes import mcp_server
from tests.page.conftest import Site
from tests.skills.folders import write_skill

pytestmark = pytest.mark.browser

_PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
#: A script with the name of a model whose prices are known, and a model that takes only text.
_MODELS = """
prices = "anthropic"
[providers.anthropic]
known-models = ["claude-haiku-4-5", "claude-sonnet-5-5"]
[providers.anthropic.models."claude-sonnet.*"]
accepts = []
tools = "none"
[aliases]
quick = "anthropic/claude-haiku-4-5"
[agents.poet]
description = "Answers in verse."
model = "quick"
[budgets]
tokens = 100_000
period = "day"
"""


@pytest.fixture
def models(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site with models of two providers, an agent, and a budget."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-a")
    site.scripts["claude-haiku-4-5"] = site.scripts["slow"]
    site.configuration = _MODELS
    return site


def find(page: Page, name: str) -> Locator:
    """The row of an agent or model."""
    return page.locator(".choices > li").filter(has_text=re.compile(rf"^\s*{name}"))


@pytest.mark.main
def test_abilities_and_prices_are_shown(models: Site, page: Page) -> None:
    page.get_by_role("link", name="Agents and models").click()
    expect(page.get_by_role("heading", name="Agents and models")).to_be_visible()
    poet = find(page, "poet")
    expect(poet).to_contain_text("Answers in verse.")
    expect(poet).to_contain_text("Answers with anthropic/claude-haiku-4-5")
    expect(poet).to_contain_text("sees images")
    expect(poet).to_contain_text("calls tools")
    expect(poet).to_contain_text("context window of 200,000 tokens")
    expect(poet).to_contain_text("A million tokens: $1 read, $0.1 from the cache, $5 written")
    text = find(page, "anthropic/claude-sonnet-5-5")
    expect(text).to_contain_text("reasons")
    expect(text).not_to_contain_text("sees images")
    expect(text).not_to_contain_text("calls tools")


def test_a_model_is_chosen_by_keyboard_for_new_conversations(models: Site, page: Page) -> None:
    page.goto(f"{models.url}/#/models")
    page.get_by_role("searchbox").fill("demo")
    expect(page.get_by_role("radio")).to_have_count(2)
    page.get_by_role("radio", name="Default").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("radio", name="scripted/demo")).to_be_checked()
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.get_by_text("No agent or model has this name.")).to_be_visible()
    page.reload()
    expect(page.get_by_role("radio", name="scripted/demo")).to_be_checked()
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_label("Model or agent")).to_contain_text("Default: scripted/demo")
    page.get_by_label("Message", exact=True).fill("Hello!")
    page.keyboard.press("Enter")
    expect(page.locator(".message.assistant")).to_contain_text("scripted/demo")
    page.goto(f"{models.url}/#/models")
    page.get_by_role("radio", name="poet").click()
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_label("Model or agent")).to_contain_text("Default: poet")


@pytest.mark.main
def test_budgets_show_what_is_left(models: Site, page: Page) -> None:
    page.goto(f"{models.url}/#/models")
    budget = page.get_by_role("region", name="Budgets")
    expect(budget).to_contain_text("All agents, per day")
    expect(budget).to_contain_text("100,000 tokens of 100,000 tokens left, 0 tokens spent")
    models.say("Hello!")
    page.reload()
    expect(budget).to_contain_text(re.compile(r"99,\d{3} tokens of 100,000 tokens left"))


def test_a_reply_shows_its_estimated_price(models: Site, page: Page) -> None:
    conversation = models.say("Hello!", "scripted/claude-haiku-4-5")
    page.goto(f"{models.url}/#/c/{conversation}")
    reply = page.locator(".message.assistant")
    expect(reply).to_contain_text(re.compile(r"tokens read, \d+ written, about \$0\.0+\d+"))
    # The script of another name has no price.
    page.goto(f"{models.url}/#/c/{models.say('Hello!')}")
    expect(reply).to_contain_text("written")
    expect(reply).not_to_contain_text("about")


def test_what_a_model_cannot_take_is_said_before_sending(models: Site, page: Page) -> None:
    page.get_by_label("Model or agent").select_option("scripted/demo")
    drawing: FilePayload = {"name": "dot.png", "mimeType": "image/png", "buffer": _PICTURE}
    page.locator("input[type=file]").set_input_files([drawing])
    box = page.get_by_label("Message", exact=True)
    expect(page.get_by_role("button", name="Remove dot.png")).to_be_visible()
    refused = page.get_by_text("anthropic/claude-sonnet-5-5 cannot see images. Remove")
    expect(refused).to_be_hidden()
    page.get_by_label("Model or agent").select_option("anthropic/claude-sonnet-5-5")
    expect(refused).to_be_visible()
    page.get_by_label("Model or agent").select_option("scripted/demo")
    expect(refused).to_be_hidden()
    box.fill("What is in the picture? Then call a tool.")
    box.press("Enter")
    expect(page.locator(".message.assistant").last).to_be_visible()
    lost = page.get_by_text("claude-sonnet-5-5 cannot see images; it would not get those of this")
    expect(lost).to_be_hidden()
    page.get_by_label("Model or agent").focus()
    page.get_by_label("Model or agent").select_option("anthropic/claude-sonnet-5-5")
    expect(lost).to_be_visible()


def test_a_chosen_model_that_is_gone_is_told(models: Site, open_page: Callable[..., Page]) -> None:
    models.start()
    page = open_page()
    chosen = json.dumps(json.dumps("lost/model"))
    page.add_init_script(f"localStorage.setItem('vibe-llms:model', {chosen})")
    page.goto(f"{models.url}/#/models")
    expect(page.get_by_text("lost/model was chosen, but is not offered now.")).to_be_visible()


def test_sources_of_tools_are_shown_and_started_when_asked(
    site: Site, open_page: Callable[..., Page]
) -> None:
    site.configuration = f"""
[ensembles.echo]
module = "vibe_llms.ensembles.mcp"
command = [{json.dumps(sys.executable)}, {json.dumps(mcp_server.__file__)}]
approvals = {{ pid = "deny" }}
[ensembles.broken]
module = "vibe_llms.ensembles.mcp"
command = [{json.dumps(sys.executable)}, "-c", "raise SystemExit(3)"]
[agents.helper]
model = "scripted/demo"
ensembles = ["echo"]
"""
    site.start()
    page = open_page()
    page.goto(f"{site.url}/#/models")
    tools = page.get_by_role("region", name="Sources of tools")
    echo = tools.get_by_role("group").filter(has_text="echo").first
    expect(echo).to_contain_text("not started")
    tools.get_by_role("button", name="Start those that are not ready").press("Enter")
    expect(echo).to_contain_text("ready 2 tools", timeout=30_000)
    echo.locator("summary").first.press("Enter")
    expect(echo.get_by_text("Used by helper")).to_be_visible()
    expect(echo.get_by_text("is not allowed")).to_be_visible()
    echo.get_by_text("Arguments").first.click()
    expect(echo.get_by_text('"type": "object"').first).to_be_visible()
    broken = tools.get_by_role("group").filter(has_text="broken")
    expect(broken).to_contain_text("failed")
    broken.locator("summary").click()
    expect(broken.get_by_text("its process ended with status 3")).to_be_visible()


def test_skills_are_shown_with_the_reason_if_they_are_not_offered(
    site: Site, open_page: Callable[..., Page]
) -> None:
    site.configuration = """
[skills]
folders = ["gone"]
[agents.clerk]
model = "scripted/demo"
skills = ["pdf"]
"""
    folder = write_skill(site.home / "skills", "pdf")
    write_skill(site.home / "skills", "png", "no front matter")
    site.start()
    page = open_page()
    page.goto(f"{site.url}/#/models")
    skills = page.get_by_role("region", name="Skills")
    expect(skills.get_by_text("gone cannot be used: No such file or directory")).to_be_visible()
    pdf = skills.get_by_role("group").filter(has_text="pdf").first
    expect(pdf).to_contain_text("offered")
    pdf.locator("summary").press("Enter")
    for text in ("About pdf.", "Used by clerk", str(folder)):
        expect(pdf.get_by_text(text)).to_be_visible()
    png = skills.get_by_role("group").filter(has_text="png").first
    expect(png).to_contain_text("not offered")
    png.locator("summary").click()
    expect(png.get_by_text("it has no front matter")).to_be_visible()


def test_without_skills_there_is_no_section_of_them(
    site: Site, open_page: Callable[..., Page]
) -> None:
    site.start()
    page = open_page()
    page.goto(f"{site.url}/#/models")
    expect(page.get_by_role("region", name="Sources of tools")).to_be_visible()
    expect(page.get_by_role("region", name="Skills")).to_have_count(0)
