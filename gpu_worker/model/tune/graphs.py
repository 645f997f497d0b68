"""An encoder captured as CUDA graphs: a step of a few thousand tokens then costs one launch instead of hundreds.

Which sizes are captured is a rule (`ladder`), the same for all models and devices; nothing is timed. A batch is filled
up to the size that was captured with rows that belong to no sequence: `cu_seqlens` repeat the end of
the last sequence, so attention neither reads nor writes the rows behind it, and all other operators work row by row.
These rows may hold any number, even NaN, and are cut off from the result.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device.memory import reclaim
from gpu_worker.device.transfer import Upload, UploadedArray
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.tune.compiled import INDUCTOR, CompiledLayers
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.spans import Span
from gpu_worker.repository.files import first_line

TOKENS = (64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Tokens of the sizes that are captured. Above the last one the device is busy for as long as a slow host launches: on
an H100 12 ms for twelve layers, while a graph of 8,192 tokens took 6 ms."""
LONGEST = (64, 256, 1024, 8192)
"""Tokens of the longest sequence of a size."""
ROOM = 8
"""A size has room for so many times as many sequences as its tokens would fill with the longest: most texts are
shorter. With more, most attention tiles of a full batch would be empty, which takes time as well."""
MEBIBYTE = 1024 * 1024
Run = Callable[[RaggedBatch], Tensor]
"""Computes the last hidden states [T, H] of a batch."""
Replay = Callable[[], Tensor]
"""Runs a capture again: reads what its input tensors hold now, and writes its result into the same tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A size of batches: up to `tokens` tokens in up to `sequences` sequences of up to `longest` tokens."""

    tokens: int
    sequences: int
    longest: int

    def holds(self, tokens: int, sequences: int, longest: int) -> bool:
        """Whether a batch of this size fits into the bucket."""
        return tokens <= self.tokens and sequences <= self.sequences and longest <= self.longest

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.sequences} sequences of up to {self.longest}"


def ladder(step_tokens: int, longest: int) -> list[Bucket]:
    """The sizes that are captured, the smallest first, for steps of `step_tokens` and texts of up to `longest`."""
    sizes = []
    for tokens in TOKENS:
        most = min(tokens, longest)
        for bound in LONGEST if tokens <= step_tokens else ():
            length = min(bound, most)
            sequences = ROOM * tokens // max(length, LONGEST[0])
            sizes.append(Bucket(tokens=tokens, sequences=sequences, longest=length))
            if bound >= most:
                break
    return sizes


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

    def __init__(self, bucket: Bucket, encoder: Encoder, run: Run, record: Recorder) -> None:
        """Captures `run`, of the encoder as it is written or compiled, with a batch of the bucket's size. Raises what
        `record` raises."""
        self.bucket = bucket
        # Uploaded as a batch's own tensors are: layers that were compiled for views of one buffer would be compiled
        # again for tensors of any other kind.
        upload = Upload(encoder.device)
        rows = np.zeros((2 if encoder.token_types is None else 3, bucket.tokens), dtype=np.int64)
        full = np.arange(bucket.sequences + 1, dtype=np.int32) * np.int32(bucket.longest)
        uploaded = [upload.add_array(array) for array in (rows, np.minimum(full, np.int32(bucket.tokens)))]
        upload.send()
        self._rows, self._ends = (copy.tensor for copy in uploaded)
        self._replay = record(lambda: run(self._filled))

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
    """Runs a batch by the smallest graph that holds it. Where none does, and with parts or tails, `packed` runs it as
    its layers are written.

    For half precision only: all results of a step are float32, so none is a view of the hidden states, which the next
    batch overwrites.
    """

    def __init__(self, packed: PackedEncoder, graphs: Sequence[Graph], *, compiled: bool = False) -> None:
        """`graphs` were captured of `packed`, the smallest first, `compiled` or as it is written."""
        super().__init__(packed.model, uncounted=packed.uncounted, token_types=packed.token_types, width=packed.width)
        self.packed, self.graphs, self._compiled = packed, graphs, compiled

    @property
    def description(self) -> str:  # type: ignore[override]
        layers = " of compiled layers" if self._compiled else ""
        return f"{self.packed.description}, {len(self.graphs)} graphs{layers}"

    @property
    def as_written(self) -> Encoder:
        return self.packed

    def graph_of(self, batch: RaggedBatch) -> Graph | None:
        """The graph that a batch runs by; None where it runs without one."""
        if batch.pieces or len(batch.spans) > 1 or batch.spans[0].keys is not None:
            return None
        size = batch.total, len(batch.lengths), batch.spans[0].longest
        return next((graph for graph in self.graphs if graph.bucket.holds(*size)), None)

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """See `Encoder`; valid until the next batch is run."""
        graph = self.graph_of(batch)
        if graph is None:
            return self.packed(batch)
        self.padding_tokens += graph.bucket.tokens - batch.total
        return graph(batch)


class Gate(Protocol):
    """Compares runs with the model itself. Batches are given as numbers of the gate's texts."""

    def check(self, encoder: Encoder, numbers: Sequence[int] | None = None, run: Run | None = None) -> None:
        """Raises where `run`, or the encoder itself, does not give the model's own hidden states for these texts."""

    def one_launch_batch(self, tokens: int, sequences: int, longest: int) -> list[int]:
        """Numbers of as many texts as fit into such a batch and are attended to in one launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSettings:
    """Graphs for steps of up to `step_tokens`. `compile`: their layers are compiled."""

    compile: bool = True
    step_tokens: int


def with_graphs(
    packed: PackedEncoder,
    gate: Gate,
    *,
    settings: GraphSettings,
    longest: int,
    backend: Any = INDUCTOR,
    recorder: Callable[[], Recorder] = CudaRecorder,
) -> tuple[Encoder, list[str]]:
    """The encoder with a graph for each size that can be captured and that passes the gate, and lines for the log.

    `packed` passed the gate as it is written, and serves where there is no graph. `longest`: most tokens of a text.
    `backend` and `recorder` replace the device's in tests.
    """
    sizes, findings = ladder(settings.step_tokens, longest), list[str]()
    compiled = None
    if settings.compile and sizes:
        largest = max(sizes, key=lambda size: (size.tokens, size.sequences))
        compiled = _compiled(packed, gate, largest, backend, findings)
    start, before = time.monotonic(), _reserved(packed.device)
    graphs = _captured(sizes, packed, gate, compiled or packed, recorder, findings)
    reserved = (_reserved(packed.device) - before) / MEBIBYTE
    findings.append(f"{len(graphs)} graphs captured in {time.monotonic() - start:.1f} s, {reserved:.0f} MiB")
    if not graphs:
        return packed, findings
    return GraphedEncoder(packed, graphs, compiled=compiled is not None), findings


def _compiled(
    packed: PackedEncoder, gate: Gate, largest: Bucket, backend: Any, findings: list[str]
) -> CompiledLayers | None:
    """Compiles the layers for a large batch first, since compilers choose by that. None where they do not pass."""
    start = time.monotonic()
    try:
        compiled = CompiledLayers(packed, backend)
        gate.check(packed, _texts_for(largest, gate), compiled)
    except Exception as error:  # compilers and foreign classes may raise anything
        findings.append(f"no compiled layers: {type(error).__name__}: {first_line(error)}")
        return None
    findings.append(f"layers compiled in {time.monotonic() - start:.1f} s")
    return compiled


def _captured(
    sizes: Sequence[Bucket],
    packed: PackedEncoder,
    gate: Gate,
    run: Run,
    recorder: Callable[[], Recorder],
    findings: list[str],
) -> list[Graph]:
    """The graphs of all sizes that can be captured and that pass, the smallest first."""
    graphs, failed = list[Graph](), list[str]()
    try:
        record = recorder()  # one for all: each keeps a workspace of its own
    except Exception as error:
        findings.append(f"no graphs: {type(error).__name__}: {first_line(error)}")
        return graphs
    for size in reversed(sizes):  # the largest first: the smaller ones fit into its memory
        try:
            with torch.inference_mode():
                graph = Graph(size, packed, run, record)
            gate.check(packed, _texts_for(size, gate), graph)
        except CaptureBroken as error:
            failed.append(f"{size}, after which nothing more is captured: {first_line(error)}")
            break
        except Exception as error:  # another size may do
            failed.append(f"{size}: {type(error).__name__}: {first_line(error)}")
            continue
        graphs.insert(0, graph)
    if failed:
        findings.append(f"{len(failed)} sizes have no graph, such as {failed[0]}")
    return graphs


def _texts_for(size: Bucket, gate: Gate) -> list[int]:
    """Numbers of the gate's texts that fit into a bucket."""
    return gate.one_launch_batch(size.tokens, size.sequences, size.longest)


def _reserved(device: torch.device) -> int:
    """Bytes of the device's memory that PyTorch has reserved."""
    if device.type != "cuda":
        return 0
    reclaim()  # what compilers tried out is kept, and would be given back meanwhile
    return torch.cuda.memory_reserved(device)
