"""ONNX models, run in this process by onnxruntime: no text leaves the machine."""

from vibe_llms.embedding.core import register
from vibe_llms.embedding.onnx.embedder import OnnxEmbedder

register("onnx", OnnxEmbedder)
