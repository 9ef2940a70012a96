"""A real S3 server for tests: moto over HTTP, one for each process of the tests."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import logging
import urllib.request
from typing import Any

from vibe_llms.storage.objects import BucketSettings

_NUMBERS = itertools.count(1)


class BucketServer:
    """A server, which can be stopped and started again; it forgets nothing in between."""

    def __init__(self) -> None:
        # It reports every request.
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._port = 0
        self.start()

    @property
    def endpoint(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, at the address that it had before."""
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer("127.0.0.1", self._port, verbose=False)
        self._server.start()
        self._port = self._server.get_host_and_port()[1]

    def stop(self) -> None:
        """Stop it."""
        self._server.stop()

    def request(self, method: str, path: str, data: bytes | None = None) -> bytes:
        """Send a request; returns the body of the reply."""
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(self.endpoint + path, data, headers, method=method)
        with urllib.request.urlopen(request) as response:
            return bytes(response.read())

    def make_bucket(self, name: str) -> None:
        """A bucket that everyone may use, so that tests need no credentials."""
        self.request("PUT", f"/{name}")
        allowed = {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "*"}
        policy = {"Version": "2012-10-17", "Statement": [allowed]}
        self.request("PUT", f"/{name}?policy", json.dumps(policy).encode())

    def produce_bucket(self, *, exists: bool = True, **settings: Any) -> BucketSettings:
        """The settings of a new bucket."""
        name = f"bucket-{next(_NUMBERS)}"
        if exists:
            self.make_bucket(name)
        values = {"least_bytes": 1_000, "skip_signature": True, "region": "us-east-1", **settings}
        return BucketSettings(name, endpoint=self.endpoint, **values)


@functools.cache
def access_bucket_server() -> BucketServer:
    """The server of this process, which stops with it."""
    server = BucketServer()
    atexit.register(server.stop)
    return server
