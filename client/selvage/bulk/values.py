"""Replies -> values of each text -> columns of a shard. Between the two, texts are apart: replies come in any order."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selvage.messages import vectors
from selvage.results import Array


def values_of_reply(reply: Any) -> dict[str, Sequence[Any]]:
    """The values of the texts of an EmbedResponse: for each name, a value for each text in their order.

    `dense`: [dimensions]; `dense_scales`: a number, for int8 only. `sparse`: ids [weights] int32 and weights float32.
    `multi_vector`: [rows, dimensions]; `multi_vector_scales`: [rows], for int8 only. `tokens` and `truncated` always.
    """
    values: dict[str, Sequence[Any]] = {"tokens": reply.usage.token_counts, "truncated": reply.usage.truncated}
    if reply.HasField("dense"):
        values["dense"] = list(vectors.rows(reply.dense))
        if reply.dense.scales:
            values["dense_scales"] = vectors.scales(reply.dense).tolist()
    if reply.HasField("sparse"):
        values["sparse"] = vectors.sparse(reply.sparse)
    if reply.HasField("multi_vector"):
        values["multi_vector"] = vectors.multi_vectors(reply.multi_vector)
        if reply.multi_vector.scales:
            scales = vectors.scales(reply.multi_vector)
            values["multi_vector_scales"] = vectors.split_by_lengths(scales, reply.multi_vector.lengths)
    return values


def columns(values: Mapping[str, Sequence[Any]]) -> dict[str, Array]:
    """The values of n texts, at least one, as arrays.

    `tokens` [n] int32, `truncated` [n] bool, `dense` [n, dimensions], `dense_scales` [n] float32. For `sparse` and
    `multi_vector`, which differ in length, `..._lengths` [n] int64 and all entries end to end: `sparse_ids` int32,
    `sparse_weights` float32, `multi_vector` [rows, dimensions], `multi_vector_scales` [rows] float32.
    """
    arrays: dict[str, Array] = {
        "tokens": np.asarray(values["tokens"], dtype=np.int32),
        "truncated": np.asarray(values["truncated"], dtype=bool),
    }
    if "dense" in values:
        arrays["dense"] = np.stack(values["dense"])
    if "dense_scales" in values:
        arrays["dense_scales"] = np.asarray(values["dense_scales"], dtype=np.float32)
    if "sparse" in values:
        arrays["sparse_lengths"] = np.array([len(ids) for ids, _ in values["sparse"]], dtype=np.int64)
        arrays["sparse_ids"] = np.concatenate([ids for ids, _ in values["sparse"]])
        arrays["sparse_weights"] = np.concatenate([weights for _, weights in values["sparse"]])
    if "multi_vector" in values:
        arrays["multi_vector_lengths"] = np.array([len(rows) for rows in values["multi_vector"]], dtype=np.int64)
        arrays["multi_vector"] = np.concatenate(values["multi_vector"])
    if "multi_vector_scales" in values:
        arrays["multi_vector_scales"] = np.concatenate(values["multi_vector_scales"])
    return arrays
