"""The documents of a conversation, and their replacements for models that do not accept files.

The decision depends only on the model and the earlier messages, so each turn repeats it and the
provider's prompt cache stays valid. It is not stored: another model gets the file itself.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import (
    ContentUnsupported,
    DocumentUnreadable,
    PackageMissing,
    VibeLlmsError,
)
from vibe_llms.conversations.context_window import (
    CHARACTERS_PER_TOKEN,
    UNKNOWN_WINDOW,
    estimate_tokens,
)
from vibe_llms.conversations.document_texts import DocumentText
from vibe_llms.messages.canisters import Canister, DocumentCanister, ReplyCanister, UserCanister
from vibe_llms.messages.contents import Citation, Content, FileContent, Reference, TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import Loader, Model, Notifier

#: The row of `[ensembles]` with the tools to read and search documents.
ENSEMBLE = "documents"
#: Share of the context window, including earlier messages, up to which documents are sent whole.
_SHARE = 0.75
#: Length in bytes up to which a text is never cut.
_SHORT = 500
#: Tokens per page of a file that the provider reads, at least. Source: Anthropic's page on PDF
#: support, 1,500 to 3,000.
_PAGE_TOKENS = 1500


class DocumentService(Protocol):
    """Reader of documents for conversations; `vibe_llms.documents.core` implements it."""

    async def read(self, document: FileContent, load: Loader) -> DocumentText:
        """Return the text of a document; raises `DocumentUnreadable` or `PackageMissing`."""
        ...

    def shorten(self, name: str, document: DocumentText, room: int, *, tools: bool) -> str:
        """Return an excerpt of a long document; `tools` is True if the model can search it."""
        ...

    def offer(
        self,
        conversation: str,
        documents: Sequence[FileContent],
        collections: Sequence[str],
        load: Loader,
    ) -> None:
        """Let the tools read and search these documents in a conversation, until `withdraw`."""
        ...

    async def add_page(self, conversation: str, url: str, text: DocumentText) -> None:
        """Let the tools read and search a fetched web page in a conversation."""
        ...

    def withdraw(self, conversation: str) -> None:
        """Remove the tools' access to the documents of a conversation."""
        ...


class _Given(Struct, frozen=True):
    """Replacements of messages for a model, by identity; `cut` if a document is shortened."""

    canisters: Mapping[str, Canister] = {}
    cut: bool = False
    #: Number of messages of the history that were processed, and the last of them.
    count: int = 0
    last: Canister | None = None


class ConversationDocuments:
    """The documents of one conversation, and their replacements for each model."""

    def __init__(self) -> None:
        self._attached: dict[str, FileContent] = {}
        self._given: dict[tuple[str, str], _Given] = {}
        #: True once a message has a replacement for any model.
        self.replaces = False
        #: Texts that were sent whole, by the titles that replies cite.
        self._texts: dict[str, DocumentText] = {}

    @property
    def attached(self) -> Sequence[FileContent]:
        """The documents as files, the oldest first, each with a unique name."""
        return tuple(self._attached.values())

    def is_cut(self, model: Model) -> bool:
        """Return True if a document is too long for a model, so the model must search it."""
        return self._access(model).cut

    def apply(
        self, model: Model, canisters: Sequence[Canister], shortened: Container[str] = ()
    ) -> Sequence[Canister]:
        """Return the messages with the replacements for a model.

        A digest has already replaced the messages in `shortened`, by identity.
        """
        if not self._given or not (given := self._access(model).canisters):
            return canisters
        return [
            one if one.identity in shortened else given.get(one.identity, one) for one in canisters
        ]

    def locate(self, citation: Citation) -> Citation:
        """Return the citation with its place in the document, if that was sent whole as text."""
        document = self._texts.get(citation.title)
        if document is None or citation.start is None or citation.unit != "character":
            return citation
        return msgspec.structs.replace(citation, place=str(document.place_at(citation.start)))

    async def read(
        self,
        history: Sequence[Canister],
        said: Sequence[Canister],
        reading: DocumentReading,
    ) -> None:
        """Read the documents that the model does not accept, in messages that are new to it.

        For an unreadable document, a notice is sent and the model gets a line that says so. If none
        of the documents in `said` can be read, the error of the first is raised.
        """
        model, known = reading.model, self._access(reading.model)
        count = known.count
        if count > len(history) or (count and history[count - 1] is not known.last):
            count = 0
        canisters, cut = dict(known.canisters), known.cut
        failures: list[tuple[Canister, str, VibeLlmsError]] = []
        #: New documents, unreadable ones among them, and tokens of files sent since a reply.
        fresh = failed = sent = 0
        for index, canister in enumerate([*history[count:], *said], count):
            if isinstance(canister, ReplyCanister):
                sent = 0
            if _is_plain(canister) or not (found := tuple(_survey_documents(canister))):
                continue
            found = tuple((place, self.attach(file)) for place, file in found)
            if canister.identity in canisters:
                continue
            before = [canisters.get(one.identity, one) for one in [*history, *said][:index]]
            used = sent + estimate_tokens(reversed(before))
            if index >= len(history):
                fresh += len(found)
                used += estimate_tokens(without_documents(said))
            shown = await reading.rewrite(canister, found, used)
            sent += shown.sent
            if shown.canister is not canister:
                canisters[canister.identity] = shown.canister
                cut = cut or shown.cut
                failures += [(canister, name, error) for name, error in shown.failures]
                failed += len(shown.failures) if index >= len(history) else 0
                self._texts.update(shown.whole)
        if fresh and fresh == failed:
            raise failures[-failed][-1]
        for canister, name, error in failures:
            reading.note(canister, name, str(error))
        reading.send_notices()
        last = history[-1] if history else None
        self._given[model.provider, model.name] = _Given(canisters, cut, len(history), last)
        self.replaces = self.replaces or bool(canisters)

    def attach(self, file: FileContent) -> FileContent:
        """Return the file under a unique name."""
        name, number = file.name, 1
        while (other := self._attached.get(name)) is not None and not _is_same(other, file):
            number += 1
            name = f"{file.name} ({number})"
        named = msgspec.structs.replace(file, name=name)
        return self._attached.setdefault(name, named)

    def _access(self, model: Model) -> _Given:
        return self._given.get((model.provider, model.name), _Given())


class _Rewritten(Struct, frozen=True):
    """A message with text in place of documents; `whole` are those not shortened, by title.

    `sent` is the least number of tokens of the documents that are still sent as files.
    """

    canister: Canister
    cut: bool
    whole: Mapping[str, DocumentText]
    failures: Sequence[tuple[str, VibeLlmsError]]
    sent: int


class DocumentReading(Struct, frozen=True, kw_only=True):
    """A reader of documents for one model; `tools` is True if the model may be offered tools."""

    model: Model
    access_service: Callable[[], DocumentService]
    load: Loader
    notify: Notifier
    tools: bool
    notices: list[Notice] = msgspec.field(default_factory=list)

    async def rewrite(
        self, canister: Canister, found: Sequence[tuple[int, FileContent]], used: int
    ) -> _Rewritten:
        """Replace the documents that the model does not accept by text.

        Returns the same message if it accepts all. `used` is the number of tokens before it.
        """
        room = measure_room(self.model, used)
        contents, cut, sent = list(canister.contents), False, 0
        whole: dict[str, DocumentText] = {}
        failures: list[tuple[str, VibeLlmsError]] = []
        for place, file in found:
            content, size = contents[place], _size_of(file.data)
            textual = isinstance(content, TextualContent) or file.mimetype.startswith("text/")
            taken = takes(self.model, content)
            if taken and textual and size <= max(room, _SHORT):
                room -= size
                continue
            try:
                document = await self.access_service().read(file, self.load)
            except (DocumentUnreadable, PackageMissing) as error:
                if taken and not _is_useless(error):
                    # The provider may read documents that we cannot, such as scans.
                    continue
                failures.append((file.name, error))
                contents[place] = TextualContent(f"[{file.name} cannot be read.]")
                continue
            if taken and not textual and self.model.attributes.context_tokens is None:
                continue
            if taken and not textual and (length := _measure_file(document)) <= room:
                room -= length
                sent += length // CHARACTERS_PER_TOKEN
                continue
            for problem in document.notices:
                self.note(canister, file.name, f"{file.name}: {problem}")
            if len(document.text) <= max(room, _SHORT):
                text, whole[file.name] = document.text, document
                self.note(canister, file.name, f"{file.name} is sent to {self._address} as text")
            else:
                text, cut = self._shorten(canister, file.name, document, room), True
            room -= len(text)
            if not isinstance(canister, DocumentCanister):
                text = f"File {file.name}:\n\n{text}"
            contents[place] = TextualContent(text)
        if cut or whole or failures:
            canister = msgspec.structs.replace(canister, contents=tuple(contents))
        return _Rewritten(canister, cut, whole, failures, sent)

    def note(self, canister: Canister, name: str, text: str) -> None:
        """Add a notice about a document, to be sent when all are read."""
        self.notices.append(Notice("conversion", text, canister.identity, name))

    def send_notices(self) -> None:
        """Send all notices together, so that similar ones can be shown as one."""
        for notice in self.notices:
            self.notify(notice)
        self.notices.clear()

    def _shorten(self, canister: Canister, name: str, document: DocumentText, room: int) -> str:
        how = "the model can search the rest" if self.tools else "the rest is left out"
        given = "only its outline and its beginning are sent"
        self.note(canister, name, f"{name} is too long for {self._address}: {given}; {how}")
        return self.access_service().shorten(name, document, room, tools=self.tools)

    @property
    def _address(self) -> str:
        return f"{self.model.provider}/{self.model.name}"


def measure_room(model: Model, used: int = 0) -> int:
    """Return the number of characters of documents that a model may get after `used` tokens."""
    limit = model.attributes.context_tokens or UNKNOWN_WINDOW
    return max(0, int(limit * _SHARE) - used) * CHARACTERS_PER_TOKEN


def takes(model: Model, content: Content) -> bool:
    """Return True if a model accepts a content unchanged."""
    try:
        model.check([UserCanister((content,))], Controls())
    except ContentUnsupported:
        return False
    return True


def survey_files(canisters: Iterable[Canister]) -> Sequence[FileContent]:
    """Return the documents among messages as files, each with a unique name."""
    documents = ConversationDocuments()
    for canister in canisters:
        for _, file in _survey_documents(canister):
            documents.attach(file)
    return documents.attached


def without_documents(canisters: Iterable[Canister]) -> Sequence[Canister]:
    """Return the messages without the contents that can be read as documents."""
    left: list[Canister] = []
    for canister in canisters:
        places = {place for place, _ in _survey_documents(canister)}
        if places:
            others = [one for place, one in enumerate(canister.contents) if place not in places]
            left.append(msgspec.structs.replace(canister, contents=tuple(others)))
        else:
            left.append(canister)
    return left


def _is_useless(error: VibeLlmsError) -> bool:
    """Return True if no program can read the file: it is damaged, or it needs a password."""
    return isinstance(error, DocumentUnreadable) and (error.damaged or error.password)


def _measure_file(document: DocumentText) -> int:
    """Return the least size in characters of a file that the provider reads itself."""
    return max(len(document.text), document.pages * _PAGE_TOKENS * CHARACTERS_PER_TOKEN)


def _is_plain(canister: Canister) -> bool:
    """Return True if a message has no document and at most one text, like most messages."""
    contents = canister.contents
    return type(canister) is not DocumentCanister and (
        not contents or (len(contents) == 1 and type(contents[0]) is TextualContent)
    )


def _survey_documents(canister: Canister) -> Iterator[tuple[int, FileContent]]:
    """Yield the contents of a message that are documents, with their index."""
    document = canister if isinstance(canister, DocumentCanister) else None
    if document is None and {*map(type, canister.contents)} <= {TextualContent}:
        return
    title = document.title if document is not None else ""
    for place, content in enumerate(canister.contents):
        match content:
            case FileContent(data=bytes() | Reference() as data, mimetype=mimetype, name=name):
                yield place, FileContent(data, mimetype, _bare(name or title) or "file")
            # A text without a source is not a file, but was added by a hook.
            case TextualContent(data=text) if document is not None and document.source:
                data = text if isinstance(text, Reference) else text.encode("utf-8", "replace")
                yield place, FileContent(data, "text/plain", _bare(title) or "document")


def _is_same(one: FileContent, other: FileContent) -> bool:
    """Return True if two files have the same bytes; one of them may be a reference."""
    return one == other and one.mimetype == other.mimetype


def _size_of(data: object) -> int:
    return data.size if isinstance(data, Reference) else len(data) if isinstance(data, bytes) else 0


def _bare(name: str) -> str:
    """Return a file's name without its folders."""
    return name.replace("\\", "/").rpartition("/")[2]
