"""axe-core finds nothing on the pages of the documentation site, and they fit a narrow window."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.page.test_accessibility import NARROW, SCHEMES, WIDE, find_violations

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
#: The rules of WCAG; the theme does not follow all of what axe-core calls best practice.
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")


class QuietHandler(SimpleHTTPRequestHandler):
    """A server of files that says nothing."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of the site, built now."""
    script = ROOT / ".auxiliary" / "scripts" / "site"
    built = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    folder = ROOT / ".auxiliary" / "artifacts" / "site"
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize(
    "path",
    [
        "",
        "how-to/choose-a-provider/",
        "reference/api/conversations/",
        "reference/configuration/",
        "tutorial/5-on-the-web-page/",
    ],
)
def test_axe_finds_nothing_on_the_site(
    browser: Browser, address: str, path: str, size: Any
) -> None:
    found = []
    for scheme in SCHEMES:
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        page = context.new_page()
        page.goto(address + path)
        found += [f"{scheme}: {one}" for one in find_violations(page, *RULES)]
        context.close()
    assert found == []


def test_a_search_finds_a_page(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    page.keyboard.press("Control+k")
    page.keyboard.type("rate limits")
    page.get_by_text("Stay within rate limits").first.wait_for()
    page.close()
