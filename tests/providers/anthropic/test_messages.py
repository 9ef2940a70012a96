"""Canisters as blocks, and what is reported where a model cannot be sent something."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec import Raw

from tests.fakes.clients import assemble, produce_model
from vibe_llms.base.exceptions import ContentUnsupported
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Citation,
    Content,
    FileContent,
    ImageContent,
    Issuer,
    Location,
    MediaContent,
    NativeContent,
    NativePayload,
    ReasoningContent,
    Reference,
    TextualContent,
    UnknownContent,
    Upload,
    VideoContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.anthropic import messages
from vibe_llms.providers.anthropic.history import AnthropicHistory
from vibe_llms.providers.anthropic.messages import (
    MODULE,
    AnthropicPiece,
)
from vibe_llms.providers.conversions import name_content
from vibe_llms.providers.pieces import fill, interleave

OWN = Issuer(MODULE, "anthropic", "claude-opus-5")
FOREIGN = Issuer(MODULE, "gateway", "claude-opus-5")
PDF = b"%PDF-1.7"
CITED = {"citations": {"enabled": True}}
ADDRESS = "anthropic/claude-opus-5"


def payload(members: Any, issuer: Issuer = OWN) -> NativePayload:
    return NativePayload(issuer, Raw(json.dumps(members, separators=(",", ":")).encode()))


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def nativize(
    canister: Canister, texts: Mapping[str, bytes] | None = None, **options: Any
) -> tuple[AnthropicPiece, list[dict[str, Any]], list[str]]:
    """The piece of a canister, its blocks in full, and what notices say."""
    model = await produce_model()
    piece, notices = messages.nativize(canister, model, texts or {}, **options)

    async def load(references: Sequence[Reference]) -> Mapping[str, bytes]:
        return {one.hash: (texts or {})[one.hash] for one in references}

    blocks = json.loads(b"[" + b"".join(await fill(interleave(piece.blocks), load)) + b"]")
    assert {notice.canister for notice in notices} <= {canister.identity}
    assert {notice.subject for notice in notices} <= {"conversion"}
    return piece, blocks, [notice.text for notice in notices]


async def nativize_said(*contents: Content) -> tuple[list[dict[str, Any]], list[str]]:
    """The blocks of what a person said; the strict fake accepts them."""
    canister = UserCanister(contents)
    _, blocks, notices = await nativize(canister)
    await assemble(await produce_model(), [UserCanister.from_text("Hi"), canister])
    return blocks, notices


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


# Text.


async def test_text_is_sent_without_lone_surrogates_and_blank_text_not_at_all() -> None:
    contents = (TextualContent("a\ud800"), TextualContent(" \n"), TextualContent(""))
    assert await nativize_said(*contents) == ([text("a\ufffd")], [])
    assert (await nativize(UserCanister())) == (AnthropicPiece("user", ()), [], [])


# Pictures and files.


@pytest.mark.parametrize(
    ("content", "block"),
    [
        (
            ImageContent(b"png", "image/png"),
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": encode(b"png")},
            },
        ),
        (
            ImageContent(Location("https://example.org/a.png")),
            {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        ),
        (
            ImageContent(Upload("file_1", "anthropic")),
            {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        ),
        (
            FileContent(PDF, "application/pdf", "Report.pdf"),
            {
                "type": "document",
                "title": "Report.pdf",
                **CITED,
                "source": {"type": "base64", "media_type": "application/pdf", "data": encode(PDF)},
            },
        ),
        (
            FileContent(Location("http://example.org/a.pdf"), "application/pdf"),
            {
                "type": "document",
                **CITED,
                "source": {"type": "url", "url": "http://example.org/a.pdf"},
            },
        ),
        (
            FileContent(Upload("file_2", "anthropic"), name=" "),
            {"type": "document", **CITED, "source": {"type": "file", "file_id": "file_2"}},
        ),
        (
            FileContent("é\n".encode() + b"\xff", "text/markdown; charset=utf-8", "notes.md"),
            {
                "type": "document",
                "title": "notes.md",
                **CITED,
                "source": {"type": "text", "media_type": "text/plain", "data": "é\n\ufffd"},
            },
        ),
        # What a file is sent as follows its MIME type, not the class that was chosen for it.
        (
            FileContent(b"png", "image/png", "a.png"),
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": encode(b"png")},
            },
        ),
        (
            ImageContent(PDF, "application/pdf"),
            {
                "type": "document",
                **CITED,
                "source": {"type": "base64", "media_type": "application/pdf", "data": encode(PDF)},
            },
        ),
    ],
)
async def test_what_the_model_takes_is_sent_as_it_is(
    content: MediaContent, block: Mapping[str, Any]
) -> None:
    assert await nativize_said(content) == ([block], [])
    (await produce_model()).check([UserCanister((content,))], Controls())


async def test_media_stay_references_until_a_request_is_sent() -> None:
    picture = ImageContent(Reference.from_bytes(b"png"), "image/png")
    piece, blocks, _ = await nativize(UserCanister((picture,)), {picture.data.hash: b"png"})  # type: ignore[union-attr]
    assert blocks[0]["source"]["data"] == encode(b"png")
    assert b"png" not in repr(piece).encode().replace(b"image/png", b"")


UNSUPPORTED: list[tuple[MediaContent, str]] = [
    (ImageContent(b"x", "image/tiff"), "an image image/tiff"),
    (ImageContent(b"x"), "an image"),
    (ImageContent(b"", "image/png"), "an image image/png without any bytes"),
    (ImageContent(Reference("0" * 64, 0), "image/png"), "an image image/png without any bytes"),
    (ImageContent(Location("file:///etc/passwd")), "not an http(s) address"),
    (ImageContent(Upload("file_1", "openai")), "that was uploaded to 'openai'"),
    (AudioContent(b"x", "audio/wav"), "a sound audio/wav"),
    (VideoContent(Location("https://example.org/a.mp4")), "a video"),
    (FileContent(b"x", "application/zip", "a.zip"), "a file 'a.zip' application/zip"),
    (FileContent(b"x", name="\ud800"), "a file '\\ud800'"),
    (FileContent(b"", "text/plain"), "a file text/plain without any bytes"),
    (FileContent(Location("https://example.org/a.zip"), "application/zip"), "a file applic"),
    (FileContent(Location("https://example.org/a.txt"), "text/plain"), "a file text/plain"),
    (FileContent(Location("\ud800")), "not an http(s) address"),
    (FileContent(Upload("file_1", "gateway"), "application/pdf"), "uploaded to 'gateway'"),
]


@pytest.mark.parametrize(("content", "words"), UNSUPPORTED)
async def test_what_the_model_cannot_take_of_this_call_is_refused(
    content: MediaContent, words: str
) -> None:
    model = await produce_model()
    canister = UserCanister((content,))
    with pytest.raises(ContentUnsupported) as caught:
        model.check([canister], Controls())
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{ADDRESS} does not accept a")
    # Also where the model is asked without a conversation around it.
    with pytest.raises(ContentUnsupported):
        await assemble(model, [canister], fresh=frozenset([canister.identity]))


async def test_a_model_that_takes_no_pictures_is_sent_none() -> None:
    model = await produce_model(models={"claude-opus-5": {"accepts": ["application/pdf"]}})
    contents = (
        ImageContent(b"x", "image/png"),
        ImageContent(Upload("file_1", "anthropic")),
        ImageContent(Location("https://example.org/a.png")),
        FileContent(b"x", "text/plain"),
    )
    members, notices = await assemble(model, [UserCanister(contents)])
    kinds = [block["type"] for block in members["messages"][0]["content"]]
    assert kinds == ["text", "text", "text", "document"]
    assert len(notices) == 3


# Documents.


@pytest.mark.parametrize(
    ("canister", "blocks"),
    [
        (
            DocumentCanister(
                contents=(TextualContent("The sky is blue."),), title="Sky", source="a book"
            ),
            [
                {
                    "type": "document",
                    "source": {
                        "type": "text", "media_type": "text/plain", "data": "The sky is blue."
                    },
                    "title": "Sky",
                    "context": "a book",
                    **CITED,
                }
            ],
        ),
        (
            DocumentCanister(contents=(FileContent(PDF, "application/pdf", "a.pdf"),), title="Sky"),
            [
                {
                    "type": "document",
                    "title": "Sky",
                    **CITED,
                    "source": {
                        "type": "base64", "media_type": "application/pdf", "data": encode(PDF)
                    },
                }
            ],
        ),
        (
            DocumentCanister(
                contents=(TextualContent("a"), ImageContent(b"x", "image/png")), source="b"
            ),
            [
                {
                    "type": "document",
                    "source": {
                        "type": "content",
                        "content": [
                            text("a"),
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64", "media_type": "image/png", "data": "eA=="
                                },
                            },
                        ],
                    },
                    "context": "b",
                    **CITED,
                }
            ],
        ),
        (
            DocumentCanister(
                contents=(TextualContent("a"), FileContent(b"b", "text/plain")),
                title="T",
                source="S",
            ),
            [
                text("Document: T, S"),
                text("a"),
                {
                    "type": "document",
                    **CITED,
                    "source": {"type": "text", "media_type": "text/plain", "data": "b"},
                },
            ],
        ),
        (
            DocumentCanister(contents=(FileContent(b"x", "image/png"),)),
            [
                {
                    "type": "document",
                    "source": {
                        "type": "content",
                        "content": [
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": "eA==",
                                },
                            }
                        ],
                    },
                    **CITED,
                }
            ],
        ),
        (
            DocumentCanister(contents=(ImageContent(PDF, "application/pdf"),), title="T"),
            [
                {
                    "type": "document",
                    "title": "T",
                    **CITED,
                    "source": {
                        "type": "base64",
                        "media_type": "application/pdf",
                        "data": encode(PDF),
                    },
                }
            ],
        ),
        (DocumentCanister(contents=(TextualContent(" "),), title="T"), []),
        (DocumentCanister(title="T"), []),
    ],
)  # fmt: skip
async def test_documents(canister: DocumentCanister, blocks: Sequence[Mapping[str, Any]]) -> None:
    assert (await nativize(canister))[1:] == (blocks, [])
    await assemble(await produce_model(), [canister])


async def test_a_file_that_a_document_cannot_be_sent_with_is_described() -> None:
    canister = DocumentCanister(contents=(FileContent(b"x", "application/zip"),), title="T")
    _, blocks, notices = await nativize(canister)
    described = "[a file application/zip, not shown to this model]"
    assert blocks == [text("Document: T"), text(described)]
    assert len(notices) == 1


async def test_a_title_has_the_length_that_is_accepted() -> None:
    canister = DocumentCanister.from_text("a")
    long = DocumentCanister(contents=canister.contents, title=" " * 600 + "\ud800" * 501)
    _, (block,), _ = await nativize(long)
    assert block["title"] == "\ufffd" * 500
    await assemble(await produce_model(), [long])


async def test_documents_need_not_be_cited() -> None:
    said: list[Canister] = [
        DocumentCanister.from_text("a"),
        DocumentCanister(contents=(TextualContent("a"), ImageContent(b"x", "image/png"))),
        UserCanister((FileContent(PDF, "application/pdf"),)),
    ]
    for canister in said:
        _, (block,), _ = await nativize(canister, citing=False)
        assert "citations" not in block
    members, _ = await assemble(await produce_model(citations=False), said)
    assert "citations" not in json.dumps(members)


# Instructions.


async def test_instructions_are_text_only() -> None:
    contents = (TextualContent("Be brief."), ImageContent(b"x", "image/png"), TextualContent(" "))
    piece, blocks, notices = await nativize(SupervisorCanister(contents))
    assert piece.role == "system"
    assert blocks == [text("Be brief."), text("[an image image/png, not shown to this model]")]
    assert len(notices) == 1
    model = await produce_model()
    members, _ = await assemble(model, [SupervisorCanister(contents), UserCanister.from_text("a")])
    assert [block["text"] for block in members["system"]] == [block["text"] for block in blocks]


# Replies.


async def test_thinking_goes_back_as_it_was_signed() -> None:
    signed = payload({"signature": "SIG=="})
    redacted = payload({"type": "redacted_thinking", "data": "x"})
    contents = (ReasoningContent("hm", native=signed), ReasoningContent(native=redacted))
    piece, blocks, notices = await nativize(AssistantCanister(contents))
    assert blocks == [
        {"type": "thinking", "thinking": "hm", "signature": "SIG=="},
        {"type": "redacted_thinking", "data": "x"},
    ]
    assert (piece.thinking, piece.thinks, notices) == (2, True, [])


async def test_long_thinking_goes_back_from_where_it_is_kept() -> None:
    data = b"hm " * 1000
    reference = Reference.from_bytes(data)
    content = ReasoningContent(reference, native=payload({"signature": "SIG=="}))
    _, (block,), _ = await nativize(AssistantCanister((content,)), {reference.hash: data})
    assert block["thinking"] == data.decode()


@pytest.mark.parametrize(
    ("content", "notices"),
    [
        (ReasoningContent("hm"), ["unsigned reasoning"]),
        (ReasoningContent(), []),
        (ReasoningContent("hm", native=payload({"no": "signature"})), ["the reasoning of another"]),
        (ReasoningContent("hm", native=payload(5)), ["the reasoning of another"]),
        (NativeContent("server_tool_use"), ["a block 'server_tool_use'"]),
        (NativeContent("x", native=payload(["no", "block"])), ["a block 'x'"]),
        (NativeContent("x", native=payload({"no": "type"})), ["a block 'x'"]),
    ],
)
async def test_what_only_another_model_understands_is_not_sent(
    content: Content, notices: Sequence[str]
) -> None:
    canister = AssistantCanister((content, TextualContent("a")))
    piece, blocks, reported = await nativize(canister)
    assert blocks == [text("a")]
    assert (piece.thinking, piece.thinks) == (0, False)
    assert len(reported) == len(notices)
    for notice, words in zip(reported, notices, strict=True):
        assert words in notice
        assert notice.endswith(f"is left out for {ADDRESS}")


async def test_blocks_that_only_the_model_understands_go_back_word_for_word() -> None:
    written = b'{"type":"brand_new","a":1.50,"text":"\\u00e9"}'
    content = NativeContent("brand_new", native=NativePayload(OWN, Raw(written)))
    piece, _, notices = await nativize(AssistantCanister((content, TextualContent("a"))))
    assert piece.blocks[0] == (written,)
    assert notices == []


async def test_tools_of_the_server_are_known_by_their_identities() -> None:
    contents = (
        TextualContent("Searching."),
        NativeContent(native=payload({"type": "server_tool_use", "id": "srv_1", "name": "s"})),
        NativeContent(native=payload({"type": "server_tool_use", "id": "srv_2", "name": "s"})),
        NativeContent(native=payload({"type": "web_search_tool_result", "tool_use_id": "srv_1"})),
        NativeContent(native=payload({"type": "brand_new", "id": 7})),
    )
    piece, _, _ = await nativize(AssistantCanister(contents))
    assert piece.running == {"srv_1": 1, "srv_2": 2}
    assert "srv_1" in piece.returned


async def test_sources_of_a_text_go_back_to_the_model_that_cited_them() -> None:
    cited = {
        "type": "char_location", "cited_text": "a", "document_index": 0, "document_title": None,
        "start_char_index": 0, "end_char_index": 1,
    }  # fmt: skip
    native = payload({"citations": [{**cited, "file_id": None}]})
    content = TextualContent("a", citations=(Citation("a"),), native=native)
    _, blocks, notices = await nativize(AssistantCanister((content,)))
    # The server sends one member that it does not take back.
    assert (blocks, notices) == ([{**text("a"), "citations": [cited]}], [])
    said: list[Canister] = [DocumentCanister.from_text("a"), AssistantCanister((content,))]
    await assemble(await produce_model(), said)


@pytest.mark.parametrize(
    "native",
    [payload({"citations": []}, FOREIGN), payload({"citations": 5}), payload({}), payload(None)],
)
async def test_sources_of_another_models_text_are_left_out(native: NativePayload) -> None:
    content = TextualContent("a", citations=(Citation("a"),), native=native)
    _, blocks, (notice,) = await nativize(AssistantCanister((content,)))
    assert blocks == [text("a")]
    assert notice.startswith("the source list of another model's text")


async def test_a_payload_without_sources_is_left_out_in_silence() -> None:
    message = payload({"place": 0, "part": {"type": "output_text"}}, FOREIGN)
    _, blocks, notices = await nativize(AssistantCanister((TextualContent("a", native=message),)))
    assert (blocks, notices) == ([text("a")], [])


async def test_what_only_numbers_a_call_is_left_out_in_silence() -> None:
    members = {"id": "fc_1", "status": "completed", "caller": {"type": "direct"}}
    canister = InvocationCanister(name="f", native=payload(members, FOREIGN))
    _, (block,), notices = await nativize(canister, call="c")
    assert (sorted(block), notices) == (["id", "input", "name", "type"], [])


async def test_a_models_own_picture_is_described_in_its_words() -> None:
    contents = (ImageContent(b"x", "image/png"), AudioContent(b"x", "audio/wav"))
    _, blocks, notices = await nativize(AssistantCanister(contents))
    assert [block["text"] for block in blocks] == [
        "[an image image/png, not shown to this model]",
        "[a sound audio/wav, not shown to this model]",
    ]
    assert len(notices) == 2


# Calls and results.


@pytest.mark.parametrize(
    ("arguments", "encoded"),
    [
        ('{"a": 1.50, "b": "\\u00e9"}', b'{"a":1.50,"b":"\\u00e9"}'),
        (' {"a":\n1}\t', b'{"a":1}'),
        ("", b"{}"),
        ('{"a":123456789012345678901234567890}', b'{"a":123456789012345678901234567890}'),
        ("{", b'{"arguments":"{"}'),
        ("[1]", b'{"arguments":"[1]"}'),
        ("5", b'{"arguments":"5"}'),
        ('{"a":NaN}', b'{"arguments":"{\\"a\\":NaN}"}'),
        ('{"a":1e999}', b'{"arguments":"{\\"a\\":1e999}"}'),
        ('{"a":"\ud800"}', '{"arguments":"{\\"a\\":\\"\ufffd\\"}"}'.encode()),
        ('{"a":"\\ud800"}', b'{"arguments":"{\\"a\\":\\"\\\\ud800\\"}"}'),
        ("\u2028{}", '{"arguments":"\u2028{}"}'.encode()),
    ],
)
async def test_arguments_go_back_as_the_model_wrote_them(arguments: str, encoded: bytes) -> None:
    canister = InvocationCanister(name="time/now", arguments=arguments)
    piece, (block,), notices = await nativize(canister, call="toolu_1")
    (fragment,) = piece.blocks[0]
    assert fragment == (
        b'{"type":"tool_use","id":"toolu_1","name":"time__now","input":' + encoded + b"}"
    )
    assert (piece.role, piece.thinking, notices, block["id"]) == ("assistant", 0, [], "toolu_1")
    await assemble(await produce_model(), [canister])


async def test_arguments_that_are_nested_too_deeply_are_sent_as_text() -> None:
    deep = '{"a":' + "[" * 5000 + "]" * 5000 + "}"
    _, (block,), _ = await nativize(InvocationCanister(name="f", arguments=deep), call="c")
    assert block["input"] == {"arguments": deep}


async def test_who_made_a_call_goes_back_with_it() -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srv_1"}
    canister = InvocationCanister(name="f", native=payload({"caller": caller}))
    piece, (block,), notices = await nativize(canister, call="c")
    assert (block["caller"], piece.returned, notices) == (caller, ("srv_1",), [])
    odd = InvocationCanister(name="f", native=payload({"caller": "direct"}))
    assert (await nativize(odd, call="c"))[0].returned == ("",)


@pytest.mark.parametrize("native", [payload({"caller": {}}, FOREIGN), payload("x")])
async def test_what_another_model_added_to_a_call_is_left_out(native: NativePayload) -> None:
    canister = InvocationCanister(name="f", native=native)
    _, (block,), (notice,) = await nativize(canister, call="c")
    assert sorted(block) == ["id", "input", "name", "type"]
    assert notice.startswith("another model's additions to a call is left out")


async def test_results_hold_text_pictures_and_files() -> None:
    call = InvocationCanister(name="f")
    contents = (
        TextualContent("18 C"),
        ImageContent(b"x", "image/png"),
        FileContent(PDF, "application/pdf"),
        AudioContent(b"x", "audio/wav"),
    )
    result = ResultCanister(contents, invocation=call.identity, failed=True)
    piece, (block,), notices = await nativize(result, call="toolu_1")
    assert piece.role == "user"
    kinds = [part["type"] for part in block.pop("content")]
    assert kinds == ["text", "image", "document", "text"]
    assert block == {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True}
    assert len(notices) == 1
    await assemble(await produce_model(), [UserCanister.from_text("a"), call, result])


async def test_a_result_may_be_empty() -> None:
    call = InvocationCanister(name="f")
    result = ResultCanister((TextualContent(" "),), invocation=call.identity)
    _, blocks, _ = await nativize(result, call="toolu_1")
    assert blocks == [{"type": "tool_result", "tool_use_id": "toolu_1"}]
    await assemble(await produce_model(), [call, result])


# Words.


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (ImageContent(b""), "an image"),
        (VideoContent(b"", "video/mp4"), "a video video/mp4"),
        (FileContent(b"", "a/\ud800", "é\n"), "a file 'é\\n' a/\ufffd"),
        (TextualContent("a"), "a content of kind 'text' text/plain"),
        (UnknownContent(label="new\n"), "a content of kind 'new\\n'"),
    ],
)
def test_contents_have_names_for_people_and_models(content: Content, name: str) -> None:
    assert name_content(content) == name


@pytest.mark.parametrize(
    ("call", "good"),
    [
        ("toolu_1-A", True),
        ("a" * 64, True),
        ("a" * 65, False),
        ("", False),
        ("a\n", False),
        ("é", False),
    ],
)
def test_identities_that_are_accepted_for_a_call(call: str, good: bool) -> None:
    assert bool(AnthropicHistory.call_form.fullmatch(call)) is good
