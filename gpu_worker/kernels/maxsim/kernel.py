"""MaxSim as one Triton kernel for all pairs of a call: reads packed rows in place, without padding or copies.

Imported where a CUDA device is only: nothing else of the worker needs Triton. It knows rows and tables of them
(`pair_table`), and nothing of jobs. It waits for nothing and reads nothing back.

The kernel is persistent: a fixed number of programs walk over work items, each a pair and a chunk of its document.
Documents are the M dimension of the product, as there are many more of their rows; a program keeps the running
maximum a place of its tile in registers and reduces it once a document. Chunks of a split document are joined by a
maximum on integers, which comes out the same in any order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_worker.kernels.maxsim.comparison import Comparison, Mask, Texts
from gpu_worker.kernels.maxsim.pair_table import PairTable
from gpu_worker.kernels.maxsim.reference import EMPTY_DOCUMENT
from gpu_worker.kernels.maxsim.tiles import score_pairs
from gpu_worker.kernels.rows.aligned import ALIGNMENT, aligned_rows
from gpu_worker.ragged.upload import to_device
from shared.vectors import Layout

CHUNK_ROWS = 1024
"""Rows of a document that one program takes: few enough that one long document keeps many programs busy."""
PROGRAMS_PER_PROCESSOR = 3
"""Fit at once by registers and shared memory, so one's reads hide the others' waits; `test_compiles.py` holds
every form to it. Not tuned on a device yet."""
BLOCK_Q = 32
"""Query rows at once. One size for all calls: with another the sum over rows would round differently."""
MOST_PAIRS = 1_000_000
"""In one table: while it is made, a pair takes about a hundred bytes of the host."""
LOWEST = -(2**31) + 2**23 - 1
"""`mirrored` bits of minus infinity. Arrivals count on from here too, so that one fill prepares the whole scratch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelForm:
    """How the kernel is compiled: tiles of block_m document rows by block_k dimensions.

    `resident`: block_k covers all dimensions, and the query block stays on the chip while documents pass by.
    `registers`: the most that a thread may have, where the compiler is to be told.
    """

    block_m: int
    block_k: int
    resident: bool
    warps: int
    stages: int
    registers: int | None = None


UP_TO_64 = KernelForm(block_m=64, block_k=64, resident=True, warps=4, stages=3)
UP_TO_128 = KernelForm(block_m=64, block_k=128, resident=True, warps=4, stages=3, registers=168)  # Triton 3.6 takes 194
WIDE = KernelForm(block_m=64, block_k=128, resident=False, warps=4, stages=3)
FLOAT32 = KernelForm(block_m=64, block_k=32, resident=False, warps=4, stages=3)


def form_of(dtype: torch.dtype, width: int) -> KernelForm:
    """The one form for rows of this type and width; it depends on nothing else, so neither does a score."""
    if dtype is torch.float32:  # no tensor cores: a whole row in registers would not fit
        return FLOAT32
    if width <= UP_TO_64.block_k:
        return UP_TO_64
    return UP_TO_128 if width <= UP_TO_128.block_k else WIDE


def constants_of(dtype: torch.dtype, width: int, masked: bool) -> dict[str, Any]:
    """What the kernel is compiled with, by the names of its parameters."""
    form = form_of(dtype, width)
    return {
        "LANES": ALIGNMENT // dtype.itemsize,
        "BLOCK_M": form.block_m,
        "BLOCK_Q": BLOCK_Q,
        "BLOCK_K": form.block_k,
        "RESIDENT": form.resident,
        "MASKED": masked,
        "EMPTY": EMPTY_DOCUMENT,
        "LOWEST": LOWEST,
    }


class TritonMaxSim:
    """See `comparison.MaxSimKernel`. Products must be finite: of given vectors the frontend sees to that.

    Compiled once for each number format and `form_of` it, with and without a mask: 14 variants, of which one model
    needs two. Widths, lengths and counts are plain arguments, so no request compiles what `warm` has compiled.
    Rows whose bytes are no multiple of 16 (a width of 50, say) are copied with zeros behind them first.
    """

    name = "triton"

    def __init__(self, chunk_rows: int = CHUNK_ROWS) -> None:
        self.chunk_rows = chunk_rows

    def __call__(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], kept: Mask | None = None
    ) -> Tensor:
        """[P] float32; launches and returns: once, unless the table of all pairs would be too large for the host."""
        assert queries.dtype == documents.dtype
        assert queries.shape[1] == documents.shape[1]
        if sum(each.count for each in comparisons) > MOST_PAIRS:
            return self._in_halves(queries, documents, comparisons, kept)
        return self.prepared(queries, documents, comparisons, kept)()

    def prepared(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], kept: Mask | None = None
    ) -> Callable[[], Tensor]:
        """Makes the table of all pairs and ships it; what comes back launches the kernel once and gives [P]."""
        table = PairTable.of(comparisons, self.chunk_rows, kept)
        device, width = queries.device, documents.shape[1]
        asked, found = aligned_rows(queries), aligned_rows(documents)
        items, mask = _ship(table.items, kept, device)
        form, constants = form_of(documents.dtype, width), constants_of(documents.dtype, width, kept is not None)

        def launch() -> Tensor:
            scores = torch.empty(table.scores, dtype=torch.float32, device=device)
            if not table.scores:
                return scores
            # Most calls split nothing and need no fill. It is PyTorch's launch, not a second one of ours.
            scratch = torch.full((table.scratch,), LOWEST, dtype=torch.int32, device=device) if table.scratch else items
            with torch.cuda.device_of(asked):  # Triton launches on the current device
                score_pairs[(min(len(table.items), _programs(device)),)](
                    *(asked, found, mask, items, scratch, scores),
                    *(len(table.items), found.shape[1] // constants["LANES"]),
                    **constants,
                    num_warps=form.warps,
                    num_stages=form.stages,
                    maxnreg=form.registers,
                )
            return scores

        return launch

    def _in_halves(
        self, queries: Tensor, documents: Tensor, comparisons: Sequence[Comparison], kept: Mask | None
    ) -> Tensor:
        """Comparisons apart, and one that is too large by itself in two groups of documents."""
        if len(comparisons) > 1:
            return torch.cat([self(queries, documents, [each], kept) for each in comparisons])
        whole = comparisons[0]
        pairs, middle = whole.layout is Layout.PAIRS, len(whole.documents) // 2
        if not middle:  # one document and millions of queries: as it is
            return self.prepared(queries, documents, comparisons, kept)()
        scores = [
            self(queries, documents, [whole.part(start, stop)], kept).view(1 if pairs else len(whole.queries), -1)
            for start, stop in ((0, middle), (middle, len(whole.documents)))
        ]
        return torch.cat(scores, dim=1).flatten()

    def warm(self, device: torch.device, dtype: torch.dtype, width: int) -> None:
        """Compiles every variant that a call with rows of this type and width can reach, by calling it."""
        rows = torch.zeros(1, width, dtype=dtype, device=device)
        text = Texts.end_to_end(np.array([1]))
        pair = Comparison(queries=text, documents=text, layout=Layout.PAIRS)
        for kept in (None, np.array([True])):
            self(rows, rows, [pair], kept)


def _ship(items: npt.NDArray[np.int32], kept: Mask | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Work items [I * 8] int32 and mask [M] uint8 on the device, in one copy; without a mask the items twice."""
    flat = items.reshape(-1).view(np.uint8)
    staged = flat if kept is None else np.concatenate([flat, kept.view(np.uint8)])
    shipped = to_device(torch.from_numpy(staged), device)
    table = shipped[: items.nbytes].view(torch.int32)
    return table, table if kept is None else shipped[items.nbytes :]


def _programs(device: torch.device) -> int:
    """The size of the persistent grid; Triton's interpreter runs a small one on the CPU."""
    if device.type == "cpu":
        return 3
    return PROGRAMS_PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
