"""Reasons for the end of a reply: the words of all servers, in one table.

A word means the same in every dialect, so that a server that speaks one and forwards to another is
understood. Words are compared in lower case, with underscores between them. An unknown word is
passed on as the reason; the reply is kept, and a notice names the word.

Sources: the finish reasons in the types of openai 3.54.0 and anthropic 2.12.0; `FinishReason` of
https://ai.google.dev/api/generate-content; the API pages of DeepSeek, Mistral, Cohere, z.ai, and
Amazon Bedrock (2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vibe_llms.base.exceptions import (
    PaymentRequired,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
    ReplyCut,
    RequestRefused,
)
from vibe_llms.messages.canisters import StopReason
from vibe_llms.providers.deltas import ReplyClosed

_WORDS: Mapping[StopReason, str] = {
    StopReason.FINISHED: """
        stop stopped stop_sequence stop_token eos eos_token eot end end_turn end_of_turn complete
        completed finish finished done success finish_reason_stop load unload compaction
    """,
    StopReason.INVOCATIONS: """
        tool_calls tool_call tool_use tools function_call function_calls
    """,
    StopReason.LENGTH: """
        length max_tokens max_output_tokens max_completion_tokens max_new_tokens max_length
        max_messages model_length token_limit output_limit max_token truncated continuation
        finish_reason_max_tokens
    """,
    StopReason.REFUSED: """
        content_filter content_filtered filtered refusal refused safety sensitive recitation
        blocklist prohibited_content spii language image_safety image_prohibited_content
        image_recitation guardrail_intervened guardrails blocked error_toxic policy_violation
        content_policy_violation model_armor escalation pup_limited_disabled
    """,
    StopReason.PAUSED: "pause pause_turn paused",
}
STOP_REASONS: Mapping[str, StopReason] = {
    word: reason for reason, words in _WORDS.items() for word in words.split()
}
#: Words for a full context: an overflow if nothing of the reply arrived.
OVERFLOWS = frozenset({
    "model_context_window_exceeded", "context_window_exceeded", "context_length_exceeded",
    "context_exceeded", "context_length", "context_limit", "max_context_length",
    "exceed_context_size", "prompt_too_long", "input_too_long",
})  # fmt: skip

_FAULT_WORDS: Mapping[type[ProviderError], str] = {
    # The server failed; the same request may succeed.
    ProviderOverloaded: """
        error internal_error server_error internal_server_error internal unavailable
        service_unavailable overloaded overloaded_error engine_overloaded timeout timed_out
        deadline_exceeded time_limit network_error upstream_error connection_error
        insufficient_system_resource system_resource_exhausted out_of_memory failed failure
        finish_reason_error generation_error model_error
    """,
    # The reply is incomplete: the model wrote a call that cannot be read, or was stopped.
    ReplyCut: """
        malformed_function_call malformed_tool_call malformed_response invalid_function_call
        invalid_tool_call unexpected_tool_call too_many_tool_calls tool_use_failed
        tool_call_error malformed_tool_use malformed_model_output no_image image_other
        missing_thought_signature
        abort aborted cancel cancelled canceled disconnect disconnected interrupted preempted
    """,
    RateLimited: "rate_limit rate_limited rate_limit_exceeded resource_exhausted too_many_requests",
    PaymentRequired: "insufficient_quota quota_exceeded payment_required insufficient_credits",
    RequestRefused: "invalid_request invalid_request_error bad_request invalid_argument",
}
FAULTS: Mapping[str, type[ProviderError]] = {
    word: kind for kind, words in _FAULT_WORDS.items() for word in words.split()
}
#: Words of servers that mean no reason at all.
_NOTHING = frozenset({"", "null", "none", "undefined", "finish_reason_unspecified", "unspecified"})
_SPELLED = re.compile(r"(?<=[a-z])(?=[A-Z])|[\s.-]+")


def normalize_stop(word: str) -> str:
    """Return the finish reason in the form of the tables, or ''.

    >>> [normalize_stop(word) for word in ("MAX_TOKENS", "endTurn", "content-filter", "null")]
    ['max_tokens', 'end_turn', 'content_filter', '']
    """
    word = _SPELLED.sub("_", word.strip()).lower()
    return "" if word in _NOTHING else word


def close_reply(
    provider: str,
    word: str,
    *,
    native: str = "",
    detail: str = "",
    called: bool = False,
    refused: bool = False,
) -> ReplyClosed:
    """Return the end of a reply. If the finish reason is a fault, raise its error.

    `native` is the finish reason of the server behind a gateway; it counts if the first one is good
    or missing. `called` and `refused` are True if the reply has a call or a refusal.
    """
    told = normalize_stop(word)
    behind = normalize_stop(native)
    # "stop" at a gateway may stand for a fault of the server behind it.
    if _says(told) in (None, StopReason.FINISHED) and _says(behind) not in (None, _says(told)):
        told, word = behind, native
    if (kind := FAULTS.get(told)) is not None:
        words = ", ".join(dict.fromkeys(filter(None, (word, native, detail))))
        raise kind(
            f"the server stopped the reply with an error: {words}", provider=provider, code=word
        )
    reason: str = STOP_REASONS.get(told, word if told else StopReason.FINISHED)
    if told in OVERFLOWS:
        reason = StopReason.LENGTH
    if reason == StopReason.FINISHED and called:
        reason = StopReason.INVOCATIONS
    if reason == StopReason.FINISHED and refused:
        reason = StopReason.REFUSED
    return ReplyClosed(reason, word, detail)


def _says(word: str) -> StopReason | type[ProviderError] | None:
    """Return the meaning of a word, or None."""
    if word in OVERFLOWS:
        return StopReason.LENGTH
    return STOP_REASONS.get(word) or FAULTS.get(word)


def is_overflow(native_reason: str) -> bool:
    """Return True if the word says that the context is full."""
    return normalize_stop(native_reason) in OVERFLOWS
