"""The web page: static files of the package, compressed once and kept in memory."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

from msgspec import Struct

from vibe_llms.base.files import LARGEST_FILE, read_file, walk_files
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import Headers, HttpExchange
from vibe_llms.server.failures import Rejected

_FOLDER = Path(__file__).parents[1] / "page"
_INDEX = "index.html"
PAGE = "text/html; charset=utf-8"
#: Replaced in `index.html` by the version of the page.
_VERSION = b"{version}"
#: Replaced in `index.html` by a link to each module that the first view needs. The browser then
#: requests all of them at once, and not each when it has read the one that imports it.
_MODULES = b"{modules}"
_FIRST_MODULE = PurePosixPath("main.js")
_LINK = '<link rel="modulepreload" href="/page/{version}/%s" />'
#: The last or only line of a static import of another module of the page.
_IMPORT = re.compile(rb"""^(?:import|export|})[^"\n]*"(\.[^"\n]+)";""", re.MULTILINE)
#: Media types of the files that are served; files with other suffixes are not.
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": PAGE,
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
#: The page is checked with each visit; its files never change below the path of a version.
_CHECKED, _FOREVER = b"no-cache", b"public, max-age=31536000, immutable"
#: No text becomes markup or script, nothing is loaded from or sent to other hosts, and no site
#: embeds the page.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    b"media-src 'self' blob:; font-src 'self'; manifest-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    b"require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"vary", b"accept-encoding"),
    (b"x-content-type-options", b"nosniff"),
)


class PageFile(Struct, frozen=True):
    """A file of the page; `packed` is its data compressed with gzip, or empty if not shorter."""

    data: bytes
    packed: bytes
    media: bytes
    tag: bytes


class WebPage(Struct, frozen=True):
    """All files of the page; `version` is a hash of their names and data."""

    version: str
    files: Mapping[str, PageFile]


@cache
def load_page() -> WebPage:
    """Read and compress the files of the page."""
    found = {
        PurePosixPath(os.path.relpath(path, _FOLDER)): read_file(path, LARGEST_FILE)
        for path, _ in walk_files(_FOLDER)
    }
    digest = hashlib.sha256()
    for name, data in sorted(found.items()):
        digest.update(b"%s\0%d\0%s" % (os.fsencode(name), len(data), data))
    version = digest.hexdigest()[:16]
    index = PurePosixPath(_INDEX)
    links = "\n    ".join(_LINK % name for name in _walk_imports(_FIRST_MODULE, found))
    found[index] = (
        found[index].replace(_MODULES, links.encode()).replace(_VERSION, version.encode())
    )
    files = {
        str(name): _produce_file(data, _TYPES[name.suffix])
        for name, data in found.items()
        if name.suffix in _TYPES
    }
    return WebPage(version, files)


async def show_page(core: ServerCore, exchange: HttpExchange) -> None:
    """Show the web page, where users log in and hold conversations."""
    page = await _access_page(core, exchange)
    await _send_file(exchange, page.files[_INDEX], _CHECKED)


async def load_page_file(core: ServerCore, exchange: HttpExchange) -> None:
    """Send a file of the web page; only those of the current version are known."""
    page = await _access_page(core, exchange)
    version, name = exchange.arguments
    if version != page.version or name not in page.files:
        raise _refuse(exchange)
    await _send_file(exchange, page.files[name], _FOREVER)


async def _access_page(core: ServerCore, exchange: HttpExchange) -> WebPage:
    if not core.settings.page:
        raise _refuse(exchange)
    if not load_page.cache_info().currsize:
        await asyncio.to_thread(load_page)
    return load_page()


async def _send_file(exchange: HttpExchange, file: PageFile, caching: bytes) -> None:
    exchange.caching = caching
    headers: Headers = (*_HEADERS, (b"etag", file.tag))
    known = exchange.headers.get(b"if-none-match", b"")
    if file.tag in (one.strip() for one in known.split(b",")):
        await exchange.reply(b"", status=304, media_type=file.media, headers=headers)
        return
    data = file.data
    if file.packed and b"gzip" in exchange.headers.get(b"accept-encoding", b"").lower():
        data, headers = file.packed, (*headers, (b"content-encoding", b"gzip"))
    await exchange.reply(data, media_type=file.media, headers=headers)


def _walk_imports(
    first: PurePosixPath, files: Mapping[PurePosixPath, bytes]
) -> Iterator[PurePosixPath]:
    """Yield a module and all that it imports, directly or through others, each once."""
    left, seen = [first], {first}
    while left:
        module = left.pop()
        yield module
        for target in _IMPORT.findall(files.get(module, b"")):
            imported = PurePosixPath(os.path.normpath(module.parent / os.fsdecode(target)))
            if imported not in seen:
                seen.add(imported)
                left.append(imported)


def _produce_file(data: bytes, media: str) -> PageFile:
    packed = gzip.compress(data, mtime=0)
    tag = b'W/"%s"' % hashlib.sha256(data).hexdigest()[:32].encode()
    return PageFile(data, packed if len(packed) < len(data) else b"", media.encode(), tag)


def _refuse(exchange: HttpExchange) -> Rejected:
    return Rejected(f"{exchange.path} not found", status=404, code="unknown_url")
