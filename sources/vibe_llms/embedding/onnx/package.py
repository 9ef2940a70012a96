"""Text models loaded and run by the packages onnxruntime and tokenizers, without torch.

Only this module imports them. onnxruntime prints warnings, its threads busy-wait for more work, and
it reports its use to Microsoft, with a number for the machine that it stores in the home folder.
All of this is switched off.

Source: onnxruntime 1.32.0, tokenizers 0.23.3.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from vibe_llms.base.exceptions import ModelUnavailable
from vibe_llms.base.files import LARGEST_FILE, read_file
from vibe_llms.embedding.hub import Extra, Packages, shorten
from vibe_llms.embedding.local import Scorer
from vibe_llms.embedding.onnx.folders import (
    TOKENIZER,
    VectorRecipe,
    check_folder,
    read_recipe,
)

EXTRA = Extra("onnx", "onnxruntime", ("onnxruntime", "tokenizers", "huggingface_hub", "numpy"))

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
#: Output with one vector per text; without it, the first output has one per token.
_SENTENCES = "sentence_embedding"
_POOLINGS = ("mean", "cls")
_FATAL = 4
#: Read when onnxruntime is imported. Its function `disable_telemetry_events` comes too late.
_NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
#: Pairs that a cross-encoder reads at once, and tokens of each.
_PAIRS = 16
_PAIR_TOKENS = 512


class TextModel:
    """A tokenizer and a session of onnxruntime; not thread-safe."""

    def __init__(
        self, packages: Packages, folder: Path, file: str, recipe: VectorRecipe, *, threads: int
    ) -> None:
        self._folder = folder
        self._packages = packages
        self.numpy = packages.load("numpy")
        os.environ.setdefault(_NO_TELEMETRY, "1")
        runtime = packages.load("onnxruntime")
        state = packages.load("onnxruntime.capi.onnxruntime_pybind11_state")
        # Its errors have no common base.
        self._errors: tuple[type[Exception], ...] = (
            *(OSError, RuntimeError, ValueError),
            *(one for one in vars(state).values() if _is_error(one)),
        )
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or count_processors()
        options.log_severity_level = _FATAL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        tokenizer = packages.load("tokenizers").Tokenizer
        with self._guarded("cannot be loaded"):
            self._tokenizer = tokenizer.from_buffer(read_file(folder / TOKENIZER, LARGEST_FILE))
            padding = self._tokenizer.padding or {}
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(recipe.longest_tokens)
            self._session = runtime.InferenceSession(
                str(folder / file), options, providers=["CPUExecutionProvider"]
            )
        self._pad = padding.get("pad_id", 0) if recipe.pad_token is None else recipe.pad_token
        self._inputs = [one.name for one in self._session.get_inputs()]
        self.outputs = [one.name for one in self._session.get_outputs()]
        if not {"input_ids"} <= {*self._inputs} <= {*_INPUTS}:
            raise self.refuse(f"is not a text model: its inputs are {', '.join(self._inputs)}")

    def run(self, texts: Sequence[Any], output: str, batch_texts: int) -> Iterator[Any]:
        """Yield for each batch the positions of its texts, their mask, and the output.

        Short texts come first. A text is a string or a pair of strings.
        """
        numpy = self.numpy
        found = self._tokenize(texts)
        order = sorted(range(len(texts)), key=lambda place: len(found[place].ids))
        for start in range(0, len(order), batch_texts):
            places = order[start : start + batch_texts]
            width = max(len(found[places[-1]].ids), 1)
            filled = {
                name: numpy.full((len(places), width), pad, dtype=numpy.int64)
                for name, pad in zip(_INPUTS, (self._pad, 0, 0), strict=True)
            }
            for row, place in enumerate(places):
                one = found[place]
                for name, values in zip(
                    _INPUTS, (one.ids, one.attention_mask, one.type_ids), strict=True
                ):
                    filled[name][row, : len(values)] = values
            given = {name: filled[name] for name in self._inputs}
            with self._guarded("failed; its tokenizer.json may belong to another model"):
                (made,) = self._session.run([output], given)
            yield places, filled["attention_mask"], made

    def refuse(self, message: str) -> ModelUnavailable:
        """Return the error for an unusable model."""
        return ModelUnavailable(
            f"{self._folder} {message}", provider=self._packages.row, code="load"
        )

    def cuts(self, texts: Sequence[str]) -> bool:
        """Return True if any of the texts has too many tokens."""
        return any(one.overflowing for one in self._tokenize(texts))

    def _tokenize(self, texts: Sequence[Any]) -> Sequence[Any]:
        try:
            found: Sequence[Any] = self._tokenizer.encode_batch(texts)
        except Exception as error:
            raise self.refuse(f"cannot read a text: {shorten(error)}") from error
        return found

    @contextmanager
    def _guarded(self, failure: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise self.refuse(f"{failure}: {shorten(error)}") from error


class VectorModel:
    """Model that makes a vector of each text; not thread-safe."""

    def __init__(
        self, model: TextModel, recipe: VectorRecipe, *, batch_texts: int, dimensions: int | None
    ) -> None:
        self._model = model
        self._recipe = recipe
        self._batch_texts = batch_texts
        self._dimensions = dimensions
        self._output = _SENTENCES if _SENTENCES in model.outputs else model.outputs[0]
        if self._output != _SENTENCES and recipe.pooling not in _POOLINGS:
            raise model.refuse(
                f"uses the pooling {recipe.pooling!r}, which is not supported; use an ONNX file "
                f"with the output {_SENTENCES}"
            )

    @property
    def longest_tokens(self) -> int:
        """Number of tokens of a text that the model reads."""
        return self._recipe.longest_tokens

    def cuts(self, texts: Sequence[str]) -> bool:
        """Return True if the model would cut any of the texts."""
        # A token has at least one character, so short texts need not be split.
        long = [text for text in texts if len(text) > self.longest_tokens - 2]
        return self._model.cuts(long)

    def encode(self, texts: Sequence[str], *, question: bool) -> Sequence[array[float]]:
        """Return a unit vector for each text, using the model's prompt for queries or documents."""
        prompt = self._recipe.prompts.get("query" if question else "document", "")
        vectors = [array("f")] * len(texts)
        for places, mask, made in self._model.run(
            [prompt + text for text in texts], self._output, self._batch_texts
        ):
            for place, row in zip(places, self._pool(made, mask), strict=True):
                vectors[place] = array("f", row.tobytes())
        return vectors

    def _pool(self, made: Any, mask: Any) -> Any:
        numpy = self._model.numpy
        if made.ndim != (2 if self._output == _SENTENCES else 3):
            raise self._model.refuse(f"returns {self._output} with {made.ndim} dimensions")
        if self._output == _SENTENCES:
            pooled = made
        elif self._recipe.pooling == "cls":
            pooled = made[:, 0]
        else:
            weights = mask[..., None].astype(made.dtype)
            pooled = (made * weights).sum(axis=1) / numpy.maximum(weights.sum(axis=1), 1)
        pooled = pooled[:, : self._dimensions].astype("float32")
        lengths = numpy.linalg.norm(pooled, axis=1, keepdims=True)
        return pooled / numpy.maximum(lengths, 1e-12)


def load_model(
    packages: Packages,
    folder: Path,
    *,
    file: str,
    max_tokens: int | None,
    pooling: str,
    dimensions: int | None,
    batch_texts: int,
    threads: int,
) -> VectorModel:
    """Check and load the model of a folder."""
    found = check_folder(packages.row, folder, file)
    recipe = read_recipe(packages.row, folder, max_tokens)
    if pooling:
        recipe = msgspec.structs.replace(recipe, pooling=pooling)
    model = TextModel(packages, folder, found, recipe, threads=threads)
    return VectorModel(model, recipe, batch_texts=batch_texts, dimensions=dimensions)


def load_cross_encoder(packages: Packages, folder: Path) -> Scorer:
    """Check a folder, and return a function that computes the raw logits of pairs of texts.

    Call the result on one thread at a time.
    """
    found = check_folder(packages.row, folder)
    recipe = read_recipe(packages.row, folder, _PAIR_TOKENS)
    model = TextModel(packages, folder, found, recipe, threads=0)

    def score(pairs: Sequence[tuple[str, str]]) -> list[float]:
        scores = [0.0] * len(pairs)
        for places, _, made in model.run(pairs, model.outputs[0], _PAIRS):
            if made.size != len(places):
                raise model.refuse(
                    f"is not a cross-encoder: its {model.outputs[0]} has the shape {made.shape}"
                )
            for place, logit in zip(places, made.reshape(-1), strict=True):
                scores[place] = float(logit)
        return scores

    return score


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)
