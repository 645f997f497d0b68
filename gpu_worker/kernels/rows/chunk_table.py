"""Row ranges cut into chunks, as tables of numbers for a kernel. numpy only."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpu_worker.kernels.rows.interface import WeightedRanges

FIELDS = 4
FIRST, ROWS, WEIGHT, DIVISOR = range(FIELDS)
"""Columns: first row, number of rows, weight of the first row, divisor (the bits of a float32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTable:
    """Tables of sums: `chunks` [C, 4] int32 of all ranges, in order; `joins` [n, 4] int32 sum each range's chunks.

    `joins` is None where every range is one chunk. Sums of chunks are already divided, so joining them is a sum. If
    any range has several chunks, the others are joined from their single chunk, which changes no bit.
    """

    chunks: npt.NDArray[np.int32]
    joins: npt.NDArray[np.int32] | None

    @classmethod
    def of(cls, ranges: WeightedRanges, chunk_rows: int) -> "ChunkTable":
        """Cuts ranges into chunks of `chunk_rows` rows; the last has the rest. An empty range has one too."""
        lengths = ranges.lengths
        counts = np.maximum(-(-lengths // chunk_rows), 1)
        ends = np.cumsum(counts)
        before = (np.arange(counts.sum()) - np.repeat(ends - counts, counts)) * chunk_rows
        chunks = np.empty((len(before), FIELDS), np.int32)
        chunks[:, FIRST] = np.repeat(ranges.starts, counts) + before
        chunks[:, ROWS] = np.minimum(np.repeat(lengths, counts) - before, chunk_rows)
        chunks[:, WEIGHT] = np.repeat(ranges.first, counts) + ranges.growth * before
        chunks[:, DIVISOR] = np.repeat(ranges.divisors, counts).astype(np.float32).view(np.int32)
        if len(chunks) == len(lengths):
            return cls(chunks=chunks, joins=None)
        joins = np.empty((len(lengths), FIELDS), np.int32)
        joins[:, FIRST], joins[:, ROWS], joins[:, WEIGHT] = ends - counts, counts, 1
        joins[:, DIVISOR] = np.float32(1).view(np.int32)
        return cls(chunks=chunks, joins=joins)
