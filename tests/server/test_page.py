"""The static files of the web page."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import httpx2
import pytest

from tests.server.conftest import Served, serving
from vibe_llms.server import page
from vibe_llms.server.page import load_page


async def get(served: Served, path: str, **headers: str) -> httpx2.Response:
    """The response to a request without a key, whose body is not decoded."""
    async with httpx2.AsyncClient(base_url=served.url) as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.get(path, headers={"accept-encoding": "identity", **named})


async def test_the_page_leads_to_its_files_which_never_change(served: Served) -> None:
    shown = await get(served, "/")
    assert shown.status_code == 200
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert shown.headers["cache-control"] == "no-cache"
    paths = re.findall(r'"(/page/[^"]+)"', shown.text)
    assert f"/page/{load_page().version}/main.js" in paths
    for path in paths:
        file = await get(served, path)
        assert file.status_code == 200
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
        for response in (shown, file):
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert "trusted-types 'none'" in response.headers["content-security-policy"]
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["referrer-policy"] == "no-referrer"
            assert response.headers["cross-origin-opener-policy"] == "same-origin"
            assert response.headers["cross-origin-resource-policy"] == "same-origin"
    # Only the page itself is worth a line.
    assert [line.split()[:3] for line in served.log] == [["GET", "/", "200"]]


async def test_a_known_file_is_not_sent_again(served: Served) -> None:
    first = await get(served, "/")
    again = await get(served, "/", if_none_match=f'"other", {first.headers["etag"]}')
    assert (again.status_code, again.content) == (304, b"")
    assert "content-length" not in again.headers
    assert again.headers["etag"] == first.headers["etag"]
    assert again.headers["cache-control"] == "no-cache"
    other = await get(served, "/", if_none_match='W/"other"')
    assert (other.status_code, other.content) == (200, first.content)


async def test_text_is_compressed_for_browsers_that_can_read_it(served: Served) -> None:
    plain = await get(served, "/")
    assert "content-encoding" not in plain.headers
    packed = await get(served, "/", accept_encoding="br, GZIP")
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content)
    assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
    # httpx2 has decoded it.
    assert packed.content == plain.content


@pytest.mark.parametrize(
    "path",
    [
        "/page/{version}/none.js",
        "/page/{version}/..%2Fpage%2Fmain.js",
        "/page/{version}/../server/page.py",
        "/page/0/main.js",
        "/page/{version}/",
        "/page/{version}",
        "/page/{version}/index%2Ehtml%00",
        "/index.html",
    ],
)
async def test_nothing_else_is_a_file_of_the_page(served: Served, path: str) -> None:
    response = await get(served, path.format(version=load_page().version))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url")


async def test_a_server_can_be_without_a_page(home: Path) -> None:
    async with serving(home, server={"page": False}) as served:
        for path in ("/", f"/page/{load_page().version}/main.js"):
            assert (await get(served, path)).status_code == 404
        assert (await get(served, "/health")).status_code == 200


async def test_other_host_names_do_not_get_the_page(served: Served) -> None:
    for path in ("/", f"/page/{load_page().version}/main.js"):
        response = await get(served, path, host="rebound.example")
        assert (response.status_code, response.json()["error"]["code"]) == (403, "host_not_allowed")


def test_another_file_makes_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_FOLDER", tmp_path)
    (tmp_path / "index.html").write_bytes(b'<script src="/page/{version}/a.js"></script>')
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.js").write_bytes(b"// {version}\n" * 9)
    (tmp_path / "LICENSES.md").write_bytes(b"for readers of the source")
    found = load_page.__wrapped__()
    assert sorted(found.files) == ["index.html", "parts/a.js"]
    assert found.version.encode() in found.files["index.html"].data
    script = found.files["parts/a.js"]
    assert script.data == b"// {version}\n" * 9 == gzip.decompress(script.packed)
    (tmp_path / "parts" / "a.js").write_bytes(b"")
    later = load_page.__wrapped__()
    assert later.version != found.version
    # Too short to compress.
    assert later.files["parts/a.js"].packed == b""


async def test_replies_are_not_stored_by_browsers(served: Served) -> None:
    async with served.http() as http:
        for path in ("/api/session", "/v1/models", "/api/none"):
            assert (await http.get(path)).headers["cache-control"] == "no-store"
