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
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.device.memory import reclaim
from gpu_worker.device.transfer import Upload, UploadedArray
from gpu_worker.model.encoder.encoder import Encoder, Run
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.ragged.batch import AttentionLaunch, RaggedBatch
from gpu_worker.repository.files import first_line
from shared.errors import ModelRefused

TOKENS = (64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Tokens of the sizes that are captured. Above the last one the device is busy for as long as a slow host launches: on
an H100 12 ms for twelve layers, while a graph of 8,192 tokens took 6 ms."""
LONGEST = (64, 256, 1024, 8192)
"""Tokens of the longest sequence of a size."""
ROOM = 8
"""A size holds so many times as many sequences as its tokens would fill with the longest: most texts are
shorter. With more, most attention tiles of a full batch would be empty, which takes time as well."""
MEBIBYTE = 1024 * 1024
INDUCTOR = "inductor"
"""The default backend of torch.compile."""
COMPILER = {"recompile_limit": 16, "specialize_float": True}
"""Settings of the compiler. A model has up to three kinds of layers, each of which may be compiled again where two
lengths of a batch happen to be equal. Floats, which are scales and epsilons here, are constants of what is compiled."""
Replay = Callable[[], Tensor]
"""Runs a capture again: reads what its input tensors hold now, and writes its result into the same tensor."""
Record = Callable[[Callable[[], Tensor]], Replay]
"""Runs work and captures what it launches on the device. Raises what the work raises, also where it waits for the
device, which cannot be captured, and CaptureBroken where the capture itself fails."""
Check = Callable[["Bucket", "Run"], None]
"""Raises where a run does not give the model's own hidden states for a batch of texts that fits into a size."""


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


class CudaRecorder:
    """Captures CUDA graphs, see `Record`. They share a memory pool, since only one runs at a time.

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

    def __init__(self, bucket: Bucket, encoder: Encoder, run: Run, record: Record) -> None:
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
        (launch,) = batch.launches
        rows, ends, total = batch.uploaded.tensor, launch.cu_seqlens, batch.total
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
        launch = AttentionLaunch(
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
            launches=(launch,),
        )


class GraphedEncoder(Encoder):
    """Runs a batch by the smallest graph that holds it. Where none does, and with pieces or tails, `packed` runs it as
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
        if batch.pieces or len(batch.launches) > 1 or batch.launches[0].keys is not None:
            return None
        size = batch.total, len(batch.lengths), batch.launches[0].longest
        return next((graph for graph in self.graphs if graph.bucket.holds(*size)), None)

    def __call__(self, batch: RaggedBatch) -> Tensor:
        """See `Encoder`; valid until the next batch is run."""
        graph = self.graph_of(batch)
        if graph is None:
            return self.packed(batch)
        self.padding_tokens += graph.bucket.tokens - batch.total
        return graph(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSettings:
    """Graphs for steps of up to `step_tokens`. `compile`: their layers are compiled."""

    compile: bool = True
    step_tokens: int


def with_graphs(
    packed: PackedEncoder,
    check: Check,
    settings: GraphSettings,
    longest: int,
    *,
    backend: Any = INDUCTOR,
    recorder: Callable[[], Record] = CudaRecorder,
) -> tuple[Encoder, list[str]]:
    """The encoder with a graph for each size that can be captured and that passes the gate, and lines for the log.

    `packed` passed the gate as it is written, and serves where there is no graph. `longest`: most tokens of a text.
    `backend` and `recorder` replace the device's in tests.
    """
    sizes, findings = ladder(settings.step_tokens, longest), list[str]()
    compiled = None
    if settings.compile and sizes:
        largest = max(sizes, key=lambda size: (size.tokens, size.sequences))
        compiled = _compiled(packed, check, largest, backend, findings)
    start, before = time.monotonic(), _reserved(packed.device)
    graphs = _captured(sizes, packed, check, compiled or packed, recorder, findings)
    reserved = (_reserved(packed.device) - before) / MEBIBYTE
    findings.append(f"{len(graphs)} graphs captured in {time.monotonic() - start:.1f} s, {reserved:.0f} MiB")
    if not graphs:
        return packed, findings
    return GraphedEncoder(packed, graphs, compiled=compiled is not None), findings


def compiled_run(packed: PackedEncoder, backend: Any = INDUCTOR) -> Run:
    """Runs the batches of a packed encoder with its layers compiled, which fuses elementwise operators; the encoder
    itself still runs them as they are written. `backend` is torch.compile's.

    Layers are compiled, not the whole model: they are alike, so one compilation serves all of them, and little is
    computed between them. Lengths are symbols, so it serves batches of all sizes. A run compiles what its batch needs,
    and raises what the compiler raises. Raises ModelRefused where the model has no list of layers.
    """
    # There are few kernels; with more threads, the compiler starts processes that live on after it is done.
    options: dict[str, Any] = {"options": {"compile_threads": 1}} if backend == INDUCTOR else {}
    forwards = [
        (layer, torch.compile(layer.forward, backend=backend, dynamic=True, fullgraph=True, **options))
        for layer in _repeated_layers(packed.model)
    ]

    def run(batch: RaggedBatch) -> Tensor:
        for layer, forward in forwards:
            layer.forward = forward
        try:
            with torch._dynamo.config.patch(COMPILER):
                return packed(batch)
        finally:
            for layer, _ in forwards:
                del layer.forward

    return run


def _repeated_layers(model: Any) -> list[nn.Module]:
    """Layers of an encoder: the only list with as many modules as its config says it has layers.

    Raises ModelRefused where there is no such list, or more than one.
    """
    count = int(model.config.get_text_config().num_hidden_layers)
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == count]
    if len(lists) != 1:
        raise ModelRefused(f"{type(model).__name__} has {len(lists)} lists of {count} layers, not one")
    return list(lists[0])


def _compiled(packed: PackedEncoder, check: Check, largest: Bucket, backend: Any, findings: list[str]) -> Run | None:
    """Compiles the layers for a large batch first, since compilers choose by that. None where they do not pass."""
    start = time.monotonic()
    try:
        compiled = compiled_run(packed, backend)
        check(largest, compiled)
    except Exception as error:  # compilers and foreign classes may raise anything
        findings.append(f"no compiled layers: {type(error).__name__}: {first_line(error)}")
        return None
    findings.append(f"layers compiled in {time.monotonic() - start:.1f} s")
    return compiled


def _captured(
    sizes: Sequence[Bucket],
    packed: PackedEncoder,
    check: Check,
    run: Run,
    recorder: Callable[[], Record],
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
            check(size, graph)
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


def _reserved(device: torch.device) -> int:
    """Bytes of the device's memory that PyTorch has reserved."""
    if device.type != "cuda":
        return 0
    reclaim()  # what compilers tried out is kept, and would be given back meanwhile
    return torch.cuda.memory_reserved(device)
