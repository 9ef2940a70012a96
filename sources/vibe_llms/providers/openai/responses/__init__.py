"""Responses, OpenAI's own interface."""

from vibe_llms.providers.openai.responses.model import ResponsesProvider
from vibe_llms.providers.registry import register

register("openai-responses", ResponsesProvider)
