"""llama.cpp in this process: models in files, without a server."""

from vibe_llms.providers.llamacpp.client import LlamacppProvider
from vibe_llms.providers.registry import register

register("llamacpp", LlamacppProvider)
