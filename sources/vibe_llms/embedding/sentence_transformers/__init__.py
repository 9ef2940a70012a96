"""Models of the package sentence-transformers, run in this process: no text leaves the machine."""

from vibe_llms.embedding.core import register
from vibe_llms.embedding.sentence_transformers.embedder import SentenceTransformersEmbedder

register("sentence-transformers", SentenceTransformersEmbedder)
