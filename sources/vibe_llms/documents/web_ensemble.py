"""Tools with which the model searches the web and reads pages; each new host is asked about."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from vibe_llms.base.configuration import SEARCH_ENGINES, Positive
from vibe_llms.base.exceptions import (
    ArgumentsInvalid,
    AttachmentUnreadable,
    ConfigurationError,
    CredentialMissing,
    PackageMissing,
    PageUnreadable,
)
from vibe_llms.conversations.document_texts import DocumentText
from vibe_llms.conversations.hosts import (
    EnsembleConfiguration,
    EnsembleHost,
    register_ensemble,
)
from vibe_llms.documents.extracts import count_pages, write_page
from vibe_llms.documents.readers.interfaces import READERS
from vibe_llms.documents.reading import DocumentReader
from vibe_llms.documents.searching.interfaces import (
    SearchConfiguration,
    SearchEngine,
    access_search_engine,
)
from vibe_llms.documents.searching.tool import produce_search_tool
from vibe_llms.documents.web import Fetched, check_url, fetch, read_hosts
from vibe_llms.invocation.ensembles import EnsembleRules
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.events import Notice

CAUTION = "the host receives the full URL; its reply is untrusted"
#: Row whose reader omits menus and similar content.
_MAIN_CONTENT = "page"
_HTML = ("text/html", "application/xhtml+xml")
#: Maximum number of texts kept so that their later pages need no new request.
_KEPT = 4


class WebEnsembleSettings(EnsembleRules, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Keys of the row. `[web]` controls which addresses are fetched.

    Requests to `trusted_hosts` do not need approval. `search` is a row of `[search-engines]`, which
    finds at most `results` pages for a query; if unset, the tool is not offered.
    """

    trusted_hosts: tuple[str, ...] = ()
    search: str = ""
    results: Positive = 8


class WebEnsemble:
    """Search engine and reader of web pages. It sends nothing before a tool is called."""

    def __init__(self, name: str, configuration: EnsembleConfiguration) -> None:
        whole = configuration.configuration
        self._name = name
        self._configuration = whole
        self._settings = whole.read(WebEnsembleSettings, configuration.settings, "ensembles", name)
        self._engine = self._produce_engine(configuration.host)
        self._trusted = frozenset(self._read_trusted())
        self._host = configuration.host
        self._reader: DocumentReader | None = None
        self._texts: dict[str, tuple[str, DocumentText]] = {}
        self._fetcher: Invoker | None = None
        self._invokers: tuple[Invoker, ...] = ()

    @property
    def name(self) -> str:
        """Name of its row."""
        return self._name

    @property
    def invokers(self) -> Sequence[Invoker]:
        """The tools `fetch_page` and, with a search engine, `search`, once it is open."""
        return self._invokers

    async def open(self) -> None:
        """Offer the tools. Nothing is sent.

        Without the key or the package of the search engine, the search is left out with a notice.
        If the row says `required`, that is an error.
        """
        search = await self._open_search()
        tool = Invoker.from_function(
            self._fetch_page, name=f"{self._name}/fetch_page", outside=True, sends=True
        )
        check = tool.check

        def check_arguments(arguments: str) -> None:
            check(arguments)
            try:
                check_url(json.loads(arguments)["url"], self._configuration.web)
            except PageUnreadable as error:
                raise ArgumentsInvalid(str(error)) from error

        tool = msgspec.structs.replace(
            tool,
            ensemble=self._name,
            check=check_arguments,
            caution=CAUTION,
            scope_of=self._find_host,
            allowed_scopes=self._trusted,
        )
        self._reader = self._reader or DocumentReader(self._configuration)
        self._fetcher = self._settings.apply(tool, reads_only=False)
        self._invokers = (self._fetcher, *search)

    async def close(self) -> None:
        """End the processes that read."""
        self._invokers = ()
        self._texts.clear()
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    def _produce_engine(self, host: EnsembleHost) -> SearchEngine | None:
        whole, name = self._configuration, self._settings.search
        if not name:
            return None
        rows = {row.name: row for row in whole.rows(SEARCH_ENGINES)}
        if name not in rows:
            known = ", ".join(rows) or "none"
            words = f"search engine {name!r} not found; known search engines: {known}"
            raise whole.error(words, "ensembles", self._name, "search")
        settings = SearchConfiguration(whole, rows[name].settings, host)
        return access_search_engine(rows[name], settings)

    async def _open_search(self) -> Sequence[Invoker]:
        """Return the tool `search` if its engine can be used."""
        engine, settings = self._engine, self._settings
        if engine is None:
            return ()
        try:
            await engine.open()
        except (CredentialMissing, PackageMissing) as error:
            if settings.required:
                raise
            words = f"{error}; the tool {self._name}/search is left out"
            self._host.notify(Notice("ensemble", words))
            return ()
        tool = produce_search_tool(self._name, engine, settings.results)
        tool = msgspec.structs.replace(tool, allowed_scopes=self._trusted)
        return (settings.apply(tool, reads_only=False),)

    def _read_trusted(self) -> Iterator[str]:
        whole = self._configuration
        read_hosts(whole.web)
        for host in self._settings.trusted_hosts:
            if self._engine is not None and host == self._engine.host:
                # It may have a private address.
                yield host
                continue
            place = ("ensembles", self._name, "trusted-hosts")
            try:
                target = check_url(f"http://{host}", whole.web)
            except PageUnreadable as error:
                raise whole.error(str(error), *place) from error
            if target.path != "/":
                raise whole.error(f"{host!r} is not a host, such as docs.python.org", *place)
            yield target.host

    def _find_host(self, arguments: Mapping[str, Any]) -> str:
        """Return the host that a call names, or "" if the call cannot run."""
        try:
            return check_url(str(arguments.get("url", "")), self._configuration.web).host
        except PageUnreadable:
            return ""

    async def _fetch_page(
        self, url: str, context: InvocationContext, page: int = 1
    ) -> InvocationOutput:
        """Read a web page, or a document at a web address, as Markdown.

        Args:
            url: The address, with http:// or https://.
            page: Which part of a long text to read, counted from 1.
        """
        try:
            if page <= 1 or url not in self._texts:
                head, text = await self._read(url, context)
                self._keep(url, (head, text))
                if (access := self._host.access_documents) is not None:
                    await access().add_page(context.conversation, url, text)
        except (AttachmentUnreadable, ConfigurationError) as error:
            return _fail(str(error))
        return _draw(*self._texts[url], page)

    async def _read(self, url: str, context: InvocationContext) -> tuple[str, DocumentText]:
        """Return the lines above each page of a text, and the text at an address."""

        async def admit(target: str) -> None:
            invoker = self._fetcher
            assert invoker is not None
            if context.tainted and invoker.approval == "allow":
                # Untrusted text may have chosen the target of the redirect.
                invoker = msgspec.structs.replace(invoker, approval="ask")
            arguments = msgspec.json.encode({"url": target}).decode()
            invocation = InvocationCanister(name=invoker.name, arguments=arguments)
            with context.pause_limit():
                refusal = await self._host.admit(invocation, invoker)
            if refusal:
                raise PageUnreadable(f"it redirects to {target}. {refusal}", url=url)

        assert self._reader is not None
        whole = self._configuration
        fetched = await fetch(url, whole.web, offline=whole.offline, admit=admit)
        now = datetime.now(UTC)
        html = fetched.mimetype in _HTML
        rows = {row.name for row in whole.rows(READERS)}
        document = await self._reader.read(
            fetched.document,
            fetched.name,
            mimetype=fetched.mimetype,
            reader=_MAIN_CONTENT if html and _MAIN_CONTENT in rows else "",
        )
        return _describe(fetched, document, now), document

    def _keep(self, url: str, text: tuple[str, DocumentText]) -> None:
        self._texts.pop(url, None)
        self._texts[url] = text
        if len(self._texts) > _KEPT:
            del self._texts[next(iter(self._texts))]


def _describe(fetched: Fetched, document: DocumentText, now: datetime) -> str:
    lines = [f"Address: {fetched.url}"]
    if fetched.redirects:
        lines.append(f"Redirected from: {fetched.redirects[0]}")
    lines.append(f"Fetched: {now:%Y-%m-%d %H:%M} UTC")
    return "\n".join([*lines, *(f"Note: {notice}" for notice in document.notices)])


def _draw(head: str, document: DocumentText, page: int) -> InvocationOutput:
    try:
        text = write_page(document.title, document, page)
    except ValueError as error:
        return _fail(str(error))
    display = f"{document.title}, page {page} of {count_pages(document)}"
    return InvocationOutput((TextualContent(f"{head}\n\n{text}"),), display)


def _fail(text: str) -> InvocationOutput:
    return InvocationOutput((TextualContent(text),), failed=True)


register_ensemble("web", WebEnsemble)
