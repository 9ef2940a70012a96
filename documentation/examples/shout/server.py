"""A server for the provider to speak with: it shouts, and uses a tool that it is told to use.

It prints its address, and ends when nobody has asked it for a minute.
"""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


def answer(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of a reply."""
    last = request["said"][-1] if request["said"] else {"text": ""}
    heard = sum(len(one.get("text", "").split()) for one in request["said"])
    words = last["text"].split() or ["what?"]
    offered = [tool["name"] for tool in request["tools"]]
    if words[0] == "use" and words[-1] in offered and last["who"] == "person":
        yield {"use": words[-1], "with": {}}
        yield {"end": "use", "heard": heard, "shouted": 1}
        return
    most = request.get("words", 100)
    for word in words[:most]:
        yield {"shout": f"{word.upper()} "}
    yield {"shout": request["ending"]}
    end = "words" if len(words) > most else ""
    yield {"end": end, "heard": heard, "shouted": min(len(words), most)}


class Shouter(BaseHTTPRequestHandler):
    """Speaks JSON, and refuses what it does not know."""

    def do_GET(self) -> None:
        self.reply(200, [["loud", "louder"]] if self.path == "/models" else [])

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if request["model"] in ("loud", "louder"):
            self.reply(200, list(answer(request)))
        else:
            self.reply(404, [f"there is no model {request['model']}"])

    def reply(self, status: int, lines: list[Any]) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/x-ndjson")
        self.end_headers()
        for line in lines:
            self.wfile.write(json.dumps(line).encode() + b"\n")
            time.sleep(0.01)  # it has to take breath

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


class Server(HTTPServer):
    timeout = 60
    quiet = False

    def handle_timeout(self) -> None:
        self.quiet = True


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Shouter) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        while not server.quiet:
            server.handle_request()
