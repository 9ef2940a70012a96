import hashlib
import hmac
import json
import os
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vibe_llms import ConversationBusy, RequestError
from vibe_llms.base.exceptions import ConversationNotFound
from vibe_llms.synchronous import Session, open_session

MODEL = "anthropic/claude-sonnet-5-5"
SECRET = os.environ["WEBHOOK_SECRET"].encode()


def continue_conversation(session: Session, name: str, text: str) -> str:
    """Start a run in the conversation with this name; return the identity of the run."""
    try:
        conversation = session.resume(name)
    except ConversationNotFound:
        conversation = session.begin(MODEL, name=name)
    try:
        return session.start(conversation, text).identity
    except ConversationBusy:
        # The model reads the message with its next request of the turn that runs.
        (record, *_) = session.survey_runs(conversation=conversation.identity, limit=1)
        session.access_run(record.identity).steer(text)
        return record.identity


class Webhook(BaseHTTPRequestHandler):
    session: Session

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        expected = "sha256=" + hmac.new(SECRET, body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(self.headers.get("x-hub-signature-256", ""), expected):
            return self.answer(HTTPStatus.FORBIDDEN, {"error": "wrong signature"})
        try:
            event = json.loads(body)
            run = continue_conversation(self.session, event["conversation"], event["text"])
        except (ValueError, KeyError, RequestError) as error:
            return self.answer(HTTPStatus.BAD_REQUEST, {"error": repr(error)})
        return self.answer(HTTPStatus.ACCEPTED, {"run": run})

    def answer(self, status: HTTPStatus, value: object) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(value).encode() + b"\n")

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


with open_session() as Webhook.session:
    # The session has its own thread, so it serves all threads of the server.
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Webhook).serve_forever()
