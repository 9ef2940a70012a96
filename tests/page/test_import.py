"""The import of history on the page: upload, preview, progress, summary, and errors."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Site
from tests.server.test_api_imports import export, lossy, talk

pytestmark = pytest.mark.browser

_DROP = """([names, folder]) => {
    const data = new DataTransfer();
    for (const name of names) data.items.add(new File(["Dear diary"], name));
    const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
    if (folder) DataTransferItem.prototype.webkitGetAsEntry = () => ({ isDirectory: true });
    document.querySelector("h1").dispatchEvent(event);
    return event.defaultPrevented;
}"""


def show(page: Page, site: Site) -> None:
    """Show the view."""
    page.goto(f"{site.url}/#/import")
    expect(page.get_by_role("button", name="Choose a file")).to_be_visible()


def choose(page: Page, data: bytes, name: str = "export.zip") -> None:
    """Choose a file."""
    file: Any = {"name": name, "mimeType": "application/zip", "buffer": data}
    page.locator("main input[type=file]").set_input_files(file)


@pytest.mark.main
def test_a_file_is_previewed_imported_and_summed_up(page: Page, site: Site, tmp_path: Path) -> None:
    broken = {"title": "Broken", "mapping": 7}
    (tmp_path / "export.zip").write_bytes(export(talk(1), talk(2), lossy(3), broken))
    page.on("filechooser", lambda _: None)
    page.get_by_role("link", name="Import history").press("Enter")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a file").press("Enter")
    chooser.value.set_files(tmp_path / "export.zip")
    card = page.get_by_role("region", name="Contents of export.zip")
    expect(page.locator(".outside[role=status]")).to_have_text("Contents of export.zip")
    expect(card).to_contain_text("4 conversations of chatgpt")
    expect(card).to_contain_text("Last changed on Aug 24, 2025")
    expect(card).to_contain_text("2 are new")
    expect(card).to_contain_text("1 can be imported only in part")
    expect(card.locator(".problems")).to_contain_text("Lossy 3")
    assert site.call("GET", "/api/conversations")["conversations"] == []
    card.get_by_role("button", name="Import", exact=True).press("Enter")
    done = page.get_by_role("region", name="export.zip is imported")
    expect(done).to_contain_text("2 were imported")
    expect(done).to_contain_text("1 could not be read")
    # The list changes without a reload.
    expect(page.locator(".conversations .row")).to_have_count(3)
    expect(page.locator(".conversations")).to_contain_text("Talk 2")
    done.get_by_role("link", name="Lossy 3").click()
    expect(page.locator(".message.user")).to_contain_text("Look:")
    page.goto(f"{site.url}/#/settings")
    page.get_by_role("main").get_by_role("link", name="Import history").click()
    choose(page, export(talk(1), talk(2)), "again.zip")
    again = page.get_by_role("region", name="Contents of again.zip")
    expect(again).to_contain_text("2 are here already")
    expect(again.get_by_role("button", name="Import", exact=True)).to_have_count(0)
    again.get_by_role("button", name="Discard").click()
    expect(page.get_by_role("heading", name="again.zip was discarded")).to_be_visible()
    page.get_by_role("button", name="Remove export.zip from the list").click()
    expect(page.get_by_text("Earlier imports")).to_be_hidden()


def test_files_that_cannot_be_imported_are_refused_in_place(page: Page, site: Site) -> None:
    site.stop()
    site.configuration = "[server]\nimport-bytes = 100_000\n"
    site.start()
    show(page, site)
    alert = page.get_by_role("alert").filter(visible=True)
    assert page.evaluate(_DROP, [["a.txt", "b.txt"], False])
    expect(alert).to_contain_text("Import one file at a time.")
    choose(page, b"x" * 100_001, "large.zip")
    expect(alert).to_contain_text("large.zip has 100 kB, and the server accepts at most 100 kB.")
    choose(page, b"", "none.zip")
    expect(alert).to_have_text("none.zip is empty.")
    # A file may be dropped anywhere on the view.
    assert page.evaluate(_DROP, [["diary.txt"], False])
    expect(alert).to_contain_text("diary.txt: it is not an export of a known program")
    choose(page, export(talk(1))[:-30], "cut.zip")
    expect(alert).to_contain_text("cut.zip is a damaged or incomplete ZIP file")
    assert page.evaluate(_DROP, [["folder"], True])
    expect(alert.first).to_contain_text("This is a folder.")
    choose(page, export(talk(1)), "good.zip")
    expect(page.get_by_role("region", name="Contents of good.zip")).to_contain_text(
        "1 conversation of"
    )
    expect(alert).to_have_count(0)


def test_an_upload_shows_its_progress_and_is_cancelled(page: Page, site: Site) -> None:
    show(page, site)
    network = page.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 200_000}
    network.send("Network.emulateNetworkConditions", slow)
    choose(page, b"[" + b" " * 3_000_000 + b"]", "slow.json")
    progress = page.get_by_role("region", name="Progress")
    expect(progress).to_contain_text(re.compile(r"Uploading slow.json: [\d.]+ [kM]B of 3 MB"))
    # A file that is dropped now neither begins another upload nor replaces the page.
    assert page.evaluate(_DROP, [["other.txt"], False])
    # The upload goes on while another view is shown.
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("link", name="Import history").click()
    expect(progress.get_by_role("progressbar")).to_have_attribute(
        "value", re.compile(r"[1-9]\d{4}")
    )
    progress.get_by_role("button", name="Cancel").press("Enter")
    expect(page.get_by_role("button", name="Choose a file")).to_be_visible()
    deadline = time.monotonic() + 5
    while site.call("GET", "/api/imports")["imports"]:
        assert time.monotonic() < deadline, "the upload goes on"
        time.sleep(0.05)
    network.send("Network.emulateNetworkConditions", {**slow, "uploadThroughput": -1})
    choose(page, export(talk(1)))
    expect(page.get_by_role("region", name="Contents of export.zip")).to_be_visible()


def test_an_upload_that_failed_is_tried_again(page: Page, site: Site) -> None:
    show(page, site)
    site.kill()
    choose(page, export(talk(1)))
    alert = page.get_by_role("alert").filter(has_text="export.zip was not uploaded")
    expect(alert).to_contain_text("The server does not answer.")
    site.start()
    alert.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("region", name="Contents of export.zip")).to_be_visible()


def test_an_import_goes_on_without_the_page_and_is_interrupted_by_a_kill(
    page: Page, site: Site
) -> None:
    talks = [talk(number) for number in range(1500)]
    many = json.dumps(talks).encode()
    show(page, site)
    choose(page, many, "many.json")
    progress = page.get_by_role("region", name="Progress")
    expect(progress).to_contain_text("Reading many.json")
    page.reload()
    card = page.get_by_role("region", name="Contents of many.json")
    expect(card).to_contain_text("1,500 are new", timeout=60_000)
    card.get_by_role("button", name="Import", exact=True).click()
    expect(progress).to_contain_text(re.compile(r"Importing many.json: [1-9]\d* of 1,500"))
    page.goto(f"{site.url}/#/settings")
    page.goto(f"{site.url}/#/import")
    expect(progress).to_contain_text("of 1,500 conversations")
    (record,) = site.home.glob("imports/*/record.json")
    deadline = time.monotonic() + 10
    while not json.loads(record.read_text())["counts"]["imported"]:
        assert time.monotonic() < deadline, "no progress was stored"
        time.sleep(0.05)
    site.kill()
    expect(page.get_by_role("status").filter(has_text="does not answer")).to_be_visible()
    site.start()
    ended = page.get_by_role("region", name="The import of many.json was interrupted")
    expect(ended).to_contain_text("Import the file again to continue.")
    expect(ended).to_contain_text(re.compile(r"\d+ were imported"))
    choose(page, json.dumps(talks).encode(), "many.json")
    again = page.get_by_role("region", name="Contents of many.json")
    expect(again).to_contain_text("are here already", timeout=60_000)
    again.get_by_role("button", name="Import", exact=True).click()
    progress.get_by_role("button", name="Cancel the import").click()
    stopped = page.get_by_role("region", name="The import of many.json was cancelled")
    expect(stopped).to_be_visible()
