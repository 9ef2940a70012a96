"""Pictures made by OpenAI's images interface and by servers like it, as an ensemble."""

from vibe_llms.ensembles.core import register
from vibe_llms.ensembles.images.ensemble import ImagesEnsemble

register("images", ImagesEnsemble)
