"""How large a prompt is, how large a context to ask for, and whether the server cut the prompt.

Ollama has no counting, and servers that do not know `truncate: false` drop the beginning of what is
too long and answer as if nothing had happened. So the prompt is measured here, and what the server
says it has read is compared with that.

There are two ways of counting. Servers from 0.33.3 on say how much came from their cache, and
their count is of the whole prompt. Older ones do not say it, and some of them (before 0.2, and
0.30.0) counted only what was not cached: there a small count alone proves nothing.

Source: `server/prompt.go`, `llm/llama_server.go` of the server; its pull requests 5371, 16428 and
17943.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from vibe_llms.providers.token_estimates import Measure

#: The smallest context that is asked for, and what is kept free in it for a reply.
SMALLEST_CONTEXT = 8_192
REPLY_TOKENS = 4_096
REASONED_REPLY_TOKENS = 8_192
#: What a template puts around a message at least and at most, and what it may do without.
_MESSAGE_TOKENS = 8
SLACK_TOKENS = 64
# The smallest encoders of pictures give 64 tokens, most of them 256 to 1,024.
_PICTURE_LIKELY, _PICTURE_AMPLE = 64, 2_048
# How far an estimate may be off before a gap counts as proof.
_BEYOND, _GAP, _NEAR = 1.25, 0.75, 0.9
# A full context is reported as its size; more says that the server has a larger one.
_FULL_MARGIN = 8

Verdict: TypeAlias = Literal["whole", "doubtful", "cut"]


PICTURE = Measure(0, _PICTURE_LIKELY, _PICTURE_AMPLE)
MESSAGE = Measure(0, _MESSAGE_TOKENS // 2, _MESSAGE_TOKENS)


class Anchor(Struct, frozen=True):
    """What the server said of an earlier, shorter prompt of the same conversation.

    `reported` is its number of tokens, `measure` and `hidden` what we took it for, without and with
    nothing but reasoning.
    """

    reported: int
    measure: Measure
    hidden: Measure

    def raise_by(self, measure: Measure, hidden: Measure) -> Measure:
        """The measure of the prompt that the earlier one has grown to, far better than a guess.

        Reasoning that was part of the earlier prompt may be left out of this one.
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
    """The `num_ctx` to send: fixed by the row, else a power of two that holds prompt and reply.

    It grows with the conversation up to the model's context, since a larger one takes memory and
    makes the server load the model again, and for the same reason it never shrinks below what was
    asked for `before`. `None` leaves it to the server.
    """
    if fixed is not None:
        return fixed or None
    window = before or SMALLEST_CONTEXT
    while window < measure.ample + reply_tokens and window < (context_tokens or window + 1):
        window *= 2
    return min(window, context_tokens) if context_tokens else window


def exceeds(window: int | None, reported: int | None) -> bool:
    """Whether the server has read more than the context that was asked for has room for.

    Then it has a larger one whatever it is asked for, as hosted servers do.
    """
    return window is not None and reported is not None and reported > window + _FULL_MARGIN


def judge(
    measure: Measure, window: int | None, reported: int | None, cached: int | None
) -> Verdict:
    """Whether the prompt was read whole, from the number of tokens that the server reports.

    `reported` is `prompt_eval_count`, `cached` `prompt_eval_cached_count`; both may be missing.
    """
    crowded = window is not None and measure.likely > window
    if not reported:
        return "doubtful" if crowded else "whole"
    if window is not None and reported >= window and not exceeds(window, reported):
        return "cut"
    if reported < measure.least:
        # Cut, or the server does not count what it had cached.
        return "cut" if cached is not None or crowded else "doubtful"
    if window is None or exceeds(window, reported):
        return "whole"
    if measure.likely > window * _BEYOND and reported < measure.likely * _GAP:
        return "cut"
    near = cached is None and measure.likely > window * _NEAR
    return "doubtful" if near and reported < measure.likely else "whole"
