"""The home of the pictures: a server on it, at a fixed time, and all that was said on it before."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "documentation/examples"
#: The moment of the pictures, in the browser.
NOW = datetime(2026, 3, 5, 9, 41, tzinfo=UTC)
_START_SECONDS = 30.0
_ENDED = {"completed", "failed", "canceled", "waiting"}
#: Starts the server in a process whose clock goes on from the given moment.
_SERVE = (
    "import sys, time_machine; time_machine.travel(float(sys.argv.pop(1)), tick=True).start(); "
    "from vibe_llms.cli.main import main; main()"
)
_CONFIGURATION = """
# One reply is never completed.
[stream]
idle-seconds = 3600

[providers.scripted.scripts]
captain = {captain}

[ensembles.harbor]
module = "harbor"

[agents.captain]
description = "Plans a crossing, with the forecast and the harbors."
model = "scripted/captain"
ensembles = ["harbor"]
budget = {{ tokens = 200_000, period = "day" }}

[budgets]
tokens = 1_000_000
period = "month"

[memory]
enabled = true
"""


class Home:
    """A home with a server that starts at any moment; `ids` are its conversations by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: dict[str, str] = {}
        self._moment = self._begun = 0.0
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = int(one.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir()
        captain = json.dumps(str(HERE / "captain.toml"))
        (folder / "config.toml").write_text(_CONFIGURATION.format(captain=captain))

    @contextmanager
    def at(self, moment: datetime) -> Iterator[None]:
        """Serve from a moment on, and end the server at the end."""
        environment = {
            **os.environ, "VIBE_LLMS_HOME": str(self.folder), "PYTHONPATH": str(HERE), "TZ": "UTC"
        }  # fmt: skip
        options = ["serve", "--port", str(self.port), "--no-key", "-q"]
        command = [sys.executable, "-c", _SERVE, str(moment.timestamp()), *options]
        with (self.folder / "server.log").open("ab") as log:
            server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            self._wait(server)
            self._moment, self._begun = moment.timestamp(), time.time()
            yield
        finally:
            server.terminate()
            server.wait(20)
        self.settle()

    def settle(self) -> None:
        """Set the times of new files to those of the server, since lists show them."""
        for path in self.folder.rglob("*"):
            changed = path.stat().st_mtime
            if changed >= self._begun:
                moment = self._moment + changed - self._begun
                os.utime(path, (moment, moment))

    def _wait(self, server: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            try:
                self.call("GET", "/health")
                return
            except OSError:
                if server.poll() is not None:
                    break
                time.sleep(0.05)
        raise SystemExit(f"the server did not start:\n{(self.folder / 'server.log').read_text()}")

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request, and return the JSON of the reply."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        request = Request(self.url + path, data, {"Content-Type": kind})
        request.method = method
        with urlopen(request, timeout=30) as reply:
            return json.loads(reply.read() or b"null")

    def begin(self, name: str, text: str, model: str = "captain") -> str:
        """Begin a conversation, and return the id of its run."""
        run = self.call("POST", "/api/runs", {"prompt": text, "model": model})
        self.ids[name] = run["conversation"]
        return str(run["id"])

    def say(self, name: str, text: str) -> None:
        """Begin a conversation, name it, and wait until the model has answered or waits."""
        self.wait(self.begin(name, text))
        self.change(name, name=name)

    def change(self, known_as: str, **change: Any) -> None:
        """Change the name or the tags of a conversation."""
        self.call("PATCH", f"/api/conversations/{self.ids[known_as]}", change)

    def order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Start a run, and wait for it."""
        run: dict[str, Any] = self.call("POST", "/api/runs", order)
        self.wait(run["id"])
        return run

    def wait(self, run: str) -> None:
        """Wait until a run has ended or waits for a decision."""
        deadline = time.monotonic() + _START_SECONDS
        while self.call("GET", f"/api/runs/{run}")["status"] not in _ENDED:
            if time.monotonic() > deadline:
                raise SystemExit(f"a run did not end: {self.call('GET', f'/api/runs/{run}')}")
            time.sleep(0.02)

    def export(self, name: str) -> Path:
        """Export a conversation, and return its file."""
        file = self.folder / "export.html"
        command = [
            sys.executable,
            "-m",
            "vibe_llms",
            "export",
            self.ids[name],
            "-y",
            "-o",
            str(file),
        ]
        environment = {**os.environ, "VIBE_LLMS_HOME": str(self.folder), "TZ": "UTC"}
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
        return file

    def upload(self, collection: str, file: Path) -> None:
        """Add a document, and wait until it is read."""
        query = urlencode({"collection": collection, "name": file.name})
        self.call("POST", f"/api/documents?{query}", file.read_bytes())
        deadline = time.monotonic() + _START_SECONDS
        while self.call("GET", f"/api/documents/{collection}")["collection"]["indexing"]:
            if time.monotonic() > deadline:
                raise SystemExit(f"{file.name} was not read")
            time.sleep(0.02)


def fill(home: Home) -> None:
    """Say all that was said before the day of the pictures."""
    with home.at(NOW.replace(day=2, hour=8, minute=12)):
        home.say("Why is the sky blue?", "Why is the sky blue?")
        for fact in (
            "Our boat is called Tern. She is 9.4 m long and draws 1.6 m.",
            "We like to arrive before dark.",
            "Ada gets seasick in waves of more than two meters.",
        ):
            home.call("POST", "/api/memory", {"content": fact})
    with home.at(NOW.replace(day=4, hour=16, minute=20)):
        home.say("Rename photos by date", "Rename my photos by the date on which they were taken.")
        home.say("What does leeward mean?", "What does leeward mean?")
        for name in ("harbour.pdf", "notes.txt"):
            home.upload("harbors", EXAMPLES / name)


def fill_today(home: Home) -> None:
    """Say what was said on the day of the pictures; one reply is not complete, one call waits."""
    name = "Crossing to Sund"
    home.say(name, "Can we sail from Vik to Sund tomorrow? Please check the forecast.")
    messages = home.call("GET", f"/api/conversations/{home.ids[name]}/messages")["messages"]
    for time_of_day in ("at noon", "in the evening"):
        fork = {"conversation": home.ids[name], "fork_at": messages[-1]["identity"]}
        run = home.order({"prompt": f"And if we leave {time_of_day}?", **fork})
        home.ids[time_of_day] = run["conversation"]
        home.change(time_of_day, name=f"{name}, {time_of_day}")
    home.change(name, add_tags=["summer"])
    home.say("Berth in Sund", "Book a berth in Sund for two nights.")
    home.begin("Lunch", "What should we cook for the crossing?")
    # Its times are settled once its first message is stored.
    while True:
        newest = home.call("GET", "/api/conversations?limit=1")["conversations"][0]
        if newest["id"] == home.ids["Lunch"] and newest["messages"]:
            break
        time.sleep(0.02)
    home.settle()
