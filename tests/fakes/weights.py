"""A hub and the host of its files, as they answer a program that fetches a file by its address.

The hub redirects to the other host, which serves byte ranges (RFC 9110, section 14). Both refuse
what the real ones refuse: other methods, unknown paths, and ranges outside of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest


class FakeStore(Listener):
    """Serves the large files; `answers` are given first."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__()
        self.files = dict(files)
        self.answers: list[HttpAnswer] = []

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        data = self.files.get(request.path.lstrip("/"))
        if request.method != "GET" or data is None:
            return _answer(404)
        if self.answers:
            return self.answers.pop(0)
        wanted = request.headers.get("range")
        if wanted is None:
            return _answer(200, data)
        found = re.fullmatch(r"bytes=(\d+)-", wanted)
        if found is None or int(found[1]) >= len(data):
            return _answer(416)
        start = int(found[1])
        place = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return _answer(206, data[start:], {"content-range": place})


class FakeWeightsHub(Listener):
    """Redirects each file of a commit to the store."""

    def __init__(self, prefix: str, store: FakeStore) -> None:
        super().__init__()
        self._prefix = prefix
        self._store = store

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        path = request.path.removeprefix(self._prefix)
        if request.method != "GET" or path == request.path or path not in self._store.files:
            return _answer(404)
        return _answer(302, headers={"location": f"{self._store.url}/{path}"})


def _answer(status: int, data: bytes = b"", headers: Mapping[str, str] | None = None) -> HttpAnswer:
    return HttpAnswer(status, {"content-length": str(len(data)), **(headers or {})}, [data])
