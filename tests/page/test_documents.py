"""Collections of documents on the page: uploads, their progress, and passages that are found."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Site

pytestmark = pytest.mark.browser

_KEEPER = b"The keeper of the lighthouse is Ada Moen. She came from Bergen.\n"
_DROP = """([form, files]) => {
    const data = new DataTransfer();
    for (const [name, text] of files) data.items.add(new File([text], name));
    for (const kind of ["dragover", "drop"]) form.dispatchEvent(
        new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


def upload(site: Site, collection: str, name: str, data: bytes) -> None:
    """Add a document, and wait until it is read."""
    site.upload(f"/api/documents?collection={collection}&name={name}", data)
    deadline = time.monotonic() + 20
    while site.call("GET", f"/api/documents/{collection}")["collection"]["indexing"]:
        assert time.monotonic() < deadline, "a document was not read"
        time.sleep(0.02)


@pytest.mark.main
def test_documents_are_chosen_by_keyboard_and_found(page: Page, site: Site, tmp_path: Path) -> None:
    (tmp_path / "keeper.txt").write_bytes(_KEEPER)
    # Choosers are reported only from some time after the first listener was added.
    page.on("filechooser", lambda _: None)
    page.get_by_role("link", name="Documents").press("Enter")
    expect(page.get_by_text("No collections yet.")).to_be_visible()
    page.get_by_role("button", name="Choose files").press("Enter")
    expect(page.get_by_role("alert")).to_have_text("Name the collection first.")
    expect(page.get_by_label("Collection")).to_be_focused()
    page.keyboard.type("papers")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files([tmp_path / "keeper.txt"])
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.get_by_role("listitem").filter(has_text="papers")).to_contain_text("1 document")
    page.get_by_role("searchbox").fill("Who keeps the lighthouse?")
    passage = page.locator(".passages > li")
    expect(passage).to_contain_text("keeper.txt")
    expect(passage).to_contain_text("Ada Moen")
    passage.get_by_role("link", name="papers").click()
    expect(page.get_by_role("listitem").filter(has_text="keeper.txt")).to_contain_text("read")


def test_dropped_files_are_added_and_a_refused_one_is_told(page: Page, site: Site) -> None:
    upload(site, "papers", "first.txt", _KEEPER)
    page.goto(f"{site.url}/#/documents/papers")
    form = page.get_by_role("form", name="Add documents")
    files = [["keeper.md", "# The keeper\n\nAda Moen."], ["empty.txt", ""]]
    page.evaluate(_DROP, [form.element_handle(), files])
    row = page.get_by_role("listitem").filter(has_text="keeper.md")
    expect(row).to_contain_text("read")
    expect(form.get_by_role("alert").last).to_contain_text("empty.txt was not added")
    form.get_by_role("button", name="Dismiss empty.txt").click()
    expect(form.get_by_role("listitem")).to_have_count(0)
    expect(page.locator(".documents > li")).to_have_count(2)


def test_an_upload_that_failed_is_tried_again(page: Page, site: Site) -> None:
    upload(site, "papers", "first.txt", _KEEPER)
    page.goto(f"{site.url}/#/documents/papers")
    form = page.get_by_role("form", name="Add documents")
    expect(form).to_be_visible()
    site.kill()
    page.evaluate(_DROP, [form.element_handle(), [["keeper.md", "Ada Moen."]]])
    expect(form.get_by_role("alert").last).to_contain_text("The server does not answer.")
    site.start()
    form.get_by_role("button", name="Try again").click()
    expect(page.locator(".documents > li")).to_have_count(2)
    expect(page.locator(".documents > li").filter(has_text="keeper.md")).to_contain_text("read")


def test_a_document_that_cannot_be_read_says_why_and_is_deleted_with_undo(
    page: Page, site: Site
) -> None:
    upload(site, "papers", "broken.pdf", b"%PDF-1.7 nothing more")
    page.goto(f"{site.url}/#/documents/papers")
    row = page.locator(".documents > li")
    expect(row).to_contain_text("could not be read")
    expect(row).to_contain_text("it is not a valid PDF file")
    page.get_by_role("button", name="Read the failed ones again").click()
    expect(row).to_contain_text("it is not a valid PDF file")
    page.get_by_role("button", name="Delete broken.pdf").press("Enter")
    expect(row).to_be_hidden()
    page.get_by_role("button", name="Undo").click()
    expect(row).to_be_visible()
    page.get_by_role("button", name="Delete the collection").click()
    expect(page.get_by_role("heading", name="Documents", exact=True)).to_be_visible()
    expect(page.get_by_text("No collections yet.")).to_be_visible()
    page.goto("about:blank")
    page.goto(f"{site.url}/#/documents")
    expect(page.get_by_text("No collections yet.")).to_be_visible()
    assert site.call("GET", "/api/documents") == {"collections": []}


def test_a_model_is_asked_about_a_collection(page: Page, site: Site) -> None:
    upload(site, "papers", "keeper.txt", _KEEPER)
    page.goto(f"{site.url}/#/documents/papers")
    page.get_by_role("button", name="Ask about it").click()
    expect(page.get_by_text("Searches papers")).to_be_visible()
    page.get_by_label("Message", exact=True).fill("Search document 'the lighthouse'")
    page.keyboard.press("Enter")
    messages = page.get_by_role("log")
    expect(messages.locator("details.tool")).to_be_visible()
    expect(page.locator(".message.assistant").last).to_be_visible()
    # The next message searches it too, until it is removed.
    expect(page.get_by_text("Searches papers")).to_be_visible()
    page.get_by_role("button", name="Do not search papers").click()
    expect(page.get_by_text("Searches papers")).to_be_hidden()
    page.reload()
    expect(messages.locator("details.tool")).to_be_visible()
    expect(page.get_by_text("Searches papers")).to_be_hidden()
