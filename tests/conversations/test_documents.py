"""What a model that cannot take a file is given instead, and that it stays the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from vibe_llms.base.exceptions import DocumentUnreadable
from vibe_llms.conversations.document_texts import DocumentText, Place
from vibe_llms.conversations.documents import (
    ConversationDocuments,
    DocumentReading,
    without_documents,
)
from vibe_llms.documents.extracts import write_beginning
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    Citation,
    Content,
    FileContent,
    ImageContent,
    Location,
    Reference,
    TextualContent,
)
from vibe_llms.messages.events import Notice
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import Loader, refuse_loading
from vibe_llms.providers.scripted.client import ScriptedModel
from vibe_llms.testing import scripted_model

PDF = "application/pdf"


def produce_model(context_tokens: int | None = 10_000, name: str = "small") -> ScriptedModel:
    """A model that takes texts and images."""
    model = scripted_model(["ok"], name=name)
    model.attributes = ModelAttributes(accepts=("image",), context_tokens=context_tokens)
    return model


class Service:
    """Reads files that are text in disguise, and counts."""

    def __init__(self) -> None:
        self.read_names: list[str] = []

    async def read(self, document: FileContent, load: Loader) -> DocumentText:
        self.read_names.append(document.name)
        data = document.data
        if isinstance(data, Reference):
            data = (await load([data]))[data.hash]
        assert isinstance(data, bytes)
        text = data.decode()
        if "broken" in text:
            raise DocumentUnreadable(f"{document.name}: it is broken")
        if "torn" in text:
            raise DocumentUnreadable(f"{document.name}: it is torn", damaged=True)
        notices = ("page 2 has no text",) if "scan" in text else ()
        pages = max(2, text.count("\f"))
        marks = ((0, Place(1)), (3, Place(2)))
        return DocumentText(document.name, text, "PDF", marks, pages, notices)

    def shorten(self, name: str, document: DocumentText, room: int, *, tools: bool) -> str:
        return write_beginning(name, document, room, "Search it." if tools else "")

    def offer(
        self,
        conversation: str,
        documents: Sequence[FileContent],
        collections: Sequence[str],
        load: Loader,
    ) -> None:
        raise AssertionError("no tool runs here")

    async def add_page(self, conversation: str, url: str, text: DocumentText) -> None:
        raise AssertionError("no tool runs here")

    def withdraw(self, conversation: str) -> None:
        raise AssertionError("no tool runs here")


class Rig:
    """The documents of a conversation, read for a model."""

    def __init__(self, model: ScriptedModel | None = None) -> None:
        self.model = model or produce_model()
        self.service = Service()
        self.documents = ConversationDocuments()
        self.notices: list[Notice] = []

    async def read(
        self,
        history: Sequence[Canister],
        said: Sequence[Canister],
        model: ScriptedModel | None = None,
        load: Loader = refuse_loading,
    ) -> Sequence[Canister]:
        """What the model is given for all of it."""
        model = model or self.model
        reading = DocumentReading(
            model=model,
            access_service=lambda: self.service,
            load=load,
            notify=self.notices.append,
            tools=True,
        )
        await self.documents.read(history, said, reading)
        return self.documents.apply(model, [*history, *said])


#: The text of a page, repeated, and how many pages there are.
PAGES = (("x", 49), ("x", 50), ("words ", 501))


def attach(text: str, name: str = "report.pdf", mimetype: str = PDF) -> UserCanister:
    return UserCanister((FileContent(text.encode(), mimetype, name), TextualContent("What is it?")))


def data_of(content: Content) -> str:
    assert isinstance(content, TextualContent)
    assert isinstance(content.data, str)
    return content.data


async def test_a_file_that_the_model_cannot_take_becomes_text_at_its_place() -> None:
    rig = Rig()
    prompt = attach("the text")
    (given,) = await rig.read((), [prompt])
    assert given.identity == prompt.identity
    assert [data_of(one) for one in given.contents] == [
        "File report.pdf:\n\nthe text",
        "What is it?",
    ]
    assert [notice.text for notice in rig.notices] == [
        "report.pdf is sent to scripted/small as text"
    ]
    assert not rig.documents.is_cut(rig.model)


async def test_a_document_becomes_exactly_its_text_so_that_citations_count_in_it() -> None:
    rig = Rig()
    content = FileContent(b"one two", PDF, "a.pdf")
    document = DocumentCanister((content,), title="a.pdf", source="/home/me/a.pdf")
    (given,) = await rig.read((), [document])
    assert given == DocumentCanister(
        (TextualContent("one two"),),
        title="a.pdf",
        source="/home/me/a.pdf",
        identity=document.identity,
        created=document.created,
    )
    cited = Citation(title="a.pdf", start=4, end=7, unit="character")
    assert rig.documents.locate(cited).place == "page 2"
    other = Citation(title="b.pdf", start=4, end=7, unit="character")
    assert rig.documents.locate(other) is other


@pytest.mark.parametrize(
    "content",
    [
        ImageContent(b"\x89PNG", "image/png"),
        TextualContent("words"),
        FileContent(b"a,b", "text/csv", "a.csv"),
        FileContent(Location("https://example.org/a.pdf"), PDF, "a.pdf"),
    ],
)
async def test_what_the_model_takes_or_only_its_provider_can_read_stays(content: Content) -> None:
    rig = Rig()
    prompt = UserCanister((content,))
    assert await rig.read((), [prompt]) == [prompt]
    assert rig.service.read_names == []


async def test_a_model_that_takes_files_gets_the_file() -> None:
    rig = Rig(scripted_model(["ok"]))
    prompt = attach("the text")
    assert await rig.read((), [prompt]) == [prompt]
    # It is read, to see whether it is damaged.
    assert rig.service.read_names == ["report.pdf"]
    # Its tools may read it all the same.
    assert [file.name for file in rig.documents.attached] == ["report.pdf"]


@pytest.mark.parametrize("context_tokens", [None, 100_000])
async def test_a_damaged_file_is_not_sent_to_a_model_that_takes_files(
    context_tokens: int | None,
) -> None:
    rig = Rig(produce_model(context_tokens))
    rig.model.attributes = ModelAttributes(accepts=("file",), context_tokens=context_tokens)
    with pytest.raises(DocumentUnreadable, match="it is torn"):
        await rig.read((), [attach("torn")])
    # Of several, the others are sent. A file that only we cannot read is left to its provider.
    prompts = [attach("torn", "a.pdf"), attach("broken", "b.pdf")]
    given = await Rig(rig.model).read((), prompts)
    assert data_of(given[0].contents[0]) == "[a.pdf cannot be read.]"
    assert given[1] is prompts[1]


async def test_a_file_of_the_history_that_cannot_be_read_does_not_stop_a_new_one() -> None:
    rig = Rig()
    old, new = attach("broken", "old.pdf"), attach("the text", "new.pdf")
    given = await rig.read([old], [new])
    assert data_of(given[1].contents[0]).endswith("the text")


async def test_a_file_with_too_many_pages_for_a_model_that_takes_it_is_given_as_text() -> None:
    rig = Rig(produce_model(100_000))
    rig.model.attributes = ModelAttributes(accepts=("file",), context_tokens=100_000)
    # 50 pages of 1,500 tokens are three quarters of the window, and the question is some more.
    fits, short, long = (attach(f"{page * 600}\f" * pages) for page, pages in PAGES)
    assert await rig.read((), [fits]) == [fits]
    assert rig.service.read_names == ["report.pdf"]
    (given,) = await Rig(rig.model).read((), [short])
    assert data_of(given.contents[0]).count("\f") == 50
    (given,) = await Rig(rig.model).read((), [long])
    assert "is too long to include in full (501 pages" in data_of(given.contents[0])


async def test_several_files_that_a_model_takes_share_the_room() -> None:
    rig = Rig()
    rig.model.attributes = ModelAttributes(accepts=("file",), context_tokens=100_000)
    prompts = [attach(f"{name}{'x' * 600}\f" * 30, name) for name in ("a.pdf", "b.pdf")]
    given = await rig.read((), prompts)
    assert given[0] is prompts[0]
    assert data_of(given[1].contents[0]).startswith("File b.pdf:")


async def test_a_file_that_the_model_takes_leaves_those_behind_it_to_be_read() -> None:
    rig = Rig()
    taken = FileContent(b"a,b", "text/csv", "a.csv")
    word = FileContent(b"the letter", "application/msword", "letter.doc")
    (given,) = await rig.read((), [UserCanister((taken, word))])
    assert given.contents[0] == taken
    assert data_of(given.contents[1]) == "File letter.doc:\n\nthe letter"


async def test_a_pdf_that_a_model_of_unknown_size_takes_leaves_those_behind_it_to_be_read() -> None:
    rig = Rig()
    rig.model.attributes = ModelAttributes(accepts=("file",))
    taken = FileContent(b"the pages", PDF, "a.pdf")
    long = FileContent(b"much text " * 100_000, "text/plain", "long.txt")
    (given,) = await rig.read((), [UserCanister((taken, long))])
    assert given.contents[0] == taken
    assert data_of(given.contents[1]).startswith("File long.txt")


@pytest.mark.parametrize(("length", "whole"), [(500, True), (501, False)])
async def test_a_short_document_is_given_whole_though_no_room_is_left(
    length: int, whole: bool
) -> None:
    rig = Rig()
    before = UserCanister.from_text("x" * 100_000)
    _, given = await rig.read([before], [attach("y" * length)])
    assert data_of(given.contents[0]).endswith("y" * length) == whole
    assert rig.documents.is_cut(rig.model) != whole


async def test_a_long_file_that_only_the_provider_can_read_stays() -> None:
    rig = Rig(scripted_model(["ok"]))
    rig.model.attributes = ModelAttributes(accepts=("file",), context_tokens=1000)
    prompt = attach("broken " * 1000)
    assert await rig.read((), [prompt]) == [prompt]
    assert rig.notices == []


async def test_a_document_is_read_once_and_every_turn_gives_the_same() -> None:
    rig = Rig()
    prompt = attach("words " * 20_000)
    first = await rig.read((), [prompt])
    reply = AssistantCanister.from_text("fine")
    history: list[Canister] = [prompt, reply]
    for _ in range(3):
        again = await rig.read(history, [question := UserCanister.from_text("and?")])
        assert again[0] is first[0]
        history += [question, AssistantCanister.from_text("so")]
    assert rig.service.read_names == ["report.pdf"]


async def test_a_continued_conversation_gives_the_same_as_when_it_began() -> None:
    for size in (100, 3000, 20_000):
        rig, prompt = Rig(), attach("words " * size)
        (first,) = await rig.read((), [prompt])
        resumed = Rig()
        again = await resumed.read([prompt, AssistantCanister.from_text("ok")], [])
        assert again[0] == first
        assert [*map(data_of, again[0].contents)] == [*map(data_of, first.contents)]


async def test_a_document_that_is_too_long_is_given_its_outline_and_beginning() -> None:
    rig = Rig()
    (given,) = await rig.read((), [attach("words " * 20_000)])
    text = data_of(given.contents[0])
    assert len(text) < 10_000
    assert "report.pdf is too long to include in full (2 pages, 120,000 characters)" in text
    assert "Search it." in text
    assert rig.documents.is_cut(rig.model)
    (notice,) = rig.notices
    assert notice.text == (
        "report.pdf is too long for scripted/small: only its outline and its beginning are sent; "
        "the model can search the rest"
    )


async def test_what_came_before_leaves_less_room() -> None:
    rig = Rig()
    before = UserCanister.from_text("x" * 15_000)
    given = await rig.read([before], [attach("words " * 2000)])
    assert rig.documents.is_cut(rig.model)
    assert given[0] is before
    roomy = Rig()
    await roomy.read((), [attach("words " * 2000)])
    assert not roomy.documents.is_cut(roomy.model)


async def test_many_documents_share_the_room() -> None:
    rig = Rig()
    folder = [attach(f"text {number} " * 200, f"{number}.pdf") for number in range(100)]
    given = await rig.read((), folder)
    sizes = [len(data_of(one.contents[0])) for one in given]
    assert sum(sizes) < 30_000
    assert sizes[0] > 1000 > sizes[-1]


async def test_a_long_text_file_is_shortened_too_and_a_recalled_note_is_not() -> None:
    rig = Rig()
    note = DocumentCanister((TextualContent("x" * 100_000),), title="Memory")
    text = DocumentCanister(
        (TextualContent("line\n" * 20_000),), title="log.txt", source="/tmp/log.txt"
    )
    recalled, given = await Rig(produce_model(200_000)).read([note], [text])
    assert (recalled, given) == (note, text)
    recalled, given = await rig.read([note], [text])
    assert recalled is note
    assert data_of(given.contents[0]).startswith("log.txt (2 pages, 100,000 characters) is not")


async def test_another_model_gets_its_own_view_and_the_first_keeps_its_own() -> None:
    rig, large = Rig(), produce_model(1_000_000, "large")
    prompt = attach("words " * 20_000)
    (short,) = await rig.read((), [prompt])
    (whole,) = await rig.read([prompt], (), large)
    assert len(data_of(whole.contents[0])) > 100_000
    assert (await rig.read([prompt], ()))[0] is short
    assert (await rig.read([prompt], (), scripted_model(["ok"], name="takes"))) == [prompt]


async def test_a_file_that_cannot_be_read_is_an_error_when_it_is_new() -> None:
    rig, prompt = Rig(), attach("broken", "bad.pdf")
    for _ in range(2):
        with pytest.raises(DocumentUnreadable, match=r"bad\.pdf: it is broken"):
            await rig.read((), [prompt])
    assert rig.notices == []


async def test_a_file_of_the_history_that_cannot_be_read_is_a_notice() -> None:
    rig, prompt = Rig(), attach("broken", "bad.pdf")
    (given, _) = await rig.read([prompt], [UserCanister.from_text("go on")])
    assert [notice.text for notice in rig.notices] == ["bad.pdf: it is broken"]
    assert data_of(given.contents[0]) == "[bad.pdf cannot be read.]"


async def test_of_several_files_those_that_can_be_read_are_given() -> None:
    rig = Rig()
    bad, good = await rig.read((), [attach("broken", "bad.pdf"), attach("good", "good.pdf")])
    assert data_of(bad.contents[0]) == "[bad.pdf cannot be read.]"
    assert data_of(good.contents[0]) == "File good.pdf:\n\ngood"
    assert "bad.pdf: it is broken" in [notice.text for notice in rig.notices]


async def test_what_is_missing_of_a_document_is_said() -> None:
    rig = Rig()
    await rig.read((), [attach("scan")])
    assert rig.notices[0].text == "report.pdf: page 2 has no text"


async def test_bytes_are_loaded_where_they_are_stored() -> None:
    async def load(references: Sequence[Reference]) -> Mapping[str, bytes]:
        return {one.hash: b"stored text" for one in references}

    rig = Rig()
    prompt = UserCanister((FileContent(Reference("a" * 64, 11), PDF, "a.pdf"),))
    (given,) = await rig.read((), [prompt], load=load)
    assert data_of(given.contents[0]) == "File a.pdf:\n\nstored text"


async def test_two_files_of_one_name_have_two_names() -> None:
    rig = Rig()
    same = attach("one")
    await rig.read((), [same, attach("two"), attach("one", "/home/me/report.pdf")])
    assert [file.name for file in rig.documents.attached] == ["report.pdf", "report.pdf (2)"]


async def test_a_history_that_was_cut_back_is_looked_at_again() -> None:
    rig = Rig()
    prompts = [attach(f"text {number}", f"{number}.pdf") for number in range(3)]
    await rig.read(prompts, ())
    other = attach("other", "other.pdf")
    given = await rig.read([prompts[0], other], ())
    assert data_of(given[1].contents[0]).endswith("other")


def test_checks_leave_out_what_can_be_read() -> None:
    (left,) = without_documents([attach("x")])
    assert [data_of(one) for one in left.contents] == ["What is it?"]
    instructions = SupervisorCanister.from_text("Be brief.")
    assert without_documents([instructions])[0] is instructions
