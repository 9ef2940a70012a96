import hashlib
import hmac
import json
import os
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

from vibe_llms import ConversationBusy, RequestError, SupervisorCanister
from vibe_llms.base.exceptions import ConversationNotFound, SteeringRefused
from vibe_llms.synchronous import Session, open_session

MODEL = "anthropic/claude-sonnet-5-5"
RULES = "You collect what is reported about a machine. Be brief."
SECRET = os.environ["WEBHOOK_SECRET"].encode()


def start_run(session: Session, name: str, text: str) -> str:
    while True:
        try:
            conversation = session.resume(name)
        except ConversationNotFound:
            conversation = session.begin(MODEL, name=name)
            # This stores the conversation at once, so the next event finds it.
            conversation.add(SupervisorCanister.from_text(RULES))
        try:
            return session.start(conversation, text).identity
        except ConversationBusy:
            # The model reads the message with its next request of the turn that runs.
            (record, *_) = session.survey_runs(conversation=conversation.identity, limit=1)
            with suppress(SteeringRefused):  # unless the turn has just ended
                session.access_run(record.identity).steer(text)
                return record.identity


class Webhook(BaseHTTPRequestHandler):
    session: Session

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        expected = "sha256=" + hmac.new(SECRET, body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(self.headers.get("x-hub-signature-256", ""), expected):
            self.send_error(403)
            return
        try:
            event = json.loads(body)
            run = start_run(self.session, str(event["conversation"]), event["text"])
        except (ValueError, LookupError, TypeError, RequestError) as error:
            self.send_error(400, explain=str(error))
        else:
            self.send_response(202)
            self.end_headers()
            self.wfile.write(run.encode() + b"\n")


if len(sys.argv) != 2:
    sys.exit("usage: python webhook.py PORT")
with open_session() as Webhook.session:
    # One request at a time is enough, because none waits for the model.
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Webhook).serve_forever()
