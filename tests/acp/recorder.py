"""A client without a connection: what is sent to it is kept, and its requests have one answer."""

from __future__ import annotations

import json
from typing import Any

from vibe_llms.acp.client import SessionClient
from vibe_llms.acp.peer import Peer
from vibe_llms.acp.requests import ClientAbilities, ElicitationAbilities


class Recorder:
    """An output that answers each request with the same result."""

    def __init__(self, result: Any) -> None:
        self.lines: list[Any] = []
        self.peer = Peer(self, lambda _: None, lambda _: None, lambda _: None)  # type: ignore[arg-type, return-value]
        self._result = result

    def write(self, line: bytes) -> None:
        message = json.loads(line)
        self.lines.append(message)
        if "method" in message and "id" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": self._result}
            self.peer.receive(json.dumps(answer).encode())

    async def drain(self) -> None:
        return


def produce(result: Any, **abilities: Any) -> tuple[Recorder, SessionClient]:
    recorder = Recorder(result)
    able = ClientAbilities(elicitation=ElicitationAbilities(**abilities))
    client = SessionClient(recorder.peer, able, lambda _: None)
    client.session = "s"
    client.release()
    return recorder, client


def updates(recorder: Recorder) -> list[dict[str, Any]]:
    """The updates that were sent."""
    return [one["params"]["update"] for one in recorder.lines if one["method"] == "session/update"]
