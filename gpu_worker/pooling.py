"""Token rows to one row a sequence, over packed batches, without a loop over sequences. Tensors without I/O."""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.ragged_batch import RaggedBatch, to_device

Counts = npt.NDArray[np.int64]


def pool(hidden: Tensor, batch: RaggedBatch, mode: str, skip: Counts | None = None) -> Tensor:
    """Pools hidden [T, H] to float32 [S, H].

    `mode` is cls (first token), lasttoken or mean; `skip` [S] are tokens at the start of each sequence that a mean
    leaves out (a sequence without any other token becomes zeros).
    """
    offsets = batch.offsets
    match mode:
        case "cls":
            return _gather(hidden, offsets[:-1])
        case "lasttoken":
            return _gather(hidden, offsets[1:] - 1)
        case "mean":
            return _mean(hidden, offsets, skip)
    raise ValueError(f"no pooling is called {mode}")


def _gather(hidden: Tensor, rows: Counts) -> Tensor:
    return hidden.index_select(0, to_device(torch.from_numpy(rows), hidden.device)).float()


def _mean(hidden: Tensor, offsets: Counts, skip: Counts | None) -> Tensor:
    """As one bag of rows a sequence: embedding_bag sums each in order, so batch mates cannot change a bit."""
    rows, starts = np.arange(offsets[-1]), offsets[:-1]
    if skip is not None and skip.any():
        lengths = np.diff(offsets)
        kept = np.maximum(lengths - skip, 0)
        rows = rows[rows - np.repeat(starts, lengths) >= np.repeat(skip, lengths)]
        starts = np.concatenate([[0], np.cumsum(kept)[:-1]])
    index = to_device(torch.from_numpy(rows), hidden.device)
    bags = to_device(torch.from_numpy(starts), hidden.device)
    return F.embedding_bag(index, hidden.float(), bags, mode="mean")


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
