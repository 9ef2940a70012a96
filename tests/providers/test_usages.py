"""Usage that no provider can mean: negative counts, and counts beyond any context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from vibe_llms.messages.canisters import Provenance, Usage
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.anthropic import streams as anthropic
from vibe_llms.providers.deltas import Delta, ReplyClosed, UsageDelta
from vibe_llms.providers.ollama import streams as ollama
from vibe_llms.providers.openai.chat_completions import chunks
from vibe_llms.providers.openai.responses import events
from vibe_llms.providers.openai.responses.streams import _read_usage
from vibe_llms.providers.usages import MOST_TOKENS, check_usage


def read_chat(prompt: int, cached: int, output: int, reasoning: int) -> Usage:
    return chunks.read_usage(
        chunks.ChatUsage(
            prompt_tokens=prompt,
            completion_tokens=output,
            prompt_tokens_details=chunks.PromptDetails(cached_tokens=cached),
            completion_tokens_details=chunks.CompletionDetails(reasoning_tokens=reasoning),
        )
    )


def read_responses(prompt: int, cached: int, output: int, reasoning: int) -> Usage:
    return _read_usage(
        events.ResponseUsage(
            input_tokens=prompt,
            output_tokens=output,
            input_tokens_details=events.InputDetails(cached_tokens=cached),
            output_tokens_details=events.OutputDetails(reasoning_tokens=reasoning),
        )
    )


def usage_in(deltas: Sequence[Delta]) -> Usage:
    return [one.usage for one in deltas if isinstance(one, UsageDelta)][-1]


def read_messages(prompt: int, cached: int, output: int, reasoning: int) -> Usage:
    usage = {
        "input_tokens": prompt if prompt < 0 else prompt - max(cached, 0),
        "cache_read_input_tokens": cached,
        "output_tokens": output,
        "output_tokens_details": {"thinking_tokens": reasoning},
    }
    message = {
        "type": "message",
        "id": "one",
        "content": [{"type": "text", "text": "Yes."}],
        "stop_reason": "end_turn",
        "usage": usage,
    }
    reader = anthropic.AnthropicAssimilator("row", str)
    return usage_in([*reader.assimilate(msgspec.json.encode(message))])


def read_ollama(prompt: int, cached: int, output: int, reasoning: int) -> Usage:
    line = {
        "message": {"role": "assistant", "content": "Yes."},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": prompt,
        "prompt_eval_cached_count": cached,
        "eval_count": output,
    }
    reader = ollama.OllamaAssimilator("row", str)
    return usage_in([*reader.assimilate(msgspec.json.encode(line))])


READERS = [read_chat, read_responses, read_messages, read_ollama]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("counts", "total"),
    [
        ((100, 0, 50, -50_000), 150),
        ((100, -50_000, 50, 0), 150),
        ((-100, 0, 50, 0), 50),
        ((100, 0, -50, 0), 100),
        ((100, 40, 50, 0), 150),
    ],
)
def test_a_negative_count_of_any_dialect_counts_as_0_and_changes_no_other(
    read: Callable[..., Usage], counts: tuple[int, ...], total: int
) -> None:
    found, wrong = check_usage(read(*counts))
    assert found is not None
    assert min(getattr(found, name) for name in found.__struct_fields__) >= 0
    assert found.total_tokens == total
    if read is not read_ollama or counts[3] == 0:
        assert bool(wrong) == (min(counts) < 0)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("count", [MOST_TOKENS + 1, 2**62, 2**63, 10**400])
def test_a_count_beyond_any_context_makes_the_usage_unknown(
    read: Callable[..., Usage], count: int
) -> None:
    assert check_usage(read(100, 0, count, 0))[0] is None
    assert check_usage(read(count, 0, 50, 0))[0] is None


def test_the_accumulator_bounds_what_any_provider_reports_and_says_so_once() -> None:
    seen: list[Event] = []
    with Accumulator(Provenance("module", "row", "model"), seen.append) as accumulator:
        for _ in range(3):
            accumulator.accept(UsageDelta(Usage(100, output_tokens=50, reasoning_tokens=-50_000)))
        assert accumulator.usage == Usage(100, output_tokens=50)
        accumulator.accept(UsageDelta(Usage(2**63)))
        assert accumulator.usage is None
        accumulator.accept(ReplyClosed("finished"))
    notices = [one.notice.text for one in seen if isinstance(one, NoticeEvent)]
    assert notices == [
        "row: the provider reports a usage below 0, which counts as 0 (reasoning_tokens: -5e+04)"
    ]
