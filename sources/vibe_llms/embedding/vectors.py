"""Vectors of one scope, to find entries by meaning.

An entry has a vector for each of its chunks, all of one model. The nearest one determines the
distance of the entry. FAISS compares all vectors if there are few, and searches an inverted file if
there are many (ADR 0037 has the figures). Rows of deleted entries are overwritten with zeros, and
stay until the index is rebuilt.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import ConfigurationError

#: Up to this number, all vectors are compared.
FLAT = 10_000
#: Lists per square root of the number of vectors, and the share and minimum of lists searched.
_LISTS, _SEARCHED, _FEWEST_SEARCHED = 4, 1 / 32, 32
#: Vectors per list for training, and the number of passes.
_SAMPLE, _ROUNDS = 20, 5
#: Growth factor since the last training at which the lists are trained again.
_GROWN = 4
#: Vectors requested per entry: several may be of one entry, and some of deleted ones.
_SPARE = 4


class _Stored(Struct, array_like=True):
    model: str
    dimension: int
    learnt: int
    owners: bytes
    searcher: memoryview
    total: bytes


class VectorIndex:
    """Vectors by the numbers of their entries, of one model and one dimension."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.dimension = 0
        self._owners = array("I")
        self._rows: dict[int, range] = {}
        self._learnt = 0
        self._searcher: Any = None
        self._total: Any = 0.0
        self._passages = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, number: object) -> bool:
        return number in self._rows

    @property
    def numbers(self) -> KeysView[int]:
        """Numbers of the entries that have vectors."""
        return self._rows.keys()

    def fits(self, vector: Sequence[float]) -> bool:
        """Return True if a vector has the same dimension as existing ones, if any."""
        return self.dimension in (0, len(vector))

    def add(self, vectors: Mapping[int, Sequence[array[float]]]) -> None:
        """Add the vectors of some entries; each has length 1, and `fits`."""
        faiss, numpy = _packages()
        owned = [(number, len(some)) for number, some in vectors.items() if some]
        if not owned:
            return
        for number, _ in owned:
            self.remove(number)
        matrix = numpy.array([one for some in vectors.values() for one in some], numpy.float32)
        self.dimension = matrix.shape[1]
        start = len(self._owners)
        for number, count in owned:
            self._rows[number] = range(start, start + count)
            self._owners.extend([number] * count)
            start += count
        if self._searcher is None:
            self._searcher = faiss.IndexFlatIP(self.dimension)
        self._searcher.add(matrix)
        self._total = self._total + matrix.sum(axis=0, dtype=numpy.float64)
        self._passages += len(matrix)

    def remove(self, number: int) -> None:
        """Remove the vectors of an entry, if it has any."""
        removed = self.read(number)
        if removed is not None:
            # Otherwise they would take places among the nearest.
            self._blank(self._rows.pop(number))
            self._passages -= len(removed)
            # Rounding must not leave a trace of deleted vectors in the sum.
            self._total = self._total - removed.sum(axis=0) if self._passages else 0.0

    def search(self, question: array[float], count: int) -> dict[int, float]:
        """Return up to `count` of the nearest entries, with the cosine of the nearest chunk."""
        if not self._rows:
            return {}
        faiss, numpy = _packages()
        self._learn_if_grown()
        wanted = min(len(self._owners), _SPARE * count)
        asked = numpy.frombuffer(question, numpy.float32)[None]
        with _alone(faiss):
            cosines, rows = self._searcher.search(asked, wanted)
        found: dict[int, float] = {}
        for cosine, row in zip(cosines[0].tolist(), rows[0].tolist(), strict=True):
            # An inverted file returns -1 when its lists are exhausted.
            if row < 0 or len(found) == count:
                break
            number = self._owners[row]
            if number not in found and row in self._rows.get(number, ()):
                found[number] = cosine
        return found

    def score(self, question: array[float], numbers: Iterable[int]) -> dict[int, float]:
        """Return the cosines of those entries that have vectors."""
        _, numpy = _packages()
        there = [number for number in numbers if number in self._rows]
        rows = [row for number in there for row in self._rows[number]]
        if not rows:
            return {}
        matrix = self._searcher.reconstruct_batch(numpy.array(rows, numpy.int64))
        cosines = iter((matrix @ numpy.frombuffer(question, numpy.float32)).tolist())
        return {number: max(next(cosines) for _ in self._rows[number]) for number in there}

    def sum_up(self, question: array[float]) -> tuple[float, int]:
        """Return the sum of the cosines of all chunks, and the number of chunks."""
        if not self._passages:
            return 0.0, 0
        _, numpy = _packages()
        return float(self._total @ numpy.frombuffer(question, numpy.float32)), self._passages

    def read(self, number: int) -> Any:
        """Return the vectors of an entry as rows of a numpy array, or `None` if it has none."""
        rows = self._rows.get(number)
        return None if rows is None else self._searcher.reconstruct_n(rows.start, len(rows))

    def encode(self) -> bytes:
        """Return the index as bytes, for `decode`, without the vectors of deleted entries."""
        faiss, numpy = _packages()
        self._learn_if_grown()
        owners = array("I", self._owners)
        for row, number in enumerate(owners):
            if row not in self._rows.get(number, ()):
                owners[row] = _GONE
        searcher = b"" if self._searcher is None else faiss.serialize_index(self._searcher)
        return msgspec.msgpack.encode(
            _Stored(
                self.model,
                self.dimension,
                self._learnt,
                owners.tobytes(),
                memoryview(searcher),
                numpy.float32(self._total).tobytes() if self._passages else b"",
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> VectorIndex:
        """Return the index from the bytes of `encode`; raise `ValueError` for other bytes."""
        stored = msgspec.msgpack.decode(data, type=_Stored)
        index = cls(stored.model)
        if not stored.searcher:
            return index
        faiss, numpy = _packages()
        try:
            index._searcher = faiss.deserialize_index(numpy.frombuffer(stored.searcher, "uint8"))
        except RuntimeError as error:
            raise ValueError("the vectors cannot be read") from error
        index._owners.frombytes(stored.owners)
        index.dimension, index._learnt = stored.dimension, stored.learnt
        searcher = index._searcher
        if (searcher.d, searcher.ntotal) != (index.dimension, len(index._owners)):
            raise ValueError("the vectors do not match the entries")
        first = 0
        for row, number in enumerate(index._owners):
            if row + 1 == len(index._owners) or index._owners[row + 1] != number:
                if number != _GONE:
                    index._rows[number] = range(first, row + 1)
                first = row + 1
        index._passages = sum(map(len, index._rows.values()))
        index._total = numpy.frombuffer(stored.total, numpy.float32).astype(numpy.float64)
        if len(index._total) != (index.dimension if index._passages else 0):
            raise ValueError("the sum does not match the vectors")
        index._prepare()
        return index

    def _blank(self, rows: Sequence[int]) -> None:
        """Overwrite vectors with zeros: a vector reveals much of its text."""
        faiss, numpy = _packages()
        zeros = numpy.zeros((len(rows), self.dimension), numpy.float32)
        if self._learnt:
            self._searcher.update_vectors(numpy.array(rows, numpy.int64), zeros)
        else:
            size = self._searcher.ntotal * self.dimension
            every = faiss.rev_swig_ptr(self._searcher.get_xb(), size)
            every.reshape(-1, self.dimension)[rows] = zeros

    def _learn_if_grown(self) -> None:
        """Train once for all vectors added since the last time: each training sorts all of them."""
        if len(self._owners) > max(FLAT, _GROWN * self._learnt):
            self._learn()

    def _learn(self) -> None:
        """Train the inverted file, and sort all vectors into its lists."""
        faiss, numpy = _packages()
        old, count = self._searcher, len(self._owners)
        lists = int(_LISTS * sqrt(count))
        learner = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(self.dimension), self.dimension, lists, faiss.METRIC_INNER_PRODUCT
        )
        learner.cp.niter = _ROUNDS
        learner.cp.min_points_per_centroid = 1
        every = old.reconstruct_n(0, count)
        # Deterministic: the same vectors give the same lists.
        chance = numpy.random.default_rng(0)
        learner.train(every[chance.permutation(count)[: lists * _SAMPLE]])
        learner.add(every)
        self._searcher, self._learnt = learner, count
        self._prepare()

    def _prepare(self) -> None:
        """Set the inverted file's number of searched lists, and its map of rows."""
        if self._learnt:
            lists = self._searcher.nlist
            self._searcher.nprobe = min(lists, max(_FEWEST_SEARCHED, int(lists * _SEARCHED)))
            self._searcher.make_direct_map()


#: Owner number of the rows of deleted entries.
_GONE = 0xFFFFFFFF


@contextmanager
def _alone(faiss: Any) -> Iterator[None]:
    """Search with one thread: on a busy machine, more would wait for each other."""
    # Applies to the calling thread.
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


def _packages() -> tuple[Any, Any]:
    try:
        import faiss
        import numpy as np
    except ImportError as error:
        raise ConfigurationError(
            "finding entries by their meaning needs faiss-cpu: "
            "python -m pip install 'vibe-llms[memory]'"
        ) from error
    return faiss, np
