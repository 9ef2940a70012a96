"""What MCP servers send, as contents."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import mcp_types
import pytest

from vibe_llms.ensembles.mcp.contents import assimilate_block, assimilate_result
from vibe_llms.invocation.results import InvocationOutput
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    TextualContent,
)

DATA = base64.b64encode(b"bytes").decode()


def resource(**members: Any) -> mcp_types.EmbeddedResource:
    kind: Any = (
        mcp_types.TextResourceContents if "text" in members else mcp_types.BlobResourceContents
    )
    return mcp_types.EmbeddedResource(
        type="resource", resource=kind(uri="file:///a/b.x", **members)
    )


@pytest.mark.parametrize(
    ("block", "content"),
    [
        (mcp_types.TextContent(type="text", text="hi"), TextualContent("hi")),
        (
            mcp_types.ImageContent(type="image", data=DATA, mime_type="image/png"),
            ImageContent(b"bytes", "image/png"),
        ),
        (
            mcp_types.AudioContent(type="audio", data=DATA, mime_type="audio/wav"),
            AudioContent(b"bytes", "audio/wav"),
        ),
        (
            mcp_types.ImageContent(type="image", data="not base64!", mime_type="image/png"),
            TextualContent("[the server sent a image/png that is not valid base64: "),
        ),
        (resource(text="words"), TextualContent("words")),
        (resource(text="# A", mime_type="text/markdown"), TextualContent("# A", "text/markdown")),
        (resource(blob=DATA, mime_type="image/png"), ImageContent(b"bytes", "image/png")),
        (resource(blob=DATA, mime_type="audio/wav"), AudioContent(b"bytes", "audio/wav")),
        (
            resource(blob=DATA, mime_type="application/pdf"),
            FileContent(b"bytes", "application/pdf", "b.x"),
        ),
        (resource(blob=DATA), FileContent(b"bytes", "", "b.x")),
        (
            resource(blob="!", mime_type="application/pdf"),
            TextualContent("[the server sent a application/pdf that is not valid base64: "),
        ),
        (
            mcp_types.ResourceLink(
                type="resource_link", uri="http://x/y", name="y", description="the y"
            ),
            TextualContent("[resource y at http://x/y: the y]"),
        ),
        (
            SimpleNamespace(type="smell"),
            TextualContent("[the server sent a 'smell', which is not supported]"),
        ),
    ],
)
def test_each_block_becomes_a_content(block: Any, content: Content) -> None:
    (found,) = assimilate_block(block)
    if isinstance(content, TextualContent) and content.text.endswith(": "):
        assert isinstance(found, TextualContent)
        assert found.text.startswith(content.text)
    else:
        assert found == content


@pytest.mark.parametrize(
    ("result", "output"),
    [
        (
            mcp_types.CallToolResult(
                content=[mcp_types.TextContent(type="text", text="no")], is_error=True
            ),
            InvocationOutput((TextualContent("no"),), failed=True),
        ),
        (
            mcp_types.CallToolResult(content=[], structured_content={"a": 1}),
            InvocationOutput((TextualContent('{"a":1}', "application/json"),)),
        ),
        (
            mcp_types.CallToolResult(
                content=[mcp_types.TextContent(type="text", text="1")], structured_content={"a": 1}
            ),
            InvocationOutput((TextualContent("1"),)),
        ),
        (mcp_types.CallToolResult(content=[]), InvocationOutput(())),
    ],
)
def test_a_result_becomes_an_output(result: Any, output: InvocationOutput) -> None:
    assert assimilate_result(result) == output
