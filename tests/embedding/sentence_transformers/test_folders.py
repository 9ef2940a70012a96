"""The fingerprint of a model's folder, and which folders may be loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.sentence_transformers import make_folder
from vibe_llms.base.exceptions import ModelUnavailable
from vibe_llms.embedding.local import digest_files
from vibe_llms.embedding.sentence_transformers.folders import check_folder, survey_files

MODELS = "sentence_transformers.models"
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": f"{MODELS}.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{MODELS}.Pooling"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": f"{MODELS}.Dense"}


def fingerprint(folder: Path) -> str:
    return digest_files(folder, survey_files(folder))


@pytest.mark.parametrize("modules", [(), [TRANSFORMER], [TRANSFORMER, POOLING]])
def test_a_folder_of_the_packages_own_classes_may_be_loaded(tmp_path: Path, modules: Any) -> None:
    check_folder("row", make_folder(tmp_path / "model", modules=modules))


def test_each_part_may_have_weights(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", modules=[TRANSFORMER, POOLING, DENSE])
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"weights")
    # A pickle next to safetensors is never read.
    (folder / "2_Dense" / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    check_folder("row", folder)
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match="2_Dense has weights in pickle files") as caught:
        check_folder("row", folder)
    assert caught.value.provider == "row"


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "model.PTH", "last.ckpt", "model.pkl"]
)
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelUnavailable, match="pickles"):
        check_folder("row", make_folder(tmp_path / "model", weights=name))


@pytest.mark.parametrize(
    "kind",
    [
        "evil.Evil",
        "os.system",
        "sentence_transformers_evil.Evil",
        "modeling_mine.Transformer",
        "",
    ],
)
def test_code_of_its_own_is_refused(tmp_path: Path, kind: str) -> None:
    folder = make_folder(tmp_path / "model", modules=[TRANSFORMER, {**POOLING, "type": kind}])
    with pytest.raises(ModelUnavailable, match="code of its own"):
        check_folder("row", folder)


@pytest.mark.parametrize("path", ["/etc", "../other", "a/../../b"])
def test_a_part_that_lies_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    folder = make_folder(tmp_path / "model", modules=[{**TRANSFORMER, "path": path}])
    with pytest.raises(ModelUnavailable, match="outside the folder"):
        check_folder("row", folder)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"path": ""}]', '[{"type": 7}]', "[" * 100_000, "\xff"]
)
def test_an_invalid_list_of_parts_is_reported(tmp_path: Path, text: str) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "modules.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelUnavailable, match=r"modules\.json is invalid"):
        check_folder("row", folder)


def test_what_is_no_model_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="has no model"):
        check_folder("row", tmp_path / "nowhere")
    with pytest.raises(ModelUnavailable, match="has no model"):
        check_folder("row", tmp_path)
    with pytest.raises(ModelUnavailable, match="no weights"):
        check_folder("row", make_folder(tmp_path / "bare", weights=""))
    folder = make_folder(tmp_path / "odd")
    (folder / "modules.json").mkdir()
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        check_folder("row", folder)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ModelUnavailable):
        check_folder("row", file)


def test_weights_are_distinguished_by_their_bytes(tmp_path: Path) -> None:
    one, other = make_folder(tmp_path / "one"), make_folder(tmp_path / "other")
    mark = fingerprint(one)
    assert len(mark) == 12
    # The same wherever it lies and whenever it was written, whatever lies next to it.
    os.utime(other / "model.safetensors", (0, 0))
    (other / "README.md").write_text("about")
    (other / "onnx").mkdir()
    (other / "onnx" / "config.json").write_text("{}")
    assert fingerprint(other) == mark
    big = b"b" * 500_000
    for data in (big, big[:-1] + b"c", b"c" + big[1:], big + b"b"):
        (other / "model.safetensors").write_bytes(data)
        assert fingerprint(other) != mark
        mark = fingerprint(other)
    (other / "config.json").write_text(json.dumps({"hidden": 3}))
    assert fingerprint(other) != mark


def test_a_folder_without_weights_has_no_fingerprint(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "nowhere") == ""
    assert fingerprint(make_folder(tmp_path / "bare", weights="")) == ""
    folder = make_folder(tmp_path / "broken")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "gone")
    assert fingerprint(folder) == ""
