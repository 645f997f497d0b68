"""Token rows to one row a sequence, over packed batches, without a loop over sequences. Tensors without I/O.

Modes and their details (a prompt that is left out, an empty rest) are those of sentence-transformers' Pooling.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpu_worker.kernels.rows import choice
from gpu_worker.kernels.rows.interface import PoolRows, Segments
from gpu_worker.ragged.batch import Counts, RaggedBatch, row_ranges
from gpu_worker.ragged.upload import Upload


class Pooling:
    """Pools n texts that lie anywhere in a step, one mode beside the other: told on the host, run on the device."""

    def __init__(self, starts: Counts, lengths: Counts, skip: Counts, modes: Sequence[str], staging: Upload) -> None:
        """Text i has rows starts[i] to starts[i] + lengths[i] - 1. `skip` [n] are tokens at the start of each that are
        left out: cls then takes the first token after them. A text without any other token becomes zeros, but for cls
        and lasttoken, which take its first and last.
        """
        left_out = np.minimum(skip, lengths)
        self._ways = [_way(mode, starts, lengths, left_out, staging) for mode in modes]

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden [T, H] -> float32 [n, H x modes]."""
        pooled = [way(hidden) for way in self._ways]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)


def pool(hidden: Tensor, batch: RaggedBatch, modes: Sequence[str], skip: Counts | None = None) -> Tensor:
    """All S texts of a batch: hidden [T, H] -> float32 [S, H x modes]; `skip` [S] as in `Pooling`."""
    lengths, staging = np.diff(batch.offsets), Upload(hidden.device)
    pooling = Pooling(batch.offsets[:-1], lengths, np.zeros_like(lengths) if skip is None else skip, modes, staging)
    staging.send()
    return pooling(hidden)


def _way(mode: str, starts: Counts, lengths: Counts, skip: Counts, staging: Upload) -> PoolRows:
    match mode:
        case "cls":
            return _Row(starts + np.where(skip < lengths, skip, 0), staging)
        case "lasttoken":
            return _Row(starts + lengths - 1, staging)
        case "max":
            return _Largest(starts, lengths, skip, staging)
        case "mean" | "mean_sqrt_len_tokens" | "weightedmean":
            segments = _segments(mode, starts, lengths, skip)
            return choice.choose(staging.device).weighted_sum(segments, staging)
    raise ValueError(f"no pooling is called {mode}")


class _Row:
    """One row of each text."""

    def __init__(self, rows: Counts, staging: Upload) -> None:
        self._rows = staging.add_array(rows)

    def __call__(self, hidden: Tensor) -> Tensor:
        return hidden.index_select(0, self._rows.tensor).float()


def _segments(mode: str, starts: Counts, lengths: Counts, skip: Counts) -> Segments:
    """What is left of each text, and what its rows weigh: in weightedmean their places, counted from 1."""
    kept, weighted = lengths - skip, mode == "weightedmean"
    first, growth = (skip + 1, 1) if weighted else (np.ones_like(skip), 0)
    sums = kept * first + growth * (kept * (kept - 1) // 2)
    divisors = np.sqrt(sums) if mode == "mean_sqrt_len_tokens" else sums
    divisors = np.maximum(divisors, 1e-9)
    return Segments(starts=starts + skip, lengths=kept, first=first, growth=growth, divisors=divisors)


class _Largest:
    """The maximum of each dimension over a text's rows."""

    def __init__(self, starts: Counts, lengths: Counts, skip: Counts, staging: Upload) -> None:
        kept = lengths - skip
        self._count = len(lengths)
        self._rows = staging.add_array(row_ranges(starts + skip, kept))
        self._texts = staging.add_array(np.repeat(np.arange(len(kept)), kept))
        self._empty = staging.add_array(kept == 0)

    def __call__(self, hidden: Tensor) -> Tensor:
        rows = hidden.index_select(0, self._rows.tensor).float()
        best = rows.new_full((self._count, hidden.shape[1]), float("-inf"))
        best.scatter_reduce_(0, self._texts.tensor[:, None].expand_as(rows), rows, reduce="amax")
        return best.masked_fill_(self._empty.tensor[:, None], 0.0)
