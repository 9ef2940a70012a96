"""The user's long-term memory as tools: stored, searched and given up by the model."""

from vibe_llms.ensembles.core import register
from vibe_llms.ensembles.memory.ensemble import MemoryEnsemble

register("memory", MemoryEnsemble)
