"""Pinned weights: what `memory setup` does not show of their fetching."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from tests.fakes.raw_server import RawServer, say
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import ModelUnavailable
from vibe_llms.embedding.weights import PinnedFile, PinnedWeights, WeightsFetcher

FILE = PinnedFile("tokenizer.json", 2, "0" * 64)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


async def test_a_redirect_from_https_to_http_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    async with RawServer(say(OK, then="close")) as other:
        moved = f"HTTP/1.1 302 Found\r\nlocation: {other.url}/x\r\ncontent-length: 0\r\n\r\n"
        async with RawServer(say(moved.encode()), tls=tls) as hub:
            fetcher = WeightsFetcher(
                PinnedWeights("tiny", "some/tiny", "c0ffee", [FILE]),
                tmp_path / "models",
                load_configuration(Places.under(tmp_path)),
                lambda *_: None,
                hub=hub.url,
            )
            with pytest.raises(ModelUnavailable, match="not https"):
                await fetcher.fetch([FILE])
        assert other.requests == []
    assert not (tmp_path / "models" / FILE.path).exists()
