"""Texts in padded batches, longest first, as sentence-transformers makes them: for peers that compute no ragged ones.

Batches run one after the other, or in streams: as many at a time, each with its share of the threads. numpy only.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
Infer = Callable[[Any, Any], Rows]
"""Computes unit rows [B, D] of a batch from its ids and mask [B, L] int64."""


def padded(all_texts: Sequence[Ids], size: int) -> Iterator[tuple[Any, Any, Any]]:
    """Yields batches of `size` texts, longest first: their indices [B], and ids and mask [B, L] int64."""
    order = np.argsort([-len(text) for text in all_texts], kind="stable")
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        ids = np.zeros((len(chosen), len(all_texts[chosen[0]])), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, text in enumerate(all_texts[number] for number in chosen):
            ids[row, : len(text)], mask[row, : len(text)] = text, 1
        yield chosen, ids, mask


def embed(infer: Infer, all_texts: Sequence[Ids], size: int, streams: int = 1) -> Rows:
    """Embeds texts in batches of `size`, `streams` of them at a time: rows [S, D] in the order of the texts."""

    def rows_of(batch: tuple[Any, Any, Any]) -> tuple[Any, Rows]:
        chosen, ids, mask = batch
        return chosen, infer(ids, mask)

    batches = padded(all_texts, size)
    done = map(rows_of, batches) if streams == 1 else _pool(streams).map(rows_of, batches)
    chosen, rows = zip(*done, strict=True)
    in_order = np.empty((len(all_texts), rows[0].shape[1]), dtype=np.float32)
    in_order[np.concatenate(chosen)] = np.concatenate(rows)
    return in_order


@cache
def _pool(streams: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(streams)
