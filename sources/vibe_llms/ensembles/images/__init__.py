"""Image generation with OpenAI's images API and compatible servers, as an ensemble."""

from vibe_llms.conversations.hosts import register_ensemble
from vibe_llms.ensembles.images.ensemble import ImagesEnsemble

register_ensemble("images", ImagesEnsemble)
