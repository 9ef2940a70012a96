"""Responses, OpenAI's own interface."""

from vibe_llms.providers.core import register
from vibe_llms.providers.openai.responses.client import ResponsesProvider

register("openai-responses", ResponsesProvider)
