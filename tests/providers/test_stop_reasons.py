"""The words in which servers say why a reply ended."""

from __future__ import annotations

import pytest

from vibe_llms.base.exceptions import (
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    ReplyCut,
    RequestRefused,
)
from vibe_llms.messages.canisters import StopReason
from vibe_llms.providers.stop_reasons import (
    FAULTS,
    OVERFLOWS,
    STOP_REASONS,
    close_reply,
    is_overflow,
)


def test_no_word_has_two_meanings() -> None:
    assert not set(STOP_REASONS) & set(FAULTS)
    assert not OVERFLOWS & (set(STOP_REASONS) | set(FAULTS))


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stop", StopReason.FINISHED),
        ("STOP", StopReason.FINISHED),
        ("endTurn", StopReason.FINISHED),
        ("", StopReason.FINISHED),
        ("null", StopReason.FINISHED),
        ("tool-calls", StopReason.INVOCATIONS),
        ("function_call", StopReason.INVOCATIONS),
        ("MAX_TOKENS", StopReason.LENGTH),
        ("model_length", StopReason.LENGTH),
        ("max_output_tokens", StopReason.LENGTH),
        ("model_context_window_exceeded", StopReason.LENGTH),
        ("content_filter", StopReason.REFUSED),
        ("SAFETY", StopReason.REFUSED),
        ("sensitive", StopReason.REFUSED),
        ("pause_turn", StopReason.PAUSED),
        ("brand_new", "brand_new"),
    ],
)
def test_a_word_of_any_server_has_its_meaning(word: str, reason: str) -> None:
    closed = close_reply("row", word)
    assert (closed.reason, closed.native_reason) == (reason, word)


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("error", ProviderOverloaded),
        ("insufficient_system_resource", ProviderOverloaded),
        ("network_error", ProviderOverloaded),
        ("overloaded", ProviderOverloaded),
        ("timeout", ProviderOverloaded),
        ("MALFORMED_FUNCTION_CALL", ReplyCut),
        ("abort", ReplyCut),
        ("RESOURCE_EXHAUSTED", RateLimited),
        ("insufficient_quota", PaymentRequired),
        ("invalid_request", RequestRefused),
    ],
)
def test_a_word_for_a_fault_is_an_error(word: str, kind: type[ProviderError]) -> None:
    with pytest.raises(ProviderError, match=word) as caught:
        close_reply("row", word)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("word", "native", "reason"),
    [
        ("stop", "SAFETY", StopReason.REFUSED),
        ("stop", "max_tokens", StopReason.LENGTH),
        ("", "length", StopReason.LENGTH),
        ("brand_new", "end_turn", StopReason.FINISHED),
        ("stop", "STOP", StopReason.FINISHED),
        ("stop", "other", StopReason.FINISHED),
        ("length", "SAFETY", StopReason.LENGTH),
        ("tool_calls", "STOP", StopReason.INVOCATIONS),
    ],
)
def test_the_word_behind_a_gateway_counts_where_the_first_says_nothing_bad(
    word: str, native: str, reason: str
) -> None:
    assert close_reply("row", word, native=native).reason == reason


def test_what_is_in_a_reply_says_more_than_that_it_finished() -> None:
    assert close_reply("row", "stop", called=True).reason == StopReason.INVOCATIONS
    assert close_reply("row", "stop", refused=True).reason == StopReason.REFUSED
    assert close_reply("row", "length", called=True).reason == StopReason.LENGTH


def test_an_overflow_is_known_by_its_word() -> None:
    assert is_overflow("MODEL_CONTEXT_WINDOW_EXCEEDED")
    assert not is_overflow("max_tokens")
