"""Providers are sent the names of files and never where on the machine of the user they lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.documents.making import make_pdf
from tests.fakes.backends import Interface
from tests.fakes.interfaces import ANTHROPIC, NOWHERE, every
from tests.pictures import make_png
from vibe_llms.base.configuration import ToolMode
from vibe_llms.conversations.attachments import read_attachment, read_document
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import FileContent, ImageContent, TextualContent, VideoContent
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.conversions import name_document
from vibe_llms.providers.interfaces import TurnContext

FOLDER = "canary-of-a-folder"
PNG = make_png()
PDF = make_pdf(["The plan."])
UNREADABLE = b"%PDF-1.4\n"


def attach_everything(folder: Path) -> list[Canister]:
    """Files under a folder, by all ways in which they come into a history."""
    files = {"n.txt": b"Notes.", "p.pdf": PDF, "i.png": PNG, "t.csv": b"a,b"}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    paths = [str(folder / name) for name in files]
    relative = f"{FOLDER}/n.txt"
    call = InvocationCanister(name="look")
    return [
        *map(read_document, [*paths, relative]),
        *(DocumentCanister((read_attachment(path),), title=path, source=path) for path in paths),
        DocumentCanister((TextualContent("a"),), title="Notes", source=relative),
        DocumentCanister((TextualContent("a"),), title="Notes", source=f"file://{paths[0]}"),
        DocumentCanister((TextualContent("a"),), title=rf"C:\{FOLDER}\n.txt"),
        DocumentCanister((FileContent(PDF, "application/pdf", paths[1]), ImageContent(PNG))),
        UserCanister((TextualContent("See"), *map(read_attachment, paths))),
        UserCanister((FileContent(b"a", "text/plain", paths[0]), TextualContent("these"))),
        UserCanister(
            (FileContent(UNREADABLE, "application/pdf", paths[1]), VideoContent(b"x", "video/a"))
        ),
        UserCanister((FileContent(b"x", "application/zip", paths[1]),)),
        call,
        ResultCanister((FileContent(PDF, "application/pdf", paths[1]),), invocation=call.identity),
        AssistantCanister((FileContent(PDF, "application/pdf", paths[1]),)),
    ]


@pytest.mark.parametrize("mode", ["native", pytest.param("contract", marks=pytest.mark.slow)])
# A script is not sent the names of files at all.
@every(lambda one: one.checks)
async def test_no_request_holds_a_folder_of_what_is_attached(
    interface: Interface, mode: ToolMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    monkeypatch.chdir(tmp_path)

    def look() -> None: ...

    with interface.serve() as server:
        async with interface.open_session(server, tmp_path / "archive") as session:
            conversation = await session.begin(interface.address, invokers=[look], tool_mode=mode)
            await conversation.add(attach_everything(folder))
            preview = await conversation.preview("What is this?")
            server.replies = [interface.texts('{"type":"final","content":"Hi"}')]
            await conversation.converse("What is this?")
            assert not server.refusals
        requests = interface.sent(server)
    assert requests
    for sent in (*requests, preview.encode()):
        assert FOLDER.encode() not in sent
        assert str(tmp_path).encode() not in sent
        assert b"n.txt" in sent
    lines = "".join(path.read_text() for path in (tmp_path / "archive").rglob("messages.jsonl"))
    assert str(folder) in lines, "where a document came from is kept for the user"


async def test_a_document_of_a_file_has_its_name_as_title_and_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "n.txt").write_text("Notes.")
    model = await ANTHROPIC.produce_model(NOWHERE)
    document = read_document(str(tmp_path / "n.txt"))
    body = await model.preview([document], [], Controls(), TurnContext())
    assert json.loads(body)["messages"][0]["content"][0]["title"] == "n.txt"
    assert b'"context"' not in body


@pytest.mark.parametrize(
    ("title", "source", "sent"),
    [
        ("n.txt", "/home/ada/n.txt", ("n.txt", "")),
        ("Report", "acme/n.txt", ("Report", "n.txt")),
        ("Report", "~/acme/n.txt", ("Report", "n.txt")),
        ("Report", "file:///home/ada/n.txt", ("Report", "n.txt")),
        ("Report", "D:/acme/n.txt", ("Report", "n.txt")),
        ("", r"\\server\acme\n.txt", ("", "n.txt")),
        ("~/acme/n.txt", "", ("n.txt", "")),
        ("FILE:///acme/n.txt", "", ("n.txt", "")),
        # What is no path stays as it is.
        ("TCP/IP, a history", "standard input", ("TCP/IP, a history", "standard input")),
        ("https://e.org/a/b", "https://e.org/a/b", ("https://e.org/a/b", "https://e.org/a/b")),
        ("Q1/Q2", "doi:10.1000/182", ("Q1/Q2", "doi:10.1000/182")),
        ("", "", ("", "")),
    ],
)
def test_of_a_path_the_last_part_is_sent(title: str, source: str, sent: tuple[str, str]) -> None:
    assert name_document(DocumentCanister(title=title, source=source)) == sent
