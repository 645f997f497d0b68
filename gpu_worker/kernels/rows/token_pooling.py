"""Token rows of a document pooled into fewer (arXiv:2409.14683), on the host: scipy clusters. numpy and scipy only.

Nothing here is PyTorch's: it would keep a pool of threads for every thread that calls it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.vectors import TokenPooling

Floats = NDArray[np.float32]
_LIMITED = threading.Lock()  # of the process: a limit gives back the number of threads that it found
NO_NORM = 1e-12
"""Least norm that a row is divided by, as in torch: a shorter row has no direction."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Has numpy compute products in one thread meanwhile, in the whole process. A document's are small, and take ten
    times as long in several threads that wait for the cores on which the model is computed."""
    with _LIMITED, _open_blas().limit(limits=1):
        yield


@cache
def _open_blas() -> Any:
    from threadpoolctl import ThreadpoolController  # here, so that all else runs where it is missing

    return ThreadpoolController().select(internal_api="openblas")


def pool(rows: Floats, pooling: TokenPooling) -> Floats:
    """Pools the token rows [n, D] of one document to [m, D], m at most `pooling.rows_left(n)`.

    The first `protected_tokens` rows stay; the others are clustered by Ward's method on cosine distance into
    (n - protected_tokens) // pool_factor clusters and replaced by the means of these, in the order of scipy's labels.
    Where distances are equal there may be fewer clusters. With `normalize` all rows end with unit length.

    Equals `HierarchicalTokenPooling` of sentence-transformers, which takes rows to have unit length: the distance of
    two rows is 1 minus their product, which is no cosine distance for rows of another length.

    `linkage` holds Python's lock to its end, so documents in several threads would take as long as one after the other:
    3 ms of a core for 300 rows, 120 for 2,048. It takes up to 10 n * n bytes.
    """
    count, protected = pooling.rows_left(len(rows)), pooling.protected_tokens
    if count < len(rows):
        rows = np.concatenate([rows[:protected], _means(rows[protected:], count - protected)])
    return unit(rows) if pooling.normalize else rows


def unit(rows: Floats) -> Floats:
    """Scales rows [n, D] to unit length."""
    scaled: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), NO_NORM)
    return scaled


def _means(rows: Floats, clusters: int) -> Floats:
    """The means [clusters, D] of clusters of rows [n, D]."""
    from scipy.cluster import hierarchy  # here: it takes half a second, and few models pool

    linkage = hierarchy.linkage(_distances(rows), method="ward")
    labels = hierarchy.fcluster(linkage, t=clusters, criterion="maxclust")  # [n], each from 1
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    sums: Floats = np.add.reduceat(rows[order], starts, axis=0)
    return np.divide(sums, counts[:, None], dtype=np.float32)


def _distances(rows: Floats) -> Floats:
    """Cosine distances [n * (n - 1) / 2] of all pairs of rows [n, D] of unit length."""
    from scipy.spatial.distance import squareform

    distances = rows @ rows.T  # [n, n]; changed in place, since it takes most of the memory
    np.subtract(1, distances, out=distances)
    np.clip(distances, 0, 2, out=distances)
    condensed: Floats = squareform(distances, checks=False)
    return condensed
