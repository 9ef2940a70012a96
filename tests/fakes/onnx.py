"""Folders with tiny ONNX models whose vectors can be calculated by hand.

The files are written byte by byte, as protobuf encodes them, so that no package is needed for it.

Source: `onnx.proto` of ONNX 1.20, IR version 8, operator set 13.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: The words of the tokenizer; the number of each is its token.
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "tea", "coffee", "red", "green", "lantern")
#: The vector of each token. Nothing is near that of [PAD], which must not count.
TABLE = (
    *((50.0, 50.0, 50.0), (0.0, 0.0, 0.1), (0.2, 0.4, 0.4), (0.0, 0.1, 0.0)),
    *((1.0, 0.0, 0.0), (0.9, 0.1, 0.0), (0.0, 1.0, 0.0), (0.0, 0.9, 0.1), (0.0, 0.0, 1.0)),
)
#: What each token of a text adds to the logit of a cross-encoder, [PAD] included.
WEIGHTS = (100.0, -1.0, 0.5, -0.25, 2.0, 1.5, 0.75, 0.5, 3.0)
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_FLOAT, _INT64 = 1, 7


def make_folder(
    folder: Path,
    model: bytes | None = None,
    *,
    file: str = "onnx/model_quantized.onnx",
    tokenizer: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """A folder in the layout of the hub; by default with the model that makes vectors."""
    place = folder / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(embedding_model() if model is None else model)
    if tokenizer:
        (folder / "tokenizer.json").write_text(json.dumps(make_tokenizer()))
    for name, value in {"config.json": {"pad_token_id": 0}, **(settings or {})}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(value))
    return folder


def make_tokenizer(words: Sequence[str] = WORDS) -> dict[str, Any]:
    """A tokenizer of words. It cuts and fills up texts, which is not what is wanted here."""
    special = {
        name: {"id": name, "ids": [words.index(name)], "tokens": [name]} for name in words[2:4]
    }
    start, end = ({"SpecialToken": {"id": name, "type_id": 0}} for name in words[2:4])
    last = {"SpecialToken": {"id": words[3], "type_id": 1}}
    text, other = ({"Sequence": {"id": name, "type_id": n}} for n, name in enumerate("AB"))
    return {
        "version": "1.0",
        "truncation": {
            "direction": "Right",
            "max_length": 3,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": 128},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, text, end],
            "pair": [start, text, end, other, last],
            "special_tokens": special,
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": "[UNK]",
        },
    }


def embedding_model(
    *, inputs: Sequence[str] = INPUTS, output: str = "last_hidden_state", sentence: bool = False
) -> bytes:
    """The vector of each token; with `sentence`, the sum of all of them, [PAD] included."""
    rows = [number for row in TABLE for number in row]
    nodes = [_node("Gather", ["table", inputs[0]], "vectors" if sentence else output)]
    tensors = [_tensor("table", (len(TABLE), len(TABLE[0])), rows)]
    if sentence:
        tensors.append(_axes(1))
        nodes.append(_node("ReduceSum", ["vectors", "axes"], output, keepdims=0))
    return _model(nodes, tensors, inputs, [output])


def cross_encoder(*, columns: int = 1) -> bytes:
    """The sum of the weights of the second text's tokens, as many times as `columns`."""
    nodes = [
        _node("Gather", ["weights", "input_ids"], "found"),
        _node("Cast", ["attention_mask"], "mask", to=_FLOAT),
        _node("Cast", ["token_type_ids"], "second", to=_FLOAT),
        _node("Mul", ["found", "mask"], "masked"),
        _node("Mul", ["masked", "second"], "counted"),
        _node("ReduceSum", ["counted", "axes"], "sum", keepdims=1),
        _node("Concat", ["sum"] * columns, "logits", axis=1),
    ]
    tensors = [_tensor("weights", (len(WEIGHTS),), WEIGHTS), _axes(1)]
    return _model(nodes, tensors, INPUTS, ["logits"])


def _model(
    nodes: Sequence[bytes], tensors: Sequence[bytes], inputs: Sequence[str], outputs: Sequence[str]
) -> bytes:
    graph = [
        *(_field(1, node) for node in nodes),
        _field(2, b"tiny"),
        *(_field(5, tensor) for tensor in tensors),
        *(_field(11, _value(name, _INT64)) for name in inputs),
        *(_field(12, _value(name, _FLOAT)) for name in outputs),
    ]
    operators = _field(1, b"") + _number(2, 13)
    return _number(1, 8) + _field(8, operators) + _field(7, b"".join(graph))


def _node(kind: str, inputs: Sequence[str], output: str, **attributes: int) -> bytes:
    given = [_field(1, name.encode()) for name in inputs]
    named = [
        _field(5, _field(1, name.encode()) + _number(3, value) + _number(20, 2))
        for name, value in attributes.items()
    ]
    return b"".join([*given, _field(2, output.encode()), _field(4, kind.encode()), *named])


def _tensor(name: str, shape: Sequence[int], values: Sequence[float]) -> bytes:
    dimensions = b"".join(_number(1, size) for size in shape)
    data = struct.pack(f"<{len(values)}f", *values)
    return dimensions + _number(2, _FLOAT) + _field(8, name.encode()) + _field(9, data)


def _axes(axis: int) -> bytes:
    data = struct.pack("<q", axis)
    return _number(1, 1) + _number(2, _INT64) + _field(8, b"axes") + _field(9, data)


def _value(name: str, kind: int) -> bytes:
    """A tensor of any shape: without a shape in its type."""
    return _field(1, name.encode()) + _field(2, _field(1, _number(1, kind)))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
