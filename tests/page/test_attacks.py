"""Hostile texts in every place of the page: none runs, loads, moves, or leads anywhere.

Each place also has a planted hole, which makes markup of the text there. The test must find it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest
import tomli_w
from playwright.sync_api import Browser, Page, Route, expect

from tests.page.attacks import ATTACKS
from tests.page.conftest import PATIENCE, Site, watched
from tests.page.samples import Samples
from tests.server.test_api_imports import lossy
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DigestCanister,
    DocumentCanister,
    Ending,
    InvocationCanister,
    Provenance,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    Citation,
    FileContent,
    ImageContent,
    Location,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.interfaces import Details

pytestmark = pytest.mark.browser

PAGE = Path(__file__).parents[2] / "sources/vibe_llms/page"
#: Fifteen attacks in four messages each are what the page loads of a conversation at once.
_GROUP = 15
_NUMBERS = itertools.count(1)
GROUPS = [ATTACKS[start : start + _GROUP] for start in range(0, len(ATTACKS), _GROUP)]
#: Returns what an attack has changed in the document.
_SCAN = """() => {
    const found = [];
    if (window.pwned !== undefined || ({}).pwned !== undefined) found.push("it ran");
    // A view may have a style sheet of the page.
    const own = `link[rel=stylesheet][href^="${location.origin}/page/"]`;
    const strange = `script, style, link:not(${own}), meta, base, iframe, frame, frameset,`
        + "object, embed, applet, portal, fencedframe, isindex, marquee, template, track, area,"
        + "animate, set, use, foreignObject, image, form[action], [srcdoc], [formaction], [ping],"
        + "[background], [autofocus]:not(input[type=search]), [contenteditable]";
    for (const one of document.querySelectorAll("body *")) {
        if (one.matches(strange)) found.push(`element ${one.outerHTML.slice(0, 200)}`);
        for (const { name, value } of one.attributes) {
            const to = value.trim().toLowerCase();
            const wrong = /^on/.test(name)
                || (/(^|:)href$/.test(name) && !/^(#|https?:|mailto:|blob:|[/]api[/])/.test(to))
                || (/^(src|srcset|poster|data)$/.test(name) && !/^(blob:|[/]api[/])/.test(to))
                || (name === "style" && /url|position|expression/.test(to));
            if (wrong) found.push(`attribute ${name}=${value.slice(0, 200)}`);
        }
    }
    for (const id of ["root", "main"]) {
        const count = document.querySelectorAll(`[id="${id}"]`).length;
        if (count !== 1) found.push(`${count} elements with the id ${id}`);
    }
    if (document.documentElement.scrollWidth > innerWidth) found.push("the page is too wide");
    return [...new Set(found)];
}"""


class Watch:
    """A page in a browser, with all that an attack has done there in `found`."""

    def __init__(self, page: Page, site: Site, complaints: list[str]) -> None:
        self.page = page
        self.site = site
        self.found = complaints
        page.on("dialog", self._dialog)
        page.on("request", self._request)
        page.on("framenavigated", self._navigated)
        # A page that follows an attack stays, so that the test can look at it.
        page.context.route("http://evil.test/**", lambda route: route.fulfill(status=204))
        page.context.on("page", lambda _: self.found.append("a window opened"))

    def show(self, address: str) -> None:
        """Show a view, as somebody who follows a link on the page."""
        if self.page.url.startswith(self.site.url):
            self.page.evaluate("(hash) => { location.hash = hash; }", address)
        else:
            self.page.goto(f"{self.site.url}/{address}")

    def scan(self) -> list[str]:
        """Return what was found until now, when everything has been drawn."""
        self.page.wait_for_selector("main", state="attached")
        self.page.evaluate(
            "() => new Promise((end) => requestAnimationFrame(() => setTimeout(end, 30)))"
        )
        self.found.extend(self.page.evaluate(_SCAN))
        return self.found

    def _dialog(self, dialog: Any) -> None:
        self.found.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.site.url, "blob:", "data:")):
            self.found.append(f"request {request.url}")

    def _navigated(self, frame: Any) -> None:
        if frame.parent_frame or not frame.url.startswith((self.site.url, "about:blank")):
            self.found.append(f"frame {frame.url}")


def produce_messages(attack: str) -> list[Canister]:
    """Return a question, a reply, a call and its result that hold an attack wherever they can."""
    answered = Provenance(module="scripted", row="scripted", model=attack[:200])
    call = InvocationCanister(name=attack, arguments=attack, provenance=answered)
    reply = AssistantCanister(
        contents=(
            ReasoningContent(attack),
            TextualContent(attack, citations=(Citation(attack, attack, attack, place=attack),)),
        ),
        provenance=answered,
        ending=Ending(reason="failed", detail=attack),
    )
    return [
        UserCanister(
            contents=(
                TextualContent(attack),
                FileContent(b"x", mimetype="text/html", name=attack),
                ImageContent(Location(attack)),
            )
        ),
        reply,
        call,
        ResultCanister(contents=(TextualContent(attack),), invocation=call.identity, failed=True),
    ]


def fill(home: Path) -> None:
    """Write the attacks into conversations: in their messages, their titles, and their tags."""
    archive = DirectoryArchive(home, StorageSettings(durability="fast"))
    for number, group in enumerate(GROUPS):
        messages = [one for attack in group for one in produce_messages(attack)]
        archive.create_now(
            f"group-{number}", produce_details(group[0], group[0], group[1]), messages
        )
        further: list[Canister] = []
        for attack in group:
            spoken = (TextualContent(attack),)
            further += [
                SupervisorCanister(contents=spoken),
                DocumentCanister(contents=spoken, title=attack, source=attack),
                UserCanister.from_text("Summary"),
                DigestCanister(contents=spoken, policy=attack),
            ]
        archive.create_now(f"others-{number}", produce_details("others"), further)
    for number, attack in enumerate(ATTACKS):
        archive.create_now(
            f"title-{number}", produce_details(attack, attack), [UserCanister.from_text(attack)]
        )


def produce_details(name: str, *tags: str) -> Details:
    """Return the details of a conversation, whose model has a hostile name too."""
    return Details(created=datetime.now(UTC), name=name, tags=tags, model=f"scripted/{name[:99]}")


def produce_script() -> str:
    """Return a script whose replies stream a group of attacks, call it, and fail with it."""
    replies: list[dict[str, Any]] = []
    for number, group in enumerate(GROUPS):
        text = "\n\n".join(group)
        chunks = [text[start : start + 50] for start in range(0, len(text), 50)]
        half = len(chunks) // 2
        parts: list[dict[str, Any]] = [
            {"reasoning": text},
            {"text": chunks[:half]},
            {"delay-seconds": 0.1},
            {"text": chunks[half:]},
        ]
        replies.append({"when": f"^group {number}$", "parts": parts})
    attack = GROUPS[0][0]
    calls = [{"invocation": attack, "arguments": one} for one in GROUPS[0]]
    replies.append({"when": "^call$", "parts": calls})
    replies.append({"when": "^fail$", "parts": [{"error": "refused", "message": attack}]})
    replies.append({"when": ".", "parts": [{"text": "Done."}]})
    return tomli_w.dumps({"replies": replies})


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server whose conversations and models are full of attacks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VIBE_LLMS_HOME", raising=False)
        site = Site(tmp_path_factory.mktemp("attacks") / "home")
        site.scripts["hostile"] = produce_script()
        for attack in GROUPS[0]:
            site.scripts[attack] = site.scripts["slow"]
        fill(site.home)
        site.start()
        yield site
        site.stop()


@contextmanager
def watching(browser: Browser, site: Site, hole: Hole | None = None) -> Iterator[Watch]:
    """Open a page, perhaps with a hole and without the policy that would close it."""
    context = browser.new_context(
        bypass_csp=hole is not None, viewport={"width": 1280, "height": 800}
    )
    with watched(context) as complaints:
        page = context.new_page()
        if hole:
            hole.plant(page)
        page.add_init_script("localStorage.setItem('vibe-llms:model', '\"scripted/hostile\"')")
        yield Watch(page, site, complaints)
    context.close()


def show_messages(watch: Watch, groups: int) -> None:
    """Show messages of every role but those below."""
    for number in range(groups):
        watch.show(f"#/c/group-{number}")
        shown = watch.page.locator(".message.user")
        expect(shown).to_have_count(len(GROUPS[number]))
        watch.scan()


def show_others(watch: Watch, groups: int) -> None:
    """Show instructions, documents, and digests."""
    for number in range(groups):
        watch.show(f"#/c/others-{number}")
        expect(watch.page.locator(".message.digest")).to_have_count(len(GROUPS[number]))
        watch.scan()


def show_list(watch: Watch, groups: int) -> None:
    """Show the list of conversations, part by part."""
    watch.show("#/")
    rows = watch.page.locator(".conversations .row")
    rows.first.wait_for()
    seen = set()
    for step in range(40):
        watch.page.locator(".conversations").evaluate(
            "(list, top) => { list.scrollTop = top; }", step * 600
        )
        if watch.scan():
            break
        seen |= set(rows.locator("a").evaluate_all("(all) => all.map((one) => one.hash)"))
    else:
        assert len(seen) > len(ATTACKS)


def show_menu(watch: Watch, groups: int) -> None:
    """Show the menu of a conversation, its dialogs, and the message that it will be deleted."""
    for number in range(min(groups, 4)):
        watch.show(f"#/c/group-{number}")
        header = watch.page.locator("header.heading")
        expect(watch.page.locator(".message.user")).to_have_count(len(GROUPS[number]))
        header.locator(".menu > button").click()
        watch.scan()
        watch.page.get_by_role("menuitem", name="Rename").click()
        watch.scan()
        watch.page.keyboard.press("Escape")
        header.locator(".menu > button").click()
        watch.page.get_by_role("menuitem", name="Delete").click()
        watch.page.locator(".told p").first.wait_for()
        watch.scan()
        watch.page.get_by_role("button", name="Undo").click()


def show_stream(watch: Watch, groups: int) -> None:
    """Let a model write the attacks while the page shows it."""
    for number in range(groups):
        ask(watch, f"group {number}")
        last = watch.page.locator(".message.assistant:not(.live)")
        expect(last).to_have_count(1, timeout=2 * PATIENCE)
        watch.scan()


def show_calls(watch: Watch, groups: int) -> None:
    """Let a model call tools that do not exist while the page shows it."""
    ask(watch, "call")
    expect(watch.page.locator(".message.assistant").last).to_contain_text("Done.")
    assert watch.page.locator("details.tool").count() >= len(GROUPS[0])
    watch.scan()


def show_failure(watch: Watch, groups: int) -> None:
    """Let a model's server refuse with an attack."""
    ask(watch, "fail")
    expect(watch.page.locator(".problem").first).to_be_visible()
    watch.scan()


def show_notices(watch: Watch, groups: int) -> None:
    """Let a run give notices and an error that hold attacks, as its stream would."""
    told = [one for group in GROUPS[:groups] for one in group]
    events: list[dict[str, Any]] = [
        {"event": "notice", "subject": "memory", "text": attack} for attack in told
    ]
    started = {"event": "message-started", "message": "m1", "role": "invocation"}
    events += [{**started, "name": told[0]}]
    events += [{"event": "delta", "message": "m1", "kind": "arguments", "text": "".join(told)}]
    events += [{"event": "message-failed", "message": "m1", "error": told[0]}]
    lines = [f"id: {at}\ndata: {json.dumps(one)}\n\n" for at, one in enumerate(events, 1)]
    run: dict[str, Any] = {
        "id": "r1",
        "status": "running",
        "conversation": "group-1",
        "model": told[0],
    }
    run |= {"error": told[0], "approvals": [], "questions": [], "queued": []}

    def reply(route: Any) -> None:
        runs = [run] if "status=unfinished" in route.request.url else []
        route.fulfill(json={"runs": runs, "has_more": False})

    watch.page.route(re.compile(r"/api/runs\?"), reply)
    watch.page.route(
        "**/api/runs/r1/events",
        lambda route: route.fulfill(body="".join(lines), content_type="text/event-stream"),
    )
    watch.show("#/c/group-1")
    expect(watch.page.locator(".notice").nth(len(told) - 1)).to_be_visible()
    watch.scan()


def show_errors(watch: Watch, groups: int) -> None:
    """Let the server refuse requests with attacks in its errors."""
    told = [one for group in GROUPS[:groups] for one in group]

    def refuse(route: Any) -> None:
        error = {"message": "\n".join(told), "code": told[0], "type": told[0]}
        route.fulfill(status=400, json={"error": error})

    watch.show("#/")
    watch.page.get_by_label("Message", exact=True).fill("Hello")
    watch.page.route("**/api/runs", refuse)
    watch.page.route("**/api/conversations/search?*", refuse)
    watch.page.route("**/api/files?*", refuse)
    watch.page.keyboard.press("Enter")
    watch.page.get_by_role("alert").wait_for()
    watch.page.set_input_files("input[type=file]", {"name": "x", "mimeType": "x/x", "buffer": b"x"})
    watch.page.locator(".told p.error").filter(has_text=told[0]).wait_for()
    watch.scan()
    watch.show("#/search?q=x")
    watch.page.locator(".problem").wait_for()
    watch.scan()


def show_files(watch: Watch, groups: int) -> None:
    """Attach files with hostile names."""
    watch.show("#/")
    names = [one[:100] for group in GROUPS[:groups] for one in group if "\0" not in one][:40]
    for name in names:
        watch.page.set_input_files(
            "input[type=file]", {"name": name, "mimeType": "text/html", "buffer": name.encode()}
        )
    expect(watch.page.locator(".attachments li:not([aria-busy])").nth(0)).to_be_visible()
    expect(watch.page.locator(".attachments li[aria-busy]")).to_have_count(0)
    watch.scan()


def show_import(watch: Watch, groups: int) -> None:
    """Import files with hostile names, whose conversations have hostile titles."""
    for group in GROUPS[:groups]:
        # What is here already would not be listed.
        talks = [{**lossy(next(_NUMBERS)), "title": attack} for attack in group]
        name = next(one for one in group if "\0" not in one)[:100]
        watch.show("#/import")
        form = watch.page.locator("main form.drop")
        form.wait_for()
        form.locator("input").set_input_files(
            {"name": name, "mimeType": "x/x", "buffer": json.dumps(talks).encode()}
        )
        card = watch.page.locator("main .card:has(.problems)")
        expect(card.locator(".problems > li")).to_have_count(len(group))
        watch.scan()
        card.get_by_role("button", name="Import", exact=True).click()
        expect(card.get_by_role("link", name="Show the conversations")).to_be_visible()
        expect(card.locator(".problems > li")).to_have_count(len(group))
        watch.scan()


def show_models(watch: Watch, groups: int) -> None:
    """Show models with hostile names at the composer."""
    watch.show("#/c/group-0")
    options = watch.page.locator("select.model option")
    expect(options.nth(len(GROUPS[0]))).to_be_attached()
    watch.scan()


def show_search(watch: Watch, groups: int) -> None:
    """Show passages found, and search for attacks."""
    watch.show("#/search?q=onerror")
    watch.page.locator(".hits li").first.wait_for()
    watch.scan()
    for attack in [one for group in GROUPS[:groups] for one in group][:: 1 if groups == 1 else 16]:
        watch.show(f"#/search?q={quote(attack[:500])}")
        watch.scan()


def show_addresses(watch: Watch, groups: int) -> None:
    """Follow links to views and messages that are attacks."""
    for attack in [one for group in GROUPS[:groups] for one in group][:: 1 if groups == 1 else 16]:
        name = quote(attack[:500], safe="")
        for address in (f"#/{name}", f"#/c/{name}", f"#/c/group-0/{name}", f"#/{attack[:200]}"):
            watch.show(address)
            watch.scan()


def show_views(watch: Watch, groups: int) -> None:
    """Show the other views with attacks in every text that the server sends for them."""
    openapi = watch.site.call("GET", "/api/openapi.json")
    samples: list[Samples] = []

    def reply(route: Route) -> None:
        if route.request.method != "GET":
            route.fulfill(json={})
        else:
            path = urlsplit(route.request.url).path
            route.fulfill(json=samples[-1].reply(path))

    watch.page.route(re.compile(_SAMPLED), reply)
    for group in GROUPS[:groups]:
        # With another number of texts, other fields have the same text.
        for texts in (group, group[1:]):
            samples.append(Samples(openapi, texts))
            for address in _VIEWS:
                watch.show("#/settings")
                watch.show(address)
                shown = watch.page.locator("main :is(article, li, ul, details, .card)")
                shown.first.wait_for(state="attached")
                watch.page.locator("main details").evaluate_all(
                    "(all) => all.forEach((one) => { one.open = true; })"
                )
                watch.scan()


def show_typed(watch: Watch, groups: int) -> None:
    """Type and draw attacks in the box, and keep them over a reload."""
    watch.show("#/")
    box = watch.page.get_by_label("Message", exact=True)
    for group in GROUPS[:groups]:
        box.fill("\n".join(group))
        watch.scan()
    watch.page.reload()
    watch.scan()


def ask(watch: Watch, text: str) -> None:
    """Begin a conversation with the model that attacks."""
    watch.show("#/")
    box = watch.page.get_by_label("Message", exact=True)
    expect(watch.page.locator("header.heading h1")).to_have_text("New conversation")
    expect(watch.page.locator("select.model")).to_contain_text("hostile")
    box.fill(text)
    box.press("Enter")
    expect(watch.page).to_have_url(re.compile("#/c/"))


class Hole(NamedTuple):
    """A change of a file that makes markup of a text in one of the places."""

    name: str
    file: str
    old: str
    new: str
    show: Callable[[Watch, int], None]

    def plant(self, page: Page) -> None:
        """Let a page load the changed file."""
        source = (PAGE / self.file).read_text()
        assert self.old in source, f"{self.file} has no {self.old}: plant the hole elsewhere"
        changed = source.replace(self.old, self.new)
        page.route(
            re.compile(rf"/page/\w+/{re.escape(self.file)}$"),
            lambda route: route.fulfill(body=changed, content_type="text/javascript"),
        )


#: What `show_views` answers itself, and the views that it shows.
_SAMPLED = (
    r"/api/(?:agents|budgets|documents|imports|memory|models|runs|sessions|skills|tools|waiting)"
    r"(?:[/?]|$)"
    r"|/api/conversations/x/family"
)
_VIEWS = (
    *("#/memory", "#/memory?q=x", "#/memory/x", "#/documents", "#/documents/x", "#/documents?q=x"),
    *("#/waiting", "#/runs", "#/models", "#/forks/x", "#/import"),
)


def markup(text: str) -> str:
    """Return a template's element that takes a text for markup."""
    return f"<span ref=${{(at) => {{ if (at) at.innerHTML = {text}; }}}} />"


SHOWS = (
    show_messages,
    show_others,
    show_list,
    show_menu,
    show_stream,
    show_calls,
    show_failure,
    show_notices,
    show_errors,
    show_files,
    show_import,
    show_models,
    show_search,
    show_addresses,
    show_typed,
    show_views,
)
HOLES = (
    Hole("markdown", "markdown/blocks.js", "${token.raw}", markup("token.raw"), show_messages),
    Hole("streamed", "markdown/blocks.js", "${token.raw}", markup("token.raw"), show_stream),
    Hole("plain text", "markdown/markdown.js", "${part}", markup("part"), show_messages),
    Hole(
        "links",
        "markdown/inline.js",
        'return SAFE.has(url.protocol) ? url.href : "";',
        "return url.href",
        show_messages,
    ),
    Hole(
        "reasoning",
        "conversation/contents_view.js",
        "<${TextView} content=${content} plain=${live} /><//>`;",
        markup("content.data") + "<//>`;",
        show_messages,
    ),
    Hole("tool names", "conversation/tool_card.js", "${name}", markup("name"), show_messages),
    Hole("streamed tool names", "conversation/tool_card.js", "${name}", markup("name"), show_calls),
    Hole(
        "arguments", "conversation/text.js", "${showInvisible(text)}", markup("text"), show_messages
    ),
    Hole(
        "file names",
        "conversation/media.js",
        "${label}</a>",
        markup("label") + "</a>",
        show_messages,
    ),
    Hole(
        "attached",
        "conversation/composer.js",
        "${one.name}\n",
        markup("one.name") + "\n",
        show_files,
    ),
    Hole(
        "titles that are imported",
        "import/problems.js",
        "${name(found)}</span>",
        markup("name(found)") + "</span>",
        show_import,
    ),
    Hole(
        "files that are imported",
        "import/state.js",
        "<h2>${title}</h2>",
        "<h2>" + markup("title") + "</h2>",
        show_import,
    ),
    Hole("reasons", "import/problems.js", "${reason}</p>", markup("reason") + "</p>", show_views),
    Hole(
        "citations",
        "conversation/contents_view.js",
        "${one.quote}",
        markup("one.quote"),
        show_messages,
    ),
    Hole(
        "endings",
        "conversation/message.js",
        "/> ${problem}\n",
        "/>" + markup("problem") + "\n",
        show_messages,
    ),
    Hole("models", "conversation/message.js", "${who}", markup("who"), show_messages),
    Hole(
        "documents",
        "conversation/message.js",
        "${message.title || sayRole(message.role)}",
        markup("message.title"),
        show_others,
    ),
    Hole("titles", "list/sidebar.js", "${title}</span>", markup("title") + "</span>", show_list),
    Hole("tags", "list/sidebar.js", "${tag}</span>", markup("tag") + "</span>", show_list),
    Hole(
        "heading",
        "conversation/header.js",
        "${title}</h1>",
        markup("title") + "</h1>",
        show_messages,
    ),
    Hole("menus", "menus.js", "${item.label}`", markup("item.label") + "`", show_menu),
    Hole("messages that pass", "main.js", "${one.text}", markup("one.text"), show_menu),
    Hole("notices", "conversation/messages.js", "${one.text}", markup("one.text"), show_notices),
    Hole("failures", "conversation/messages.js", "${run.error}", markup("run.error"), show_failure),
    Hole("errors", "search/view.js", "${error.value}", markup("error.value"), show_errors),
    Hole(
        "memory",
        "memory/entry.js",
        "<${PlainText} text=${entry.content} />",
        markup("entry.content"),
        show_views,
    ),
    Hole(
        "names of documents",
        "documents/collection.js",
        "/> ${name}</span>",
        "/>" + markup("name") + "</span>",
        show_views,
    ),
    Hole(
        "passages",
        "documents/passages.js",
        "<${PlainText} text=${one.text} />",
        markup("one.text"),
        show_views,
    ),
    Hole(
        "agents",
        "models/choice.js",
        "${description}</span>",
        markup("description") + "</span>",
        show_views,
    ),
    Hole(
        "tools",
        "models/tools.js",
        "<${ExactText} text=${description} />",
        markup("description"),
        show_views,
    ),
    Hole(
        "skills",
        "models/skills.js",
        "<${ExactText} text=${description} />",
        markup("description"),
        show_views,
    ),
    Hole(
        "budgets", "models/budgets.js", "${name}</strong>", markup("name") + "</strong>", show_views
    ),
    Hole(
        "branches",
        "forks/view.js",
        "${number}</span> ${title}",
        "${number}</span>" + markup("title"),
        show_views,
    ),
    Hole(
        "decisions",
        "waiting/cards.js",
        "${showInvisible(describeItem(item))}",
        markup("item.title"),
        show_views,
    ),
    Hole(
        "questions",
        "waiting/question_card.js",
        "${showInvisible(message)}",
        markup("message"),
        show_views,
    ),
    Hole(
        "choices",
        "waiting/field.js",
        "${showInvisible(title)}</label>",
        markup("title") + "</label>",
        show_views,
    ),
    Hole("runs", "runs/view.js", "${showInvisible(name)}", markup("name"), show_views),
    Hole("excerpts", "search/view.js", ": part)", ": html`" + markup("part") + "`)", show_search),
)


@pytest.mark.parametrize("show", [pytest.param(SHOWS[0], marks=pytest.mark.main), *SHOWS[1:]])
@pytest.mark.parametrize("groups", [4, pytest.param(len(GROUPS), marks=pytest.mark.slow)])
def test_attacks_remain_text(
    browser: Browser, attacked: Site, show: Callable[[Watch, int], None], groups: int
) -> None:
    with watching(browser, attacked) as watch:
        show(watch, groups)
        assert watch.found == []


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.name)
def test_a_hole_in_a_place_is_found(browser: Browser, attacked: Site, hole: Hole) -> None:
    with watching(browser, attacked, hole) as watch:
        hole.show(watch, 1)
        assert watch.found


def test_the_policy_closes_a_hole_and_reports_it(browser: Browser, attacked: Site) -> None:
    context = browser.new_context()
    with watched(context) as complaints:
        page = context.new_page()
        HOLES[0].plant(page)
        page.goto(f"{attacked.url}/#/c/group-0")
        page.locator(".message.user").first.wait_for()
        page.wait_for_function("() => true")
    assert any("require-trusted-types-for" in one for one in complaints), complaints
    assert page.evaluate("window.pwned") is None
    context.close()


def test_there_are_many_attacks() -> None:
    assert len(ATTACKS) == len(set(ATTACKS)) >= 200
