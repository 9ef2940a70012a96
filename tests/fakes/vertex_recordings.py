"""Recorded streams of the makers, as rows of Vertex AI read them."""

from __future__ import annotations

from tests.fakes.recordings import AnthropicRecordings, GeminiRecordings


class VertexRecordings(GeminiRecordings):
    """Gemini's streams, which are the same on Vertex AI."""

    row = "vertex"


class VertexAnthropicRecordings(AnthropicRecordings):
    """Anthropic's streams, which are the same on Vertex AI."""

    row = "vertex-anthropic"


GOOGLE, ANTHROPIC = VertexRecordings(), VertexAnthropicRecordings()
