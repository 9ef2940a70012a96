"""Sessions in a real kernel of Jupyter, cell by cell, as in a notebook."""

from __future__ import annotations

import os
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from msgspec import Struct

_SECONDS = 30.0
#: In which a cell ends after an interrupt: less than 5, after which the watch of a provider would
#: wake an event loop that an interrupt does not.
_SECONDS_OF_INTERRUPT = 4.0
SCRIPT = """
[[replies]]
when = "slow"
parts = [{ text = "one " }, { text = "two " }, { stall = true }]

[[replies]]
when = ".*"
parts = [{ text = "Hello **you**." }]
"""


class Shown(Struct, frozen=True):
    """What a cell shows: its status, its text, its values by MIME type, and its error's name."""

    status: str
    text: str
    values: list[dict[str, str]]
    error: str


class Notebook:
    """A kernel, and a script for it that answers all but what contains `slow`."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "script.toml"
        self.script.write_text(SCRIPT)
        self.manager = KernelManager(connection_file=str(folder / "kernel.json"))
        self.manager.start_kernel(
            env={
                **os.environ,
                "VIBE_LLMS_HOME": str(folder / "home"),
                "IPYTHONDIR": str(folder / "ipython"),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=_SECONDS)

    def run(self, code: str, *, interrupt_at: str = "") -> Shown:
        """Run a cell to its end; interrupts it, as the button does, once it prints some text."""
        code = textwrap.dedent(code).replace("SCRIPT", f"scripted/{self.script}")
        cell = self.client.execute(code)
        text, error, values, interrupted = "", "", list[dict[str, str]](), False
        while True:
            message = self.client.get_iopub_msg(
                timeout=_SECONDS_OF_INTERRUPT if interrupted else _SECONDS
            )
            if message["parent_header"].get("msg_id") != cell:
                continue
            content: dict[str, Any] = message["content"]
            match message["msg_type"]:
                case "stream":
                    text += content["text"]
                case "execute_result" | "display_data":
                    values.append(content["data"])
                case "error":
                    error = content["ename"]
                case "status" if content["execution_state"] == "idle":
                    break
            if interrupt_at and interrupt_at in text and not interrupted:
                self.manager.interrupt_kernel()
                interrupted = True
        while True:
            reply = self.client.get_shell_msg(timeout=_SECONDS)
            if reply["parent_header"].get("msg_id") == cell:
                return Shown(reply["content"]["status"], text, values, error)

    def end(self) -> bool:
        """End the kernel as a notebook does; returns whether it ended by itself."""
        self.client.shutdown()
        deadline = time.monotonic() + _SECONDS
        while self.manager.is_alive() and time.monotonic() < deadline:
            # Its last words come while it ends.
            try:
                self.client.get_iopub_msg(timeout=0.05)
            except Empty:
                continue
        return not self.manager.is_alive()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    notebook = Notebook(tmp_path_factory.mktemp("notebook"))
    try:
        notebook.run("import vibe_llms\nsession = vibe_llms.open_session()")
        notebook.run("session = await session")
        yield notebook
        # A turn that still runs, and sessions that no block closes, hold up nothing.
        notebook.run("last = await session.begin('SCRIPT')")
        notebook.run("import asyncio\nleft = asyncio.ensure_future(last.converse('slow'))")
        assert notebook.end()
    finally:
        notebook.close()


@pytest.fixture
def notebook(kernel: Notebook) -> Notebook:
    """The kernel, with a new conversation."""
    assert kernel.run("conversation = await session.begin('SCRIPT')").status == "ok"
    return kernel


SAID = "print([one.text for one in conversation.canisters])"


def test_a_turn_and_a_conversation_are_shown_as_markdown(notebook: Notebook) -> None:
    (turn,) = notebook.run("turn = await conversation.converse('Hi')\nturn").values
    assert turn["text/markdown"] == "Hello **you**."
    assert turn["text/plain"].startswith("<Turn 'Hello **you**.'")
    (conversation,) = notebook.run("conversation").values
    assert conversation["text/markdown"] == "**You**\n\nHi\n\nHello **you**."
    assert conversation["text/plain"].startswith("<Conversation ")


def test_an_answer_is_streamed_and_a_loop_is_left(notebook: Notebook) -> None:
    streamed = notebook.run("""
        async for text in conversation.stream("Hi").text():
            print(text, end="")
    """)
    assert streamed.text == "Hello **you**."
    left = notebook.run("""
        async for text in conversation.stream("slow").text():
            break
        turn = await conversation.converse("On")
    """)
    assert left.status == "ok"
    said = notebook.run(SAID).text
    assert "'slow', 'one " in said
    assert said.endswith("'On', 'Hello **you**.']\n")


@pytest.mark.parametrize(
    "cell",
    [
        """
        async for text in conversation.stream("slow").text():
            print(text)
        """,
        """
        def show(event):
            if isinstance(event, vibe_llms.MessageProgressEvent):
                print(event.chunk.text)

        await conversation.converse("slow", event_handler=show)
        """,
    ],
    ids=["stream", "converse"],
)
def test_an_interrupt_loses_nothing_and_the_next_cell_works(notebook: Notebook, cell: str) -> None:
    interrupted = notebook.run(cell, interrupt_at="two")
    # This is how a kernel interrupts a cell that awaits.
    assert (interrupted.status, interrupted.error) == ("error", "CancelledError")
    assert (
        notebook.run("print((await conversation.converse('On')).text)").text == "Hello **you**.\n"
    )
    assert notebook.run(SAID).text == "['slow', 'one two ', 'On', 'Hello **you**.']\n"
    stored = "other = await session.resume(conversation.identity)\nprint(len(other.canisters))"
    assert notebook.run(stored).text == "4\n"


def test_cells_without_await_are_interrupted_too(notebook: Notebook) -> None:
    notebook.run("""
        from vibe_llms.synchronous import open_session
        plain = open_session()
        conversation = plain.begin("SCRIPT")
    """)
    interrupted = notebook.run(
        """
        for event in conversation.stream("slow"):
            if isinstance(event, vibe_llms.MessageProgressEvent):
                print(event.chunk.text)
        """,
        interrupt_at="two",
    )
    assert (interrupted.status, interrupted.error) == ("error", "KeyboardInterrupt")
    shown = notebook.run("conversation.converse('On')").values
    assert [one["text/markdown"] for one in shown] == ["Hello **you**."]
    assert notebook.run(SAID).text == "['slow', 'one two ', 'On', 'Hello **you**.']\n"
