"""Ollama's own interface: models on this machine, on another one, or hosted."""

from vibe_llms.providers.ollama.client import OllamaProvider
from vibe_llms.providers.registry import register

register("ollama", OllamaProvider)
