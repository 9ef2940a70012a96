"""Sizes of prompts and contexts, and detection of prompts that the server cut.

Ollama cannot count tokens, and servers that do not know `truncate: false` drop the beginning of a
long prompt and answer normally. So the prompt is measured here and compared with the number of
tokens that the server reports.

Servers from 0.33.3 on report the tokens from their cache, and count the whole prompt. Older ones do
not report them, and some (before 0.2, and 0.30.0) count only the uncached tokens, so that a small
count alone proves nothing.

Source: `server/prompt.go`, `llm/llama_server.go` of the server; its pull requests 5371, 16428 and
17943.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from vibe_llms.providers.token_estimates import Measure

#: Smallest context that is requested, and the part of it reserved for a reply, in tokens.
SMALLEST_CONTEXT = 8_192
REPLY_TOKENS = 4_096
REASONED_REPLY_TOKENS = 8_192
#: Most tokens that a template adds to a message, and tokens that it may leave out.
_MESSAGE_TOKENS = 8
SLACK_TOKENS = 64
# The smallest picture encoders give 64 tokens, most of them 256 to 1,024.
_PICTURE_LIKELY, _PICTURE_AMPLE = 64, 2_048
# Errors of an estimate that are accepted before a gap counts as proof.
_BEYOND, _GAP, _NEAR = 1.25, 0.75, 0.9
# A full context is reported as its size; a larger number means a larger context.
_FULL_MARGIN = 8

Verdict: TypeAlias = Literal["whole", "doubtful", "cut"]


PICTURE = Measure(0, _PICTURE_LIKELY, _PICTURE_AMPLE)
MESSAGE = Measure(0, _MESSAGE_TOKENS // 2, _MESSAGE_TOKENS)


class Anchor(Struct, frozen=True):
    """Reported size of an earlier, shorter prompt of the same conversation, in tokens.

    `measure` is our estimate of that prompt without reasoning, `hidden` that of its reasoning.
    """

    reported: int
    measure: Measure
    hidden: Measure

    def raise_by(self, measure: Measure, hidden: Measure) -> Measure:
        """Return the measure of the longer prompt, which is more exact than an estimate.

        Reasoning of the earlier prompt may be left out of this one.
        """
        grown = measure - self.measure
        kept = max(self.reported - self.hidden.ample, 0)
        least = max(kept - SLACK_TOKENS, 0) + grown.least
        return Measure(
            max(least, measure.least),
            max(kept + grown.likely, measure.least),
            self.reported + grown.ample + (hidden - self.hidden).ample,
        )


def choose_window(
    measure: Measure,
    context_tokens: int | None,
    reply_tokens: int,
    fixed: int | None,
    before: int | None = None,
) -> int | None:
    """Return the `num_ctx` to send: the row's, or a power of two that holds prompt and reply.

    It grows with the conversation up to the model's context, because a larger context takes memory
    and makes the server reload the model. For the same reason it never shrinks below `before`, the
    previous value. None leaves it to the server.
    """
    if fixed is not None:
        return fixed or None
    window = before or SMALLEST_CONTEXT
    while window < measure.ample + reply_tokens and window < (context_tokens or window + 1):
        window *= 2
    return min(window, context_tokens) if context_tokens else window


def exceeds(window: int | None, reported: int | None) -> bool:
    """Return True if the server has read more tokens than the requested context holds.

    Its context is then larger regardless of the request, as with hosted servers.
    """
    return window is not None and reported is not None and reported > window + _FULL_MARGIN


def judge(
    measure: Measure, window: int | None, reported: int | None, cached: int | None
) -> Verdict:
    """Judge whether the server read the whole prompt, by the number of tokens that it reports.

    `reported` is `prompt_eval_count` and `cached` is `prompt_eval_cached_count`; both may be
    missing.
    """
    crowded = window is not None and measure.likely > window
    if not reported:
        return "doubtful" if crowded else "whole"
    if window is not None and reported >= window and not exceeds(window, reported):
        return "cut"
    if reported < measure.least:
        # The prompt was cut, or the server does not count cached tokens.
        return "cut" if cached is not None or crowded else "doubtful"
    if window is None or exceeds(window, reported):
        return "whole"
    if measure.likely > window * _BEYOND and reported < measure.likely * _GAP:
        return "cut"
    near = cached is None and measure.likely > window * _NEAR
    return "doubtful" if near and reported < measure.likely else "whole"
