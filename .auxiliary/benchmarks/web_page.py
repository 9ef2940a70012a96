"""Measure the web page in Chromium: first paint, long conversations, replies, and memory.

    python .auxiliary/benchmarks/web_page.py            some minutes
    python .auxiliary/benchmarks/web_page.py --page     also write the table of the performance page
    python .auxiliary/benchmarks/web_page.py memory     only the rows whose names have these words

The server runs on the same machine, with a home of 10,000 conversations, one of which has 5,000
messages. A *frame* is what Chromium reports as a long animation frame: all the work between two
pictures. Leaves with 1 where a bar was not held. Nothing else may run on the machine.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import tomli_w
from measure import HERE, Row
from msgspec.structs import replace
from playwright.sync_api import Browser, CDPSession, Page, expect, sync_playwright
from run import conclude, draw

sys.path.insert(0, str(HERE.parent.parent))
from tests.page.conftest import CHROMIUM, Site
from tests.page.test_streaming import DELTAS, REPLY, cut

from vibe_llms.base.configuration import StorageSettings
from vibe_llms.messages.canisters import AssistantCanister, Canister, UserCanister
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Details

FIGURES = "figures of the web page"
CONVERSATIONS = 10_000
MESSAGES = 5_000
TURNS = 100
_REPEATS = 7
#: Deltas and pauses of a model that writes the reply in about 15 seconds.
_BURST, _PAUSE_SECONDS = 50, 0.05
_TURN = "A reply with **bold** words, `code`, and a list:\n\n- one\n- two\n\n" * 8
#: Collects long frames, from the first one on.
_OBSERVE = """
window.longFrames = [];
new PerformanceObserver((list) => longFrames.push(...list.getEntries().map((one) => one.duration)))
    .observe({ type: "long-animation-frame", buffered: true });
"""
_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
#: Resolves with the milliseconds until something was painted after an action.
_UNTIL_PAINTED = """([hash, found]) => new Promise((end) => {
    const begin = performance.now();
    location.hash = hash;
    const look = () => {
        if (!document.querySelector(found)) return void requestAnimationFrame(look);
        requestAnimationFrame(() => setTimeout(() => end(performance.now() - begin)));
    };
    requestAnimationFrame(look);
})"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--page", action="store_true", help="write the table of the page")
    parser.add_argument("parts", nargs="*", help="only the rows whose names have these words")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        site = _furnish(Path(folder) / "home")
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            for name, measure in _MEASURES.items():
                if options.parts and not any(part in name for part in options.parts):
                    continue
                for row in measure(chromium, site):
                    rows.append(row)
                    print(draw(row), flush=True)
        finally:
            chromium.close()
            site.stop()
    return conclude(rows, page=options.page, figures=FIGURES)


def _furnish(home: Path) -> Site:
    """Start a server on a home with many conversations."""
    archive = DirectoryArchive(home, StorageSettings(durability="fast"))
    now = datetime.now(UTC)
    for number in range(CONVERSATIONS - 1):
        moment = now - timedelta(hours=number + 1)
        text = f"Question {number}"
        said = replace(UserCanister.from_text(text), created=moment)
        details = Details(created=moment, name=text, model="scripted/turns")
        archive.create_now(f"c{number}", details, [said])
    long: list[Canister] = []
    for number in range(MESSAGES // 2):
        long.append(UserCanister.from_text(f"Question {number}"))
        long.append(AssistantCanister.from_text(f"Answer {number}. {_TURN}"))
    archive.create_now("long", Details(created=now, name="long", model="scripted/turns"), long)
    site = Site(home)
    deltas = cut(REPLY, DELTAS)
    streamed: list[dict[str, Any]] = []
    for start in range(0, DELTAS, _BURST):
        streamed += [
            {"text": deltas[start : start + _BURST]},
            {"delay-seconds": _PAUSE_SECONDS},
        ]
    turns = {"when": ".", "parts": [{"text": cut(_TURN, 50)}]}
    site.scripts["turns"] = tomli_w.dumps(
        {"replies": [{"when": "^many$", "parts": streamed}, turns]}
    )
    site.start()
    return site


@contextmanager
def _window(chromium: Browser) -> Iterator[tuple[Page, CDPSession]]:
    """A new device, whose new conversations are with the scripted model."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.add_init_script("localStorage.setItem('vibe-llms:model', '\"scripted/turns\"')")
    page.add_init_script(_OBSERVE)
    yield page, context.new_cdp_session(page)
    context.close()


def measure_first_paint(chromium: Browser, site: Site) -> Iterator[Row]:
    painted, ready = [], []
    for _ in range(_REPEATS):
        with _window(chromium) as (page, _session):
            page.goto(site.url)
            page.wait_for_selector(".conversations .row")
            ready.append(page.evaluate("performance.now()"))
            page.wait_for_function(f"() => {_FIRST_PAINT}")
            painted.append(page.evaluate(_FIRST_PAINT))
    figures = {"first paint": statistics.median(painted), "list shown": statistics.median(ready)}
    yield _limit("first paint, nothing in the browser's cache", figures, "ms", 500)


def measure_opening(chromium: Browser, site: Site) -> Iterator[Row]:
    opened = []
    for _ in range(_REPEATS):
        with _window(chromium) as (page, _session):
            page.goto(site.url)
            page.wait_for_selector(".conversations .row")
            page.wait_for_timeout(500)
            opened.append(page.evaluate(_UNTIL_PAINTED, ["#/c/long", ".message.assistant"]))
            expect(page.locator(".message.assistant").last).to_contain_text("Answer 2499.")
    yield _limit(
        f"open a conversation of {MESSAGES:,} messages",
        {"opened": statistics.median(opened)},
        "ms",
        300,
    )


def measure_list(chromium: Browser, site: Site) -> Iterator[Row]:
    with _window(chromium) as (page, _session):
        page.goto(site.url)
        page.wait_for_selector(".conversations .row")
        page.evaluate("longFrames.length = 0")
        last = page.locator(".row", has_text=f"Question {CONVERSATIONS - 2}")
        while not last.count():
            page.evaluate("document.querySelector('.conversations').scrollTop += 700")
            page.wait_for_timeout(30)
        frames = page.evaluate("longFrames")
    figures = {"longest frame": max(frames, default=0.0), "frames over 50 ms": float(len(frames))}
    yield _limit(f"scroll through {CONVERSATIONS:,} conversations", figures, "ms", 50)


def measure_streaming(chromium: Browser, site: Site) -> Iterator[Row]:
    with _window(chromium) as (page, session):
        page.goto(site.url)
        expect(page.locator("select.model")).to_contain_text("scripted/turns")
        session.send("Performance.enable")
        page.wait_for_timeout(500)
        before = _metrics(session)
        page.evaluate("longFrames.length = 0")
        _ask(page, "many", replies=1)
        after = _metrics(session)
        frames = page.evaluate("longFrames")
    script = (after["ScriptDuration"] - before["ScriptDuration"]) * 1000
    task = (after["TaskDuration"] - before["TaskDuration"]) * 1000
    what = f"a reply of {len(REPLY) // 1000} kB in {DELTAS:,} deltas"
    yield _limit(f"{what}: script", {"script": script, "all work": task}, "ms", 2000)
    figures = {"longest frame": max(frames, default=0.0), "frames over 50 ms": float(len(frames))}
    yield _limit(f"{what}: frames", figures, "ms", 50)


def measure_memory(chromium: Browser, site: Site) -> Iterator[Row]:
    with _window(chromium) as (page, session):
        page.goto(site.url)
        expect(page.locator("select.model")).to_contain_text("scripted/turns")
        for number in range(TURNS):
            _ask(page, f"Question {number}", replies=number + 1)
        session.send("HeapProfiler.collectGarbage")
        session.send("Performance.enable")
        heap = _metrics(session)["JSHeapUsedSize"] / 1e6
        private = _measure_renderer(chromium) / 1e6
    yield _limit(
        f"memory of the page after {TURNS} turns",
        {"private memory of its process": private, "objects of scripts": heap},
        "MB",
        150,
    )


def _ask(page: Page, text: str, *, replies: int) -> None:
    """Send a message, and wait until so many replies are stored."""
    box = page.get_by_label("Message", exact=True)
    box.fill(text)
    box.press("Enter")
    stored = page.locator(".message.assistant:not(.live)")
    expect(stored).to_have_count(replies, timeout=120_000)


def _metrics(session: CDPSession) -> dict[str, float]:
    found = session.send("Performance.getMetrics")["metrics"]
    return {one["name"]: one["value"] for one in found}


def _measure_renderer(chromium: Browser) -> float:
    """Return the private bytes of the process that draws the page, which has the most."""
    session = chromium.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    renderers = [one["id"] for one in processes if one["type"] == "renderer"]
    found = []
    for process in renderers:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
        found.append(sum(int(one) for one in re.findall(r"^Private_\w+: +(\d+)", text, re.M)))
    return max(found) * 1024.0


def _limit(what: str, figures: dict[str, float], unit: str, bar: float) -> Row:
    """A row whose first figure must not exceed a bar."""
    name = f"{bar:,.0f} {unit}"
    return Row(what, figures, unit, {name: next(iter(figures.values())) / bar}, {name: 1.0})


_MEASURES: dict[str, Callable[[Browser, Site], Iterator[Row]]] = {
    "paint": measure_first_paint,
    "opening": measure_opening,
    "list": measure_list,
    "streaming": measure_streaming,
    "memory": measure_memory,
}


if __name__ == "__main__":
    sys.exit(main())
