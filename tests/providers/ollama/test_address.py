"""Where the server is, as `OLLAMA_HOST` and the row say."""

from __future__ import annotations

import pytest
from ollama._client import _parse_host

from tests.fakes.ollama_clients import produce_client
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.providers.ollama.address import BASE_URL, read_host

FORMS = (
    "1.2.3.4",
    ":56789",
    "1.2.3.4:56789",
    "http://1.2.3.4",
    "https://1.2.3.4",
    "https://1.2.3.4:56789",
    "example.com",
    "example.com:56789",
    "http://example.com",
    "https://example.com:56789",
    "example.com/",
    "example.com:56789/path/",
    "https://example.com:56789/path",
    "[0001:002:003:0004::1]",
    "[0001:002:003:0004::1]:56789/path",
    "https://[0001:002:003:0004::1]",
)


@pytest.mark.parametrize("form", FORMS)
def test_an_address_is_read_as_the_official_package_reads_it(form: str) -> None:
    assert read_host(form) == _parse_host(form)


@pytest.mark.parametrize(
    ("form", "address"),
    [
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("[::]:8080", "http://[::1]:8080"),
        ("::1", "http://[::1]:11434"),
        ("ollama.com", "https://ollama.com:443"),
        ("https://ollama.com", "https://ollama.com:443"),
    ],
)
def test_a_place_to_listen_at_is_one_to_reach(form: str, address: str) -> None:
    assert read_host(form) == address


@pytest.mark.parametrize("form", ["host:port", "host:99999", "a b", "host:²"])
def test_what_is_no_address_is_named(form: str) -> None:
    with pytest.raises(ConfigurationError, match="OLLAMA_HOST"):
        read_host(form)


def test_the_row_goes_over_the_environment_and_that_over_what_is_shipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OLLAMA_HOST")
    assert produce_client(BASE_URL).address == "http://127.0.0.1:11434"
    monkeypatch.setenv("OLLAMA_HOST", " 'box:1' ")
    assert produce_client(BASE_URL).address == "http://box:1"
    monkeypatch.setenv("OLLAMA_HOST", "box")
    assert produce_client(BASE_URL).address == "http://box:11434"
    # The row may name what is shipped.
    for own in ("http://own:2", "http://127.0.0.1:11434"):
        assert produce_client(own).address == own
