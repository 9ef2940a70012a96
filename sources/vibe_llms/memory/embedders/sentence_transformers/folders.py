"""The folder of a model on this disk: what identifies it, and whether it may be loaded.

A folder names the classes that it is loaded by, and its weights may be pickles, which run code when
they are read. So only classes of the package itself are accepted, and only weights in safetensors.
Before version 6 the package ran whatever code a local folder brought, asked or not.

Source: `base/model.py` and `util/misc.py` of sentence-transformers 6.2.0, `SentenceTransformer.py`
of 5.0.0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import ModelUnavailable
from vibe_llms.files import LARGEST_SETTINGS, read_file
from vibe_llms.memory.embedders.hub import Wanted

#: What is fetched of a model: no pickles, and no weights for other programs.
WANTED = Wanted(
    ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"),
    ("onnx/*", "openvino/*", "coreml/*", "*training_args*"),
)
_MODULES = "modules.json"
_CONFIG = "config.json"
_OWN = "sentence_transformers."
_WEIGHTS = ".safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


class _Module(Struct, frozen=True):
    type: str
    path: str = ""


def check_folder(row: str, folder: Path) -> None:
    """`ModelUnavailable` if a folder holds no model, or one that could run code when loaded."""
    weighty = False
    for part in _list_parts(row, folder):
        suffixes = {suffix.lower() for suffix in _suffixes(part)}
        weighty = weighty or _WEIGHTS in suffixes
        if _WEIGHTS not in suffixes and suffixes.intersection(_PICKLES):
            raise _refuse(
                row,
                f"{part} has its weights as pickles, which can run code when they are read; take "
                "a model with safetensors",
            )
    if not weighty:
        raise _refuse(row, f"{folder} holds no weights as safetensors; is it whole?")


def survey_files(folder: Path) -> list[Path]:
    """The weights and settings of a folder; none if it has no weights."""
    found = [path for path in _survey(folder) if path.suffix in (_WEIGHTS, ".json")]
    return found if any(path.suffix == _WEIGHTS for path in found) else []


def _list_parts(row: str, folder: Path) -> list[Path]:
    """The folders of a model's modules, each of which may have weights."""
    try:
        text = read_file(folder / _MODULES, LARGEST_SETTINGS)
    except FileNotFoundError:
        if not (folder / _CONFIG).is_file():
            raise _refuse(row, f"{folder} holds no model of sentence-transformers") from None
        return [folder]
    except OSError as error:
        raise _refuse(row, f"{folder} cannot be read: {error.strerror}") from error
    try:
        modules = msgspec.json.decode(text, type=list[_Module])
    except (ValueError, RecursionError) as error:
        raise _refuse(row, f"{folder / _MODULES} is not as it should be: {error}") from error
    parts: list[Path] = []
    for module in modules:
        if not module.type.startswith(_OWN):
            raise _refuse(
                row,
                f"{folder} is loaded by code of its own, {module.type!r}, which is never run; "
                "take a model that needs none",
            )
        path = PurePosixPath(module.path)
        if path.is_absolute() or ".." in path.parts:
            raise _refuse(row, f"{folder / _MODULES} leads out of its folder: {module.path!r}")
        parts.append(folder / path)
    return parts


def _suffixes(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as items:
            for item in items:
                yield Path(item.name).suffix
    except (FileNotFoundError, NotADirectoryError):
        return


def _survey(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        # What other programs load is no part of it.
        folders[:] = sorted(name for name in folders if f"{name}/*" not in WANTED.ignore)
        for name in names:
            yield Path(place, name)


def _refuse(row: str, message: str) -> ModelUnavailable:
    return ModelUnavailable(message, provider=row, code="folder")
