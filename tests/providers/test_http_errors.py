"""What all providers read in an answer that is no success."""

from __future__ import annotations

import json
import time
from email.utils import formatdate
from typing import Any

import pytest

from vibe_llms.base.exceptions import RateLimited, ReplyMalformed
from vibe_llms.base.redaction import quote, remember
from vibe_llms.providers.anthropic.errors import ERRORS as ANTHROPIC
from vibe_llms.providers.http_errors import (
    ErrorMap,
    ErrorObject,
    clear_words,
    describe_answer,
    read_reset,
    read_retry_after,
    read_span,
    refuse_redirect,
)
from vibe_llms.providers.ollama.errors import ERRORS as OLLAMA
from vibe_llms.providers.openai.errors import ERRORS as OPENAI


@pytest.mark.parametrize(
    ("headers", "body", "words"),
    [
        ({"content-type": "text/html"}, b"x", "status 503 and a web page"),
        ({}, b"  <html>", "status 503 and a web page"),
        ({}, b"", "the server answered with status 503"),
        ({}, b"out of memory", "status 503: 'out of memory'"),
        ({}, b"\xff" * 300, "status 503: '" + "\ufffd" * 200 + "'"),
    ],
)
def test_an_answer_without_a_message_is_put_in_words(
    headers: dict[str, str], body: bytes, words: str
) -> None:
    assert describe_answer(503, headers, body).endswith(words)


def test_neither_an_answer_nor_a_redirect_shows_the_key() -> None:
    remember("a-key-0123456789")
    assert "a-key-0123456789" not in describe_answer(500, {}, b"a-key-0123456789 is wrong")
    # A key across the place where a text is cut is removed first.
    assert "a-key" not in describe_answer(500, {}, b"x" * 190 + b" a-key-0123456789 is wrong")
    assert "a-key" not in quote(b"x" * 70 + b" a-key-0123456789 is wrong")
    location = {"location": "https://example.org/?key=a-key-0123456789"}
    error = refuse_redirect("row", 307, location)
    assert isinstance(error, ReplyMalformed)
    assert error.status == 307
    assert "a-key-0123456789" not in str(error)
    assert "redirects to https://example.org/" in str(error)
    assert "redirects to elsewhere" in str(refuse_redirect("row", 301, {}))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Mon, 99 Foo 99999999999999999999 00:00:00 GMT"}, None),
        ({"retry-after": formatdate(0, usegmt=True)}, 0.0),
        ({}, None),
    ],
)
def test_the_advice_when_to_come_again_is_read(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert read_retry_after(headers) == seconds


def test_a_date_to_come_is_so_many_seconds_away() -> None:
    seconds = read_retry_after({"retry-after": formatdate(time.time() + 600, usegmt=True)})
    assert seconds is not None
    assert 500 < seconds <= 600


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        (
            {
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "1m30s",
                "x-ratelimit-remaining-requests": " 0 ",
                "x-ratelimit-reset-requests": "2m",
            },
            120.0,
        ),
        ({"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "1m"}, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "later"}, None),
        ({"x-ratelimit-reset-tokens": "1m"}, None),
    ],
)
def test_only_a_limit_that_is_used_up_says_when(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert read_reset(headers) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h2m3s", 3723.0),
        ("2d", 172_800.0),
        (" 20ms ", 0.02),
        ("7.5", 7.5),
        ("1s2", None),
        ("", None),
        ("0" * 60_000, None),
        ("1s" * 30_000 + "!", None),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_span_of_time_is_read(text: str, seconds: float | None) -> None:
    assert read_span(text) == seconds


def test_what_a_server_says_of_an_error_is_cut_before_it_is_looked_through() -> None:
    remember("key-" + "x" * 40)
    for text in ("a" * 5_000_000, "maximum context length is " + "1 tokens (" * 500_000):
        assert len(clear_words(text)) == 4_001
    # A key across the place where it is cut is taken out first.
    assert "xxxx" not in clear_words("a " * 1_980 + "key-" + "x" * 40 + " b" * 100)


@pytest.mark.parametrize(
    ("read_error", "words"),
    [
        (ANTHROPIC.read, "prompt is too long: {n} tokens > {n} maximum"),
        (ANTHROPIC.read, "exceed context limit: {n} + {n} > {n}"),
        (OPENAI.read, "maximum context length is {n} or {n} tokens"),
        (OPENAI.read, "contains {n} tokens, too large for model with {n}"),
        (OLLAMA.read, "({n} tokens) exceeds the context ({n} tokens)"),
    ],
)
def test_numbers_of_any_length_are_no_numbers(read_error: Any, words: str) -> None:
    message = words.format(n="9" * 900)
    for body in ({"error": {"message": message}}, {"error": {"message": "9" * 5_000}}):
        error = read_error("row", 400, {}, json.dumps(body).encode())
        assert getattr(error, "tokens", None) is None
    error = read_error("row", 429, {"retry-after": "9" * 5_000}, b"{}")
    assert error.retry_after is None


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ({"fault": {"reason": "slow down", "sort": "busy"}}, ("slow down", "busy", "")),
        ({"fault": "slow down"}, ("slow down", "", "")),
        ({"reason": "slow down", "number": "B1"}, ("slow down", "", "B1")),
        ({"error": {"message": "slow down", "type": "busy"}}, ("slow down", "busy", "")),
        ({"error": {"reason": "slow down"}}, ("slow down", "", "")),
        ({"fault": None, "reason": None}, ("", "", "")),
        ([], ("", "", "")),
    ],
)
def test_the_members_of_an_error_may_have_names_of_the_servers_own(
    body: object, read: tuple[str, str, str]
) -> None:
    members = {"error": "fault", "message": "reason", "type": "sort", "code": "number"}
    errors = ErrorMap(members=members, types={"busy": RateLimited}, codes={"B1": RateLimited})
    data = json.dumps(body).encode()
    assert errors.parse(data) == ErrorObject(*read)
    assert isinstance(errors.read("row", 400, {}, data), RateLimited) == any(read[1:])
