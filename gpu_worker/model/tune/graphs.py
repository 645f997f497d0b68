"""An encoder captured as CUDA graphs: a step of a few thousand tokens then costs one launch instead of hundreds.

A batch is filled up to the size that was captured with rows that belong to no sequence: `cu_seqlens` repeat the end of
the last sequence, so attention neither reads nor writes the rows behind it, and all other operators work row by row.
These rows may hold any number, even NaN, and are cut off from the result.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.tune.graph_sizes import Bucket, smallest
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.spans import Span
from gpu_worker.ragged.upload import Upload, UploadedArray

Replay = Callable[[], Tensor]
"""Runs a capture again: reads what its input tensors hold now, and writes its result into the same tensor."""
Worth = Callable[[Bucket, int], bool]
"""Says whether a batch of so many tokens is faster by a bucket's graph."""


class CaptureBroken(RuntimeError):
    """A capture failed inside CUDA. Graphs that were captured before still run, but no more may be captured."""


class Recorder(Protocol):
    """Captures work on the device."""

    def __call__(self, work: Callable[[], Tensor]) -> Replay:
        """Runs `work` and captures what it launches on the device.

        Raises what `work` raises when it runs, also where it waits for the device, which cannot be captured.
        Raises CaptureBroken where the capture itself fails.
        """


class CudaRecorder:
    """Captures CUDA graphs. They share a memory pool, since only one runs at a time.

    They also share a stream, since cuBLAS keeps a workspace of 32 MiB for every stream that it has seen.
    """

    def __init__(self) -> None:
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self._graphs = WeakSet[torch.cuda.CUDAGraph]()

    def __call__(self, work: Callable[[], Tensor]) -> Replay:
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # first runs allocate the libraries' workspaces, which must not be captured
            work()
            with _waits_refused():
                work()
        torch.cuda.current_stream().wait_stream(stream)
        if not self._graphs:  # PyTorch captures nothing more into a pool whose graphs are all gone
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        mode = "thread_local"
        with self._cleaned_up(), torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode=mode):
            result = work()
        self._graphs.add(graph)

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    @contextmanager
    def _cleaned_up(self) -> Iterator[None]:
        """Restores PyTorch's state after a capture that failed. Raises CaptureBroken for it.

        PyTorch leaves the capture's stream as the current one. 2.11 also goes on allocating from the capture's pool, so
        that no memory of the device would be freed any more, and its generator of random numbers still counts for the
        capture, so that every draw would raise; a copy of the generator's state counts for none.
        """
        current = torch.cuda.current_stream()
        try:
            yield
        except Exception as error:
            torch.cuda.set_stream(current)
            with suppress(RuntimeError, AttributeError):  # it has ended already, or this PyTorch has no such function
                torch._C._cuda_endAllocateToPool(current.device_index, self._pool)
            with suppress(RuntimeError, AttributeError):
                generator = torch.cuda.default_generators[current.device_index]
                generator.graphsafe_set_state(generator.clone_state())
            raise CaptureBroken(f"{type(error).__name__}: {error}") from error


@contextmanager
def _waits_refused() -> Iterator[None]:
    """Makes every wait for the device raise, in the whole process; inside a capture, it would invalidate that."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


class Graph:
    """The captured run of an encoder for one bucket. Every batch writes the same tensors: use one stream only."""

    def __init__(
        self, bucket: Bucket, encoder: Encoder, record: Recorder, prepare: Callable[[RaggedBatch], object] | None = None
    ) -> None:
        """Captures a run of `encoder` with a batch of the bucket's size; `prepare` is given that batch before. Raises
        what `record` and `prepare` raise."""
        self.bucket = bucket
        # Uploaded as a batch's own tensors are: compiled layers were compiled for views of one buffer, and would run as
        # they are written with tensors of any other kind.
        upload = Upload(encoder.device)
        rows = np.zeros((2 if encoder.token_types is None else 3, bucket.tokens), dtype=np.int64)
        full = np.arange(bucket.sequences + 1, dtype=np.int32) * np.int32(bucket.longest)
        uploaded = [upload.add_array(array) for array in (rows, np.minimum(full, np.int32(bucket.tokens)))]
        upload.send()
        self._rows, self._ends = (copy.tensor for copy in uploaded)
        if prepare is not None:
            prepare(self._filled)
        self._replay = record(lambda: encoder(self._filled))

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """Last hidden states [T, H] of a batch: a view, which the next batch overwrites."""
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
        """The batch that is captured: of the bucket's size, with this graph's tensors.

        It has no lengths and no other arrays on the host: code that reads them while it runs cannot be captured, and so
        fails.
        """
        span = Span(
            start=0,
            stop=self.bucket.tokens,
            longest=self.bucket.longest,
            uploaded_ends=UploadedArray.on_device(self._ends),
            keys=None,
        )
        empty = np.zeros(0, dtype=np.int64)
        return RaggedBatch(
            lengths=(),
            offsets=empty,
            tokens=empty,
            attended=empty,
            layout=empty,
            uploaded=UploadedArray.on_device(self._rows),
            spans=(span,),
        )


class GraphedEncoder(Encoder):
    """Runs a batch by the smallest graph that holds it, where that is faster, and else by `encoder`.

    For half precision only: all results of a step are float32, so none is a view of the hidden states, which the next
    batch overwrites.
    """

    def __init__(self, encoder: Encoder, graphs: Mapping[Bucket, Graph], worth: Worth) -> None:
        """`graphs` were captured of `encoder`. Those that are slower even with a full batch are left out."""
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
        """The graph that a batch runs by; None where it runs without one."""
        if batch.has_parts or len(batch.spans) > 1 or batch.spans[0].keys is not None:
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
