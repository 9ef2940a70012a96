"""llama.cpp in this very process: models that are files, without a server."""

from vibe_llms.providers.core import register
from vibe_llms.providers.llamacpp.client import LlamacppProvider

register("llamacpp", LlamacppProvider)
