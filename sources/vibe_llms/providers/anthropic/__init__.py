"""The Messages interface of Anthropic, and of servers that speak it."""

from vibe_llms.providers.anthropic.client import AnthropicProvider
from vibe_llms.providers.registry import register

register("anthropic", AnthropicProvider)
