"""What the conversion of a canister needs: texts, the issuer of payloads, notices, words."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw

from tests.fakes.clients import produce_model
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    Provenance,
    ResultCanister,
    SupervisorCanister,
    UnknownCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Citation,
    Content,
    FileContent,
    ImageContent,
    Issuer,
    NativeContent,
    NativePayload,
    ReasoningContent,
    Reference,
    TextualContent,
    VideoContent,
)
from vibe_llms.providers.conversions import Conversion, name_content

MODULE = "some.module"
_DECODER = msgspec.json.Decoder(dict[str, int])


async def convert(texts: dict[str, bytes] | None = None) -> Conversion:
    model = await produce_model()
    return Conversion(UserCanister.from_text("Hi"), model, MODULE, texts or {})


def payload(data: bytes, **other: str) -> NativePayload:
    issuer = {"module": MODULE, "row": "anthropic", "model": "claude-opus-5", **other}
    return NativePayload(Issuer(**issuer), Raw(data))


async def test_text_is_read_and_made_fit_for_the_wire() -> None:
    work = await convert({"h": b"caf\xc3\xa9 \xff"})
    assert work.text("a \ud800 b") == "a \ufffd b"
    assert work.text(Reference("h", 6)) == "café \ufffd"


@pytest.mark.parametrize(
    ("native", "read"),
    [
        (payload(b'{"a":1}'), {"a": 1}),
        (None, None),
        (payload(b'{"a":1}', model="claude-fable-5"), None),
        (payload(b'{"a":1}', row="gateway"), None),
        (payload(b'{"a":1}', module="another.module"), None),
        (payload(b'{"a":"1"}'), None),
        (payload(b"[" * 100_000), None),
    ],
)
async def test_a_payload_is_read_by_its_issuer_alone(
    native: NativePayload | None, read: dict[str, int] | None
) -> None:
    work = await convert()
    assert work.read(native, _DECODER) == read
    assert not (work.issued(native) and native is None)
    assert work.notices == []


async def test_what_is_left_out_or_described_is_reported_with_its_message() -> None:
    work = await convert()
    work.leave_out("a thought")
    assert work.describe(ImageContent(b"x", "image/png")) == (
        "[an image image/png, not shown to this model]"
    )
    work.describe(FileContent(b"x", "text/x", "a.x"), "the file a.x, which is too new")
    assert [notice.text for notice in work.notices] == [
        "a thought is left out for anthropic/claude-opus-5",
        "an image image/png is described in text for anthropic/claude-opus-5",
        "the file a.x, which is too new is described in text for anthropic/claude-opus-5",
    ]
    assert {(notice.subject, notice.canister) for notice in work.notices} == {
        ("conversion", work.origin)
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (ImageContent(b"x", "image/png"), "an image image/png"),
        (AudioContent(b"x", "audio/wav"), "a sound audio/wav"),
        (VideoContent(b"x", "video/mp4"), "a video video/mp4"),
        (FileContent(b"x", "application/pdf", "a \ud800.pdf"), "a file 'a \\ud800.pdf'"),
        (NativeContent(label="search"), "a content of kind 'search'"),
    ],
)
def test_a_content_has_a_name_in_words(content: Content, words: str) -> None:
    named = name_content(content)
    assert named.startswith(words)
    named.encode()


def _produce_reply(*contents: Content) -> AssistantCanister:
    return AssistantCanister(contents, provenance=Provenance("other", "other", "other"))


@pytest.mark.parametrize(
    ("canister", "role", "words", "notices"),
    [
        (SupervisorCanister.from_text("Be brief."), "supervisor", "Be brief.", []),
        (
            UserCanister((TextualContent(Reference("h", 2)), TextualContent(" "))),
            "user",
            "Hi",
            [],
        ),
        (
            UserCanister((TextualContent("See"), ImageContent(b"x", "image/png"))),
            "user",
            "See\n[an image image/png, not shown to this model]",
            ["an image image/png is described in text"],
        ),
        (
            _produce_reply(
                ReasoningContent("Hm."),
                NativeContent("search"),
                TextualContent("So.", citations=(Citation("S", source="https://s.org"),)),
            ),
            "assistant",
            "So.",
            [
                "reasoning is left out",
                "a block 'search' that only its model understands is left out",
                "the source list of another model's text is left out",
            ],
        ),
        (
            DocumentCanister((TextualContent("Text."),), title="/home/ada/n.txt"),
            "document",
            "Document: n.txt\nText.",
            [],
        ),
        (InvocationCanister(name="t", arguments="{}"), "invocation", "", []),
        (ResultCanister((TextualContent("4"),), invocation="i"), "result", "4", []),
        (
            UnknownCanister("narrator"),
            "narrator",
            "",
            ["a message of the unknown role 'narrator' is left out"],
        ),
    ],
)
async def test_any_message_is_said_in_words_and_what_is_not_said_is_reported(
    canister: Canister, role: str, words: str, notices: list[str]
) -> None:
    work = Conversion(canister, await produce_model(), MODULE, {"h": b"Hi"})
    assert (work.role, work.words()) == (role, words)
    assert [notice.text.partition(" for ")[0] for notice in work.notices] == notices
