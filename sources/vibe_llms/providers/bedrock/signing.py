"""Signature Version 4 of requests to AWS.

Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
(2026-11); the results are those of `botocore.auth.SigV4Auth`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import quote, urlsplit

from msgspec import Struct

from vibe_llms.base.network.connections import encode_host

SERVICE = "bedrock"
_ALGORITHM = "AWS4-HMAC-SHA256"
_PORTS = {"http": 80, "https": 443}
#: Characters of a path that are not encoded once more.
_PATH = "/-_.~"


class AwsIdentity(Struct, frozen=True):
    """Access key that signs requests; `token` belongs to temporary ones."""

    access_key: str
    secret_key: str
    token: str = ""

    def __repr__(self) -> str:
        return "[secret]"


def sign(
    identity: AwsIdentity,
    region: str,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: Sequence[bytes],
    moment: datetime,
) -> Mapping[str, str]:
    """Return the headers that sign a request; `headers` are others that are signed too.

    The path and the query of `url` are encoded as they are sent. All services but S3 want the path
    encoded once more in what is signed, so that `%3A` counts as `%253A`.
    """
    parts = urlsplit(url)
    stamp = moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    signed = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    signed |= {"host": find_host(url), "x-amz-date": stamp}
    if identity.token:
        signed["x-amz-security-token"] = identity.token
    names = ";".join(sorted(signed))
    digest = hashlib.sha256()
    for part in body:
        digest.update(part)
    request = "\n".join(
        (
            method,
            quote(parts.path or "/", safe=_PATH),
            "&".join("=".join(one) for one in sorted(map(_split_pair, parts.query.split("&"))))
            if parts.query
            else "",
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            names,
            digest.hexdigest(),
        )
    )
    scope = f"{stamp[:8]}/{region}/{SERVICE}/aws4_request"
    hashed = hashlib.sha256(request.encode()).hexdigest()
    text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashed}"
    signature = _hash(_derive(identity.secret_key, stamp[:8], region), text).hex()
    added = {
        "authorization": (
            f"{_ALGORITHM} Credential={identity.access_key}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}"
        ),
        "x-amz-date": stamp,
    }
    return {**added, "x-amz-security-token": identity.token} if identity.token else added


def find_host(url: str) -> str:
    """Return the header `host` of requests to an address."""
    parts = urlsplit(url)
    host = encode_host(parts.hostname or "")
    host = f"[{host}]" if ":" in host else host
    return host if parts.port in (None, _PORTS.get(parts.scheme)) else f"{host}:{parts.port}"


def _split_pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


@lru_cache(8)
def _derive(secret: str, day: str, region: str) -> bytes:
    """Return the key of a day, a region, and the service."""
    key = f"AWS4{secret}".encode()
    for text in (day, region, SERVICE, "aws4_request"):
        key = _hash(key, text)
    return key


def _hash(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
