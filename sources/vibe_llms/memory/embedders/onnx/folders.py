"""The folder of an ONNX model on this disk, and what it says about making vectors of texts.

The layout is that of repositories on Hugging Face's hub: `tokenizer.json` and `config.json`, the
models in `onnx/`, and the files of sentence-transformers if it has them. None of them holds code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import ModelUnavailable
from vibe_llms.files import LARGEST_SETTINGS, read_file
from vibe_llms.memory.embedders.hub import Wanted

T = TypeVar("T")

#: Where a model is looked for: first the quantized one.
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
#: What sentence-transformers reads of a text with all-MiniLM-L6-v2 and its kin. Conversions of them
#: lack the file that says so.
_USUAL_TOKENS = 256


class _Config(Struct, frozen=True):
    max_position_embeddings: int | None = None
    pad_token_id: int | None = None


class _TokenizerConfig(Struct, frozen=True):
    # Models without a limit have a number here that is no 64-bit integer.
    model_max_length: float = inf


class _Sentences(Struct, frozen=True):
    max_seq_length: int | None = None


class _Prompts(Struct, frozen=True):
    prompts: Mapping[str, str] = {}


class Recipe(Struct, frozen=True):
    """How a folder wants vectors to be made.

    A text is cut to `longest_tokens`, and shorter ones of a batch are filled up with `pad_token`.
    `pooling` makes one vector of those of tokens. `prompts` are put before texts.
    """

    longest_tokens: int
    pad_token: int | None = None
    pooling: str = "mean"
    prompts: Mapping[str, str] = {}


def wanted(file: str) -> Wanted:
    """What is fetched of a model: one ONNX file, with its weights if they lie next to it."""
    return Wanted((f"{file}*", "*.json"), ("openvino/*", "coreml/*"))


def find_file(folder: Path, file: str = "") -> str | None:
    """The path of the model in its folder: that of the settings, or the first of `FILES`."""
    return next((one for one in ((file,) if file else FILES) if (folder / one).is_file()), None)


def check_folder(row: str, folder: Path, file: str = "") -> str:
    """The path of the model; `ModelUnavailable` if a folder has none, or no tokenizer."""
    found = find_file(folder, file)
    if found is None:
        there = sorted(path.relative_to(folder).as_posix() for path in _survey(folder))
        remedy = f'; it has {", ".join(there)}: name one with "file" in a row' if there else ""
        raise refuse(row, f"{folder} has no {file or FILES[0]}{remedy}")
    if not (folder / TOKENIZER).is_file():
        raise refuse(row, f"{folder} has no {TOKENIZER}; is it whole?")
    return found


def survey_files(folder: Path, file: str) -> list[Path]:
    """The weights and settings of a folder; none if it has no weights."""
    found = find_file(folder, file)
    if found is None:
        return []
    beside = (folder / found).parent.glob(f"{(folder / found).name}*")
    return [*beside, *(one for name in (TOKENIZER, *_SETTINGS) if (one := folder / name).is_file())]


def read_recipe(row: str, folder: Path, longest: int | None = None) -> Recipe:
    """What the files of a folder say; `longest` replaces its number of tokens.

    `ModelUnavailable` if they are damaged, or ask for what is not done here.
    """
    config = _read(row, folder / "config.json", _Config())
    tokenizer = _read(row, folder / "tokenizer_config.json", _TokenizerConfig())
    sentences = _read(row, folder / "sentence_bert_config.json", _Sentences())
    # Beyond its positions a model fails.
    most = min(config.max_position_embeddings or inf, tokenizer.model_max_length)
    tokens = min(longest or sentences.max_seq_length or _USUAL_TOKENS, most)
    return Recipe(
        max(int(tokens), 1),
        config.pad_token_id,
        _name_pooling(row, folder),
        _read(row, folder / "config_sentence_transformers.json", _Prompts()).prompts,
    )


def refuse(row: str, message: str) -> ModelUnavailable:
    """The error for a folder that cannot be used."""
    return ModelUnavailable(message, provider=row, code="folder")


def _name_pooling(row: str, folder: Path) -> str:
    """How one vector is made of those of tokens: `mean`, `cls`, or what is not done here."""
    layers = [path.name for path in folder.glob("*_Dense")]
    found: Mapping[str, object] = _read(row, folder / _POOLING, {"pooling_mode": "mean"})
    # Before version 6 of sentence-transformers there was a key for each mode.
    modes = (
        [found["pooling_mode"]]
        if "pooling_mode" in found
        else [mode for key, mode in _MODES.items() if found.get(key) is True]
    )
    return " and ".join(str(one) for one in (*modes, *layers))


def _read(row: str, path: Path, default: T) -> T:
    """A settings file as the class of `default`, which stands where there is none."""
    try:
        return msgspec.json.decode(read_file(path, LARGEST_SETTINGS), type=type(default))
    except FileNotFoundError:
        return default
    except OSError as error:
        raise refuse(row, f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise refuse(row, f"{path} is not as it should be: {error}") from error


def _survey(folder: Path) -> Iterable[Path]:
    return (*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx"))
