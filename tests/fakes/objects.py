"""A real S3 server for tests: moto over HTTP, one for each process of the tests."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import logging
import re
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from vibe_llms.storage.objects import BucketSettings

_NUMBERS = itertools.count(1)
_ALL = {"Effect": "Allow", "Action": "s3:*"}


class BucketServer:
    """A server, which can be stopped and started again; it forgets nothing in between."""

    def __init__(self) -> None:
        # It reports every request.
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._port = 0
        self._checks = False
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

    def request(self, method: str, path: str, data: bytes | None = None, **headers: str) -> bytes:
        """Send a request; returns the body of the reply."""
        headers = {"Content-Type": "text/plain", **headers}
        request = urllib.request.Request(self.endpoint + path, data, headers, method=method)
        with urllib.request.urlopen(request) as response:
            return bytes(response.read())

    def make_bucket(self, name: str) -> None:
        """A bucket that everyone may use, so that tests need no credentials."""
        self.request("PUT", f"/{name}")
        allowed = {**_ALL, "Principal": "*", "Resource": "*"}
        policy = {"Version": "2012-10-17", "Statement": [allowed]}
        self.request("PUT", f"/{name}?policy", json.dumps(policy).encode())

    @contextmanager
    def checking(self, *, checks: bool = True) -> Iterator[None]:
        """Check who asks, and for what, within the block, or do not."""
        before, self._checks = self._checks, checks
        self._set_checks()
        try:
            yield
        finally:
            self._checks = before
            self._set_checks()

    def _set_checks(self) -> None:
        unchecked = b"0" if self._checks else b"Infinity"
        self.request("POST", "/moto-api/reset-auth", unchecked)

    def make_login(self) -> tuple[str, Mapping[str, str]]:
        """A new user without rights, and the variables with the user's key."""
        user = f"user-{next(_NUMBERS)}"
        self._ask_iam("CreateUser", user)
        made = self._ask_iam("CreateAccessKey", user)
        found = re.findall(r"<(?:AccessKeyId|SecretAccessKey)>([^<]+)<", made)
        return user, dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), found, strict=True))

    def allow(self, user: str) -> None:
        """Let a user do everything."""
        policy = {"Version": "2012-10-17", "Statement": [{**_ALL, "Resource": "*"}]}
        values = {"PolicyName": "all", "PolicyDocument": json.dumps(policy)}
        with self.checking(checks=False):
            self._ask_iam("PutUserPolicy", user, **values)

    def _ask_iam(self, action: str, user: str, **values: str) -> str:
        form = urlencode({"Action": action, "UserName": user, "Version": "2010-05-08", **values})
        scope = "AWS4-HMAC-SHA256 Credential=nobody/20260101/us-east-1/iam/aws4_request"
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.request("POST", "/", form.encode(), Authorization=scope, **kind).decode()

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
