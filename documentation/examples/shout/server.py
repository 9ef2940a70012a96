"""A server to try the provider with: it shouts, and calls a tool if you write "use NAME".

It fails in the middle of a reply if you write "whisper".

It prints its address, and exits after a minute without a request.
"""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


def answer(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the lines of a reply."""
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
        if word == "whisper":
            yield {"hush": "this is no library", "kind": "quiet"}
            return
        yield {"shout": f"{word.upper()} "}
    yield {"shout": request["ending"]}
    end = "words" if len(words) > most else ""
    yield {"end": end, "heard": heard, "shouted": min(len(words), most)}


class Shouter(BaseHTTPRequestHandler):
    """Answers in JSON; an unknown model is an error."""

    def do_GET(self) -> None:
        self.reply(200, [["loud", "louder"]] if self.path == "/models" else [])

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if request["model"] in ("loud", "louder"):
            self.reply(200, list(answer(request)))
        else:
            self.reply(404, [{"hush": f"there is no model {request['model']}"}])

    def reply(self, status: int, lines: list[Any]) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/x-ndjson")
        self.end_headers()
        for line in lines:
            self.wfile.write(json.dumps(line).encode() + b"\n")
            time.sleep(0.01)  # so that the reply arrives in pieces

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


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
