"""Image generation with OpenAI's images API and compatible servers, as an ensemble."""

from vibe_llms.ensembles.core import register
from vibe_llms.ensembles.images.ensemble import ImagesEnsemble

register("images", ImagesEnsemble)
