"""Chooses the form of a packed encoder: as it is written, with compiled layers, or as graphs. Measured at load.

On an H100 a slow processor took 12 ms to launch twelve layers, whatever their tokens; a graph of 8,192 took 6 ms.
Every form passes the gate, and only a faster one serves. Where a form is not possible (no compiler, a class that is not
made for it), the form before it serves, and the log says why.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device.memory import reclaim
from gpu_worker.device.timing import PAYS, Seconds, device_seconds
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.tune.compiled import INDUCTOR, CompiledEncoder
from gpu_worker.model.tune.form_gate import Gate, Run
from gpu_worker.model.tune.graph_sizes import TOKENS, Bucket, buckets
from gpu_worker.model.tune.graphs import CaptureBroken, CudaRecorder, Graph, GraphedEncoder, Recorder
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.launches import LEAST_SAVED, TILE
from gpu_worker.ragged.pieces import Piece
from gpu_worker.ragged.sequence_cache import SequenceCache
from gpu_worker.repository.files import first_line

MEBIBYTE = 1024 * 1024
USUAL = 128
"""Tokens of a text in the batches that are measured."""
BUSY = 4
"""A batch that takes so many times as long as the smallest has no graph: the device is busy with it while the host
launches, and a large model's graphs would take a minute to capture."""
MOST_COMPILING = 90.0
"""Seconds of compiling after which captured sizes are no longer compiled for: one compilation should serve them all."""
PiecesRun = Callable[[Encoder, RaggedBatch], Tensor]
"""Runs the whole texts of a batch by an encoder, cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """Forms that may be tried: compiled layers, graphs; for steps of up to `step_tokens`."""

    compile: bool = True
    graphs: bool = True
    step_tokens: int = 16384


class FormChoice:
    """Finds the fastest form of an encoder: `encoder`. `findings` are lines for the log about all forms."""

    def __init__(
        self,
        packed: PackedEncoder,
        judge: Gate,
        forms: Forms,
        *,
        longest: int,
        tails: bool = False,
        pieces: PiecesRun | None = None,
        backend: Any = INDUCTOR,
        recorder: Callable[[], Recorder] = CudaRecorder,
        seconds: Seconds | None = None,
    ) -> None:
        """`packed` passed the gate as it is written. `longest`: most tokens of a text; `tails`: whether texts may end
        with tokens that no other attends to; `pieces`: how batches with pieces are tried, None: not. `backend`,
        `recorder` and `seconds` (of a run) replace the device's in tests.
        """
        self.encoder: Encoder = packed
        self.findings: list[str] = []
        self._packed, self._judge, self._longest, self._tails = packed, judge, longest, tails
        self._pieces = pieces
        self._backend, self._recorder, self._seconds = backend, recorder, seconds or device_seconds
        self._sizes = [tokens for tokens in TOKENS if tokens <= forms.step_tokens]
        self._buckets = buckets(forms.step_tokens, longest) if forms.graphs else []
        self._record: Recorder | None = None  # one for all: each keeps a workspace of its own
        self._for_graphs = False  # compiled layers are faster in graphs alone
        if forms.compile:
            self._try("compiled layers", self._compile)
        if self._buckets:
            self._try("graphs", self._capture)
        if self._for_graphs and isinstance(self.encoder, CompiledEncoder):
            self.encoder = packed
            self.findings.append("compiled layers are faster in graphs alone, and there are none: not used")

    def _try(self, form: str, choose: Callable[[], None]) -> None:
        """Tries a form. Compilers and foreign classes may raise anything; then that form does not serve."""
        try:
            choose()
        except Exception as error:
            self.findings.append(f"no {form}: {type(error).__name__}: {first_line(error)}")

    def _compile(self) -> None:
        compiled = CompiledEncoder(self._packed, self._backend)
        compiled.compile(self._batch(lengths) for lengths in self._kinds())
        for numbers in (self._judge.whole, self._judge.uneven()):
            self._judge.check(compiled, numbers, compiled.run_compiling)
        if self._tails:
            self._compile_tails(compiled)
        if self._pieces and not self._passes(compiled, self._pieces, self._cut()):
            compiled.takes_pieces = False
        written, fused = (self._seconds_by_size(encoder) for encoder in (self._packed, compiled))
        launched, replayed = sum(fused) / sum(written), self._replayed_share(compiled, written)
        # Launching compiled layers may take a slow host longer; where graphs serve, that does not count.
        faster, in_graph = launched < PAYS, ""
        if replayed is not None:
            self._for_graphs = not faster
            faster, in_graph = replayed < PAYS or (faster and replayed <= 1 / PAYS), f", {replayed:.2f} in a graph"
        if faster:
            self.encoder = compiled
        self.findings.append(
            f"layers compiled in {compiled.seconds:.1f} s: {launched:.2f} of the time of those as they are "
            f"written{in_graph}{'' if faster else ', so not used'}"
        )

    def _replayed_share(self, compiled: CompiledEncoder, written: Sequence[float]) -> float | None:
        """The time of compiled layers in the largest graph over that of the layers as they are written; None where
        there are no graphs. `written`: seconds of batches of each size without graphs."""
        sizes = self._worth_capturing(written)
        if not sizes:
            return None
        try:
            with torch.inference_mode():
                batch = self._batch(sizes[0].filled)
                as_written, as_compiled = (
                    self._time(self._captured(sizes[0], encoder), batch) for encoder in (self._packed, compiled)
                )
        except CaptureBroken as error:
            self._buckets = []
            self.findings.append(f"no graphs: {first_line(error)}")
        except Exception as error:  # why is told again where the sizes are captured
            self.findings.append(f"no graph to compare compiled layers in: {first_line(error)}")
        else:
            return as_compiled / as_written
        return None

    def _worth_capturing(self, alone: Sequence[float]) -> list[Bucket]:
        """The buckets with which the device is not busy anyway, by the seconds of batches of each size without graphs;
        the largest first."""
        return [size for size in self._buckets if np.interp(size.tokens, self._sizes, alone) <= BUSY * alone[0]]

    def _captured(self, size: Bucket, encoder: Encoder) -> Graph:
        """Captures a bucket. Compiled layers are compiled for its very batch before: they run as they are written where
        they would have to be compiled, also in a capture."""
        self._record = self._record or self._recorder()
        prepare = None
        if isinstance(encoder, CompiledEncoder) and encoder.seconds < MOST_COMPILING:
            prepare = encoder.prepare
        return Graph(size, encoder, self._record, prepare)

    def _compile_tails(self, compiled: CompiledEncoder) -> None:
        """Compiles batches with tails. Causal layers and windows look at lengths there; some must run uncompiled."""
        try:
            for lengths in self._kinds():
                short = [int(length < max(lengths)) for length in lengths]  # of queries beside documents
                compiled.compile(self._batch(lengths, tails) for tails in ([1] * len(lengths), short))
        except Exception as error:
            self.findings.append(f"batches with unattended tails run as the layers are written: {first_line(error)}")
        self._judge.check(compiled)

    def _passes(self, compiled: CompiledEncoder, run: PiecesRun, batch: RaggedBatch) -> bool:
        """Compiles layers for a batch with pieces. Returns whether the gate's texts pass by `run`."""
        try:
            compiled.compile([batch])
            self._judge.check(compiled, self._judge.whole, partial(run, compiled))
        except Exception as error:
            self.findings.append(f"texts in pieces run as the layers are written: {first_line(error)}")
            return False
        return True

    def _capture(self) -> None:
        start, before, alone = time.monotonic(), self._reserved(), self._seconds_by_size(self.encoder)
        graphs, replayed, failed = dict[Bucket, Graph](), dict[Bucket, float](), list[str]()
        with torch.inference_mode():
            for size in self._worth_capturing(alone):
                try:
                    graph = self._checked(size)
                except CaptureBroken as error:
                    failed.append(f"{size}, after which nothing more is captured: {first_line(error)}")
                    break
                except Exception as error:  # another size may do
                    failed.append(f"{size}: {type(error).__name__}: {first_line(error)}")
                    continue
                graphs[size], replayed[size] = graph, self._time(graph, self._batch(size.filled))
        if failed:
            self.findings.append(f"{len(failed)} sizes have no graph, such as {failed[0]}")
        graphed = GraphedEncoder(
            self.encoder,
            graphs,
            lambda size, tokens: replayed[size] < PAYS * float(np.interp(tokens, self._sizes, alone)),
        )
        if graphed.graphs:
            self.encoder = graphed
        self.findings.append(
            f"{len(graphs)} graphs captured and measured in {time.monotonic() - start:.1f} s, {len(graphed.graphs)} of "
            f"them used, {(self._reserved() - before) / MEBIBYTE:.0f} MiB"
        )

    def _checked(self, size: Bucket) -> Graph:
        graph = self._captured(size, self.encoder)
        numbers = self._judge.one_launch_batch(size.tokens, size.sequences, size.longest)
        self._judge.check(self.encoder, numbers, graph)
        return graph

    def _reserved(self) -> int:
        """Bytes of the device's memory that PyTorch has reserved."""
        device = self.encoder.device
        if device.type != "cuda":
            return 0
        reclaim()  # what compilers tried out is kept, and would be given back meanwhile
        return torch.cuda.memory_reserved(device)

    def _seconds_by_size(self, encoder: Encoder) -> list[float]:
        """Seconds of batches of each size, of texts of a usual length."""
        return [self._time(encoder, self._batch(self._usual(tokens))) for tokens in self._sizes]

    def _time(self, run: Run, batch: RaggedBatch) -> float:
        with torch.inference_mode():
            return self._seconds(lambda: run(batch))

    def _kinds(self) -> Iterator[list[int]]:
        """Lengths of one batch of every kind that layers are compiled for: attended to in one launch, and in two where
        a text can be long enough. The first batch is large, since compilers choose by what they see first."""
        yield self._usual(self._sizes[-1])
        if self._longest > 2 * TILE:
            yield [*([2] * LEAST_SAVED), min(self._longest, 4 * TILE)]

    def _cut(self) -> RaggedBatch:
        """A batch of the first half of a text."""
        text = np.full(min(USUAL, self._longest), self._usual_id, dtype=np.int32)
        piece = Piece(text, 0, len(text) // 2, SequenceCache(len(text)))
        return RaggedBatch.pack([], self.encoder.device, self.encoder.uncounted, pieces=[piece])

    def _usual(self, tokens: int) -> list[int]:
        """Lengths of a batch of so many tokens, with texts of a usual length."""
        usual = min(USUAL, self._longest, tokens)
        return [usual] * (tokens // usual)

    def _batch(self, lengths: Sequence[int], tails: Sequence[int] = ()) -> RaggedBatch:
        """A batch of texts that repeat a usual token id."""
        texts = [np.full(length, self._usual_id, dtype=np.int32) for length in lengths]
        encoder = self.encoder
        return RaggedBatch.pack(texts, encoder.device, encoder.uncounted, types=encoder.token_types, tails=tails)

    @property
    def _usual_id(self) -> int:
        """The token id in the middle of the vocabulary, which is rarely a special one."""
        return int(self.encoder.model.config.get_text_config().vocab_size) // 2
