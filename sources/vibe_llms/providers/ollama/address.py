"""Reads the address of an Ollama server from `OLLAMA_HOST`."""

from __future__ import annotations

import ipaddress
import re

from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.base.redaction import redact

VARIABLE = "OLLAMA_HOST"
BASE_URL = f"${{{VARIABLE}:-http://127.0.0.1:11434}}"
_PORT = "11434"
_PORTS = {"http": "80", "https": "443"}
# Clients cannot connect to an address that means "all interfaces"; this is its local form.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def read_host(text: str) -> str:
    """Return the address for any form that `OLLAMA_HOST` may have.

    Source: `envconfig/config.go` of the server, `_parse_host` of the package ollama 0.6.3.

    >>> read_host("example.com"), read_host(":8080"), read_host("https://example.com/ollama/")
    ('http://example.com:11434', 'http://127.0.0.1:8080', 'https://example.com:443/ollama')
    >>> read_host("0.0.0.0"), read_host("[::1]:8080"), read_host("::1")
    ('http://127.0.0.1:11434', 'http://[::1]:8080', 'http://[::1]:11434')
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = ("https" if text == "ollama.com" else "http"), text
    place, _, path = rest.partition("/")
    host, port = _split(place)
    if not port:
        port = _PORTS.get(scheme, _PORT) if separator or text == "ollama.com" else _PORT
    host = _EVERYWHERE.get(host or "127.0.0.1", host or "127.0.0.1")
    if not (port.isascii() and port.isdecimal() and int(port) < 65536) or re.search(r"\s", host):
        raise ConfigurationError(
            f"{redact(text)!r} is not an address; write host, host:port or http://host:port",
            file="environment",
            key=VARIABLE,
        )
    bracketed = f"[{host}]" if ":" in host else host
    path = path.strip("/")
    return f"{scheme}://{bracketed}:{port}" + (f"/{path}" if path else "")


def _split(place: str) -> tuple[str, str]:
    """Return the host and port of `host:port`; brackets around an IPv6 address are optional."""
    if bracketed := re.fullmatch(r"\[([^]]*)\](?::(.*))?", place):
        return bracketed[1], bracketed[2] or ""
    try:
        return str(ipaddress.IPv6Address(place)), ""
    except ValueError:
        host, _, port = place.rpartition(":") if ":" in place else (place, "", "")
        return host, port
