"""Chat Completions of OpenAI, and of the many servers that speak it."""

from vibe_llms.providers.openai.chat_completions.model import ChatCompletionsProvider
from vibe_llms.providers.registry import register

register("openai-chat-completions", ChatCompletionsProvider)
