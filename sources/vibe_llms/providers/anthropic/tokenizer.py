"""Counts tokens by asking Anthropic's counting endpoint."""

from __future__ import annotations

from vibe_llms.providers.tokenizers import AskingTokenizer


class AnthropicConversationTokenizer(AskingTokenizer):
    """Asks `/v1/messages/count_tokens`."""
