"""Token rows to one row a sequence, over packed batches, without a loop over sequences. Tensors without I/O.

Modes and their details (a prompt that is left out, an empty rest) are those of sentence-transformers' Pooling.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.ragged.batch import Counts, RaggedBatch, to_device

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""In the order in which sentence-transformers concatenates them."""


def pool(hidden: Tensor, batch: RaggedBatch, modes: Sequence[str], skip: Counts | None = None) -> Tensor:
    """Pools hidden [T, H] to float32 [S, H x modes], one mode beside the other.

    `skip` [S] are tokens at the start of each sequence that are left out: cls then takes the first token after them.
    A sequence without any other token becomes zeros, but for cls and lasttoken, which take its first and last.
    """
    lengths = np.diff(batch.offsets)
    left_out = np.zeros_like(lengths) if skip is None else np.minimum(skip, lengths)
    return torch.cat([_pool(hidden, batch.offsets, mode, left_out) for mode in modes], dim=1)


def _pool(hidden: Tensor, offsets: Counts, mode: str, skip: Counts) -> Tensor:
    starts, lengths = offsets[:-1], np.diff(offsets)
    match mode:
        case "cls":
            return _gather(hidden, starts + np.where(skip < lengths, skip, 0))
        case "lasttoken":
            return _gather(hidden, offsets[1:] - 1)
        case "max":
            return _max(hidden, offsets, skip)
        case "mean" | "mean_sqrt_len_tokens" | "weightedmean":
            positions = np.arange(offsets[-1]) - np.repeat(starts, lengths)
            kept = positions >= np.repeat(skip, lengths)
            weights = (positions + 1.0 if mode == "weightedmean" else np.ones(len(positions))) * kept
            sums = np.add.reduceat(weights, starts)
            divisors = np.sqrt(sums) if mode == "mean_sqrt_len_tokens" else sums
            return _weighted_sum(hidden, offsets, weights / np.repeat(np.maximum(divisors, 1e-9), lengths), skip)
    raise ValueError(f"no pooling is called {mode}")


def _gather(hidden: Tensor, rows: Counts) -> Tensor:
    return hidden.index_select(0, to_device(torch.from_numpy(rows), hidden.device)).float()


def _kept(offsets: Counts, skip: Counts) -> tuple[Counts, Counts]:
    """Rows that are not left out, and where each sequence begins among them."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    rows = np.arange(offsets[-1])
    kept = rows[rows - np.repeat(starts, lengths) >= np.repeat(skip, lengths)]
    return kept, np.concatenate([[0], np.cumsum(lengths - skip)[:-1]])


def _weighted_sum(hidden: Tensor, offsets: Counts, weights: npt.NDArray[np.float64], skip: Counts) -> Tensor:
    """As one bag of rows a sequence: embedding_bag sums each in order, so batch mates cannot change a bit."""
    rows, starts = _kept(offsets, skip)
    index, bags = (to_device(torch.from_numpy(each), hidden.device) for each in (rows, starts))
    scale = to_device(torch.from_numpy(weights[rows].astype(np.float32)), hidden.device)
    return F.embedding_bag(index, hidden.float(), bags, mode="sum", per_sample_weights=scale)


def _max(hidden: Tensor, offsets: Counts, skip: Counts) -> Tensor:
    rows, _ = _kept(offsets, skip)
    lengths = np.diff(offsets) - skip
    segments = to_device(torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)), hidden.device)
    chosen = hidden if len(rows) == len(hidden) else _gather(hidden, rows)
    best = hidden.new_full((len(lengths), hidden.shape[1]), float("-inf"), dtype=torch.float32)
    best.scatter_reduce_(0, segments[:, None].expand(-1, hidden.shape[1]), chosen.float(), reduce="amax")
    empty = to_device(torch.from_numpy(lengths == 0), hidden.device)
    return best.masked_fill_(empty[:, None], 0.0)


def truncate(rows: Tensor, dimensions: npt.NDArray[np.int64]) -> Tensor:
    """Zeros in row i from `dimensions[i]` on (Matryoshka, arXiv:2205.13147); rows [N, D], dimensions [N] <= D."""
    width = rows.shape[1]
    if (dimensions == width).all():
        return rows
    kept = to_device(torch.from_numpy(dimensions), rows.device)
    return rows * (torch.arange(width, device=rows.device) < kept[:, None])


def normalize(rows: Tensor, wanted: npt.NDArray[np.bool_]) -> Tensor:
    """Unit length for row i where `wanted[i]`; rows [N, D] float32. A row of zeros stays."""
    if not wanted.any():
        return rows
    unit = F.normalize(rows, dim=1)
    if wanted.all():
        return unit
    return torch.where(to_device(torch.from_numpy(wanted), rows.device)[:, None], unit, rows)
