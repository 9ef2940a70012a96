"""A server to try the provider with: it shouts, and calls tools if you write "Call NAME".

It fails in the middle of a reply if you write "whisper". With a key as its argument, it wants
this key in the header x-shout-key.

It prints its address, and exits after a minute without a request.
"""

import json
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

MODELS = {"loud": 1000, "louder": 1000}
MEMBERS = {"model", "ending", "said", "tools", "words"}


def check(request: dict[str, Any]) -> str:
    """Return what is wrong with a request; empty if nothing is."""
    if unknown := request.keys() - MEMBERS:
        return f"unknown members: {', '.join(sorted(unknown))}"
    calls: set[str] = set()
    for one in request["said"]:
        if one["who"] not in ("person", "system", "model", "tool"):
            return f"unknown speaker {one['who']}"
        if one["who"] == "tool":
            if one["id"] not in calls:
                return f"a result of no call: {one['id']}"
            calls.remove(one["id"])
        elif "use" in one:
            calls.add(one["id"])
        elif calls and one["who"] != "model":
            break
    return f"calls without results: {calls}" if calls else ""


def answer(request: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of a reply: the name and the data of each."""
    last = {"text": "", **(request["said"] or [{"who": "person"}])[-1]}
    heard = sum(len(one.get("text", "").split()) for one in request["said"])
    words = last["text"].split() or ["what?"]
    offered = [tool["name"] for tool in request["tools"]]
    used = [name for name in offered if name.replace("__", " ") in last["text"]]
    if words[0] == "Call" and used and last["who"] == "person":
        for number, name in enumerate(used):
            yield "use.begin", {"id": f"use-{number}", "name": name}
            yield "use.piece", {"id": f"use-{number}", "piece": "{"}
            yield "use.piece", {"id": f"use-{number}", "piece": "}"}
            yield "use.end", {"id": f"use-{number}"}
        yield "end", {"why": "use", "used": [heard, 1]}
        return
    most = request.get("words", 100)
    for word in words[:most]:
        if word == "whisper":
            yield "hush", {"kind": "quiet", "says": "this is not a library"}
            return
        yield "shout", {"text": f"{word.upper()} "}
    yield "shout", {"text": request["ending"]}
    why = "words" if len(words) > most else "done"
    yield "end", {"why": why, "used": [heard, min(len(words), most)]}


class Shouter(BaseHTTPRequestHandler):
    server: "Server"

    """Answers in server-sent events; errors are JSON."""

    def do_GET(self) -> None:
        if self.admit() and self.path == "/models":
            self.reply(200, json.dumps(MODELS))

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.admit():
            return
        if self.path != "/shout":
            self.refuse(404, "unknown", f"{self.path} not found")
        elif request["model"] not in MODELS:
            self.refuse(404, "unknown", f"model {request['model']} not found")
        elif wrong := check(request):
            self.refuse(400, "wrong", wrong)
        else:
            events = [
                f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in answer(request)
            ]
            self.reply(200, *events, kind="text/event-stream")

    def admit(self) -> bool:
        """Return True if the key is right; otherwise answer that it is not."""
        right = self.headers["x-shout-key"] == self.server.key
        if not right:
            self.refuse(401, "stranger", "who are you?")
        return right

    def refuse(self, status: int, kind: str, says: str) -> None:
        self.reply(status, json.dumps({"hush": {"kind": kind, "says": says}}))

    def reply(self, status: int, *pieces: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece.encode())
            time.sleep(0.01)  # so that the reply arrives in pieces

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class Server(HTTPServer):
    timeout = 60
    quiet = False
    key: str | None = None

    def handle_timeout(self) -> None:
        self.quiet = True


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Shouter) as server:
        server.key = sys.argv[1] if sys.argv[1:] else None
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        while not server.quiet:
            server.handle_request()
