"""The frontend's leaving out of repeats against the worker that knows nothing of it."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from frontend_service.tokenizing.tokens import TokenizedBatch
from gpu_worker.engine.engine import ModelEngine
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.model.loading import load
from shared.jobs import Classify, Job, JobResult, Rows, SparseRows, Work
from shared.vectors import DataType, InputType, Layout, MultiVectors, ScoringMethod
from support.random_models import random_model
from support.repeats import LATE, ORDER, PAIRS, TEXTS, Computing, both, tokenized
from support.tiny import CPU, DENSE, MULTI, SPARSE, encode, raw, run, score

pytestmark = pytest.mark.usefixtures("remembered")


@cache
def engine(name: str) -> ModelEngine:
    return ModelEngine(load(random_model(name), CPU))


def computed_by(name: str) -> Computing:
    """The engine of a tiny model."""

    def compute(work: Work, some: TokenizedBatch) -> JobResult:
        beside = {"second_segments": some.second_segments, "unattended_tails": some.unattended_tails}
        job = Job(id=1, work=work, tokens=some.tokens, prompt_lengths=some.prompt_lengths, **beside)
        return run(engine(name), [job])[0]

    return compute


def numbers(rows: Rows, data_type: DataType) -> np.ndarray:
    """Packed rows as float32."""
    count = len(rows.data) // data_type.row_bytes(rows.dimensions)
    held = {"data": rows.data, "scales": rows.scales}
    vectors = MultiVectors(data_type=data_type, dimensions=rows.dimensions, lengths=(count,), **held)
    return row_kernels.unpack(vectors).numpy()


def assert_close(ours: JobResult, theirs: JobResult, data_type: DataType = DataType.FLOAT32) -> None:
    """Lengths and ids equal, every number but for rounding: in INT8 and BFLOAT16 by a step."""
    step = {DataType.INT8: 0.05, DataType.BFLOAT16: 0.05, DataType.FLOAT16: 0.01}.get(data_type, 1e-4)
    for name in ("row_lengths", "token_ids"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.winners == theirs.winners
    for mine, other in ((ours.dense, theirs.dense), (ours.tokens, theirs.tokens)):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            np.testing.assert_allclose(numbers(mine, data_type), numbers(other, data_type), rtol=0, atol=step)
    assert (ours.sparse is None) == (theirs.sparse is None)
    found = [(ours.scores, theirs.scores), (ours.similarities, theirs.similarities)]
    if ours.sparse is not None and theirs.sparse is not None:
        assert (ours.sparse.lengths, ours.sparse.indices) == (theirs.sparse.lengths, theirs.sparse.indices)
        found.append((ours.sparse.values, theirs.sparse.values))
    for own, others in found:
        np.testing.assert_allclose(np.frombuffer(own, "<f4"), np.frombuffer(others, "<f4"), rtol=1e-5, atol=1e-4)


def split(data: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Entries of one size, by text."""
    ends, size = np.cumsum([0, *lengths]).tolist(), len(data) // max(1, sum(lengths))
    return [data[size * start : size * stop] for start, stop in pairwise(ends)]


def pieces(result: JobResult, texts: int) -> list[tuple[bytes, ...]]:
    """All bytes that each text got."""
    one, rows = [1] * texts, result.row_lengths or [1] * texts
    dense, tokens = result.dense or Rows(dimensions=1, data=b""), result.tokens or Rows(dimensions=1, data=b"")
    sparse = result.sparse or SparseRows(lengths=(0,) * texts, indices=b"", values=b"")
    parts = [(dense.data, one), (dense.scales, one), (tokens.data, rows), (tokens.scales, rows)]
    parts += [(result.token_ids, rows), (result.scores, rows)]
    parts += [(sparse.indices, sparse.lengths), (sparse.values, sparse.lengths)]
    return list(zip(*(split(*part) for part in parts), strict=True))


def assert_repeated(got: Sequence[Any], of: Sequence[Any]) -> None:
    """Equal inputs got the same, and others not all the same."""
    found: dict[Any, set[Any]] = {}
    for key, piece in zip(of, got, strict=True):
        found.setdefault(key, set()).add(piece)
    assert {len(each) for each in found.values()} == {1}
    assert len(set.union(*found.values())) > 1


ENCODES = {
    "tiny-bert": encode(DENSE, MULTI, dimensions=20),
    "tiny-bge-m3": encode(DENSE, SPARSE, MULTI, token_ids=True),
    "tiny-colbert": encode(MULTI, token_ids=True, input_type=InputType.DOCUMENT),
    "tiny-splade": encode(SPARSE, sparse_top_k=30),
}


@pytest.mark.parametrize("name", ENCODES)
def test_vectors(name: str) -> None:
    """Of every output, texts without a token row included; those of equal texts to the last bit."""
    some = tokenized([TEXTS[each] for each in ORDER])
    ours, whole = both(computed_by(name), ENCODES[name], some)
    assert_close(ours, whole)
    assert_repeated(pieces(ours, len(ORDER)), ORDER)
    assert (0 in ours.row_lengths) == (name in ("tiny-bge-m3", "tiny-colbert"))


@pytest.mark.parametrize("data_type", DataType)
def test_vectors_of_every_data_type(data_type: DataType) -> None:
    work = raw(DENSE, MULTI, data_type=data_type)
    ours, whole = both(computed_by("tiny-bge-m3"), work, tokenized([TEXTS[each] for each in ORDER]))
    assert_close(ours, whole, data_type)
    assert_repeated(pieces(ours, len(ORDER)), ORDER)


def test_labels_of_pairs() -> None:
    """The same ids are another input where the second text begins elsewhere."""
    order = [0, 1, 0, 2, 2, 0, 4, 1]
    seconds = [1, 1, 1, 5, 6, 2, 9, 1]
    some = tokenized([TEXTS[each] for each in order], second_segments=seconds)
    ours, whole = both(computed_by("tiny-cross-encoder"), Classify(), some)
    assert_close(ours, whole)
    assert_repeated(pieces(ours, len(order)), list(zip(order, seconds, strict=True)))
    assert len(set(pieces(ours, len(order)))) == 6


SCORES = {
    "tiny-bert": (ScoringMethod.DENSE, {}),
    "tiny-colbert": (LATE, {"mean": True}),
    "tiny-splade": (ScoringMethod.SPARSE, {}),
    "tiny-bge-m3": (ScoringMethod.HYBRID, {}),
}
QUERIES = [0, 4, 0, 2, 4, 0, 1, 1, 0, 4, 2, 0, 0]
"""Which text each query of `ORDER`'s documents is."""


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str, layout: Layout) -> None:
    """By every method; of equal queries with equal documents to the last bit."""
    method, options = SCORES[name]
    some = tokenized([TEXTS[each] for each in [*QUERIES, *ORDER]])
    ours, whole = both(computed_by(name), score(method, len(QUERIES), layout, **options), some)
    assert_close(ours, whole)
    pairs = list(zip(QUERIES, ORDER, strict=True) if layout is PAIRS else product(QUERIES, ORDER))
    assert_repeated(np.frombuffer(ours.scores, "<f4").tolist(), pairs)
