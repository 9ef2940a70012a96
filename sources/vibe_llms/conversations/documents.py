"""The documents of a conversation, and what a model that cannot take a file is given instead.

The decision depends only on the model and on what came before, so that each turn repeats it and
the provider's prompt cache holds. Nothing of it is stored: another model gets the file itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from vibe_llms.controls import Controls
from vibe_llms.conversations.context_window import estimate_tokens
from vibe_llms.events import Notice
from vibe_llms.exceptions import (
    ContentUnsupported,
    DocumentUnreadable,
    PackageMissing,
    VibeLlmsError,
)
from vibe_llms.messages.canisters import Canister, DocumentCanister, ReplyCanister, UserCanister
from vibe_llms.messages.contents import Citation, Content, FileContent, Reference, TextualContent
from vibe_llms.providers.interfaces import Loader, Model, Notifier

if TYPE_CHECKING:
    from vibe_llms.documents.texts import DocumentText

#: The row of `[ensembles]` whose tools read and search documents.
ENSEMBLE = "documents"
#: Documents are given whole up to this share of the context window, with all that came before.
_SHARE = 0.75
#: The context window of a model of which none is known.
_USUAL_TOKENS = 32_768
#: As `estimate_tokens` counts.
_CHARACTERS_PER_TOKEN = 3
#: A text of fewer bytes is never cut.
_SHORT = 500
#: A provider that takes a file counts at least so many tokens for each page of it.
#: Source: Anthropic's page on PDF support, 1,500 to 3,000.
_PAGE_TOKENS = 1500


class DocumentService(Protocol):
    """Reads documents for conversations; `vibe_llms.documents.core` has the one of sessions."""

    async def read(self, document: FileContent, load: Loader) -> DocumentText:
        """Its text. `DocumentUnreadable` or `PackageMissing` says why there is none."""
        ...

    def shorten(self, name: str, document: DocumentText, room: int, *, tools: bool) -> str:
        """What is given of a document that is too long; `tools` says whether it can be searched."""
        ...

    def offer(
        self,
        conversation: str,
        documents: Sequence[FileContent],
        collections: Sequence[str],
        load: Loader,
    ) -> None:
        """What the tools may read and search in a conversation, until `withdraw`."""
        ...

    def withdraw(self, conversation: str) -> None:
        """The tools may read nothing more in a conversation."""
        ...


class _Given(Struct, frozen=True):
    """What a model is given in place of messages, by identity; `cut` if a document is shortened."""

    canisters: Mapping[str, Canister] = {}
    cut: bool = False
    #: How many messages of the history were looked at, and the last of them.
    count: int = 0
    last: Canister | None = None


class ConversationDocuments:
    """The documents of one conversation, and what each model is given in their place."""

    def __init__(self) -> None:
        self._attached: dict[str, FileContent] = {}
        self._given: dict[tuple[str, str], _Given] = {}
        #: The texts that were given whole, by the titles that replies cite.
        self._texts: dict[str, DocumentText] = {}

    @property
    def attached(self) -> Sequence[FileContent]:
        """The documents as files, the oldest first, each under a name of its own."""
        return tuple(self._attached.values())

    def is_cut(self, model: Model) -> bool:
        """Whether a document is too long for a model, so that it has to search."""
        return self._access(model).cut

    def apply(self, model: Model, canisters: Sequence[Canister]) -> Sequence[Canister]:
        """The messages as a model is given them."""
        if not self._given or not (given := self._access(model).canisters):
            return canisters
        return [given.get(canister.identity, canister) for canister in canisters]

    def locate(self, citation: Citation) -> Citation:
        """A citation with its place in the document, if it counts characters of one given whole."""
        document = self._texts.get(citation.title)
        if document is None or citation.start is None or citation.unit != "character":
            return citation
        return msgspec.structs.replace(citation, place=str(document.place_at(citation.start)))

    async def read(
        self,
        history: Sequence[Canister],
        said: Sequence[Canister],
        reading: Reading,
    ) -> None:
        """Read what the model cannot take, in messages that were not looked at yet.

        What cannot be read is a notice, and the model is given a line that says so. If none of the
        documents of `said` can be read, it raises why.
        """
        model, known = reading.model, self._access(reading.model)
        count = known.count
        if count > len(history) or (count and history[count - 1] is not known.last):
            count = 0
        canisters, cut = dict(known.canisters), known.cut
        failures: list[tuple[Canister, str, VibeLlmsError]] = []
        #: How many new documents there are, how many of them cannot be read, and the tokens of
        #: files sent since the last reply.
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

    def attach(self, file: FileContent) -> FileContent:
        """The file under a name that no other file has."""
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

    `sent` is how many tokens those have at least that stay files.
    """

    canister: Canister
    cut: bool
    whole: Mapping[str, DocumentText]
    failures: Sequence[tuple[str, VibeLlmsError]]
    sent: int


class Reading(Struct, frozen=True, kw_only=True):
    """Reads documents for one model; `tools` says whether the model may be offered tools."""

    model: Model
    access_service: Callable[[], DocumentService]
    load: Loader
    notify: Notifier
    tools: bool
    notices: list[Notice] = msgspec.field(default_factory=list)

    async def rewrite(
        self, canister: Canister, found: Sequence[tuple[int, FileContent]], used: int
    ) -> _Rewritten:
        """A message with the text of what the model cannot take; itself if it takes all of it.

        `used` tokens came before it.
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
                    # Its provider may read what we cannot, such as a scan.
                    continue
                failures.append((file.name, error))
                contents[place] = TextualContent(f"[{file.name} cannot be read.]")
                continue
            if taken and not textual and self.model.attributes.context_tokens is None:
                continue
            if taken and not textual and (length := _measure_file(document)) <= room:
                room -= length
                sent += length // _CHARACTERS_PER_TOKEN
                continue
            for problem in document.notices:
                self.note(canister, file.name, f"{file.name}: {problem}")
            if len(document.text) <= max(room, _SHORT):
                text, whole[file.name] = document.text, document
                self.note(canister, file.name, f"{file.name} is given to {self._address} as text")
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
        """Say something about a document of a message, when all are read."""
        self.notices.append(Notice("conversion", text, canister.identity, name))

    def send_notices(self) -> None:
        """Send the notices together, so that those of one kind can be shown as one."""
        for notice in self.notices:
            self.notify(notice)
        self.notices.clear()

    def _shorten(self, canister: Canister, name: str, document: DocumentText, room: int) -> str:
        how = "it can search the rest" if self.tools else "the rest is left out"
        given = "its outline and its beginning are given"
        self.note(canister, name, f"{name} is too long for {self._address}: {given}, {how}")
        return self.access_service().shorten(name, document, room, tools=self.tools)

    @property
    def _address(self) -> str:
        return f"{self.model.provider}/{self.model.name}"


def measure_room(model: Model, used: int = 0) -> int:
    """How many characters of documents a model is given after so many tokens."""
    limit = model.attributes.context_tokens or _USUAL_TOKENS
    return max(0, int(limit * _SHARE) - used) * _CHARACTERS_PER_TOKEN


def takes(model: Model, content: Content) -> bool:
    """Whether a model takes a content as it is."""
    try:
        model.check([UserCanister((content,))], Controls())
    except ContentUnsupported:
        return False
    return True


def survey_files(canisters: Iterable[Canister]) -> Sequence[FileContent]:
    """The documents among messages as files, each under a name of its own."""
    documents = ConversationDocuments()
    for canister in canisters:
        for _, file in _survey_documents(canister):
            documents.attach(file)
    return documents.attached


def without_documents(canisters: Iterable[Canister]) -> Sequence[Canister]:
    """The messages without the contents that can be read as documents."""
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
    """The room that a file takes at least which the provider reads itself, in characters."""
    return max(len(document.text), document.pages * _PAGE_TOKENS * _CHARACTERS_PER_TOKEN)


def _is_plain(canister: Canister) -> bool:
    """Whether a message is a text and no document, as most are."""
    contents = canister.contents
    return type(canister) is not DocumentCanister and (
        not contents or (len(contents) == 1 and type(contents[0]) is TextualContent)
    )


def _survey_documents(canister: Canister) -> Iterator[tuple[int, FileContent]]:
    """The contents of a message that are documents, by their index."""
    document = canister if isinstance(canister, DocumentCanister) else None
    if document is None and {*map(type, canister.contents)} <= {TextualContent}:
        return
    title = document.title if document is not None else ""
    for place, content in enumerate(canister.contents):
        match content:
            case FileContent(data=bytes() | Reference() as data, mimetype=mimetype, name=name):
                yield place, FileContent(data, mimetype, _bare(name or title) or "file")
            # Without a source it is no file, but what a hook recalled.
            case TextualContent(data=text) if document is not None and document.source:
                data = text if isinstance(text, Reference) else text.encode("utf-8", "replace")
                yield place, FileContent(data, "text/plain", _bare(title) or "document")


def _is_same(one: FileContent, other: FileContent) -> bool:
    """Whether two files have the same bytes; those of one may have been stored in the meantime."""
    return one == other and one.mimetype == other.mimetype


def _size_of(data: object) -> int:
    return data.size if isinstance(data, Reference) else len(data) if isinstance(data, bytes) else 0


def _bare(name: str) -> str:
    """A file's name without its folders."""
    return name.replace("\\", "/").rpartition("/")[2]
