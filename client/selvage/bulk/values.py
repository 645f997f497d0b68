"""What replies bring <-> columns of a shard: text by text between the two, since replies come in any order."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selvage.messages import vectors
from selvage.results import Array


def of_reply(reply: Any) -> dict[str, Sequence[Any]]:
    """By name, the values of each text that an EmbedResponse answers, in their order.

    `dense`: [dimensions]; `dense_scales`: a number, of int8 only. `sparse`: ids [weights] int32 and weights float32.
    `multi_vector`: [rows, dimensions]; `multi_vector_scales`: [rows], of int8 only. `tokens` and `truncated` of each.
    """
    found: dict[str, Sequence[Any]] = {"tokens": reply.usage.token_counts, "truncated": reply.usage.truncated}
    if reply.HasField("dense"):
        found["dense"] = list(vectors.rows(reply.dense))
        if reply.dense.scales:
            found["dense_scales"] = vectors.scales(reply.dense).tolist()
    if reply.HasField("sparse"):
        found["sparse"] = vectors.sparse(reply.sparse)
    if reply.HasField("multi_vector"):
        found["multi_vector"] = vectors.multi_vectors(reply.multi_vector)
        if reply.multi_vector.scales:
            scales = vectors.scales(reply.multi_vector)
            found["multi_vector_scales"] = vectors.split_by_lengths(scales, reply.multi_vector.lengths)
    return found


def columns(values: Mapping[str, Sequence[Any]]) -> dict[str, Array]:
    """Of n texts, one at least, all values of each name:

    `tokens` [n] int32, `truncated` [n] bool, `dense` [n, dimensions], `dense_scales` [n] float32; of `sparse` and
    `multi_vector`, which differ in length, `..._lengths` [n] int64 and all entries end to end: `sparse_ids` int32,
    `sparse_weights` float32, `multi_vector` [rows, dimensions], `multi_vector_scales` [rows] float32.
    """
    found: dict[str, Array] = {
        "tokens": np.asarray(values["tokens"], dtype=np.int32),
        "truncated": np.asarray(values["truncated"], dtype=bool),
    }
    if "dense" in values:
        found["dense"] = np.stack(values["dense"])
    if "dense_scales" in values:
        found["dense_scales"] = np.asarray(values["dense_scales"], dtype=np.float32)
    if "sparse" in values:
        found["sparse_lengths"] = np.array([len(ids) for ids, _ in values["sparse"]], dtype=np.int64)
        found["sparse_ids"] = np.concatenate([ids for ids, _ in values["sparse"]])
        found["sparse_weights"] = np.concatenate([weights for _, weights in values["sparse"]])
    if "multi_vector" in values:
        found["multi_vector_lengths"] = np.array([len(rows) for rows in values["multi_vector"]], dtype=np.int64)
        found["multi_vector"] = np.concatenate(values["multi_vector"])
    if "multi_vector_scales" in values:
        found["multi_vector_scales"] = np.concatenate(values["multi_vector_scales"])
    return found
