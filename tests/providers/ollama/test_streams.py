"""Recorded streams, read by the official package and by us, however they are cut into chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import ollama
import pytest

from tests.fakes.ollama import FakeOllama, encode_line, stream_bytes
from tests.fakes.ollama_clients import produce_model
from tests.fakes.recordings import OLLAMA, strip
from vibe_llms.base.exceptions import (
    ContextOverflow,
    ModelUnavailable,
    ProviderError,
    ProviderOverloaded,
    ReplyMalformed,
)
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    StopReason,
    UserCanister,
)
from vibe_llms.providers.wire import EventTooLarge, LineSplitter
from vibe_llms.testing import check_events
from vibe_llms.testing.wires.ollama_replies import MODEL, call, end, line


@pytest.mark.parametrize("name", OLLAMA.names)
def test_a_stream_that_comes_as_one_body_is_read_as_well(name: str) -> None:
    whole, _ = OLLAMA.assimilate([OLLAMA.load(name)], whole=True)
    assert strip(whole) == strip(OLLAMA.assimilate([OLLAMA.load(name)])[0])


# The official client takes an empty line for no JSON, and U+0085 for the end of a line. An empty
# reply is an error.
_OTHERWISE = ("bare", "unicode", "empty", "load")


@pytest.mark.parametrize("name", [name for name in OLLAMA.names if name not in _OTHERWISE])
async def test_the_official_client_reads_the_same_from_a_server(
    name: str, fake_ollama: FakeOllama
) -> None:
    fake_ollama.replies = [stream_bytes([OLLAMA.load(name)]), stream_bytes([OLLAMA.load(name)])]
    model = await produce_model(fake_ollama.url)
    ours = await model.converse([UserCanister.from_text("Hi")])
    client = ollama.AsyncClient(host=fake_ollama.url)
    lines = await client.chat(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    official = [part.model_dump(exclude_unset=True) async for part in lines]
    assert OLLAMA.read_canisters(ours) == OLLAMA.read_lines(official)
    await client.close()  # type: ignore[no-untyped-call]
    await model.client.close()


@pytest.mark.parametrize(
    ("name", "reason", "native"),
    [
        ("text", StopReason.FINISHED, "stop"),
        ("tools", StopReason.INVOCATIONS, "stop"),
        ("older", StopReason.INVOCATIONS, ""),
        ("length", StopReason.LENGTH, "length"),
        ("load", StopReason.FINISHED, "load"),
        ("unknown", "brand_new_reason", "brand_new_reason"),
    ],
)
def test_why_a_reply_ended_is_reported_in_our_words(name: str, reason: str, native: str) -> None:
    ending = OLLAMA.assimilate([OLLAMA.load(name)])[0][-1].ending
    assert ending is not None
    assert (ending.reason, ending.native_reason) == (reason, native)


def test_a_reply_with_no_content_is_a_message_with_no_content() -> None:
    (canister,), _ = OLLAMA.assimilate([OLLAMA.load("empty")])
    assert isinstance(canister, AssistantCanister)
    assert canister.contents == ()


def test_calls_without_identities_are_distinguished_by_ours() -> None:
    canisters, _ = OLLAMA.assimilate([OLLAMA.load("older")])
    calls = [canister for canister in canisters if isinstance(canister, InvocationCanister)]
    assert [(one.call, one.parsed) for one in calls] == [
        ("", {"city": "Paris"}),
        ("", {"city": "Rome"}),
    ]
    assert len({one.identity for one in calls}) == 2


def test_what_a_call_has_besides_is_kept_for_its_model() -> None:
    canisters, _ = OLLAMA.assimilate([OLLAMA.load("unknown")])
    (call_,) = [canister for canister in canisters if isinstance(canister, InvocationCanister)]
    assert call_.native is not None
    assert json.loads(bytes(call_.native.data)) == {"signature": "SIG=="}


def read(*lines: Any) -> Any:
    """The canisters of lines that any encoder might have written."""
    raw = b"".join(json.dumps(one).encode() + b"\n" for one in lines)
    canisters, events = OLLAMA.assimilate([raw])
    check_events(events, turn=False)
    return canisters


def test_lone_surrogates_are_replaced_and_pairs_in_two_lines_joined() -> None:
    (canister,) = read(line("a\ud83d"), line("\ude00b"), line("\ud83d"), line("c"), end())
    assert canister.text == "a😀b\ufffdc"
    (canister,) = read(line("", thinking="x\ud83d"), line("y\ud83d"), end())
    assert [content.text for content in canister.contents] == ["x\ufffd", "y\ufffd"]


def test_lone_surrogates_in_a_call_are_replaced() -> None:
    (canister,) = read(line(tool_calls=[call("t\ud83d", {"a\ude00": ["\ud83d"]}, "\ude00")]), end())
    assert isinstance(canister, InvocationCanister)
    assert (canister.name, canister.call) == ("t\ufffd", "\ufffd")
    assert canister.parsed == {"a\ufffd": ["\ufffd"]}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(None, "{}"), ('{"a": 1}', '{"a": 1}'), ({"a": 1}, '{"a":1}'), ([1], "[1]"), ("{", "{")],
)
def test_arguments_in_other_forms_are_taken_as_they_are(arguments: Any, text: str) -> None:
    (canister,) = read(line(tool_calls=[call("t", arguments)]), end())
    assert canister.arguments == text


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("an error was encountered while running the model", ProviderOverloaded),
        ("model 'x' not found", ModelUnavailable),
        ("the request exceeds the available context size, try increasing it", ContextOverflow),
        ({"message": "odd"}, ProviderOverloaded),
    ],
)
def test_an_error_within_a_stream_is_raised(words: Any, kind: type[ProviderError]) -> None:
    raw = encode_line(line("par")) + encode_line({"error": words})
    with pytest.raises(kind):
        OLLAMA.assimilate([raw])
    with pytest.raises(kind):
        OLLAMA.assimilate([encode_line({"error": words})], whole=True)


@pytest.mark.parametrize(
    "raw",
    [
        b"{\n",
        b"[]\n",
        b'{"message":7}\n',
        b'{"message":{"content":7}}\n',
        b'{"message":{"tool_calls":[7]}}\n',
        b'{"message":{"tool_calls":[{}]}}\n',
        b'{"message":{"tool_calls":[{"function":7}]}}\n',
        b'{"message":{"tool_calls":[{"id":[],"function":{"name":"a"}}]}}\n',
        b'{"done":NaN}\n',
        b'{"message":' + b"[" * 100_000 + b"\n",
        b"\xff\n",
    ],
)
def test_what_the_interface_does_not_promise_is_malformed(raw: bytes) -> None:
    with pytest.raises(ReplyMalformed):
        OLLAMA.assimilate([raw])
    with pytest.raises(ReplyMalformed):
        OLLAMA.assimilate([raw], whole=True)


@pytest.mark.parametrize("nothing", ["", {}, [], False, None])
def test_an_error_that_says_nothing_is_none(nothing: Any) -> None:
    (canister,) = read({**line("Hi"), "error": nothing}, end())
    assert canister.text == "Hi"


def test_a_whole_reply_that_is_not_done_is_malformed() -> None:
    with pytest.raises(ReplyMalformed):
        OLLAMA.assimilate([encode_line(line("Hi"))], whole=True)


def test_a_line_without_end_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def feed(self: LineSplitter, chunk: bytes) -> Sequence[bytes]:
        raise EventTooLarge("one line has more than 64 bytes")

    monkeypatch.setattr(LineSplitter, "feed", feed)
    with pytest.raises(ReplyMalformed, match="64 bytes"):
        OLLAMA.assimilate([b"x"])


@pytest.mark.parametrize(
    "given",
    [
        {"id": 7, "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"id": None, "type": None, "function": {"name": "add", "parameters": {"a": 1}}},
        {"name": "add", "arguments": {"a": 1}},
        {"function": None, "name": "add", "arguments": '{"a": 1}'},
    ],
)
def test_a_call_is_read_in_the_forms_of_servers_like_it(given: Any) -> None:
    for calls in ([given], given):
        (canister,) = read(line(tool_calls=calls), end())
        assert isinstance(canister, InvocationCanister)
        assert (canister.name, canister.parsed) == ("add", {"a": 1})


def test_members_of_a_line_that_are_not_needed_may_be_odd() -> None:
    odd: dict[str, Any] = {
        "done": None,
        "prompt_eval_count": "9",
        "eval_count": {},
        "model": 7,
        "message": None,
    }
    last = {**end(), "message": None, "eval_count": [], "prompt_eval_count": None}
    (canister,) = read(odd, line("Hi", thinking=None, tool_calls=None), {**odd, **line("!")}, last)
    assert canister.text == "Hi!"
