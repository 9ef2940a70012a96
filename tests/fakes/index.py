"""A package index on this machine (PEP 503), and wheels and other archives to put into it."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping

from tests.fakes.server import FakeServer, HttpAnswer, ReceivedRequest


class FakeIndex(FakeServer):
    """Serves `files`, by their names, at `simple`; `requests` has what was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}

    @property
    def simple(self) -> str:
        """The address of the index."""
        return f"{self.url}/simple"

    def add(self, name: str, data: bytes) -> str:
        """Put a file into the index; gives its hash as requirements have it."""
        self.files[name] = data
        return f"sha256:{hashlib.sha256(data).hexdigest()}"

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        """A page of links, or a file."""
        parts = request.path.strip("/").split("/")
        if parts[0] == "simple" and len(parts) == 2:
            found = [name for name in self.files if _package_of(name) == parts[1]]
            links = "".join(f'<a href="/files/{name}">{name}</a>\n' for name in found)
            if found:
                return _answer(200, f"<!DOCTYPE html><html><body>{links}</body></html>".encode())
        if parts[0] == "files" and parts[-1] in self.files:
            data = self.files[parts[-1]]
            return _answer(200, data, "application/octet-stream")
        return _answer(404, b"not here")


def make_wheel(name: str, version: str, files: Mapping[str, str]) -> tuple[str, bytes]:
    """The name and the bytes of a wheel that holds these files."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    wheel = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    whole = {
        **files,
        f"{stem}.dist-info/METADATA": metadata,
        f"{stem}.dist-info/WHEEL": wheel,
    }
    lines = [f"{path},{_digest(text)},{len(text.encode())}\n" for path, text in whole.items()]
    record = f"{stem}.dist-info/RECORD"
    whole[record] = "".join(lines) + f"{record},,\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in whole.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{stem}-py3-none-any.whl", buffer.getvalue()


def make_source(name: str, version: str, files: Mapping[str, str]) -> tuple[str, bytes]:
    """The name and the bytes of a source distribution, which runs code when it is installed."""
    stem = f"{name}-{version}"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{stem}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return f"{stem}.tar.gz", buffer.getvalue()


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _package_of(file: str) -> str:
    stem = file.removesuffix(".tar.gz").removesuffix("-py3-none-any.whl")
    return stem.rpartition("-")[0].replace("_", "-").lower()


def _answer(status: int, body: bytes, kind: str = "text/html") -> HttpAnswer:
    return HttpAnswer(status, {"content-type": kind, "content-length": str(len(body))}, [body])
