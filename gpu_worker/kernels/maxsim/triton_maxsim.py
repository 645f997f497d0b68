"""MaxSim as one Triton kernel for all pairs of a call: reads packed rows in place, without padding or copies.

It is imported only where there is a CUDA device: nothing else in the worker needs Triton. It knows rows and tables of
them, but no jobs. It never waits for the device and reads nothing back.

The kernel is persistent: a fixed number of programs walk over work items, each a pair and a chunk of its document.
Documents are the M dimension of the product, as they have many more rows. A program keeps the running maximum of every
place in its tile in registers and reduces them once a document. Chunks of a split document are joined by a maximum of
integers, which is the same in any order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.device.transfer import to_device
from gpu_worker.kernels.maxsim.maxsim_kernels import EMPTY_DOCUMENT, Comparison, Mask, Texts
from gpu_worker.kernels.maxsim.maxsim_tiles import score_pairs
from gpu_worker.kernels.rows.row_kernels import ALIGNMENT, aligned_rows
from gpu_worker.ragged.batch import Counts
from shared.vectors import Layout

CHUNK_ROWS = 1024
"""Rows of a document that one program scores: few enough that one long document keeps many programs busy."""
PROGRAMS_PER_PROCESSOR = 3
"""Programs that fit on a processor at once by registers and shared memory, so that the work of one hides the reads of
another; `test_compiles.py` checks it for every variant. Not tuned on a device yet."""
BLOCK_Q = 32
"""Query rows in a block. All calls use one size: with another the sum over rows would round differently."""
MOST_PAIRS = 1_000_000
"""Limit for pairs in one table: while it is made, a pair takes about a hundred bytes on the host."""
LOWEST = -(2**31) + 2**23 - 1
"""`mirrored` bits of minus infinity. Arrival counters start here too, so one fill prepares the whole scratch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVariant:
    """A variant of the compiled kernel: tiles of block_m document rows by block_k dimensions.

    `resident`: block_k covers all dimensions, and the query block stays on the chip while documents stream past it.
    `registers`: limit a thread, where the compiler needs one.
    """

    block_m: int
    block_k: int
    resident: bool
    warps: int
    stages: int
    registers: int | None = None


UP_TO_64 = KernelVariant(block_m=64, block_k=64, resident=True, warps=4, stages=3)
# Without a limit Triton 3.6 takes 194 registers.
UP_TO_128 = KernelVariant(block_m=64, block_k=128, resident=True, warps=4, stages=3, registers=168)
WIDE = KernelVariant(block_m=64, block_k=128, resident=False, warps=4, stages=3)
FLOAT32 = KernelVariant(block_m=64, block_k=32, resident=False, warps=4, stages=3)


def variant_of(dtype: torch.dtype, width: int) -> KernelVariant:
    """Chooses the variant for rows of a type and width. It depends on nothing else, so a score does not either."""
    if dtype is torch.float32:  # no tensor cores: a whole row in registers would not fit
        return FLOAT32
    if width <= UP_TO_64.block_k:
        return UP_TO_64
    return UP_TO_128 if width <= UP_TO_128.block_k else WIDE


def constants_of(dtype: torch.dtype, width: int, masked: bool) -> dict[str, Any]:
    """Constants that the kernel is compiled with, by the names of its parameters."""
    variant = variant_of(dtype, width)
    return {
        "LANES": ALIGNMENT // dtype.itemsize,
        "BLOCK_M": variant.block_m,
        "BLOCK_Q": BLOCK_Q,
        "BLOCK_K": variant.block_k,
        "RESIDENT": variant.resident,
        "MASKED": masked,
        "EMPTY": EMPTY_DOCUMENT,
        "LOWEST": LOWEST,
    }


class TritonMaxSim:
    """The `maxsim_kernels.MaxSimKernel` for CUDA. Products must be finite: the frontend checks vectors of callers.

    It is compiled once for each dtype and variant, with and without a mask: 14 times, of which one model needs
    two. Widths, lengths and counts are plain arguments, so after `warm` no request compiles anything. Rows whose size
    is no multiple of 16 bytes (a width of 50, say) are first copied with zeros behind them.
    """

    name = "triton"

    def __init__(self, chunk_rows: int = CHUNK_ROWS) -> None:
        self.chunk_rows = chunk_rows

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
    ) -> Tensor:
        """Launches the kernel, once unless the table would be huge, and returns scores [P] float32 without waiting."""
        assert queries.dtype == documents.dtype
        assert queries.shape[1] == documents.shape[1]
        if sum(comparison.count for comparison in comparisons) > MOST_PAIRS:
            return self._in_halves(queries, documents, comparisons, row_mask)
        return self.prepared(queries, documents, comparisons, row_mask)()

    def prepared(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None = None
    ) -> Callable[[], Tensor]:
        """Makes and uploads the table of all pairs. The function it returns launches the kernel once and gives [P]."""
        table = PairTable.of(comparisons, self.chunk_rows, row_mask)
        device, width = queries.device, documents.shape[1]
        query_rows, document_rows = aligned_rows(queries), aligned_rows(documents)
        items, mask = _upload(table.items, row_mask, device)
        variant, constants = (
            variant_of(documents.dtype, width),
            constants_of(documents.dtype, width, row_mask is not None),
        )

        def launch() -> Tensor:
            scores = torch.empty(table.scores, dtype=torch.float32, device=device)
            if not table.scores:
                return scores
            # Most calls split nothing and need no fill. The fill is a launch of PyTorch's, not a second one of ours.
            scratch = torch.full((table.scratch,), LOWEST, dtype=torch.int32, device=device) if table.scratch else items
            with torch.cuda.device_of(query_rows):  # Triton launches on the current device
                score_pairs[(min(len(table.items), _programs(device)),)](
                    *(query_rows, document_rows, mask, items, scratch, scores),
                    *(len(table.items), document_rows.shape[1] // constants["LANES"]),
                    **constants,
                    num_warps=variant.warps,
                    num_stages=variant.stages,
                    maxnreg=variant.registers,
                )
            return scores

        return launch

    def _in_halves(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], row_mask: Mask | None
    ) -> Tensor:
        """Scores comparisons one by one, and one that is too large by itself in two groups of documents."""
        if len(comparisons) > 1:
            return torch.cat([self(queries, documents, [comparison], row_mask) for comparison in comparisons])
        whole = comparisons[0]
        pairs, middle = whole.layout is Layout.PAIRS, len(whole.documents) // 2
        if not middle:  # one document and millions of queries cannot be split here
            return self.prepared(queries, documents, comparisons, row_mask)()
        scores = [
            self(queries, documents, [whole.part(start, stop)], row_mask).view(1 if pairs else len(whole.queries), -1)
            for start, stop in ((0, middle), (middle, len(whole.documents)))
        ]
        return torch.cat(scores, dim=1).flatten()

    def warm(self, device: torch.device, dtype: torch.dtype, width: int) -> None:
        """Compiles every variant that a call with rows of this type and width can reach, by calling it."""
        rows = torch.zeros(1, width, dtype=dtype, device=device)
        text = Texts.end_to_end(np.array([1]))
        pair = Comparison(queries=text, documents=text, layout=Layout.PAIRS)
        for row_mask in (None, np.array([True])):
            self(rows, rows, [pair], row_mask)


def _upload(items: npt.NDArray[np.int32], row_mask: Mask | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Copies work items [I * 8] int32 and the mask [M] uint8 to the device at once; without a mask it returns the items
    twice."""
    flat = items.reshape(-1).view(np.uint8)
    joined = flat if row_mask is None else np.concatenate([flat, row_mask.view(np.uint8)])
    uploaded = to_device(torch.from_numpy(joined), device)
    table = uploaded[: items.nbytes].view(torch.int32)
    return table, table if row_mask is None else uploaded[items.nbytes :]


def _programs(device: torch.device) -> int:
    """Chooses the size of the persistent grid; Triton's interpreter runs a small one on the CPU."""
    if device.type == "cpu":
        return 3
    return PROGRAMS_PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count


FIELDS = 8
"""Numbers in a work item: 32 bytes, which a device reads at once."""
DOCUMENT, DOCUMENT_ROWS, QUERY, QUERY_ROWS, SCORE, CHUNKS, SCRATCH, COUNTED = range(8)
"""Columns: first row and number of rows of the chunk and of the query; place of the score; number of chunks of the
document and, if more than one, the start of their common scratch; whether any row of the document counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTable:
    """A table of I work items, `items` [I, 8] int32. They give `scores` scores and need `scratch` int32 to join chunks.

    The scratch of a split pair is one counter, then one maximum a query row (one if there is no query row).
    """

    items: npt.NDArray[np.int32]
    scores: int
    scratch: int

    @classmethod
    def of(cls, comparisons: Sequence[Comparison], chunk_rows: int, row_mask: Mask | None = None) -> "PairTable":
        """Lists all pairs of all comparisons, with documents cut into chunks of at most `chunk_rows` rows.

        `row_mask` selects the document rows that count. Every pair has a work item, even if its document is empty. Work
        items of one document are neighbours: all but the first find its rows in the device's cache.
        """
        ends = np.cumsum([0] + [comparison.count for comparison in comparisons])
        pairs = [
            _pairs(comparison, int(first), row_mask) for comparison, first in zip(comparisons, ends[:-1], strict=True)
        ]
        wide = np.concatenate([np.empty((0, FIELDS), np.int64), *pairs])
        wide[:, CHUNKS] = np.maximum(-(-wide[:, DOCUMENT_ROWS] // chunk_rows), 1)
        needs = np.where(wide[:, CHUNKS] > 1, 1 + np.maximum(wide[:, QUERY_ROWS], 1), 0)
        wide[:, SCRATCH] = np.cumsum(needs) - needs
        assert wide.max(initial=0) < 2**31  # 32 bits are enough for rows: no device holds two billion of them
        items = _chunks(wide.astype(np.int32), chunk_rows)
        return cls(items=items, scores=int(ends[-1]), scratch=int(needs.sum()))


def _pairs(comparison: Comparison, first: int, row_mask: Mask | None) -> Counts:
    """Lists the pairs [P, 8] of a comparison whose scores begin at `first`; chunks and scratch are not filled in."""
    queries, documents = np.arange(len(comparison.queries)), np.arange(len(comparison.documents))
    scores = np.arange(comparison.count)
    if comparison.layout is Layout.MATRIX:
        # All queries of a document, then those of the next.
        scores = scores.reshape(len(queries), len(documents)).T.ravel()
        queries, documents = np.tile(queries, len(documents)), np.repeat(documents, len(queries))
    table = np.zeros((comparison.count, FIELDS), np.int64)
    table[:, DOCUMENT] = comparison.documents.starts[documents]
    table[:, DOCUMENT_ROWS] = comparison.documents.lengths[documents]
    table[:, QUERY] = comparison.queries.starts[queries]
    table[:, QUERY_ROWS] = comparison.queries.lengths[queries]
    table[:, SCORE] = first + scores
    table[:, COUNTED] = comparison.documents.counted(row_mask)[documents] > 0
    return table


def _chunks(pairs: npt.NDArray[np.int32], chunk_rows: int) -> npt.NDArray[np.int32]:
    """Cuts pairs [P, 8] into work items [I, 8]."""
    chunks = pairs[:, CHUNKS]
    if chunks.max(initial=1) == 1:
        return pairs
    items = np.repeat(pairs, chunks, axis=0)
    before = (np.arange(len(items)) - np.repeat(np.cumsum(chunks) - chunks, chunks)) * chunk_rows
    items[:, DOCUMENT] += before.astype(np.int32)
    items[:, DOCUMENT_ROWS] = np.minimum(items[:, DOCUMENT_ROWS] - before, chunk_rows)
    return items
