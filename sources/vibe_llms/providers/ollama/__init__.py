"""Ollama's own interface: models on this machine, on another one, or hosted."""

from vibe_llms.providers.core import register
from vibe_llms.providers.ollama.client import OllamaProvider

register("ollama", OllamaProvider)
