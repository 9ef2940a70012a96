"""Models in ONNX files, run in this process by onnxruntime: no text leaves the machine."""

from vibe_llms.memory.embedders.core import register
from vibe_llms.memory.embedders.onnx.embedder import OnnxEmbedder

register("onnx", OnnxEmbedder)
