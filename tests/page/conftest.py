"""The page in Chromium, at a real server in a process of its own.

`site` is the server, `page` a window on it. At the end of each test, the page must have reported no
error and no violation of its content security policy.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.fakes.ports import find_port

#: Name of the browser, or its path.
CHROMIUM = os.environ.get("TEST_CHROMIUM", "/usr/bin/chromium")
_START_SECONDS = 30.0
#: Milliseconds to wait for something on the page.
PATIENCE = 10_000
expect.set_options(timeout=PATIENCE)
_SCRIPTS = {
    "slow": """
[[replies]]
when = "(?i)slow"
parts = [{ text = ["One ", "two "] }, { delay-seconds = 1.0 }, { text = "three " },
    { delay-seconds = 1.0 }, { text = "four." }]

[[replies]]
when = "."
parts = [{ text = "Done." }]
""",
}


class Site:
    """A server on a home of its own, which can be killed and started again at the same port."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = find_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.scripts: dict[str, str] = dict(_SCRIPTS)
        #: More lines of the configuration.
        self.configuration = ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Start the server and wait until it answers; by default without keys."""
        self.home.mkdir(parents=True, exist_ok=True)
        rows = []
        for number, (name, text) in enumerate(self.scripts.items()):
            script = self.home / f"script-{number}.toml"
            script.write_text(text)
            rows.append(f"{json.dumps(name)} = {json.dumps(str(script))}")
        (self.home / "config.toml").write_text(
            "[providers.scripted]\nscripts = { " + ", ".join(rows) + " }\n" + self.configuration
        )
        environment = {**os.environ, "VIBE_LLMS_HOME": str(self.home)}
        command = [sys.executable, "-m", "vibe_llms", "serve", "--port", str(self.port), "-q"]
        with (self.home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *(options or ["--no-key"])], env=environment, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            try:
                self.call("GET", "/health")
            except OSError:
                assert self._process.poll() is None, (self.home / "server.log").read_text()
                time.sleep(0.05)
            else:
                return
        raise AssertionError("the server did not start")

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}
    ) -> Any:
        """Send a request, as another program of the user; return the JSON of the reply."""
        data = None if body is None else json.dumps(body).encode()
        return self._send(method, path, data, {"Content-Type": "application/json", **headers})

    def upload(self, path: str, data: bytes, kind: str = "application/octet-stream") -> Any:
        """Send bytes; return the JSON of the reply."""
        return self._send("POST", path, data, {"Content-Type": kind})

    def _send(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> Any:
        request = Request(self.url + path, data, dict(headers))
        request.method = method
        with urlopen(request, timeout=30) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def say(self, text: str, model: str = "scripted/demo", conversation: str | None = None) -> str:
        """Let a model answer, wait until it has, and return the id of the conversation."""
        order: dict[str, Any] = {"prompt": text}
        if conversation is None:
            order["model"] = model
        else:
            order["conversation"] = conversation
        return self.finish(self.call("POST", "/api/runs", order))

    def finish(self, run: Mapping[str, Any]) -> str:
        """Wait until a run has ended; return the id of its conversation."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self.call("GET", f"/api/runs/{run['id']}")["status"] in ("completed", "failed"):
                return str(run["conversation"])
            time.sleep(0.02)
        raise AssertionError("the run did not end")

    def kill(self) -> None:
        """Kill the server, as a power failure would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Stop the server."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, without a window."""
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--force-color-profile=srgb"]
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A server that a test may kill; it is started by the test or by `page`."""
    one = Site(tmp_path / "home")
    yield one
    one.stop()


@contextmanager
def watched(context: BrowserContext) -> Iterator[list[str]]:
    """Collect errors of scripts and violations of the policy in the pages of a context."""
    complaints: list[str] = []
    context.set_default_timeout(PATIENCE)
    context.expose_binding("reportViolation", lambda _, text: complaints.append(f"policy: {text}"))
    context.add_init_script(
        "addEventListener('securitypolicyviolation', (event) => reportViolation("
        "`${event.violatedDirective} ${event.blockedURI} ${event.sample}`))"
    )
    context.on("weberror", lambda error: complaints.append(f"script: {error.error}"))
    yield complaints


@pytest.fixture
def open_page(browser: Browser, site: Site) -> Iterator[Callable[..., Page]]:
    """A function that opens another device: a new page without cookies or storage.

    Keyword arguments are those of `Browser.new_context`, such as `viewport`.
    """
    contexts: list[BrowserContext] = []
    complaints: list[list[str]] = []

    def produce(**options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        with watched(context) as found:
            complaints.append(found)
        return context.new_page()

    yield produce
    for context in contexts:
        context.close()
    assert [one for found in complaints for one in found] == []


@pytest.fixture
def page(site: Site, open_page: Callable[..., Page]) -> Page:
    """A window at a server without keys, with the page loaded."""
    site.start()
    one = open_page(viewport={"width": 1280, "height": 800})
    one.goto(site.url)
    one.wait_for_selector("textarea")
    return one
