import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

TOKEN = os.environ["BOT_TOKEN"]
AGENT = "bot"
SERVER = httpx2.Client(
    base_url=os.environ["OPENAI_BASE_URL"].replace("/v1", "/api"),
    headers={"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    timeout=60,
)


def find_conversation(channel: str) -> str | None:
    """Return the conversation of a channel; its tag is the channel."""
    found = SERVER.get("/conversations", params={"tag": channel, "limit": 1}).raise_for_status()
    return next((one["id"] for one in found.json()["conversations"]), None)


def answer(message: dict[str, Any]) -> str:
    channel = f"channel-{message['channel_id']}"
    known = find_conversation(channel)
    order: dict[str, Any] = {
        "prompt": f"{message['user_name']}: {message['text']}",
        "conversation": known,
    }
    # A message that the chat delivers twice is answered once.
    key = {"idempotency-key": message["post_id"]}
    if known is None:
        order |= {"model": AGENT, "tags": [channel]}
    begun = SERVER.post("/runs", json=order, headers=key)
    if begun.status_code in (409, 422):  # another message waits, or this one was delivered before
        return "One moment, I am still answering."
    run = begun.raise_for_status().json()
    text = ""
    with SERVER.stream("GET", f"/runs/{run['id']}/events") as events:
        for line in events.iter_lines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            if event.get("event") == "delta" and event.get("kind", "text") == "text":
                text += event["text"]
    return text or "I could not answer; please try again."


class Bot(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        trusted = message.get("token") == TOKEN
        reply = {"text": answer(message), "response_type": "comment"} if trusted else {}
        self.send_response(200 if trusted else 403)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode() + b"\n")


if len(sys.argv) != 2:
    sys.exit("usage: python chat_bot.py PORT")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Bot).serve_forever()
