"""A hub of models on this machine, as the package huggingface_hub asks one for a snapshot.

Source: `_snapshot_download.py` and `file_download.py` of huggingface_hub 2.4.0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest

COMMIT = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"


class FakeHub(Listener):
    """Has one model, whose files are those of a folder and `further` ones.

    `silent` never answers; what is not there is answered as the real hub does.
    """

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__()
        self.name = name
        self.folder = folder
        self.further: Mapping[str, bytes] = {}
        self.silent = False

    @property
    def files(self) -> Mapping[str, bytes]:
        """The files of the model, by their paths."""
        found = {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file()
        }
        return {**found, **self.further}

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if self.silent:
            return HttpAnswer(stall=-1)
        path = request.path.partition("?")[0]
        described = f"/api/models/{self.name}"
        if path in (described, f"{described}/revision/main", f"{described}/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in self.files]
            return answer({"id": self.name, "sha": COMMIT, "siblings": siblings})
        if path == f"{described}/tree/{COMMIT}":
            return answer([describe(name, data) for name, data in self.files.items()])
        for revision in ("main", COMMIT):
            start = f"/{self.name}/resolve/{revision}/"
            if path.startswith(start):
                return self._give(path.removeprefix(start), request)
        return missing("RepoNotFound")

    def _give(self, name: str, request: ReceivedRequest) -> HttpAnswer:
        data = self.files.get(name)
        if data is None:
            return missing("EntryNotFound")
        headers = {
            "x-repo-commit": COMMIT,
            "etag": f'"{hashlib.sha256(data).hexdigest()}"',
            "content-length": str(len(data)),
            "accept-ranges": "bytes",
        }
        return HttpAnswer(200, headers, [] if request.method == "HEAD" else [data])


def describe(name: str, data: bytes) -> dict[str, object]:
    """A file as the tree of a model has it."""
    blob = hashlib.sha1(b"blob %d\0%b" % (len(data), data)).hexdigest()
    return {"type": "file", "path": name, "size": len(data), "oid": blob}


def answer(body: object) -> HttpAnswer:
    data = json.dumps(body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(data))}
    return HttpAnswer(200, headers, [data])


def missing(code: str) -> HttpAnswer:
    data = b'{"error":"Not found"}'
    headers = {
        "content-type": "application/json",
        "content-length": str(len(data)),
        "x-error-code": code,
        "x-error-message": "Not found",
    }
    return HttpAnswer(404, headers, [data])
