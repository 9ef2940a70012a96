"""axe-core finds nothing on the documentation site, and its search answers questions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page.test_accessibility import NARROW, SCHEMES, WIDE, find_violations

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
#: The rules of WCAG; the theme does not follow all of what axe-core calls best practice.
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")


class QuietHandler(SimpleHTTPRequestHandler):
    """A server of files that says nothing."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of the site, built now."""
    script = ROOT / ".auxiliary" / "scripts" / "site"
    built = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    folder = ROOT / ".auxiliary" / "artifacts" / "site"
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize(
    "path",
    [
        "",
        "how-to/choose-a-provider/",
        "reference/api/conversations/",
        "reference/configuration/",
        "tutorial/5-on-the-web-page/",
    ],
)
def test_axe_finds_nothing_on_the_site(
    browser: Browser, address: str, path: str, size: Any
) -> None:
    found = []
    for scheme in SCHEMES:
        context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
        page = context.new_page()
        page.goto(address + path)
        found += [f"{scheme}: {one}" for one in find_violations(page, *RULES)]
        context.close()
    assert found == []


#: What users of similar tools asked, in their words, and the page that answers it.
QUESTIONS = {
    # https://github.com/simonw/llm/issues/1190
    "continue a conversation": "how-to/continue-fork-undo/",
    # https://github.com/gptme/gptme/pull/959
    "delete a conversation": "how-to/keep-the-archive-safe/",
    # https://github.com/simonw/llm/pull/979
    "proxy": "how-to/configure/",
    # https://github.com/pydantic/pydantic-ai/issues/1885
    "rate limit": "how-to/keep-to-rate-limits/",
    # https://github.com/simonw/llm/issues/1153
    "remote ollama": "how-to/use-models-of-your-own/",
    # https://github.com/simonw/llm/issues/1039
    "cost of a conversation": "how-to/choose-a-provider/",
    # https://github.com/sigoden/aichat/issues/1345
    "default system prompt": "how-to/define-agents/",
    # https://github.com/BerriAI/litellm/issues/8333
    "timeout": "how-to/configure/",
    # https://github.com/pydantic/pydantic-ai/issues/4493
    "stream to a web app": "how-to/use-the-http-interface/",
    # https://github.com/markusylisiurunen/tau/issues/7
    "send an image": "how-to/attach-pictures-and-files/",
    # https://github.com/mcp-use/mcp-use/issues/137
    "MCP authentication": "how-to/offer-an-mcp-server/",
    # https://github.com/TheR1D/shell_gpt/issues/726
    "export to markdown": "reference/command/",
    # https://github.com/open-webui/open-webui/issues/10995
    "without network": "how-to/configure/",
    # https://github.com/BerriAI/litellm/issues/8952
    "base url": "how-to/add-a-compatible-server/",
    # https://github.com/ian-kent/gptchat/issues/12
    "context length exceeded": "how-to/keep-a-long-conversation-going/",
    # https://github.com/ChatGPTNextWeb/NextChat/issues/937
    "tokens of a conversation": "how-to/choose-a-provider/",
    # https://github.com/danny-avila/LibreChat/issues/1660
    "import chatgpt export": "how-to/import-your-history/",
    # https://github.com/pydantic/pydantic-ai/issues/843
    "limit number of tool calls": "how-to/offer-a-function/",
    # https://github.com/ollama/ollama/issues/10209
    "disable streaming": "how-to/stream-events/",
    # https://github.com/BerriAI/litellm/issues/13814
    "debug log requests": "how-to/handle-errors/",
    # https://github.com/langroid/langroid/issues/494
    "mock llm in tests": "how-to/test-your-program/",
    # https://github.com/anomalyco/opencode/issues/45162
    "stop generation": "how-to/interrupt-a-turn/",
    # https://github.com/huggingface/chat-ui/issues/1335
    "change model in the middle of a conversation": "how-to/switch-the-model/",
    # https://github.com/simonw/llm/issues/728
    "reasoning effort": "how-to/choose-a-provider/",
    # https://github.com/sigoden/aichat/issues/108
    "where is the config file": "how-to/configure/",
    # https://github.com/microsoft/vscode/issues/265496
    "use vscode / zed": "how-to/use-from-an-acp-editor/",
    # https://github.com/anomalyco/opencode/issues/13741
    "fork from an earlier message": "how-to/continue-fork-undo/",
    # https://github.com/Aider-AI/aider/issues/2442
    "lm studio": "how-to/add-a-compatible-server/",
    # https://github.com/google-gemini/gemini-cli/pull/20848
    "image generation": "how-to/generate-images/",
}


@pytest.fixture(scope="module")
def search(browser: Browser, address: str) -> Iterator[Page]:
    """A window on the site whose search is open."""
    page = browser.new_page()
    page.goto(address)
    box = page.get_by_role("combobox", name="Search")
    # The key does nothing until the scripts of the page have started.
    for _ in range(60):
        page.keyboard.press("Control+k")
        page.wait_for_timeout(500)
        if box.is_visible():
            break
    yield page
    page.close()


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_to_a_question_is_among_the_first_three_results(
    search: Page, address: str, question: str
) -> None:
    box = search.get_by_role("combobox", name="Search")
    results = search.get_by_role("listbox", name="Search results").get_by_role("option")
    # Or results of another question would be read, whose links name this one already.
    box.fill("")
    expect(results).to_have_count(0)
    box.fill(question)
    expect(results.first).to_be_visible()
    found = [link.get_attribute("href") or "" for link in results.all()[:3]]
    pages = [link.removeprefix(address).partition("?")[0] for link in found]
    assert QUESTIONS[question] in pages
