"""An encoder captured as CUDA graphs: a step of a few thousand tokens then costs one launch instead of hundreds.

A batch is filled up to the size that was captured, but with no sequence: `cu_seqlens` repeat the last token's end, so
attention neither reads nor writes the rows behind it, and everything else is row by row. Those rows may hold anything,
NaN too, and are cut off before anybody reads them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.tune.graph_sizes import Bucket, smallest
from gpu_worker.ragged.batch import RaggedBatch, Span
from gpu_worker.ragged.upload import UploadedArray

Replay = Callable[[], Tensor]
"""Computes once more with what now lies in the tensors that were read while capturing, into the same result."""
Worth = Callable[[Bucket, int], bool]
"""Whether a batch of so many tokens is faster through a bucket's graph."""


class CaptureBroken(RuntimeError):
    """A capture ended badly. What was captured before still runs, but nothing more may be captured."""


class Recorder(Protocol):
    """Captures work on the device."""

    def __call__(self, work: Callable[[], Tensor]) -> Replay:
        """Runs `work` and captures what it launches. Raises what the work raises when it runs, or where it waits for
        the device, which cannot be captured; CaptureBroken where the capture itself fails."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory, since one runs at a time.

    One stream for all captures: cuBLAS keeps a workspace of 32 MiB for each that it ever saw.
    """

    def __init__(self) -> None:
        self._pool, self._side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def __call__(self, work: Callable[[], Tensor]) -> Replay:
        side = self._side
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries make their workspaces in the first runs, which must not be captured
            work()
            with _no_waits():
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with self._mended(), torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
            result = work()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    @contextmanager
    def _mended(self) -> Iterator[None]:
        """After a capture that CUDA has invalidated, PyTorch leaves its stream the current one, and 2.11 its memory in
        the pool's hands: nothing of the device would be given back any more."""
        current = torch.cuda.current_stream()
        try:
            yield
        except Exception as error:
            torch.cuda.set_stream(current)
            with suppress(RuntimeError, AttributeError):  # it had ended; or PyTorch has no such function any more
                torch._C._cuda_endAllocateToPool(current.device_index, self._pool)
            raise CaptureBroken(f"{type(error).__name__}: {error}") from error


@contextmanager
def _no_waits() -> Iterator[None]:
    """A wait for the device raises, in the whole process, while that is harmless: it would invalidate a capture."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


class Graph:
    """One bucket, captured. Its tensors are written by every batch: use it on one stream only."""

    def __init__(self, bucket: Bucket, encoder: Encoder, record: Recorder) -> None:
        """Captures `encoder`."""
        self.bucket = bucket
        rows = 2 if encoder.token_types is None else 3
        self._rows = torch.zeros(rows, bucket.tokens, dtype=torch.int64, device=encoder.device)
        full = torch.arange(bucket.sequences + 1, dtype=torch.int32, device=encoder.device) * bucket.longest
        self._ends = full.clamp(max=bucket.tokens)
        self._replay = record(lambda: encoder(self._filled))

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """Hidden states [T, H]: a view, which the next batch overwrites."""
        (span,) = batch.spans
        rows, ends, total = batch.uploaded.tensor, span.cu_seqlens, batch.total
        self._rows[: len(rows), :total].copy_(rows)
        if len(rows) < len(self._rows):
            self._rows[len(rows) :].zero_()
        self._ends[: len(ends)].copy_(ends)
        self._ends[len(ends) :].fill_(total)
        return self._replay()[:total]

    @property
    def _filled(self) -> RaggedBatch:
        """What is captured: a batch of the bucket's size whose tensors are ours. Of the host's copies it has none: what
        reads lengths while it runs cannot be captured, and is to fail here."""
        span = Span(
            start=0,
            stop=self.bucket.tokens,
            longest=self.bucket.longest,
            uploaded_ends=UploadedArray.on_device(self._ends),
            keys=None,
        )
        nothing = np.zeros(0, dtype=np.int64)
        return RaggedBatch(
            lengths=(),
            offsets=nothing,
            tokens=nothing,
            attended=nothing,
            uploaded=UploadedArray.on_device(self._rows),
            spans=(span,),
        )


class GraphedEncoder(Encoder):
    """Batches that a graph holds run by it where that is worth it, all others through `encoder`.

    For half precision only: what is made of hidden states is float32, so nothing that leaves a step is a view of them.
    """

    def __init__(self, encoder: Encoder, graphs: Mapping[Bucket, Graph], worth: Worth) -> None:
        """`graphs` are of `encoder`; those that no batch would be worth are left out."""
        super().__init__(
            encoder.model, uncounted=encoder.uncounted, token_types=encoder.token_types, width=encoder.width
        )
        self.encoder, self._worth = encoder, worth
        self.graphs = {size: graph for size, graph in graphs.items() if worth(size, size.tokens)}

    @property
    def description(self) -> str:  # type: ignore[override]
        return f"{self.encoder.description}, {len(self.graphs)} graphs"

    @property
    def as_written(self) -> Encoder:
        return self.encoder.as_written

    def graph_of(self, batch: RaggedBatch) -> Graph | None:
        """The graph that a batch runs by."""
        if len(batch.spans) > 1 or batch.spans[0].keys is not None:
            return None
        bucket = smallest(list(self.graphs), batch.total, len(batch.lengths), batch.spans[0].longest)
        return self.graphs[bucket] if bucket is not None and self._worth(bucket, batch.total) else None

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """See `Encoder`; valid until the next batch is run."""
        graph = self.graph_of(batch)
        if graph is None:
            return self.encoder(batch)
        self.padding_tokens += graph.bucket.tokens - batch.total
        return graph(batch)
