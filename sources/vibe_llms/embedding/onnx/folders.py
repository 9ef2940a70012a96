"""Folder of an ONNX model on this disk, and its instructions for making vectors.

The layout is that of repositories on Hugging Face's hub: `tokenizer.json` and `config.json`, the
models in `onnx/`, and the files of sentence-transformers, if any. No file contains code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import ModelUnavailable
from vibe_llms.base.files import LARGEST_SETTINGS, read_file
from vibe_llms.embedding.hub import Wanted

T = TypeVar("T")

#: Paths searched for a model, the quantized one first.
FILES = ("onnx/model_quantized.onnx", "onnx/model.onnx", "model_quantized.onnx", "model.onnx")
TOKENIZER = "tokenizer.json"
_POOLING = "1_Pooling/config.json"
_SETTINGS = (
    *("config.json", "tokenizer_config.json", "sentence_bert_config.json"),
    *("config_sentence_transformers.json", _POOLING),
)
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
#: Default of sentence-transformers for all-MiniLM-L6-v2 and related models. Conversions of them
#: lack the file with this setting.
_USUAL_TOKENS = 256


class _Config(Struct, frozen=True):
    max_position_embeddings: int | None = None
    pad_token_id: int | None = None


class _TokenizerConfig(Struct, frozen=True):
    # Models without a limit have a number here that exceeds 64 bits.
    model_max_length: float = inf


class _Sentences(Struct, frozen=True):
    max_seq_length: int | None = None


class _Prompts(Struct, frozen=True):
    prompts: Mapping[str, str] = {}


class VectorRecipe(Struct, frozen=True):
    """A folder's instructions for making vectors.

    A text is cut to `longest_tokens`, and shorter ones of a batch are padded with `pad_token`.
    `pooling` combines the vectors of tokens into one. `prompts` are prepended to texts.
    """

    longest_tokens: int
    pad_token: int | None = None
    pooling: str = "mean"
    prompts: Mapping[str, str] = {}


def wanted(file: str) -> Wanted:
    """Return the files to fetch: one ONNX file, and its external weights if there are any."""
    return Wanted((f"{file}*", "*.json"), ("openvino/*", "coreml/*"))


def find_file(folder: Path, file: str = "") -> str | None:
    """Return the path of the model in its folder: `file`, or the first match of `FILES`."""
    return next((one for one in ((file,) if file else FILES) if (folder / one).is_file()), None)


def check_folder(row: str, folder: Path, file: str = "") -> str:
    """Return the path of the model; raise `ModelUnavailable` without model or tokenizer."""
    found = find_file(folder, file)
    if found is None:
        there = sorted(path.relative_to(folder).as_posix() for path in _survey(folder))
        remedy = f'; set "file" in the row to one of {", ".join(there)}' if there else ""
        raise refuse(row, f"{folder} has no {file or FILES[0]}{remedy}")
    if not (folder / TOKENIZER).is_file():
        raise refuse(row, f"{folder} has no {TOKENIZER}; download it again")
    return found


def survey_files(folder: Path, file: str) -> list[Path]:
    """Return the weights and settings of a folder; none without weights."""
    found = find_file(folder, file)
    if found is None:
        return []
    beside = (folder / found).parent.glob(f"{(folder / found).name}*")
    return [*beside, *(one for name in (TOKENIZER, *_SETTINGS) if (one := folder / name).is_file())]


def read_recipe(row: str, folder: Path, longest: int | None = None) -> VectorRecipe:
    """Read the instructions of a folder; `longest` replaces its number of tokens.

    Raise `ModelUnavailable` if the files are damaged, or ask for something unsupported.
    """
    config = _read(row, folder / "config.json", _Config())
    tokenizer = _read(row, folder / "tokenizer_config.json", _TokenizerConfig())
    sentences = _read(row, folder / "sentence_bert_config.json", _Sentences())
    # Beyond its positions a model fails.
    most = min(config.max_position_embeddings or inf, tokenizer.model_max_length)
    tokens = min(longest or sentences.max_seq_length or _USUAL_TOKENS, most)
    return VectorRecipe(
        max(int(tokens), 1),
        config.pad_token_id,
        _name_pooling(row, folder),
        _read(row, folder / "config_sentence_transformers.json", _Prompts()).prompts,
    )


def refuse(row: str, message: str) -> ModelUnavailable:
    """Return the error for an unusable folder."""
    return ModelUnavailable(message, provider=row, code="folder")


def _name_pooling(row: str, folder: Path) -> str:
    """Return the folder's pooling: `mean`, `cls`, or an unsupported one."""
    layers = [path.name for path in folder.glob("*_Dense")]
    found: Mapping[str, object] = _read(row, folder / _POOLING, {"pooling_mode": "mean"})
    # Before version 6, sentence-transformers had a key for each mode.
    modes = (
        [found["pooling_mode"]]
        if "pooling_mode" in found
        else [mode for key, mode in _MODES.items() if found.get(key) is True]
    )
    return " and ".join(str(one) for one in (*modes, *layers))


def _read(row: str, path: Path, default: T) -> T:
    """Decode a settings file as the class of `default`, or return `default` if it is missing."""
    try:
        return msgspec.json.decode(read_file(path, LARGEST_SETTINGS), type=type(default))
    except FileNotFoundError:
        return default
    except OSError as error:
        raise refuse(row, f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise refuse(row, f"{path} is invalid: {error}") from error


def _survey(folder: Path) -> Iterable[Path]:
    return (*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx"))
