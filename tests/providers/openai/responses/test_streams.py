"""What comes otherwise than promised: marks of the other interface, halves of pairs, odd forms."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from tests.fakes.recordings import RESPONSES
from tests.fakes.strict import encode_event
from vibe_llms.base.exceptions import ProviderOverloaded, ReplyCut, ReplyMalformed
from vibe_llms.messages.canisters import AssistantCanister, StopReason
from vibe_llms.messages.contents import Citation, ReasoningContent, TextualContent
from vibe_llms.providers.openai.responses.citations import read_citation
from vibe_llms.providers.openai.responses.events import MEMBERS, Reader
from vibe_llms.testing.wires.responses_replies import message, reasoning, response, response_reply

FAILED = {"status": "failed", "error": {"message": "boom"}}


def escaped(body: Any) -> bytes:
    return json.dumps(body).encode()


def hear_whole(body: Any) -> AssistantCanister:
    (reply,), _ = RESPONSES.assimilate([escaped(body)], whole=True)
    assert isinstance(reply, AssistantCanister)
    return reply


def test_a_mark_of_chat_completions_does_no_harm() -> None:
    events = [*map(encode_event, response_reply(message("Hi")))]
    (reply,), _ = RESPONSES.assimilate([*events[:-1], b"data: [DONE]\n\n", events[-1]])
    assert getattr(reply, "text", "") == "Hi"


def test_lone_surrogates_in_a_whole_reply_are_replaced_and_what_held_them_is_not_kept() -> None:
    reply = hear_whole(response(reasoning("a \ud800"), message("b \udfff")))
    thought, text = reply.contents
    assert isinstance(thought, ReasoningContent)
    assert isinstance(text, TextualContent)
    assert (thought.text, text.text) == ("a \ufffd", "b \ufffd")
    assert thought.native is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"id": "r"}, "without a status"),
        ({"id": "r", "status": "queued"}, "whose status is 'queued'"),
        ({"id": "r", "status": "completed", "output": [7]}, "does not match its type"),
    ],
)
def test_a_whole_body_that_is_no_reply_is_malformed(body: Any, words: str) -> None:
    with pytest.raises(ReplyMalformed, match=words):
        hear_whole(body)


def test_an_output_that_is_no_list_is_missing() -> None:
    assert hear_whole({"id": "r", "status": "completed", "output": 5}).contents == ()


def test_an_error_in_place_of_a_whole_reply_is_raised() -> None:
    with pytest.raises(ProviderOverloaded, match="boom"):
        hear_whole({"error": {"message": "boom", "type": "server_error"}})
    with pytest.raises(ProviderOverloaded):
        hear_whole(response(status="failed"))


def test_events_of_a_newer_kind_are_passed_over_and_known_ones_must_be_whole() -> None:
    events = response_reply(message("Hi"))
    newer = {"type": "response.brand_new", "lone": "\ud800"}
    news = {"type": "response.notice", "message": "slow"}
    (reply,), _ = RESPONSES.assimilate([*map(encode_event, [newer, news, *events])])
    assert getattr(reply, "text", "") == "Hi"
    odd = {"type": "response.output_text.delta", "output_index": "first", "delta": 7}
    with pytest.raises(ReplyMalformed, match="expected form"):
        RESPONSES.assimilate([encode_event(odd)])
    with pytest.raises(ReplyMalformed, match="not the JSON"):
        RESPONSES.assimilate([b"data: {\n\n"])


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ({"reason": "max_output_tokens"}, StopReason.LENGTH),
        ({"reason": "content_filter"}, StopReason.REFUSED),
        ({"reason": "steered"}, "steered"),
        (None, "incomplete"),
    ],
)
def test_why_a_reply_is_incomplete_is_reported_in_our_words(reason: Any, expected: str) -> None:
    reply = hear_whole(response(message("Hi"), status="incomplete", incomplete_details=reason))
    assert reply.ending is not None
    assert reply.ending.reason == expected


@pytest.mark.parametrize(
    ("raw", "citation"),
    [
        (b'{"type":"url_citation","url":"u","title":"t"}', Citation(title="t", source="u")),
        (b'{"type":"file_citation","file_id":"f","filename":"n"}', Citation(title="n", source="f")),
        (b'{"type":"file_path","file_id":"f"}', None),
        (b'{"type":7}', None),
    ],
)
def test_an_annotation_is_a_source_where_it_names_one(
    raw: bytes, citation: Citation | None
) -> None:
    assert read_citation(Raw(raw)) == citation


def test_what_cannot_be_kept_is_malformed() -> None:
    reader = Reader("row")
    assert reader.members(Raw(b'{ "a": 1 }')) == {"a": Raw(b"1")}
    for raw in (b"\xff", b"{"):
        with pytest.raises(ReplyMalformed, match="row: unexpected data from the server"):
            reader.keep(Raw(raw))
    with pytest.raises(ReplyMalformed, match="does not match its type"):
        reader.read(MEMBERS, Raw(b"[1]"))


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"type": "server_error", "message": "boom"}},
        {"type": "error", "message": "boom", "code": "server_error"},
        {"type": "error", "error": {"message": "boom"}},
        {"type": "error", "error": "boom"},
        {"type": "response.error", "error": {"message": "boom"}},
        {"type": "response.failed", "error": {"message": "boom"}},
        {"type": "response.failed", "response": {"error": {"message": "boom"}}},
        {"type": "response.completed", "response": {"error": {"message": "boom"}}},
        {
            "type": "response.created",
            "response": {"status": "failed", "error": {"message": "boom"}},
        },
        {"type": "response.done", "response": {"status": "failed", "error": {"message": "boom"}}},
        {"object": "response", "status": "failed", "error": {"message": "boom"}},
    ],
)
def test_an_error_is_raised_wherever_it_is(event: dict[str, Any]) -> None:
    events = response_reply(message("Hi"))[:-1]
    with pytest.raises(ProviderOverloaded, match="boom"):
        RESPONSES.assimilate([*map(encode_event, [*events, event])])


@pytest.mark.parametrize(
    "end",
    [
        {"type": "response.completed"},
        {"type": "response.completed", "response": None},
        {"type": "response.completed", "response": {"usage": [], "output": None}},
        {
            "type": "response.done",
            "response": {"status": "completed", "usage": {"input_tokens": "7"}},
        },
        response(message("Hi")),
    ],
)
def test_the_end_of_a_reply_may_lack_what_is_not_needed(end: dict[str, Any]) -> None:
    events = response_reply(message("Hi"))[:-1]
    (reply,), _ = RESPONSES.assimilate([*map(encode_event, [*events, end])])
    assert getattr(reply, "text", "") == "Hi"


def test_a_reply_that_was_given_up_is_cut() -> None:
    events = response_reply(message("Hi"))[:-1]
    for end in (
        {"type": "response.cancelled", "response": {}},
        {"type": "response.completed", "response": {"status": "cancelled"}},
    ):
        with pytest.raises(ReplyCut, match="cancelled the reply"):
            RESPONSES.assimilate([*map(encode_event, [*events, end])])


def test_the_last_event_alone_is_the_whole_reply() -> None:
    (reply,), _ = RESPONSES.assimilate([encode_event(response_reply(message("Hi"))[-1])])
    assert getattr(reply, "text", "") == "Hi"
    assert reply.provenance is not None
    assert reply.provenance.response == "resp_1"
