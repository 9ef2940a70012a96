"""The Gemini API of Google, and of servers that speak it."""

from vibe_llms.providers.gemini.client import GeminiProvider
from vibe_llms.providers.registry import register

register("gemini", GeminiProvider)
