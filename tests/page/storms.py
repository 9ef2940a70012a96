"""A user who types, sends, steers and edits while the page and its server are killed."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from tests.page.conftest import Site

#: The reply to everything, written slowly.
WORDS = ("This reply ", "has a beginning, ", "a middle, ", "and an end.")
SCRIPT = (
    '[[replies]]\nwhen = "."\nparts = ['
    + ", { delay-seconds = 0.4 }, ".join(f"{{ text = [{word!r}] }}" for word in WORDS)
    + "]\n"
)
#: When something is killed: before Enter, before the request arrives at the server, before its
#: answer arrives at the page, while the model replies, or at any time soon after Enter.
MOMENTS = ("typing", "unsent", "accepted", "replying", "any")
#: What is killed. The page is closed, or loaded again.
VICTIMS = ("page", "reload", "server", "both")
ACTS = ("begin", "say", "steer", "edit")
_ANY_SECONDS = 0.05
_SETTLE_SECONDS = 40.0
#: A text that is neither in the box, nor stored, nor in a run for so long is lost.
_LOST_SECONDS = 4.0
#: The runs of a killed server are taken over after this.
LEASE = "[runs]\nlease-seconds = 1.0\n"
_SENDING = re.compile(r"/api/runs(/[^/]+/steer)?$")


class PageStorm:
    """A device of one user, and everything that the user wrote on it."""

    def __init__(self, site: Site, device: BrowserContext, chance: random.Random) -> None:
        self.site = site
        self._device = device
        self._chance = chance
        choice = """if (origin !== "null") localStorage["vibe-llms:model"] = '"scripted/calm"';"""
        device.add_init_script(choice)
        self._page = self._open(site.url)
        self._texts: list[str] = []
        self._conversations = 0
        #: The moment at which the next request to send something is held, if any.
        self._hold = ""
        self._held: list[Route] = []
        device.route(_SENDING, self._pass)

    def rage(
        self,
        kills: int,
        *,
        acts: Sequence[str] = ACTS,
        moments: Sequence[str] = MOMENTS,
        victims: Sequence[str] = VICTIMS,
    ) -> None:
        """Kill so many times, and check after each that nothing was lost or repeated."""
        plans = list(product(acts, moments, victims))
        done = 0
        while done < kills:
            self._chance.shuffle(plans)
            for planned, moment, victim in plans[: kills - done]:
                act = planned if self._texts else "begin"
                try:
                    self._live(act, moment, victim)
                except AssertionError as error:
                    error.add_note(f"kill {done}: {victim} at the moment {moment!r} of {act!r}")
                    raise
                done += 1
        self._check_all()

    def _live(self, act: str, moment: str, victim: str) -> None:
        self._prepare(act)
        text = self._produce_text(act)
        typed = text
        if moment == "typing":
            typed = text[: self._chance.randrange(1, len(text))]
        box = self._box
        if act == "edit":
            box.press("Control+a")
        box.press_sequentially(typed)
        if moment != "typing":
            self._send(moment, text)
        self._kill(victim)
        # Either it is in the box, or it was sent.
        if moment == "typing":
            expect(self._box).to_have_value(typed)
        self._settle(text, typed)

    def _prepare(self, act: str) -> None:
        """Bring the page to where the user writes the next text."""
        if act == "begin":
            self._page.goto(f"{self.site.url}/#/")
            expect(self._page.get_by_role("heading", name="New conversation")).to_be_visible()
        elif act == "steer":
            text = self._produce_text("say")
            self._box.fill(text)
            self._box.press("Enter")
            expect(self._page.locator(".message.live")).to_be_visible()
            expect(self._box).to_have_value("")
        elif act == "edit":
            self._page.get_by_role("button", name="Edit and send as a branch").last.click()
            expect(self._page.get_by_text("You are editing")).to_be_visible()

    def _produce_text(self, act: str) -> str:
        text = f"Text {len(self._texts)}, to {act}."
        self._texts.append(text)
        self._conversations += act in ("begin", "edit")
        return text

    def _send(self, moment: str, text: str) -> None:
        """Press Enter, and return at the moment."""
        held = moment in ("unsent", "accepted")
        self._hold = moment if held else ""
        self._box.press("Enter")
        if held:
            self._wait_for(lambda: bool(self._held), "the page sends it")
        elif moment == "replying":
            said = self._page.locator(".message.user, .queued li", has_text=text)
            expect(said).to_be_visible()
            self._page.wait_for_timeout(1000 * self._chance.random() / 2)
        else:
            self._page.wait_for_timeout(1000 * self._chance.expovariate(1 / _ANY_SECONDS))

    def _pass(self, route: Route) -> None:
        """Let a request through, or hold it or its answer."""
        if not self._hold or route.request.method != "POST":
            route.continue_()
            return
        moment, self._hold = self._hold, ""
        if moment == "accepted":
            # A run that is ending may refuse it; then the page sends it elsewhere.
            route.fetch()
        self._held.append(route)

    def _kill(self, victim: str) -> None:
        address = self._page.url
        if victim in ("server", "both"):
            self.site.kill()
        if victim in ("page", "both"):
            self._page.close()
        else:
            for route in self._held:
                route.abort()
        self._held.clear()
        if victim in ("server", "both"):
            self.site.start()
        if victim in ("page", "both"):
            self._page = self._open(address)
        elif victim == "reload":
            self._page.reload()
        expect(self._box).to_be_visible()

    def _open(self, address: str) -> Page:
        page = self._device.new_page()
        page.goto(address)
        return page

    def _settle(self, text: str, typed: str) -> None:
        """Go on as a user would until the text is sent and answered."""
        seen = time.monotonic()

        def settled() -> bool:
            nonlocal seen
            value = self._box.input_value()
            assert value in ("", typed, text), f"the box holds {value!r}"
            busy = self._page.locator("button.main[aria-busy=true]").count()
            if value and not busy:
                self._box.press("End")
                self._box.press_sequentially(text[len(value) :])
                self._box.press("Enter")
            if value or busy or self._survey_active():
                seen = time.monotonic()
                return False
            assert time.monotonic() < seen + _LOST_SECONDS, f"{text!r} is lost"
            return text in self._survey(limit=3)

        self._wait_for(settled, f"{text!r} is stored and answered")
        found = self._survey(limit=3)
        assert found[text] == 1, f"{text!r} is stored {found[text]} times"
        newest = self.site.call("GET", "/api/conversations?limit=1")["conversations"][0]["id"]
        if newest not in self._page.url:
            # It was closed after the server had accepted the text, and before it went there.
            self._page.locator(".conversations .row a").first.click()
        expect(self._page.locator(".message.live")).to_have_count(0)
        expect(self._page.locator(".message.user", has_text=text)).to_have_count(1)
        expect(self._page.locator(".message.assistant").last).to_contain_text("".join(WORDS))

    def _check_all(self) -> None:
        found = self._survey(limit=1000)
        assert found == Counter(self._texts)
        conversations = list(self._survey_conversations(limit=1000))
        assert len(conversations) == self._conversations
        for messages in conversations:
            replies = [_read(one) for one in messages if one["role"] == "assistant"]
            assert set(replies) == {"".join(WORDS)}

    def _survey(self, limit: int) -> Counter[str]:
        """Return how often each text of the user is in the newest conversations."""
        found = {
            one["identity"]: _read(one)
            for messages in self._survey_conversations(limit)
            for one in messages
            if one["role"] == "user"
        }
        return Counter(found.values())

    def _survey_conversations(self, limit: int) -> Iterator[list[dict[str, Any]]]:
        path = f"/api/conversations?superseded=true&limit={limit}"
        for one in self.site.call("GET", path)["conversations"]:
            page = self.site.call("GET", f"/api/conversations/{one['id']}/messages?limit=200")
            assert not page["has_more"]
            yield page["messages"]

    def _survey_active(self) -> list[dict[str, Any]]:
        runs = self.site.call("GET", "/api/runs?limit=20")["runs"]
        return [one for one in runs if one["status"] in ("queued", "running", "waiting")]

    def _wait_for(self, happened: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not happened():
            assert time.monotonic() < deadline, f"not in time: {what}"
            self._page.wait_for_timeout(50)

    @property
    def _box(self) -> Locator:
        return self._page.get_by_label("Message", exact=True)


def _read(message: dict[str, Any]) -> str:
    return "".join(one["data"] for one in message["contents"])
