"""The page and its server are killed at random moments: nothing is lost, nothing is sent twice.

`TEST_STORM_SEED` repeats a storm: each prints its seed.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route

from tests.page.conftest import Site
from tests.page.storms import LEASE, SCRIPT, PageStorm

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.storm]

#: Bugs: the file of the page, what is replaced by what, the moment that shows the bug,
#: and what is found.
_BUGS = {
    "a resent message has another key": (
        "conversation/sending.js",
        '"Idempotency-Key": pending.key',
        '"Idempotency-Key": produceKey()',
        "accepted",
        "is stored 2 times",
    ),
    "the draft is removed before the server has accepted it": (
        "conversation/sending.js",
        "this.change({ pending });",
        'this.change({ text: "" });',
        "unsent",
        "is lost|to have count '1'",
    ),
    "the draft is stored when it is sent": (
        "drafts.js",
        "const empty = !text",
        "const empty = !pending || !text",
        "typing",
        "to have Value",
    ),
}


@pytest.fixture
def chance() -> random.Random:
    seed = os.environ.get("TEST_STORM_SEED") or str(random.randrange(10**9))
    sys.stdout.write(f"TEST_STORM_SEED={seed}\n")
    return random.Random(seed)


@pytest.fixture
def stormy(site: Site) -> Site:
    """A server with one model, which replies slowly."""
    site.scripts = {"calm": SCRIPT}
    site.configuration = LEASE
    site.start()
    return site


def test_kills_of_the_page_and_of_the_server_lose_and_repeat_nothing(
    stormy: Site,
    open_page: Callable[..., Page],
    chance: random.Random,
    rounds: Callable[[int, int], int],
) -> None:
    PageStorm(stormy, open_page().context, chance).rage(rounds(8, 200))


@pytest.mark.parametrize("bug", _BUGS)
def test_a_page_that_loses_or_repeats_something_is_found(
    stormy: Site, open_page: Callable[..., Page], chance: random.Random, bug: str
) -> None:
    path, right, wrong, moment, found = _BUGS[bug]

    def plant(route: Route) -> None:
        body = route.fetch().text()
        assert right in body
        route.fulfill(body=body.replace(right, wrong), content_type="text/javascript")

    device = open_page().context
    device.route(re.compile(f"(?<!waiting)/{path}"), plant)
    storm = PageStorm(stormy, device, chance)
    # Some browsers send what a page that is closed had not sent yet, if there is a server.
    with pytest.raises(AssertionError, match=found):
        storm.rage(1, moments=[moment], victims=["both"])
