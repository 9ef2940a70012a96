"""The tools of documents, as a model calls them in a conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.documents.making import make_pdf
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import DocumentUnreadable, EnsembleFailed
from vibe_llms.base.registries import Row
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.hosts import EnsembleConfiguration, access_ensemble
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import FileContent, TextualContent
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.opening import open_session
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.scripted.scripts import Part, ScriptedReply
from vibe_llms.session.core import Session
from vibe_llms.testing import scripted_model

PDF = "application/pdf"
WORDS = "The keeper of the lighthouse is called Ada. "


def produce_file(pages: int = 200, name: str = "harbour.pdf") -> FileContent:
    texts = [f"Page {number} tells of ferry {number}." for number in range(1, pages + 1)]
    lines = "\n".join(f"It is line {number} of many." for number in range(30))
    texts = [f"{text}\n{lines}" for text in texts]
    texts[min(149, pages - 1)] += f"\n{WORDS}"
    return FileContent(make_pdf(texts), PDF, name)


FILE = produce_file()


def call(name: str, **arguments: Any) -> ScriptedReply:
    return ScriptedReply(parts=(Part(invocation=name, arguments=arguments),))


def say(text: str) -> ScriptedReply:
    return ScriptedReply(parts=(Part(text=(text,)),))


class Rig:
    """A conversation with a model that reads what it was sent, and calls tools as a list says."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.given: list[Sequence[Canister]] = []
        self.offered: list[Sequence[str]] = []
        self.calls: list[ScriptedReply] = []
        self.model = scripted_model(self._reply)
        self.model.attributes = ModelAttributes(
            accepts=("image",), context_tokens=16_000, tools="native"
        )

    def _reply(self, canisters: Sequence[Canister], invokers: Sequence[Invoker]) -> ScriptedReply:
        self.given.append(tuple(canisters))
        self.offered.append([one.name for one in invokers])
        return self.calls.pop(0) if self.calls else say("done")

    async def begin(self, **options: Any) -> Conversation:
        return await self.session.begin(self.model, **options)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    settings = {"storage": {"durability": "fast"}}
    async with open_session(home=tmp_path, configuration=settings) as session:
        yield Rig(session)


def results(conversation: Conversation) -> Sequence[ResultCanister]:
    return [one for one in conversation.canisters if isinstance(one, ResultCanister)]


def text_of(canister: Canister) -> str:
    return "".join(one.text for one in canister.contents if isinstance(one, TextualContent))


async def test_a_long_attachment_is_searched_by_the_model_without_any_setting(rig: Rig) -> None:
    rig.calls = [call("documents/search_document", request="keeper of the lighthouse")]
    conversation = await rig.begin()
    turn = await conversation.converse(UserCanister((FILE, TextualContent("Who keeps it?"))))
    assert turn.text == "done"
    assert rig.offered[0] == [
        f"documents/{name}" for name in ("list_documents", "search_document", "read_document")
    ]
    prompt = rig.given[0][-1]
    assert "harbour.pdf is too long to include in full (200 pages, " in text_of(prompt)
    assert "documents/search_document" in text_of(prompt)
    (found,) = results(conversation)
    assert "called Ada" in text_of(found)
    assert "[harbour.pdf, page" in text_of(found)
    # What is stored is the file, and what is sent again is the same.
    stored = conversation.canisters[0].contents[0]
    assert isinstance(stored, FileContent)
    assert text_of(rig.given[1][1]) == text_of(prompt)


async def test_a_short_attachment_is_given_whole_and_needs_no_tools(rig: Rig) -> None:
    conversation = await rig.begin()
    await conversation.converse(UserCanister((produce_file(2), TextualContent("Who?"))))
    assert rig.offered == [[]]
    assert "called Ada" in text_of(rig.given[0][-1])
    assert conversation.ensembles == ()


async def test_a_continued_conversation_searches_again(rig: Rig) -> None:
    conversation = await rig.begin()
    await conversation.converse(UserCanister((FILE, TextualContent("Hello"))))
    again = await rig.session.resume(conversation.identity, model=rig.model)
    rig.calls = [
        call("documents/list_documents"),
        call("rag_search_tool", request="lighthouse", source="harbour.pdf"),
        call("file_content_extraction_tool", file_url="harbour.pdf", page=2),
    ]
    await again.converse("Who keeps the lighthouse?")
    listed, found, page = results(again)
    assert text_of(listed).startswith("- harbour.pdf (pdf, 200 pages, ")
    assert "called Ada" in text_of(found)
    assert text_of(page).endswith("**Page #2. Total pages: 15**")


async def test_a_fork_keeps_its_documents(rig: Rig) -> None:
    conversation = await rig.begin()
    await conversation.converse(UserCanister((FILE, TextualContent("Hello"))))
    fork = await conversation.fork()
    rig.calls = [call("documents/search_document", request="lighthouse")]
    await fork.converse("Who keeps the lighthouse?")
    assert "called Ada" in text_of(results(fork)[0])


async def test_a_conversation_that_is_not_saved_searches_too(rig: Rig) -> None:
    rig.calls = [call("documents/search_document", request="lighthouse")]
    conversation = await rig.begin(save=False)
    await conversation.converse(UserCanister((FILE, TextualContent("Who?"))))
    assert "called Ada" in text_of(results(conversation)[0])


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("search_document", {"request": "x", "source": "/etc/passwd"}, "not found; available"),
        ("search_document", {"request": " "}, "The request is empty"),
        ("read_document", {"source": "other.pdf"}, "available: harbour.pdf"),
        ("read_document", {"source": "harbour.pdf", "page": 99}, "has no page 99; it has 15"),
        ("read_document", {"source": "harbour.pdf", "page": 0}, "has no page 0"),
    ],
)
async def test_a_wrong_call_fails_and_says_what_there_is(
    rig: Rig, tool: str, arguments: dict[str, Any], words: str
) -> None:
    rig.calls = [call(f"documents/{tool}", **arguments)]
    conversation = await rig.begin()
    turn = await conversation.converse(UserCanister((FILE, TextualContent("Who?"))))
    (result,) = results(conversation)
    assert result.failed
    assert words in text_of(result)
    assert turn.text == "done"


async def test_words_that_are_nowhere_find_nothing(rig: Rig) -> None:
    rig.calls = [call("documents/search_document", request="xylophone")]
    conversation = await rig.begin()
    await conversation.converse(UserCanister((FILE, TextualContent("Who?"))))
    assert (
        text_of(results(conversation)[0]) == "No passage contains any of these words. Try others."
    )


async def test_passages_are_text_from_outside(rig: Rig) -> None:
    ensemble = await rig.session.open_ensemble("documents")
    assert all(one.outside and one.approval == "allow" for one in ensemble.invokers)


@pytest.mark.parametrize("trusted", [False, True])
async def test_passages_of_documents_are_trusted_if_all_of_these_are(
    rig: Rig, trusted: bool
) -> None:
    rig.calls = [call("documents/search_document", request="keeper of the lighthouse")]
    conversation = await rig.begin()
    document = DocumentCanister((FILE,), title="harbour.pdf", source="harbour.pdf", trusted=trusted)
    await conversation.converse([document, "Who keeps it?"])
    (found,) = results(conversation)
    assert "called Ada" in text_of(found)
    assert found.trusted == trusted


async def test_without_tools_the_model_is_told_of_none(rig: Rig) -> None:
    conversation = await rig.begin(tool_mode="off")
    await conversation.converse(UserCanister((FILE, TextualContent("Who?"))))
    assert rig.offered == [[]]
    assert "search_document" not in text_of(rig.given[0][-1])


async def test_a_file_that_cannot_be_read_leaves_nothing_behind(rig: Rig) -> None:
    conversation = await rig.begin()
    broken = FileContent(b"%PDF-1.4 nothing", PDF, "broken.pdf")
    with pytest.raises(DocumentUnreadable, match=r"broken\.pdf"):
        await conversation.converse(UserCanister((broken, TextualContent("Who?"))))
    assert conversation.canisters == ()
    assert rig.given == []
    assert (await conversation.converse("Hello")).text == "done"


async def test_a_preview_has_the_text_that_would_be_sent(rig: Rig) -> None:
    document = DocumentCanister((produce_file(2),), title="harbour.pdf", source="harbour.pdf")
    conversation = await rig.begin()
    preview = await conversation.preview([document, UserCanister.from_text("Who?")])
    assert "called Ada" in preview
    assert conversation.canisters == ()


async def test_a_document_that_is_sent_as_text_is_reported_once(tmp_path: Path) -> None:
    events: list[Event] = []
    async with open_session(home=tmp_path, event_handler=events.append) as session:
        conversation = await Rig(session).begin()
        await conversation.converse(UserCanister((produce_file(2), TextualContent("Who?"))))
        await conversation.converse("And?")
    notices = [one.notice.text for one in events if isinstance(one, NoticeEvent)]
    assert notices == ["harbour.pdf is sent to scripted/script as text"]


async def test_without_a_session_there_are_no_documents(tmp_path: Path) -> None:
    configuration = load_configuration(places=Places.under(tmp_path), environment={})
    row = Row("documents", "vibe_llms.documents.ensemble")
    ensemble = access_ensemble(row, EnsembleConfiguration(configuration, {}))
    with pytest.raises(EnsembleFailed, match="needs a session"):
        await ensemble.open()
