"""Folder of a model on this disk: its identity, and whether it may be loaded.

A folder names the classes that load it, and its weights may be pickles, which run code when they
are read. So only classes of the package itself are accepted, and only weights in safetensors.
Before version 6 the package ran any code in a local folder, even unasked.

Source: `base/model.py` and `util/misc.py` of sentence-transformers 6.2.0, `SentenceTransformer.py`
of 5.0.0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import ModelUnavailable
from vibe_llms.base.files import LARGEST_SETTINGS, read_file
from vibe_llms.embedding.hub import Wanted

#: Files to fetch: no pickles, and no weights for other programs.
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
    """Raise `ModelUnavailable` if a folder has no model, or one that could run code when loaded."""
    weighty = False
    for part in _list_parts(row, folder):
        suffixes = {suffix.lower() for suffix in _suffixes(part)}
        weighty = weighty or _WEIGHTS in suffixes
        if _WEIGHTS not in suffixes and suffixes.intersection(_PICKLES):
            raise _refuse(
                row,
                f"{part} has weights in pickle files, which can run code when loaded; use a model "
                "with safetensors",
            )
    if not weighty:
        raise _refuse(row, f"{folder} has no weights in safetensors; download it again")


def survey_files(folder: Path) -> list[Path]:
    """Return the weights and settings of a folder; none without weights."""
    found = [path for path in _survey(folder) if path.suffix in (_WEIGHTS, ".json")]
    return found if any(path.suffix == _WEIGHTS for path in found) else []


def _list_parts(row: str, folder: Path) -> list[Path]:
    """Return the folders of a model's modules, each of which may have weights."""
    try:
        text = read_file(folder / _MODULES, LARGEST_SETTINGS)
    except FileNotFoundError:
        if not (folder / _CONFIG).is_file():
            raise _refuse(row, f"{folder} has no model for sentence-transformers") from None
        return [folder]
    except OSError as error:
        raise _refuse(row, f"{folder} cannot be read: {error.strerror}") from error
    try:
        modules = msgspec.json.decode(text, type=list[_Module])
    except (ValueError, RecursionError) as error:
        raise _refuse(row, f"{folder / _MODULES} is invalid: {error}") from error
    parts: list[Path] = []
    for module in modules:
        if not module.type.startswith(_OWN):
            raise _refuse(
                row,
                f"{folder} needs code of its own, {module.type!r}, which is never run; use another "
                "model",
            )
        path = PurePosixPath(module.path)
        if path.is_absolute() or ".." in path.parts:
            raise _refuse(
                row, f"{folder / _MODULES} has a path outside the folder: {module.path!r}"
            )
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
        # Files for other programs do not count.
        folders[:] = sorted(name for name in folders if f"{name}/*" not in WANTED.ignore)
        for name in names:
            yield Path(place, name)


def _refuse(row: str, message: str) -> ModelUnavailable:
    return ModelUnavailable(message, provider=row, code="folder")
