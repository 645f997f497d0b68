"""Sparse vectors on the host: made from the weights that a step downloads, packed, compared. CPU only, no I/O.

A vector is two arrays: vocabulary ids [n] int32, ascending, and their weights [n] float32, all above zero.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from gpu_worker.ragged.batch import Counts
from shared.jobs import SparseRows

Vector = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
Weights = npt.NDArray[np.float32]
NOTHING: Vector = (np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32))
QUERIES_AT_ONCE = 64
ID_BITS = 32
"""Bits of a vocabulary id in a sort key, which holds the number of the text above them."""


def of_row(row: Weights) -> Vector:
    """Makes a vector of a row of weights [vocabulary]."""
    ids = np.flatnonzero(row > 0).astype(np.int32)
    return ids, row[ids]


def of_pairs(ids: npt.NDArray[np.int32], weights: Weights) -> Vector:
    """Makes a vector of ids in any order and their weights; weights of zero are left out."""
    positive = weights > 0
    ids, weights = ids[positive], weights[positive]
    order = np.argsort(ids)
    return ids[order], weights[order]


def of_tokens(
    texts: Sequence[npt.NDArray[np.int32]], weights: Weights, dropped: npt.NDArray[np.int32], top_k: int
) -> list[Vector]:
    """Makes one vector a text from the weights [T] of all tokens, laid end to end: the largest weight of each id.

    Ids in `dropped` are left out. All texts are sorted together, since one call a text would spend its time in calls.
    """
    ids = np.concatenate(texts)
    owners = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    counted = (weights > 0) & ~np.isin(ids, dropped)
    keys = (owners[counted] << ID_BITS) + ids[counted]
    order = np.argsort(keys, kind="stable")
    keys, ordered = keys[order], weights[counted][order]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    best = np.maximum.reduceat(ordered, firsts) if len(firsts) else ordered
    ends = np.searchsorted(keys[firsts] >> ID_BITS, np.arange(1, len(texts)))
    unique_ids = (keys[firsts] & (1 << ID_BITS) - 1).astype(np.int32)
    return [strongest(vector, top_k) for vector in zip(np.split(unique_ids, ends), np.split(best, ends), strict=True)]


def strongest(vector: Vector, top_k: int) -> Vector:
    """Keeps the `top_k` largest weights (0: all); ids stay ascending, and of equal weights the smaller ids win."""
    ids, weights = vector
    if not top_k or len(ids) <= top_k:
        return vector
    places = np.sort(np.argsort(-weights, kind="stable")[:top_k])
    return ids[places], weights[places]


def pack(vectors: Sequence[Vector]) -> SparseRows:
    """Lays the vectors of texts end to end."""
    return SparseRows(
        lengths=tuple(len(ids) for ids, _ in vectors),
        indices=b"".join(ids.astype("<i4").tobytes() for ids, _ in vectors),
        values=b"".join(weights.astype("<f4").tobytes() for _, weights in vectors),
    )


def unpack(rows: SparseRows) -> list[Vector]:
    """The vectors of texts that lie end to end."""
    ends = np.cumsum(rows.lengths)[:-1]
    ids, weights = (np.frombuffer(part, dtype) for part, dtype in ((rows.indices, "<i4"), (rows.values, "<f4")))
    return list(zip(np.split(ids, ends), np.split(weights, ends), strict=True))


def matrix(queries: Sequence[Vector], documents: Sequence[Vector]) -> Weights:
    """Computes the dot products [Q, S] float32 of every query with every document.

    Documents are bags of rows of a table [ids that documents have, 64 queries]; one table serves 64 queries at a time.
    """
    ids, weights, starts = _joined(documents)
    document_ids, places = np.unique(ids, return_inverse=True)
    bags, scale, begins = map(torch.from_numpy, (places.astype(np.int64), weights, starts))
    scores = np.empty((len(queries), len(documents)), dtype=np.float32)
    for first in range(0, len(queries), QUERIES_AT_ONCE):
        chosen = queries[first : first + QUERIES_AT_ONCE]
        table = np.zeros((max(1, len(document_ids)), len(chosen)), dtype=np.float32)
        for column, (query_ids, query_weights) in enumerate(chosen):
            _, rows, shared = np.intersect1d(document_ids, query_ids, assume_unique=True, return_indices=True)
            table[rows, column] = query_weights[shared]
        products = F.embedding_bag(bags, torch.from_numpy(table), begins, mode="sum", per_sample_weights=scale)
        scores[first : first + QUERIES_AT_ONCE] = products.T.numpy()
    return scores


def pairs(queries: Sequence[Vector], documents: Sequence[Vector]) -> Weights:
    """Computes the dot products [P] float32 of query i with document i."""
    scores = np.empty(len(queries), dtype=np.float32)
    for index, (query, document) in enumerate(zip(queries, documents, strict=True)):
        _, left, right = np.intersect1d(query[0], document[0], assume_unique=True, return_indices=True)
        scores[index] = query[1][left] @ document[1][right]
    return scores


def _joined(vectors: Sequence[Vector]) -> tuple[npt.NDArray[np.int32], Weights, Counts]:
    """Ids and weights of vectors laid end to end, and the place where each vector begins."""
    lengths: Counts = np.array([len(ids) for ids, _ in vectors], dtype=np.int64)
    starts: Counts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return np.concatenate([ids for ids, _ in vectors]), np.concatenate([values for _, values in vectors]), starts
