"""Gemini's chunks: ends, blocks, errors, and what servers that imitate it send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.fakes.gemini import FakeGemini, stream_bytes
from tests.fakes.gemini_clients import produce_model
from tests.fakes.recordings import GEMINI
from tests.fakes.strict import encode_event
from vibe_llms.base.exceptions import (
    CredentialRefused,
    ProviderOverloaded,
    RateLimited,
    ReplyCut,
    ReplyMalformed,
)
from vibe_llms.messages.canisters import ReplyCanister, StopReason, Usage, UserCanister
from vibe_llms.messages.contents import ImageContent, NativeContent
from vibe_llms.messages.events import Notice
from vibe_llms.providers import round_trip
from vibe_llms.providers.gemini.streams import GeminiAssimilator
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.testing.wires.gemini_replies import call, chunk, reply, text, usage

HI = [UserCanister.from_text("Hi")]


def encode(*events: Mapping[str, Any]) -> bytes:
    return b"".join(map(encode_event, events))


def assimilate(*events: Mapping[str, Any]) -> tuple[ReplyCanister, ...]:
    return GEMINI.assimilate([encode(*events)])[0]


def contents_of(canister: Any) -> list[Any]:
    return list(canister.contents)


def ending_of(canisters: Sequence[ReplyCanister]) -> Any:
    return canisters[-1].ending


def test_a_reason_for_stopping_is_never_a_silent_success() -> None:
    from google.genai.types import FinishReason

    good = {"STOP": StopReason.FINISHED}
    short = dict.fromkeys(("MAX_TOKENS", "CONTINUATION"), StopReason.LENGTH)
    refused = dict.fromkeys(
        (
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
            *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR"),
            *("ESCALATION", "PUP_LIMITED_DISABLED"),
        ),
        StopReason.REFUSED,
    )
    broken = {
        *("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "IMAGE_OTHER"),
        *("MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE", "NO_IMAGE"),
    }
    for word in (one.value for one in FinishReason):
        said = [chunk(text("Well")), chunk(finish=word)]
        if word in broken:
            with pytest.raises(ReplyCut, match=word):
                assimilate(*said)
        elif word == "FINISH_REASON_UNSPECIFIED":
            with pytest.raises(ReplyCut, match="before the reply was complete"):
                assimilate(*said)
        else:
            # An unknown reason is passed on as it is, and a notice names it.
            expected = {**good, **short, **refused}.get(word, word)
            assert ending_of(assimilate(*said)).reason == expected
    assert {*good, *short, *refused, *broken} < {one.value for one in FinishReason}


@pytest.mark.parametrize("reason", ["OTHER", "SAFETY"])
async def test_a_reply_without_words_is_an_error_or_a_refusal(
    reason: str, fake_gemini: FakeGemini
) -> None:
    model = await produce_model(fake_gemini.url)
    fake_gemini.replies = [[chunk(finish=reason)]]
    if reason == "OTHER":
        with pytest.raises(ReplyCut, match="empty"):
            await model.converse(HI)
    else:
        (said,) = await model.converse(HI)
        assert said.ending is not None
        assert said.ending.reason == StopReason.REFUSED
    await model.client.close()


async def test_a_signature_alone_is_no_answer(fake_gemini: FakeGemini) -> None:
    model = await produce_model(fake_gemini.url)
    fake_gemini.replies = [
        reply(chunk(text("", "U0lH"))),
        reply(chunk({"thoughtSignature": "U0lH"})),
    ]
    for _ in range(2):
        with pytest.raises(ReplyCut, match="empty"):
            await model.converse(HI)
    notices: list[Notice] = []
    thought = chunk(text("Hm.", thought=True))
    fake_gemini.replies = [reply(thought, chunk(text("", "U0lH")))]
    await model.converse(HI, context=TurnContext(notify=notices.append))
    assert any("only reasoning and no answer" in notice.text for notice in notices)
    await model.client.close()


def test_a_blocked_prompt_is_a_refusal_with_its_reason() -> None:
    feedback = {"blockReason": "SAFETY", "blockReasonMessage": "It is about bombs."}
    ending = ending_of(assimilate({"promptFeedback": feedback, "usageMetadata": usage(0)}))
    assert (ending.reason, ending.native_reason) == (StopReason.REFUSED, "SAFETY")
    assert ending.detail == "It is about bombs."
    with pytest.raises(ReplyCut):
        assimilate({"promptFeedback": {}, "usageMetadata": usage(0)})


def test_a_refusal_without_an_explanation_has_googles_word_for_it() -> None:
    ending = ending_of(assimilate(chunk(finish="BLOCKLIST")))
    assert (ending.reason, ending.detail) == (StopReason.REFUSED, "BLOCKLIST")
    assert "PROHIBITED_CONTENT" in ending_of(GEMINI.whole("blocked")[0]).detail


def test_the_finish_message_is_the_detail() -> None:
    ending = ending_of(GEMINI.whole("refusal")[0])
    assert (ending.native_reason, ending.detail) == ("SAFETY", "It is dangerous.")


def test_the_words_after_a_finish_reason_are_read() -> None:
    # Old models of Google's, and translators of other formats, write it on every chunk.
    early = [chunk(text(""), finish="STOP"), chunk(text("One "), finish="STOP")]
    (said,) = assimilate(*early, *reply(chunk(text("two."))))
    assert getattr(said, "text", "") == "One two."
    assert ending_of([said]).usage == Usage(9, output_tokens=5)


async def test_words_that_come_late_after_a_finish_reason_are_read(
    fake_gemini: FakeGemini, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_trip, "DRAIN_SECONDS", 0.2)
    chunks = [
        encode(chunk(text("One "), finish="STOP")),
        *(encode(chunk(text("more "))) for _ in range(4)),
        encode(*reply(chunk(text("last.")))),
    ]
    fake_gemini.replies = [stream_bytes(chunks, pause=0.1)]
    model = await produce_model(fake_gemini.url)
    (said,) = await model.converse(HI)
    assert getattr(said, "text", "") == "One more more more more last."
    await model.client.close()


def test_a_stream_without_a_finish_reason_is_cut() -> None:
    with pytest.raises(ReplyCut):
        assimilate(chunk(text("Well")), {"usageMetadata": usage(3)})


@pytest.mark.parametrize("framed", [True, False])
async def test_an_error_within_the_stream_is_its_error(
    framed: bool, fake_gemini: FakeGemini
) -> None:
    errors: Mapping[str, tuple[int, type[Exception]]] = {
        "UNAVAILABLE": (503, ProviderOverloaded),
        "RESOURCE_EXHAUSTED": (429, RateLimited),
        "PERMISSION_DENIED": (403, CredentialRefused),
    }
    model = await produce_model(fake_gemini.url)
    for word, (code, kind) in errors.items():
        error = {"error": {"code": code, "message": "high demand", "status": word}}
        for late in (error, [error]):
            data = json.dumps(late, indent=2).encode()
            tail = b"data: " + json.dumps(late).encode() + b"\n\n" if framed else data
            fake_gemini.replies = [stream_bytes([encode(chunk(text("Well"))), tail])]
            with pytest.raises(kind, match="high demand"):
                await model.converse(HI)
    await model.client.close()


def test_chunks_in_a_list_are_read_as_a_stream() -> None:
    # Without `alt=sse`, which some gateways lose.
    body = json.dumps(GEMINI.events("tools"), indent=1).encode()
    canisters, _ = GEMINI.assimilate([body], whole=True)
    assert GEMINI.read_canisters(canisters) == GEMINI.read_officially("tools")
    streamed, _ = GEMINI.assimilate([body[at : at + 7] for at in range(0, len(body), 7)])
    assert GEMINI.read_canisters(streamed) == GEMINI.read_officially("tools")


def test_a_call_may_lack_arguments_or_have_them_as_text() -> None:
    made: Any = assimilate(
        chunk({"functionCall": {"name": "now"}}),
        chunk({"functionCall": {"name": "look", "args": '{"at": 1}'}}),
        *reply(chunk({"functionCall": {"name": "see", "args": None, "extra": 1}})),
    )
    assert [(one.name, one.parsed) for one in made] == [
        ("now", {}),
        ("look", {"at": 1}),
        ("see", {}),
    ]
    assert b"extra" in bytes(made[-1].native.data)
    wrong: list[dict[str, Any]] = [{"args": {}}, {"name": 3, "args": {}}, {"name": ""}]
    for bad in wrong:
        with pytest.raises(ReplyMalformed):
            assimilate(*reply(chunk({"functionCall": bad})))


def test_pictures_in_both_alphabets_of_base64_and_without_padding_are_read() -> None:
    for data in ("_-8=", "/+8", "/+8="):
        blob = {"inlineData": {"mimeType": "image/png", "data": data}}
        (said,) = assimilate(*reply(chunk(blob)))
        (content,) = contents_of(said)
        assert isinstance(content, ImageContent)
        assert content.data == b"\xff\xef"
    with pytest.raises(ReplyMalformed, match="inline data"):
        assimilate(*reply(chunk({"inlineData": {"mimeType": "image/png", "data": "!"}})))


def test_sources_are_cited_and_the_metadata_kept() -> None:
    (said,) = GEMINI.whole("grounding")[0]
    words, *metadata = contents_of(said)
    assert [(one.source, one.title, one.quote, one.start) for one in words.citations] == [
        ("https://example.org/a", "example.org", "", None),
        ("https://example.org/b", "Paper", "as shown", 3),
        ("https://example.org/c", "", "", None),
    ]
    assert all(isinstance(one, NativeContent) for one in metadata)
    assert [one.label for one in metadata] == ["groundingMetadata", "citationMetadata"]
    assert b"renderedContent" in bytes(metadata[0].native.data)


def test_cached_and_thought_tokens_are_counted_apart() -> None:
    assert ending_of(GEMINI.whole("late")[0]).usage == Usage(500, 1500, 0, 5, 7)


def test_no_more_than_two_updates_of_the_usage_are_sent() -> None:
    chunks = [chunk(text("word ")) for _ in range(50)]
    assimilator = GeminiAssimilator("gemini", str)
    deltas = [*assimilator.feed(encode(*reply(*chunks))), *assimilator.conclude()]
    assert sum(type(one).__name__ == "UsageDelta" for one in deltas) == 2


async def test_a_connection_that_stays_open_after_the_end_is_not_waited_for(
    fake_gemini: FakeGemini,
) -> None:
    raw = encode(*reply(chunk(call("now", {}, "a", "U0lH"))))
    fake_gemini.replies = [stream_bytes([raw], stall=len(raw))]
    model = await produce_model(fake_gemini.url)
    async with asyncio.timeout(5):
        (made,) = await model.converse(HI)
    assert getattr(made, "call", "") == "a"
    await model.client.close()
