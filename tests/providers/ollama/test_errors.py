"""Every error of the server, and every error class of the official package, is one of ours."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping

import ollama
import pytest

from vibe_llms.base.exceptions import (
    ContextOverflow,
    CredentialRefused,
    ModelUnavailable,
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    ReplyMalformed,
    RequestRefused,
    RequestTooLarge,
)
from vibe_llms.providers.http_errors import ErrorObject
from vibe_llms.providers.ollama.errors import ERRORS


@pytest.mark.drift
def test_the_package_has_the_errors_that_are_known() -> None:
    found = {
        value
        for module in pkgutil.walk_packages(ollama.__path__, "ollama.")
        for _, value in inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        if issubclass(value, BaseException) and value.__module__.partition(".")[0] == "ollama"
    }
    # `package.py` makes errors of ours of each of them.
    assert found == {ollama.RequestError, ollama.ResponseError}


@pytest.mark.parametrize(
    ("status", "words", "kind"),
    [
        (400, "missing request body", RequestRefused),
        (400, '"llama3" does not support thinking', RequestRefused),
        (400, "registry.ollama.ai/library/gemma3 does not support tools", RequestRefused),
        (400, "the input length exceeds the context length", ContextOverflow),
        (400, "the prompt is longer than the context length currently available", ContextOverflow),
        (401, "unauthorized", CredentialRefused),
        (402, "you have reached your limit", PaymentRequired),
        (403, "remote inference is unavailable", CredentialRefused),
        (404, "model 'x' not found", ModelUnavailable),
        (404, 'model "x" not found, try pulling it first', ModelUnavailable),
        (404, "something else", RequestRefused),
        (408, "late", ProviderOverloaded),
        (413, "too large", RequestTooLarge),
        (418, "teapot", RequestRefused),
        (422, "odd", RequestRefused),
        (429, "too many requests", RateLimited),
        (499, "request canceled", ProviderOverloaded),
        (500, "model runner has unexpectedly stopped", ProviderOverloaded),
        (500, "model requires more system memory (9.1 GiB) than is available", RequestRefused),
        (500, "CUDA error: out of memory", RequestRefused),
        (502, "bad gateway", ProviderOverloaded),
        (503, "server busy, please try again", ProviderOverloaded),
        (None, "an error was encountered while running the model", ProviderOverloaded),
        (None, "model 'x' not found", ModelUnavailable),
    ],
)
def test_an_error_is_classified(status: int | None, words: str, kind: type[ProviderError]) -> None:
    error = ERRORS.produce("ollama", ErrorObject(words), status=status, model="x")
    assert type(error) is kind
    assert (words in str(error), error.status) == (True, status)
    assert ("ollama pull x" in str(error)) == (kind is ModelUnavailable)


def test_the_sizes_of_an_overflow_are_reported_where_they_are_known() -> None:
    words = "request (5000 tokens) exceeds the available context size (4096 tokens), try"
    error = ERRORS.produce("ollama", ErrorObject(words), status=400)
    assert isinstance(error, ContextOverflow)
    assert (error.tokens, error.limit) == (5000, 4096)


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "words"),
    [
        (404, {}, b'{"error":"model \'x\' not found"}', ModelUnavailable, "not found"),
        (404, {}, b"404 page not found", ReplyMalformed, "is base-url right?"),
        (405, {}, b"", ReplyMalformed, "is base-url right?"),
        (404, {}, b'{"detail":"Not Found"}', ReplyMalformed, "is base-url right?"),
        (500, {}, b'{"error":{"message":"odd"}}', ProviderOverloaded, "odd"),
        (500, {}, b'{"error":"\\ud83d"}', ProviderOverloaded, "\ufffd"),
        (413, {}, b'{"error":"large"}', RequestTooLarge, "it has 7 bytes"),
    ],
)
def test_an_answer_that_is_no_success_is_read(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    kind: type[ProviderError],
    words: str,
) -> None:
    error = ERRORS.read("ollama", status, headers, body, model="x", size=7)
    assert type(error) is kind
    assert words in str(error)
