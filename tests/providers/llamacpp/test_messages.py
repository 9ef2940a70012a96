"""Whatever a history holds, a strict template takes it, and nothing is dropped in silence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.llamacpp import CHATML, write_model
from tests.fakes.llamacpp_clients import produce_model
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    Provenance,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    FileContent,
    NativeContent,
    ReasoningContent,
    Reference,
    TextualContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.llamacpp.messages import MODULE

HELLO = UserCanister.from_text("Hello!")


class Refused(AssertionError):
    """What the templates of many models raise."""


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """`Refused` where a strict template would raise."""
    rest = list(messages)
    if rest and rest[0]["role"] == "system":
        rest = rest[1:]
    _require(bool(rest) and rest[0]["role"] == "user", "the first message is not a user's")
    _require(rest[-1]["role"] in ("user", "tool"), "there is nothing to answer")
    before = "assistant"
    waiting: list[str] = []
    for message in rest:
        role = message["role"]
        _require(isinstance(message["content"], str), "a content is no text")
        if role == "tool":
            _require(bool(waiting) and message["tool_call_id"] == waiting.pop(0), "no such call")
        else:
            _require(not waiting, "a call has no result")
            _require(role in ("user", "assistant"), f"the role {role!r} is here")
            _require(role != before, f"two messages of {role!r}")
            _require(bool(message["content"].strip() or message.get("tool_calls")), "it is blank")
        for call in message.get("tool_calls", ()):
            _require(isinstance(call["function"]["arguments"], dict), "arguments are no object")
            waiting.append(call["id"])
        before = "assistant" if role == "tool" and not waiting else role
        if role == "tool":
            before = "tool"
    _require(not waiting, "a call has no result")


def _require(condition: bool, complaint: str) -> None:
    if not condition:
        raise Refused(complaint)


async def load_any(references: Sequence[Reference]) -> Mapping[str, bytes]:
    """Bytes for any reference, half of them no text."""
    return {
        one.hash: b"kept text" if int(one.hash[-1], 16) % 2 else b"\xff\xfe" for one in references
    }


async def frame(
    path: Path, canisters: Sequence[Canister], *, template: str | None = None
) -> tuple[list[dict[str, Any]], list[Notice]]:
    """The messages of a conversation, and the notices on them."""
    if template is not None:
        write_model(path, template)
    elif not path.exists():
        write_model(path)
    model = await produce_model(path)
    notices: list[Notice] = []
    context = TurnContext(load=load_any, notify=notices.append)
    body = json.loads(await model.preview(canisters, (), Controls(), context))
    return body["messages"], notices


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


async def test_calls_and_results_are_in_order(path: Path) -> None:
    calls = [
        InvocationCanister(name="time/now", arguments=f'{{"place":"{place}"}}', reply="r")
        for place in ("Oslo", "Rome")
    ]
    results = [
        ResultCanister((TextualContent("noon"),), invocation=calls[1].identity),
        ResultCanister((), invocation=calls[0].identity, failed=True),
    ]
    said = AssistantCanister((TextualContent("I look."),), reply="r")
    messages, notices = await frame(path, [HELLO, said, *calls, *results])
    check_messages(messages)
    assert messages[1]["content"] == "I look."
    names = [call["function"]["name"] for call in messages[1]["tool_calls"]]
    assert names == ["time__now", "time__now"]
    assert messages[1]["tool_calls"][1]["function"]["arguments"] == {"place": "Rome"}
    assert [message["content"] for message in messages[2:]] == [
        "(The call failed.)\n\n(It returned nothing.)",
        "noon",
    ]
    assert notices == []


async def test_a_model_without_calls_gets_them_as_text(path: Path) -> None:
    calls = [InvocationCanister(name=name, arguments="{}", reply="r") for name in ("a", "b")]
    results = [
        ResultCanister((TextualContent(call.name * 2),), invocation=call.identity) for call in calls
    ]
    messages, notices = await frame(path, [HELLO, *calls, *results, HELLO], template=CHATML)
    check_messages(messages)
    assert [message["content"] for message in messages] == [
        "Hello!",
        "(I called the tool a with {}.)\n\n(I called the tool b with {}.)",
        "The tool a returned:\n\naa\n\nThe tool b returned:\n\nbb\n\nHello!",
    ]
    assert len(notices) == 2


async def test_system_text_is_at_the_beginning_only(path: Path) -> None:
    early = [SupervisorCanister.from_text("Be brief."), SupervisorCanister.from_text("Be kind.")]
    late = SupervisorCanister.from_text("Be polite.")
    said = AssistantCanister.from_text("Yes?")
    messages, _ = await frame(path, [*early, HELLO, said, late, HELLO])
    check_messages(messages)
    assert messages[0] == {"role": "system", "content": "Be brief.\n\nBe kind."}
    assert messages[-1]["content"] == "<system>\nBe polite.\n</system>\n\nHello!"


@pytest.mark.parametrize(
    ("canisters", "expected"),
    [
        ([], [("user", "(Please continue.)")]),
        ([SupervisorCanister.from_text("S")], [("system", "S"), ("user", "(Please continue.)")]),
        (
            [AssistantCanister.from_text("A")],
            [
                ("user", "(The conversation begins.)"),
                ("assistant", "A"),
                ("user", "(Please continue.)"),
            ],
        ),
        ([HELLO, AssistantCanister(()), HELLO], [("user", "Hello!\n\nHello!")]),
    ],
)
async def test_what_a_history_lacks_is_put_there(
    path: Path, canisters: list[Canister], expected: list[tuple[str, str]]
) -> None:
    messages, _ = await frame(path, canisters)
    assert [(message["role"], message["content"]) for message in messages] == expected


async def test_reasoning_goes_back_to_its_own_model_alone(path: Path) -> None:
    contents = (ReasoningContent("Hm."), TextualContent("Yes."), NativeContent(label="odd"))
    own = AssistantCanister(contents, provenance=Provenance(MODULE, "llamacpp", str(path)))
    other = AssistantCanister(contents, provenance=Provenance(MODULE, "llamacpp", "another"))
    messages, notices = await frame(path, [HELLO, own, HELLO, other, HELLO])
    assert messages[1]["reasoning_content"] == "Hm."
    assert "reasoning_content" not in messages[3]
    words = " ".join(notice.text for notice in notices)
    assert ("the reasoning of another model" in words, words.count("odd")) == (True, 2)


async def test_documents_and_files_of_text_are_read(path: Path) -> None:
    kept = Reference.from_bytes(b"kept text")
    shown = UserCanister(
        (
            FileContent(b"a,b\n1,2", "text/csv", name="a.csv"),
            FileContent(kept, "text/plain"),
            TextualContent(kept),
        )
    )
    report = DocumentCanister((TextualContent("Words."),), title="Report", source="web")
    messages, notices = await frame(path, [report, shown])
    text = messages[0]["content"]
    for part in ("Document: Report, web", "Words.", "File: a.csv", "a,b\n1,2", "A file:"):
        assert part in text
    assert notices == []
