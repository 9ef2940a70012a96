"""An MCP server over streamable HTTP that misbehaves on demand, and the server that signs one in.

It speaks the handshake of 2025-11-25, offers `echo`, and is strict: a wrong session, a wrong proof
of PKCE, a code used twice, an address that was not registered are all refused.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec

from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream"}
#: An answer of a test's own to a method of MCP, or nothing.
Override = Callable[[str, Any], HttpAnswer | None]


def encode(value: Any) -> list[bytes]:
    return [msgspec.json.encode(value)]


class FakeMcp(Listener):
    """`tokens` are those that are let in, `None` lets in everybody.

    `cancelled` are the ids of requests that the client cancelled, `sessions` those that are known.
    """

    def __init__(self) -> None:
        super().__init__()
        self.override: Override = lambda *_: None
        #: An answer to requests of a session, or nothing.
        self.refuse: Callable[[str], HttpAnswer | None] = lambda _: None
        self.events = True
        self.tokens: set[str] | None = None
        self.lasts: int | None = 3600
        self.refusal = ""
        self.refreshing = True
        self.secret = ""
        #: Of another server that signs in here.
        self.resource = ""
        self.asked: list[dict[str, str]] = []
        self.cancelled: list[Any] = []
        self.called: list[str] = []
        self.sessions: set[str] = set()
        self._codes: dict[str, dict[str, str]] = {}
        self._clients: dict[str, list[str]] = {}
        self._refreshes: set[str] = set()
        self._numbers = itertools.count(1)

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        """The response of any path."""
        path = urlsplit(request.path)
        match path.path:
            case "/mcp":
                return self._speak(request)
            case "/.well-known/oauth-protected-resource/mcp":
                servers = [self.url]
                about = {"resource": f"{self.url}/mcp", "authorization_servers": servers}
                return HttpAnswer(headers=JSON, chunks=encode(about))
            case "/.well-known/oauth-authorization-server":
                return HttpAnswer(headers=JSON, chunks=encode(self._describe()))
            case "/register":
                return self._register(request.json)
            case "/authorize":
                return self._authorize({k: v[0] for k, v in parse_qs(path.query).items()})
            case "/token":
                form = {k: v[0] for k, v in parse_qs(request.body.decode()).items()}
                return self._grant(form, request.headers.get("authorization", ""))
            case _:
                return HttpAnswer(404, headers=JSON, chunks=encode({"error": "not found"}))

    def _speak(self, request: ReceivedRequest) -> HttpAnswer:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            where = f"{self.url}/.well-known/oauth-protected-resource/mcp"
            wanted = {"www-authenticate": f'Bearer resource_metadata="{where}"'}
            return HttpAnswer(401, headers={**JSON, **wanted}, chunks=encode({"error": "token"}))
        if request.method != "POST":
            return HttpAnswer(200 if request.method == "DELETE" else 405)
        message = request.json
        method = message.get("method", "")
        if (own := self.override(method, message)) is not None:
            return own
        if method == "initialize":
            session = f"session-{next(self._numbers)}"
            self.sessions.add(session)
            result = {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "fake", "version": "1"},
            }
            answer = self.reply(message, result)
            answer.headers["mcp-session-id"] = session
            return answer
        if method == "server/discover":
            return self.reply(message, error={"code": -32601, "message": "no such method"})
        session = request.headers.get("mcp-session-id", "")
        if (refusal := self.refuse(session)) is not None:
            return refusal
        if session not in self.sessions:
            return HttpAnswer(404, headers={"content-type": "text/plain"}, chunks=[b"no session"])
        if "id" not in message:
            if method == "notifications/cancelled":
                self.cancelled.append(message["params"]["requestId"])
            return HttpAnswer(202)
        if method == "tools/list":
            return self.reply(message, {"tools": [{"name": "echo", "inputSchema": SCHEMA}]})
        if method == "tools/call":
            text = message["params"]["arguments"]["text"]
            self.called.append(text)
            return self.reply(message, {"content": [{"type": "text", "text": text}]})
        return self.reply(message, error={"code": -32601, "message": f"there is no {method}"})

    def reply(self, message: Any, result: Any = None, error: Any = None) -> HttpAnswer:
        """A whole reply, as one event or as JSON."""
        body = {"jsonrpc": "2.0", "id": message["id"]}
        body |= {"result": result} if error is None else {"error": error}
        if self.events:
            return HttpAnswer(headers=dict(EVENTS), chunks=[b"data: %b\n\n" % encode(body)[0]])
        return HttpAnswer(headers=dict(JSON), chunks=encode(body))

    def _describe(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        }

    def _register(self, about: Any) -> HttpAnswer:
        redirects = about["redirect_uris"]
        assert all(one.startswith("http://127.0.0.1:") for one in redirects)
        client = f"client-{next(self._numbers)}"
        self._clients[client] = redirects
        known = {**about, "client_id": client, "token_endpoint_auth_method": "none"}
        return HttpAnswer(201, headers=JSON, chunks=encode(known))

    def _authorize(self, query: dict[str, str]) -> HttpAnswer:
        assert query["redirect_uri"] in self._clients[query["client_id"]]
        assert query["code_challenge_method"] == "S256"
        assert query["resource"] == (self.resource or f"{self.url}/mcp")
        self.asked.append(query)
        code = f"canary-code-{next(self._numbers)}"
        self._codes[code] = query
        found = {"error": self.refusal} if self.refusal else {"code": code}
        back = urlencode({**found, "state": query["state"]})
        return HttpAnswer(302, headers={"location": f"{query['redirect_uri']}?{back}"})

    def _grant(self, form: dict[str, str], authorization: str) -> HttpAnswer:
        refused = HttpAnswer(400, headers=JSON, chunks=encode({"error": "invalid_grant", **form}))
        match form["grant_type"]:
            case "authorization_code":
                query = self._codes.pop(form["code"], None)
                if query is None or query["redirect_uri"] != form["redirect_uri"]:
                    return refused
                proof = hashlib.sha256(form["code_verifier"].encode()).digest()
                if base64.urlsafe_b64encode(proof).decode().rstrip("=") != query["code_challenge"]:
                    return refused
            case "refresh_token":
                if not self.refreshing or form["refresh_token"] not in self._refreshes:
                    return refused
                self._refreshes.remove(form["refresh_token"])
            case "client_credentials":
                basic = base64.b64encode(f"robot:{self.secret}".encode()).decode()
                if authorization != f"Basic {basic}":
                    return refused
            case _:
                return refused
        # What another test has seen, this process keeps out of words already.
        number = secrets.token_hex(8)
        token, again = f"canary-access-{number}", f"canary-refresh-{number}"
        assert self.tokens is not None
        self.tokens.add(token)
        self._refreshes.add(again)
        tokens = {"access_token": token, "token_type": "Bearer", "refresh_token": again}
        if self.lasts is not None:
            tokens["expires_in"] = self.lasts  # type: ignore[assignment]
        return HttpAnswer(headers=JSON, chunks=encode(tokens))
