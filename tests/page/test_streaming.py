"""Long replies: each part is parsed about once, and the page goes on after very large ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
import tomli_w
from playwright.sync_api import Browser, Page, expect

from tests.page.conftest import PATIENCE, Site, watched
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.messages.canisters import AssistantCanister, UserCanister
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Details

pytestmark = pytest.mark.browser

_PARAGRAPH = (
    "Words that *grow* into a paragraph with `code`, [links](https://example.org), and more. "
)
#: A reply of 60 kB.
REPLY = "".join(
    f"## Part {number}\n\n{_PARAGRAPH * 4}\n\n- one\n- two\n\n```python\nprint({number})\n```\n\n"
    for number in range(150)
)[:60_000]
DELTAS = 15_000
#: Replies that are larger than a page expects, by name.
LARGE = {
    "code": "```text\n" + "a line of code that is not very long\n" * 5_300 + "```\n\nThe end.",
    "table": "| a | b |\n| - | - |\n" + "| one | two |\n" * 2_000 + "\nThe end.",
    "text": "Five megabytes of words in lines. \n" * 143_000 + "\nThe end.",
}
#: A script has at most 1 MiB; longer texts than this are shown without formatting.
_LONGEST_SCRIPTED = 602_000
_COUNT = """async (files) => {
    const [{ lexed }, { drawn }] = await Promise.all(files.map((one) => import(one)));
    return { characters: lexed.characters, calls: lexed.calls, blocks: drawn.blocks };
}"""


def cut(text: str, parts: int) -> list[str]:
    """Return a text in so many parts of about the same length."""
    edges = [round(len(text) * place / parts) for place in range(parts + 1)]
    return [text[start:end] for start, end in pairwise(edges)]


@pytest.fixture(scope="module")
def writing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server whose models write long replies, and that has stored some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VIBE_LLMS_HOME", raising=False)
        site = Site(tmp_path_factory.mktemp("long") / "home")
        replies: list[dict[str, Any]] = [
            {"when": f"^{name}$", "parts": [{"text": cut(text[-_LONGEST_SCRIPTED:], 400)}]}
            for name, text in LARGE.items()
        ]
        # With pauses, in which the page draws what has arrived.
        deltas = cut(REPLY, DELTAS)
        parts = [
            part
            for start in range(0, DELTAS, 250)
            for part in ({"text": deltas[start : start + 250]}, {"delay-seconds": 0.05})
        ]
        replies.append({"when": "^many$", "parts": parts})
        replies.append({"when": ".", "parts": [{"text": "Go on."}]})
        site.scripts["long"] = tomli_w.dumps({"replies": replies})
        archive = DirectoryArchive(site.home, StorageSettings(durability="fast"))
        for name, text in LARGE.items():
            archive.create_now(
                name,
                Details(created=datetime.now(UTC), name=name, model="scripted/long"),
                [UserCanister.from_text(name), AssistantCanister.from_text(text)],
            )
        site.start()
        yield site
        site.stop()


@pytest.fixture
def writer(browser: Browser, writing: Site) -> Iterator[Page]:
    """A page whose new conversations are with the model that writes long replies."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    with watched(context) as complaints:
        page = context.new_page()
        page.add_init_script("localStorage.setItem('vibe-llms:model', '\"scripted/long\"')")
        page.goto(writing.url)
        expect(page.locator("select.model")).to_contain_text("long")
        yield page
    context.close()
    assert complaints == []


def ask(page: Page, text: str, seconds: float = 60) -> None:
    """Send a message and wait until the reply is stored."""
    before = page.locator(".message.assistant:not(.live)").count()
    box = page.get_by_label("Message", exact=True)
    box.fill(text)
    box.press("Enter")
    stored = page.locator(".message.assistant:not(.live)")
    expect(stored).to_have_count(before + 1, timeout=seconds * 1000)
    expect(page.locator(".message.live")).to_have_count(0, timeout=seconds * 1000)


def count(page: Page) -> dict[str, int]:
    """Return how much was parsed and drawn since the page was loaded."""
    base = page.evaluate("document.querySelector('script[src]').src.replace('boot.js', '')")
    files = [f"{base}markdown/lexing.js", f"{base}markdown/blocks.js"]
    found: dict[str, int] = page.evaluate(_COUNT, files)
    return found


def check_counts(page: Page) -> None:
    """Check that the reply in 15,000 parts was parsed a few times, and not once for each part."""
    counts = count(page)
    blocks = page.locator(".message.assistant").last.locator(".markdown > *").count()
    assert blocks > 500
    # Once in parts, with the last block of each frame, and once as a whole.
    assert 2 * len(REPLY) <= counts["characters"] <= 8 * len(REPLY), counts
    # Each block once as it grows, and once more in the stored message; lists hold blocks too.
    assert counts["blocks"] <= 8 * blocks + counts["calls"], (counts, blocks)


@pytest.mark.main
def test_a_reply_in_15_000_deltas_is_parsed_once(writer: Page) -> None:
    ask(writer, "many")
    expect(writer.locator(".message.assistant")).to_contain_text("Part 100")
    check_counts(writer)


def test_a_page_that_parses_all_again_is_found(writer: Page, writing: Site) -> None:
    def plant(route: Any) -> None:
        body = route.fetch().text()
        planted = body.replace(
            "if (complete.length) this.settled", "this.begin = 0; if (0) this.settled"
        )
        assert planted != body
        planted = planted.replace("tokens.slice(Math.max(last, 0))", "tokens")
        planted = planted.replace("size > EAGER_CHARACTERS && grown < size / 4", "false")
        route.fulfill(body=planted, content_type="text/javascript")

    writer.route(re.compile("markdown/growing.js"), plant)
    writer.reload()
    expect(writer.locator("select.model")).to_contain_text("long")
    ask(writer, "many")
    assert count(writer)["characters"] > 8 * len(REPLY)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "streamed"])
def test_the_page_goes_on_after_a_reply_that_is_large(
    writer: Page, writing: Site, name: str, stored: bool
) -> None:
    if stored:
        writer.evaluate("(name) => { location.hash = `#/c/${name}`; }", name)
        load = writer.get_by_role("button", name=re.compile("Load the text"))
        expect(load.or_(writer.get_by_text("The end.")).first).to_be_attached(timeout=30_000)
        if load.count():
            load.click()
    else:
        ask(writer, name)
        load = writer.get_by_role("button", name=re.compile("Load the text"))
        if load.count():
            load.click()
    expect(writer.locator(".message.assistant").last).to_contain_text("The end.", timeout=30_000)
    ask(writer, "and now?")
    expect(writer.locator(".message.assistant").last).to_contain_text("Go on.")
    # A click is answered: the page is not busy with what it has drawn.
    writer.get_by_role("button", name="New conversation").click(timeout=PATIENCE)
    expect(writer.locator("header.heading h1")).to_have_text("New conversation")
