"""What caches held of requests, and why they broke."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.caching import (
    CacheBreak,
    CacheMeter,
    RequestCaching,
    RequestHead,
    measure_caching,
    summarize_caching,
)
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    Ending,
    Provenance,
    SupervisorCanister,
    Usage,
    UserCanister,
)
from vibe_llms.messages.controls import Controls

BEGUN = datetime(2026, 11, 1, tzinfo=UTC)


def reply(paid: int, read: int = 0, *, model: str = "m", name: str = "r", **usage: int) -> Any:
    counted = Usage(uncached_input_tokens=paid, cache_read_tokens=read, **usage)
    return AssistantCanister(
        reply=name, provenance=Provenance("", "row", model), ending=Ending("finished", counted)
    )


def asked(seconds: float = 0) -> UserCanister:
    return UserCanister(created=BEGUN + timedelta(seconds=seconds))


def measure(*canisters: Canister) -> list[RequestCaching]:
    return [*measure_caching(canisters)]


def test_a_request_pays_for_what_is_new_if_the_cache_works() -> None:
    first, second = measure(asked(), reply(20_000), asked(9), reply(3_000, 20_000))
    assert (first.new_tokens, first.paid_tokens, first.reason) == (20_000, 20_000, "")
    assert (second.new_tokens, second.paid_tokens, second.read_tokens) == (3_000, 3_000, 20_000)
    assert (second.rewrite_factor, second.reason, second.model) == (1, "", "row/m")


def test_what_is_written_to_the_cache_is_paid() -> None:
    written = reply(10, 20_000, cache_write_tokens=2_990)
    *_, second = measure(asked(), reply(20_000), asked(9), written)
    assert second.paid_tokens == 3_000


DIGEST = DigestCanister(first="a", last="c", shortened={"d": "…"})
#: What pinning a message before, and after, it was summarized appends.
PINNED = DigestCanister(pinned=("b",))
BACK = replace(DIGEST, identity="back", kept=("b",), pinned=("b",))
WARM = [asked(), reply(20_000), asked(9), reply(3_000, 20_000)]


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ([asked(300), reply(24_000)], CacheBreak.UNKNOWN),
        ([asked(310), reply(24_000)], CacheBreak.EXPIRED),
        ([asked(310), reply(1_000, 23_000)], ""),
        ([asked(20), reply(24_000, model="other")], CacheBreak.MODEL),
        ([asked(9_000), reply(24_000, model="other")], CacheBreak.MODEL),
        ([DIGEST, asked(20), reply(9_000)], CacheBreak.COMPACTED),
        ([PINNED, asked(20), reply(24_000)], CacheBreak.UNKNOWN),
        ([PINNED, asked(310), reply(24_000)], CacheBreak.EXPIRED),
        ([DIGEST, BACK, asked(20), reply(9_000)], CacheBreak.COMPACTED),
        ([DIGEST, asked(20), reply(9_000), BACK, asked(20), reply(9_000)], CacheBreak.PINNED),
        # Blocks of a cache, and small sums.
        ([asked(20), reply(2_900, 21_100)], ""),
        ([asked(20), reply(3_100, 20_900)], CacheBreak.UNKNOWN),
    ],
)
def test_a_break_has_a_reason(later: list[Canister], reason: str) -> None:
    assert measure(*WARM, *later)[-1].reason == reason


def test_a_large_request_may_pay_a_share_of_it_again() -> None:
    said = [asked(), reply(200_000), asked(9), reply(9_000, 191_500)]
    assert measure(*said)[-1].reason == ""
    assert measure(*said[:3], reply(11_000, 189_500))[-1].reason == CacheBreak.UNKNOWN


def test_a_model_that_reports_no_cache_has_no_breaks() -> None:
    requests = measure(asked(), reply(20_000), asked(9), reply(23_000), asked(900), reply(25_000))
    assert [one.reason for one in requests] == ["", "", ""]


def test_a_model_that_comes_back_finds_its_cache() -> None:
    back = [asked(20), reply(24_000, model="other"), asked(30), reply(2_000, 23_000)]
    assert [one.reason for one in measure(*WARM, *back)] == ["", "", "model", ""]


def test_replies_without_a_usage_are_left_out() -> None:
    bare = AssistantCanister.from_text("by a program")
    interrupted = AssistantCanister(
        provenance=Provenance("", "row", "m"), ending=Ending("interrupted", interrupted=True)
    )
    nothing = AssistantCanister(provenance=Provenance("", "row", "m"), ending=Ending("", Usage()))
    assert measure(bare, interrupted, nothing) == []
    assert measure(reply(5))[0].new_tokens == 5


def peek() -> str:
    """Look."""
    return ""


PEEK = Invoker.from_function(peek)
SYSTEM = SupervisorCanister.from_text("Be brief.")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (RequestHead.of([SYSTEM, asked()], [PEEK], Controls()), CacheBreak.UNEXPECTED),
        (RequestHead.of([SYSTEM], [PEEK], Controls()), CacheBreak.UNEXPECTED),
        (RequestHead.of([SYSTEM, asked()], [], Controls()), CacheBreak.TOOLS),
        (
            RequestHead.of([SYSTEM, asked()], [Invoker.from_function(peek)], Controls()),
            CacheBreak.TOOLS,
        ),
        (RequestHead.of([asked()], [PEEK], Controls()), CacheBreak.INSTRUCTIONS),
        (RequestHead.of([SYSTEM, asked()], [PEEK], Controls(effort="low")), CacheBreak.CONTROLS),
        (RequestHead.of([SYSTEM, asked()], [PEEK], Controls(), DIGEST), CacheBreak.COMPACTED),
        (RequestHead.of([SYSTEM, asked()], [PEEK], Controls(), PINNED), CacheBreak.UNEXPECTED),
        (RequestHead.of([SYSTEM, asked()], [], Controls(), PINNED), CacheBreak.TOOLS),
        (None, CacheBreak.UNKNOWN),
    ],
)
def test_the_head_of_a_request_explains_a_break(head: RequestHead | None, reason: str) -> None:
    meter = CacheMeter()
    before = RequestHead.of([SYSTEM, asked()], [PEEK], Controls())
    meter.measure(reply(20_000, cache_write_tokens=1), BEGUN, before)
    later = BEGUN + timedelta(seconds=9)
    measured = meter.measure(reply(23_000), later, head)
    assert measured is not None
    assert measured.reason == reason
    # A change that breaks nothing is not mentioned.
    again = meter.measure(reply(1_000, 23_000), later)
    assert again is not None
    assert again.reason == ""


def test_known_reasons_replace_those_that_messages_do_not_tell() -> None:
    said = [*WARM, asked(20), reply(24_000, name="x")]
    (*_, unknown) = measure(*said)
    known = {"x": RequestCaching("x", "row/m", 1, 1, 1, 0, CacheBreak.TOOLS)}
    (*_, last) = measure_caching(said, known)
    assert (unknown.reason, last.reason) == (CacheBreak.UNKNOWN, CacheBreak.TOOLS)
    assert last.input_tokens == 24_000


def test_a_meter_keeps_the_last_reports() -> None:
    meter = CacheMeter()
    for number in range(2_500):
        meter.measure(reply(number + 1, name=f"r{number}"), BEGUN)
    assert len(meter.reports) == 1_000
    assert list(meter.reports)[-1] == "r2499"


def test_requests_are_summed() -> None:
    summary = summarize_caching(
        measure(*WARM, asked(400), reply(24_000), asked(800), reply(25_000))
    )
    assert (summary.requests, summary.new_tokens, summary.paid_tokens) == (4, 25_000, 72_000)
    assert summary.breaks == {"expired": 2}
    assert round(summary.rewrite_factor, 2) == 2.88
    assert summarize_caching([]).rewrite_factor == 0
