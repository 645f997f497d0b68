"""Fewer token rows a document: the means of clusters of them. numpy and scipy; runs in threads."""

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

Floats = NDArray[np.float32]
NO_NORM = 1e-12
"""A row shorter than this has no direction: it is divided by this, as torch does."""


def pool(rows: Floats, factor: float, protected: int, normalize: bool) -> Floats:
    """Token rows [n, D] of one document -> pooled rows [m, D], m at most `pooled_count`.

    The first `protected` rows stay as they are; the others are clustered by Ward's method on cosine distance into
    (n - protected) // factor clusters and give way to the means of these (arXiv:2409.14683), in the order of scipy's
    labels. Where distances are equal there may be fewer clusters. With `normalize` all rows end with unit length.

    Equals `HierarchicalTokenPooling` of sentence-transformers, whose distance is 1 - the product of two rows: rows are
    taken to have unit length, and others get a distance that is no cosine's.

    `linkage` keeps Python's lock to its end (60 ms for 2,048 rows), and all takes up to 10 n * n bytes.
    """
    left = pooled_count(len(rows), factor, protected)
    if left < len(rows):
        rows = np.concatenate([rows[:protected], _means(rows[protected:], left - protected)])
    if normalize:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), NO_NORM)
    return rows


def pooled_count(rows: int, factor: float, protected: int) -> int:
    """Rows that are left of so many; fewer only where distances are equal."""
    free = rows - protected
    return protected + max(int(free // factor), 1) if free > 1 else rows


def _means(rows: Floats, clusters: int) -> Floats:
    """Rows [n, D] -> the mean of each cluster [clusters, D]."""
    linkage = hierarchy.linkage(_distances(rows), method="ward")
    labels = hierarchy.fcluster(linkage, t=clusters, criterion="maxclust")  # [n], each from 1
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    sums: Floats = np.add.reduceat(rows[order], starts, axis=0)
    return np.divide(sums, counts[:, None], dtype=np.float32)


def _distances(rows: Floats) -> Floats:
    """Rows [n, D] of unit length -> cosine distances of all pairs [n * (n - 1) / 2]."""
    distances = rows @ rows.T  # [n, n]; worked on in place, since it is what takes memory
    np.subtract(1, distances, out=distances)
    np.clip(distances, 0, 2, out=distances)
    condensed: Floats = squareform(distances, checks=False)
    return condensed
