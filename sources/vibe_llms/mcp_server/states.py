"""Signed states: what a server needs again with a later request, kept by the client.

The signature binds a state to its user and its purpose. A changed, foreign or old one is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

_SIGNATURE_BYTES = 32


class StateSeal:
    """Writer and reader of the states of one user."""

    def __init__(self, secret: bytes, user: str, clock: Callable[[], float] = time.time) -> None:
        """Create a seal with the secret of the servers."""
        self._secret = secret
        self._user = user.encode()
        self._clock = clock

    def write(self, state: Mapping[str, Any], purpose: bytes, *, seconds: float = 0.0) -> str:
        """Return a state as visible ASCII; it is valid for some seconds, or forever."""
        until = int(self._clock() + seconds) if seconds else 0
        data = msgspec.json.encode([until, state])
        return base64.urlsafe_b64encode(self._sign(data, purpose) + data).decode().rstrip("=")

    def read(self, text: str, purpose: bytes) -> Mapping[str, Any] | None:
        """Return a state, or None if it was not written for this user and purpose, or is old."""
        try:
            raw = base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
        except (binascii.Error, ValueError):
            return None
        signature, data = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(data, purpose)):
            return None
        until, state = msgspec.json.decode(data, type=tuple[int, dict[str, Any]])
        return state if not until or until > self._clock() else None

    def _sign(self, data: bytes, purpose: bytes) -> bytes:
        signed = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in (b"mcp", self._user, purpose, data):
            signed.update(len(part).to_bytes(8, "big") + part)
        return signed.digest()
