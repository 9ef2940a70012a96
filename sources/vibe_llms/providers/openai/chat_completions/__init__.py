"""Chat Completions of OpenAI, and of the many servers that speak it."""

from vibe_llms.providers.core import register
from vibe_llms.providers.openai.chat_completions.client import ChatCompletionsProvider

register("openai-chat-completions", ChatCompletionsProvider)
