"""Counts tokens by asking OpenAI's counting endpoint."""

from __future__ import annotations

from vibe_llms.providers.tokenizers import AskingTokenizer


class ResponsesConversationTokenizer(AskingTokenizer):
    """Asks `/responses/input_tokens`."""
