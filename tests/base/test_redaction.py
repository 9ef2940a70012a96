"""Keys are taken out of words, in whatever form they occur."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from vibe_llms.base import redaction
from vibe_llms.base.redaction import redact, remember

AWKWARD = 'k"e\\y/with%odd+signs=='


def test_a_key_is_taken_out_once_it_is_known() -> None:
    key = "quite-secret-key-1"
    assert redact(f"refused: {key}") == f"refused: {key}"
    remember(key)
    assert redact(f"refused: {key}, {key}.") == "refused: [secret], [secret]."


@pytest.mark.parametrize(
    "write",
    [
        str,
        json.dumps,
        repr,
        lambda key: repr(key.encode()),
        lambda key: quote(key, safe=""),
        lambda key: quote(key, safe="").lower(),
        lambda key: json.dumps(key).replace("/", "\\/"),
    ],
)
def test_a_key_is_taken_out_as_others_write_it(write: object) -> None:
    remember(AWKWARD)
    written = write(AWKWARD)  # type: ignore[operator]
    assert "odd" not in redact(f"<{written}>").replace("[secret]", "")


def test_a_key_within_a_longer_one_leaves_nothing_of_that() -> None:
    for key in ("inner-key-0123456789", "outer-inner-key-0123456789-more"):
        remember(key)
    assert redact("refused: outer-inner-key-0123456789-more") == "refused: [secret]"
    assert redact("refused: inner-key-0123456789-more") == "refused: [secret]-more"


def test_a_short_key_is_no_secret() -> None:
    remember("none")
    assert redact("none of them") == "none of them"
    assert "none" not in redaction._KNOWN


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("http://h/v1?key=abc&n=1", "http://h/v1?key=[secret]&n=1"),
        ("host=h password=abc user=a", "host=h password=[secret] user=a"),
        ("password = 'a \\' b' user=a", "password = [secret] user=a"),
        ("http://h/?a=1&api_key=abc", "http://h/?a=1&api_key=[secret]"),
        ("http://h/?access-token=a.b-c end", "http://h/?access-token=[secret] end"),
        ("http://h/?client_secret=x'", "http://h/?client_secret=[secret]'"),
        ("https://user:pa%20ss@host/x", "https://user:[secret]@host/x"),
        ("Authorization: Bearer abcdef.012345", "Authorization: Bearer [secret]"),
        ("{'x-api-key': 'abcdef012345'}", "{'x-api-key': '[secret]'}"),
        ("incorrect API key: sk-ant-api03-abcdefghijkl_mnop", "incorrect API key: [secret]"),
        ("the key ABSKQmVkcm9ja0FQSUtleS1+/A== is", "the key [secret] is"),
        ("bedrock-api-key-YmVkcm9jay5hbWF6b24= is", "[secret] is"),
        ("max_tokens=5 and http://h/?page=2#k", "max_tokens=5 and http://h/?page=2#k"),
        ("risk-averse people ask-questions", "risk-averse people ask-questions"),
        ("a bearer of news", "a bearer of news"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
    ],
)
def test_what_looks_like_a_key_is_taken_out_too(text: str, redacted: str) -> None:
    assert redact(text) == redacted
