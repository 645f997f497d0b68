"""What becomes of a worker's numbers: ranking, activation, listwise scores, explanations, token pooling, packing.

numpy and scipy; runs in threads. Knows no request of an API and no worker.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from frontend_service.domain.requests import TokenPooling
from shared.card import ModelCard
from shared.jobs import JobResult, PackedBytes, RaggedTokens, Rows
from shared.vectors import Activation, DataType

TINY = np.finfo(np.float32).tiny
Floats = NDArray[np.float32]
NO_NORM = 1e-12
"""Least norm that a row is divided by, as in torch: a shorter row has no direction."""
LEAST_LENGTH = 1e-8
"""Rows are taken to be no shorter than this, as PyTorch's cosine_similarity does: a row of zeros scores 0."""


def rank(ranked_by: PackedBytes, scores: PackedBytes, top_n: int | None) -> list[tuple[int, float]]:
    """float32 scores [S] -> (index, score), in the order of float32 `ranked_by` [S], largest first.

    Scores of an activation are no order: a sigmoid in float32 is 1 from 18 on. Equal numbers keep their order.
    """
    order = np.argsort(-np.frombuffer(ranked_by, dtype="<f4"), kind="stable")[:top_n]
    return list(zip(order.tolist(), np.frombuffer(scores, dtype="<f4")[order].tolist(), strict=True))


def activation_of(card: ModelCard, wanted: bool | None) -> Activation:
    """The activation of logits. `wanted`: whether the request asks for one; None: what the files name, or none."""
    if wanted is None:
        return card.activation
    if not wanted:
        return Activation.IDENTITY
    if card.activation is not Activation.IDENTITY:
        return card.activation
    return Activation.SIGMOID if len(card.labels) == 1 else Activation.SOFTMAX


def activate(logits: PackedBytes, labels: int, activation: Activation) -> bytes:
    """float32 logits [N, labels] -> scores of the same shape, computed in float64."""
    values = np.frombuffer(logits, dtype="<f4").astype(np.float64).reshape(-1, labels)
    match activation:
        case Activation.SIGMOID:
            values = 0.5 * (1 + np.tanh(values / 2))  # 1 / (1 + exp(-x)) without overflow
        case Activation.TANH:
            values = np.tanh(values)
        case Activation.SOFTMAX:
            powers = np.exp(values - values.max(axis=1, keepdims=True))
            values = powers / powers.sum(axis=1, keepdims=True)
        case _:
            return bytes(logits)
    return values.astype("<f4").tobytes()


def listwise_scores(rows: Rows, documents: Sequence[int], counts: Sequence[int]) -> bytes:
    """Scores of a listwise reranker: cosines of each query with its documents, float32, query by query.

    `rows` holds float32 rows of blocks: those of the block's documents, `documents` [B] of them, then the query's.
    `counts` [Q]: blocks of each query. The query of several blocks is the mean of its rows, weighted by (1 + c) / 2
    with the block's largest cosine c.
    """
    values = np.frombuffer(rows.data, dtype="<f4").reshape(-1, rows.dimensions)  # [D + B, width]
    stops = np.cumsum([size + 1 for size in documents]).tolist()
    blocks = [values[stop - size - 1 : stop] for stop, size in zip(stops, documents, strict=True)]
    result, first, filled = np.empty(sum(documents), dtype="<f4"), 0, 0
    for count in counts:
        query_blocks = blocks[first : first + count]
        query = _query_mean(query_blocks)
        for block in query_blocks:
            size = len(block) - 1
            result[filled : filled + size] = _cosines(block[:-1], query)
            filled += size
        first += count
    return result.tobytes()


def _query_mean(blocks: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """The query [width] of its rows in several blocks [documents + 1, width]."""
    queries = [block[-1].astype(np.float64) for block in blocks]
    best = [_cosines(block[:-1], query).max() for block, query in zip(blocks, queries, strict=True)]
    weights = [max(0.0, (1 + cosine) / 2) for cosine in best]  # -1 may be a little less by rounding
    mean: NDArray[np.float64] = np.average(queries, axis=0, weights=weights if any(weights) else None)
    return mean


def _cosines(rows: NDArray[np.float32], query: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines [n] of rows [n, width] with a query [width]. One block's rows are float64 at a time: all may be 64 MB."""
    wide = rows.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(wide, axis=1), LEAST_LENGTH)
    cosines: NDArray[np.float64] = wide @ query / (lengths * max(float(np.linalg.norm(query)), LEAST_LENGTH))
    return cosines


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedToken:
    """A query token and its best match as the vocabulary writes them. `position`: that of the match in its document."""

    query_token: str
    document_token: str
    position: int
    similarity: float


def explain(
    result: JobResult, tokens: RaggedTokens, documents: Sequence[int], token_text: Callable[[int], str]
) -> list[list[MatchedToken]]:
    """Explains late-interaction scores: for each query token the document token that matched it best.

    Of these documents, by number: a list for each, empty for one without a token that counts.

    `tokens`: those of the single query, then those of all documents. `token_text`: a token id as the vocabulary writes
    it.
    """
    query = tokens.lengths[0]
    ids, offsets = np.frombuffer(tokens.ids, dtype="<i4"), tokens.offsets
    winners = np.frombuffer(result.winners, dtype="<i4").reshape(-1, query)
    similarities = np.frombuffer(result.similarities, dtype="<f4").reshape(-1, query)
    query_tokens = [token_text(int(token_id)) for token_id in ids[:query]]
    return [
        [
            MatchedToken(
                query_token=query_tokens[place],
                document_token=token_text(int(ids[offsets[1 + document] + winners[document, place]])),
                position=int(winners[document, place]),
                similarity=float(similarities[document, place]),
            )
            for place in np.flatnonzero(winners[document] >= 0).tolist()
        ]
        for document in documents
    ]


def pool(rows: Floats, pooling: TokenPooling, normalize: bool) -> Floats:
    """Pools the token rows [n, D] of one document to [m, D], m at most `pooling.rows_left(n)`.

    The first `protected` rows stay as they are; the others are clustered by Ward's method on cosine distance into
    (n - protected) // factor clusters and replaced by the means of these (arXiv:2409.14683), in the order of scipy's
    labels. Where distances are equal there may be fewer clusters. With `normalize` all rows end with unit length.

    Equals `HierarchicalTokenPooling` of sentence-transformers, which takes rows to have unit length: the distance of
    two rows is 1 minus their product, which is no cosine distance for rows of another length.

    `linkage` holds Python's lock to its end (60 ms for 2,048 rows). All together takes up to 10 n * n bytes.
    """
    count, protected = pooling.rows_left(len(rows)), pooling.protected
    if count < len(rows):
        rows = np.concatenate([rows[:protected], _means(rows[protected:], count - protected)])
    if normalize:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), NO_NORM)
    return rows


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


def unpack_float32(rows: Rows) -> NDArray[np.float32]:
    """Packed FLOAT32 rows as an array [N, D], read-only."""
    return np.frombuffer(rows.data, dtype="<f4").reshape(-1, rows.dimensions)


def pack(rows: NDArray[np.float32], data_type: DataType) -> Rows:
    """Packs rows [N, D] without NaN.

    The float types are little-endian. INT8: each number as a multiple of its row's scale, which is the row's largest
    magnitude / 127; scales [N] are float32. BINARY: a bit a number, set where it is not negative, eight to a byte, the
    first one highest. The tests hold it to `gpu_worker.kernels.rows.row_kernels.pack`, which packs all other rows.
    """
    scales = b""
    match data_type:
        case DataType.FLOAT32:
            data = rows.astype("<f4", copy=False).tobytes()
        case DataType.FLOAT16:
            with np.errstate(over="ignore"):  # too large becomes infinite, as in torch
                data = rows.astype("<f2").tobytes()
        case DataType.BFLOAT16:
            data = _bfloat16(rows).tobytes()
        case DataType.INT8:
            largest = np.abs(rows).max(axis=1, initial=TINY)
            unit = largest / np.float32(127)  # [N]
            data = np.clip(np.rint(rows / unit[:, None]), -127, 127).astype(np.int8).tobytes()
            scales = unit.astype("<f4", copy=False).tobytes()
        case DataType.BINARY:
            data = np.packbits(rows >= 0, axis=1).tobytes()
    return Rows(dimensions=rows.shape[1], data=data, scales=scales)


def _bfloat16(rows: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of the numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    return (bits + np.uint32(0x7FFF) + odd >> np.uint32(16)).astype("<u2")
