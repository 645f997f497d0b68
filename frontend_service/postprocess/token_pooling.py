"""Token pooling: a document's token rows become the means of clusters. numpy and scipy; runs in threads."""

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

Floats = NDArray[np.float32]
NO_NORM = 1e-12
"""Least norm that a row is divided by, as in torch: a shorter row has no direction."""


def pool(rows: Floats, factor: float, protected: int, normalize: bool) -> Floats:
    """Pools the token rows [n, D] of one document to [m, D], m at most `pooled_count`.

    The first `protected` rows stay as they are; the others are clustered by Ward's method on cosine distance into
    (n - protected) // factor clusters and replaced by the means of these (arXiv:2409.14683), in the order of scipy's
    labels. Where distances are equal there may be fewer clusters. With `normalize` all rows end with unit length.

    Equals `HierarchicalTokenPooling` of sentence-transformers, which takes rows to have unit length: the distance of
    two rows is 1 minus their product, which is no cosine distance for rows of another length.

    `linkage` holds Python's lock to its end (60 ms for 2,048 rows). All together takes up to 10 n * n bytes.
    """
    count = pooled_count(len(rows), factor, protected)
    if count < len(rows):
        rows = np.concatenate([rows[:protected], _means(rows[protected:], count - protected)])
    if normalize:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), NO_NORM)
    return rows


def pooled_count(rows: int, factor: float, protected: int) -> int:
    """The number of rows that pooling leaves; it leaves fewer only where distances are equal."""
    free = rows - protected
    return protected + max(int(free // factor), 1) if free > 1 else rows


def _means(rows: Floats, clusters: int) -> Floats:
    """The means [clusters, D] of clusters of rows [n, D]."""
    linkage = hierarchy.linkage(_distances(rows), method="ward")
    labels = hierarchy.fcluster(linkage, t=clusters, criterion="maxclust")  # [n], each from 1
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    sums: Floats = np.add.reduceat(rows[order], starts, axis=0)
    return np.divide(sums, counts[:, None], dtype=np.float32)


def _distances(rows: Floats) -> Floats:
    """Cosine distances [n * (n - 1) / 2] of all pairs of rows [n, D] of unit length."""
    distances = rows @ rows.T  # [n, n]; changed in place, since it takes most of the memory
    np.subtract(1, distances, out=distances)
    np.clip(distances, 0, 2, out=distances)
    condensed: Floats = squareform(distances, checks=False)
    return condensed
