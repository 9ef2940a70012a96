"""Files of models: found, and read as far as their heads go."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.llamacpp import CHATML, TOOLS, encode_gguf, write_model
from vibe_llms.base.exceptions import ModelNotFound
from vibe_llms.providers.llamacpp.files import (
    GgufInvalid,
    locate_model,
    read_facts,
    survey_files,
)


def test_the_head_of_a_file_describes_its_model(tmp_path: Path) -> None:
    path = write_model(
        tmp_path / "a.gguf", general__size_label="8B", tokenizer__chat_template__tool_use=CHATML
    )
    facts = read_facts(path)
    assert (facts.architecture, facts.title, facts.context_tokens) == ("tiny", "Tiny 8B", 4_096)
    assert facts.templates == {"default": TOOLS, "tool_use": CHATML}
    assert facts.thinks


def test_a_vocabulary_without_marks_of_thoughts_thinks_not(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    tokens = ["a</think>", "</think", "think"]
    # The mark is elsewhere, where it says nothing of the vocabulary.
    path.write_bytes(encode_gguf({"general.name": "</think>", "tokenizer.ggml.tokens": tokens}))
    assert not read_facts(path).thinks
    assert read_facts(path).context_tokens is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a GGUF file"),
        (b"<html>not found", "it begins with b'<htm'"),
        (b"GGUF", "cut off or damaged"),
        (encode_gguf({}, magic=b"FUGG"), "not a GGUF file"),
        (encode_gguf({"a": 1}, version=1), "version 1"),
        (encode_gguf({"a": 1}, version=0x03000000), "version 50331648"),
        (encode_gguf({"a": "words"})[:-3], "cut off or damaged"),
        (encode_gguf({"a": ["some", "words"]})[:-3], "cut off or damaged"),
        (encode_gguf({"a": [["x"]]}), "nested arrays"),
        (encode_gguf({"a": 1})[:-8] + struct.pack("<II", 77, 0), "unknown type 77"),
        (encode_gguf({"general.type": "mmproj"}), "its kind is 'mmproj'"),
        (encode_gguf({"general.architecture": "clip"}), "its kind is 'clip'"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 2**63), "cut off or damaged"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1) + b"\xff" * 9, "cut off or damaged"),
    ],
)
def test_what_is_no_model_says_why(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufInvalid, match=words):
        read_facts(path)


def test_a_head_that_is_cut_anywhere_is_refused_and_never_worse(tmp_path: Path) -> None:
    whole = encode_gguf({"a": "words", "b": [1, 2], "c": ["x", "yz"], "d": 1.5, "e": True})
    path = tmp_path / "a.gguf"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(GgufInvalid):
            read_facts(path)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: None])
def test_what_cannot_be_read_says_why(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    path = tmp_path / "a.gguf"
    make(path)
    with pytest.raises(GgufInvalid, match="cannot be read"):
        read_facts(path)


def test_names_are_paths_or_begin_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate_model("/a/b.gguf", "") == Path("/a/b.gguf")
    assert locate_model("~/b.gguf", "/models") == tmp_path / "b.gguf"
    assert locate_model("sub/b.gguf", "~/models") == tmp_path / "models/sub/b.gguf"
    with pytest.raises(ModelNotFound, match="models-folder"):
        locate_model("b.gguf", "")


def test_a_folder_is_surveyed_with_those_below_it(tmp_path: Path) -> None:
    for name in (
        *("b.gguf", "sub/a.GGUF", "notes.txt", ".hidden.gguf", ".git/c.gguf"),
        *("big-00001-of-00002.gguf", "big-00002-of-00002.gguf"),
    ):
        write_model(tmp_path / name)
    assert survey_files(str(tmp_path)) == ["b.gguf", "big-00001-of-00002.gguf", "sub/a.GGUF"]
    assert survey_files(str(tmp_path / "nowhere")) == []
