"""Pools token rows into one row a sequence, over packed batches and without a loop; tells on the host, from token ids,
which tokens pooling leaves out, and which get no vector. Tensors without I/O.

Modes, and details such as prompts that are left out, are those of sentence-transformers' Pooling.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device.transfer import Upload
from gpu_worker.kernels.rows import row_kernels
from gpu_worker.kernels.rows.row_kernels import PoolRows, WeightedRanges
from gpu_worker.ragged.batch import Counts, Ids, RaggedBatch
from gpu_worker.ragged.texts import row_ranges
from shared.card import LateInteraction
from shared.vectors import InputType

OF_ANY_TOKENS = frozenset(("mean", "max", "mean_sqrt_len_tokens", "weightedmean"))
"""Modes that make sense for any tokens of a text. The others take a certain token: the first, which stands for the
whole text, or the last, which a model was trained to end a text with."""

BLOCK = 16_384
"""Rows that are copied at once to find the largest: those of a full step. Ranges may have the rows of a step many times
over."""


def plan_pooling(starts: Counts, lengths: Counts, skip: Counts, modes: Sequence[str], upload: Upload) -> PoolRows:
    """Prepares on the host what pools n texts that lie anywhere in a step: hidden [T, H] -> float32 [n, H x modes]. The
    results of several modes are concatenated.

    Text i has rows starts[i] to starts[i] + lengths[i] - 1; texts may overlap. The first skip[i] of them are left out;
    cls takes the first token after them. A text in which no token is left becomes zeros, except with cls and lasttoken,
    which then take its first and its last token.
    """
    left_out = np.minimum(skip, lengths)
    poolers = [_pooler(mode, starts, lengths, left_out, upload) for mode in modes]
    if len(poolers) == 1:
        return poolers[0]
    return lambda hidden: torch.cat([pool_rows(hidden) for pool_rows in poolers], dim=1)


def pool(hidden: Tensor, batch: RaggedBatch, modes: Sequence[str], skip: Counts | None = None) -> Tensor:
    """Pools all S texts of a batch: hidden [T, H] -> float32 [S, H x modes]; `skip` [S] is as in `plan_pooling`."""
    lengths, upload = np.diff(batch.offsets), Upload(hidden.device)
    skip = np.zeros_like(lengths) if skip is None else skip
    pool_rows = plan_pooling(batch.offsets[:-1], lengths, skip, modes, upload)
    upload.send()
    return pool_rows(hidden)


def _pooler(mode: str, starts: Counts, lengths: Counts, skip: Counts, upload: Upload) -> PoolRows:
    match mode:
        case "cls":
            return _one_row(starts + np.where(skip < lengths, skip, 0), upload)
        case "lasttoken":
            return _one_row(starts + lengths - 1, upload)
        case "max":
            return _largest(starts, lengths, skip, upload)
        case "mean" | "mean_sqrt_len_tokens" | "weightedmean":
            ranges = _weighted_ranges(mode, starts, lengths, skip)
            return row_kernels.choose(upload.device).weighted_sum(ranges, upload)
    raise ValueError(f"no pooling is called {mode}")


def _one_row(rows: Counts, upload: Upload) -> PoolRows:
    """Takes one row of each text."""
    uploaded = upload.add_array(rows)
    return lambda hidden: hidden.index_select(0, uploaded.tensor).float()


def _weighted_ranges(mode: str, starts: Counts, lengths: Counts, skip: Counts) -> WeightedRanges:
    """Rows of each text that are not skipped, with weights: in weightedmean, the place in the text, from 1."""
    counts, weighted = lengths - skip, mode == "weightedmean"
    first, growth = (skip + 1, 1) if weighted else (np.ones_like(skip), 0)
    sums = counts * first + growth * (counts * (counts - 1) // 2)
    divisors = np.sqrt(sums) if mode == "mean_sqrt_len_tokens" else sums
    divisors = np.maximum(divisors, 1e-9)
    return WeightedRanges(starts=starts + skip, lengths=counts, first=first, growth=growth, divisors=divisors)


def _largest(starts: Counts, lengths: Counts, skip: Counts, upload: Upload) -> PoolRows:
    """Takes the maximum of each dimension over a text's rows."""
    counts = lengths - skip
    rows = upload.add_array(row_ranges(starts + skip, counts))
    text_of_row = upload.add_array(np.repeat(np.arange(len(counts)), counts))
    empty = upload.add_array(counts == 0)

    def pool_rows(hidden: Tensor) -> Tensor:
        best = hidden.new_full((len(counts), hidden.shape[1]), float("-inf"), dtype=torch.float32)
        for block, texts in zip(rows.tensor.split(BLOCK), text_of_row.tensor.split(BLOCK), strict=True):
            chosen = hidden.index_select(0, block).float()
            best.scatter_reduce_(0, texts[:, None].expand_as(chosen), chosen, reduce="amax")
        return best.masked_fill_(empty.tensor[:, None], 0.0)

    return pool_rows


class Skiplist:
    """The tokens of a model that get no vector: the first of a text (BGE-M3), the skiplist of late interaction."""

    def __init__(self, late_interaction: LateInteraction | None = None, *, skip_first: bool = False) -> None:
        self._late = late_interaction
        self._skiplist = np.array(late_interaction.skiplist if late_interaction else (), dtype=np.int32)
        self._skip_first = skip_first

    def __call__(self, ids: Ids, offsets: Counts, side: InputType) -> npt.NDArray[np.bool_]:
        """Whether each token gets a vector, [T]: for texts of one side, whose `ids` [T] begin at `offsets` [S + 1]."""
        has_vector = np.ones(len(ids), dtype=np.bool_)
        if self._late is not None and self._late.skips(side):
            has_vector &= ~np.isin(ids, self._skiplist)
        if self._skip_first:
            has_vector[offsets[:-1]] = False
        return has_vector

    def of_scores(self, ids: Ids, offsets: Counts, queries: int) -> npt.NDArray[np.bool_]:
        """Whether each token gets a vector, [T]: the first `queries` texts are queries, the others documents."""
        middle = int(offsets[queries])
        return np.concatenate(
            [
                self(ids[:middle], offsets[: queries + 1], InputType.QUERY),
                self(ids[middle:], offsets[queries:] - middle, InputType.DOCUMENT),
            ]
        )


def instruction_ends(ids: Ids, offsets: Counts, marks: Sequence[tuple[int, ...]]) -> Counts:
    """Numbers of tokens [S] up to the end of the first mark in each sequence; 0 where a sequence has no mark.

    A mark ends the instruction of a text (GritLM, arXiv:2402.09906). `ids` [T] hold S sequences that begin at
    `offsets` [S + 1]. A mark is a run of ids; it counts only where it lies within one sequence.
    """
    first_ends = np.full(len(offsets) - 1, np.iinfo(np.int64).max)
    for mark in marks:
        starts = np.flatnonzero(_occurs(ids, mark))
        sequence = np.searchsorted(offsets, starts, side="right") - 1
        is_inside = starts + len(mark) <= offsets[sequence + 1]
        ending = (starts + len(mark) - offsets[sequence])[is_inside]
        np.minimum.at(first_ends, sequence[is_inside], ending)
    return np.where(first_ends == np.iinfo(np.int64).max, 0, first_ends)


def _occurs(ids: Ids, mark: tuple[int, ...]) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """For each place in `ids`, whether the mark begins there."""
    places = max(0, len(ids) - len(mark) + 1)
    occurs = np.ones(places, dtype=np.bool_)
    for index, identity in enumerate(mark):
        occurs &= ids[index : index + places] == identity
    return occurs
