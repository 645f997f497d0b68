"""A trunk captured as CUDA graphs: a step of a few thousand tokens then costs one launch instead of hundreds.

A batch is filled up to the size that was captured, but with no sequence: `cu_seqlens` repeat the last token's end, so
attention neither reads nor writes the rows behind it, and everything else is row by row. Those rows may hold anything,
NaN too, and are cut off before anybody reads them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gpu_worker.model.trunk.buckets import Bucket, smallest
from gpu_worker.model.trunk.trunk import Trunk
from gpu_worker.ragged.batch import RaggedBatch, Span
from gpu_worker.ragged.staging import Staged

Replay = Callable[[], Tensor]
"""Computes once more with what now lies in the tensors that were read while capturing, into the same result."""
Worth = Callable[[Bucket, int], bool]
"""Whether a batch of so many tokens is faster through a bucket's graph."""


class Recorder(Protocol):
    """Captures work on the device."""

    def __call__(self, work: Callable[[], Tensor]) -> Replay:
        """Runs `work` and captures what it launches. Raises what the device refuses to capture."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory, since one runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor]) -> Replay:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries make their workspaces in the first runs, which must not be captured
            work()
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


class Graph:
    """One bucket, captured. Its tensors are written by every batch: use it on one stream only."""

    def __init__(self, bucket: Bucket, trunk: Trunk, record: Recorder) -> None:
        """Captures `trunk`."""
        self.bucket = bucket
        rows = 3 if trunk.token_types else 2
        self._rows = torch.zeros(rows, bucket.tokens, dtype=torch.int64, device=trunk.device)
        full = torch.arange(bucket.sequences + 1, dtype=torch.int32, device=trunk.device) * bucket.longest
        self._ends = full.clamp(max=bucket.tokens)
        self._replay = record(lambda: trunk(self._filled))

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """Hidden states [T, H]: a view, which the next batch overwrites."""
        (span,) = batch.spans
        rows, ends, total = batch.staged.tensor, span.cu_seqlens, batch.total
        self._rows[: len(rows), :total].copy_(rows)
        if len(rows) < len(self._rows):
            self._rows[len(rows) :].zero_()
        self._ends[: len(ends)].copy_(ends)
        self._ends[len(ends) :].fill_(total)
        return self._replay()[:total]

    @property
    def _filled(self) -> RaggedBatch:
        """What is captured: a batch of the bucket's size whose tensors are ours."""
        tokens, sequences, longest = self.bucket.tokens, self.bucket.sequences, self.bucket.longest
        span = Span(start=0, stop=tokens, longest=longest, staged_ends=Staged.there(self._ends), keys=None)
        nothing = np.zeros(0, dtype=np.int64)
        return RaggedBatch(
            lengths=(longest,) * sequences,
            offsets=np.array([0, tokens]),
            tokens=nothing,
            attended=nothing,
            staged=Staged.there(self._rows),
            spans=(span,),
        )


class GraphedTrunk(Trunk):
    """Batches that a graph holds run by it, all others through `trunk`."""

    def __init__(self, trunk: Trunk, sizes: Sequence[Bucket], record: Recorder) -> None:
        """Captures all sizes, the largest of which should come first: the others then fit into its memory."""
        super().__init__(trunk.model, uncounted=trunk.uncounted, token_types=trunk.token_types, width=trunk.width)
        self.trunk = trunk
        with torch.inference_mode():
            self._graphs = {size: Graph(size, trunk, record) for size in sizes}
        self._worth: Worth = lambda bucket, tokens: True

    @property
    def way(self) -> str:  # type: ignore[override]
        return f"{self.trunk.way}, {len(self._graphs)} graphs"

    @property
    def as_written(self) -> Trunk:
        return self.trunk.as_written

    @property
    def graphs(self) -> Iterable[Graph]:
        """All that are captured."""
        return self._graphs.values()

    def use(self, worth: Worth) -> None:
        """Takes graphs only where that is worth it, and forgets those that no batch would be worth."""
        self._worth = worth
        self._graphs = {size: graph for size, graph in self._graphs.items() if worth(size, size.tokens)}

    def graph_of(self, batch: RaggedBatch) -> Graph | None:
        """The graph that a batch runs by."""
        if len(batch.spans) > 1 or batch.spans[0].keys is not None:
            return None
        bucket = smallest(list(self._graphs), batch.total, len(batch.lengths), batch.spans[0].longest)
        return self._graphs[bucket] if bucket is not None and self._worth(bucket, batch.total) else None

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """See `Trunk`; valid until the next batch is run."""
        graph = self.graph_of(batch)
        if graph is None:
            return self.trunk(batch)
        self.padded += graph.bucket.tokens - batch.total
        return graph(batch)
