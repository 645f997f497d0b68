"""In which form a packed trunk serves: as it is written, with compiled layers, by graphs. Measured at load.

Every form passes the gate, and none serves that is slower. Where one cannot be had (no compiler, a class that is not
made for it), the one before it serves, and the log says why.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gpu_worker.device.timing import Seconds, device_seconds
from gpu_worker.model.trunk.buckets import TOKENS, Bucket, buckets
from gpu_worker.model.trunk.compiled import INDUCTOR, CompiledTrunk
from gpu_worker.model.trunk.graphs import CudaRecorder, GraphedTrunk, Recorder
from gpu_worker.model.trunk.packed import PackedTrunk
from gpu_worker.model.trunk.trunk import Trunk
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.launches import TILE
from gpu_worker.repository.files import first_line

MEBIBYTE = 1024 * 1024
USUAL = 128
"""Tokens of a text in what is measured."""
Run = Callable[[RaggedBatch], Tensor]


class Judge(Protocol):
    """The gate, as far as forms need it."""

    def check(self, trunk: Trunk, numbers: Sequence[int] | None = None, run: Run | None = None) -> None:
        """Raises where `run`, or the trunk itself, does not give the model's own hidden states for these texts."""

    def fitting(self, tokens: int, sequences: int, longest: int) -> list[int]:
        """Numbers of texts that fit into such a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """What is wanted: layers compiled, graphs captured; for steps of so many tokens."""

    compile: bool = True
    graphs: bool = True
    step_tokens: int = 16384


class FormChoice:
    """Finds the fastest form of a trunk: `trunk`, and what was `told` of the others, for the log."""

    def __init__(
        self,
        packed: PackedTrunk,
        judge: Judge,
        forms: Forms,
        *,
        longest: int,
        tails: bool = False,
        backend: Any = INDUCTOR,
        recorder: Callable[[], Recorder] = CudaRecorder,
        seconds: Seconds | None = None,
    ) -> None:
        """`packed` passed the gate as it is written. `longest`: tokens of a text; `tails`: whether texts may end with
        some that nobody attends to. `backend`, `recorder` and `seconds` (of a run) stand for the device's in tests.
        """
        self.trunk: Trunk = packed
        self.told: list[str] = []
        self._packed, self._judge, self._longest, self._tails = packed, judge, longest, tails
        self._backend, self._recorder, self._seconds = backend, recorder, seconds or device_seconds
        self._sizes = [each for each in TOKENS if each <= forms.step_tokens]
        self._buckets = buckets(forms.step_tokens, longest)
        if forms.compile:
            self._try("compiled layers", self._compile)
        if forms.graphs:
            self._try("graphs", self._capture)

    def _try(self, form: str, made: Callable[[], None]) -> None:
        """Compilers and foreign classes fail in every way; then nobody is served by that form."""
        try:
            made()
        except Exception as error:
            self.told.append(f"no {form}: {type(error).__name__}: {first_line(error)}")

    def _compile(self) -> None:
        compiled = CompiledTrunk(self._packed, self._backend)
        compiled.compile(self._kinds())
        self._judge.check(compiled, run=compiled.compiling)
        written, fused = (sum(self._uncaptured(trunk)) for trunk in (self._packed, compiled))
        used = fused < written
        if used:
            self.trunk = compiled
        self.told.append(
            f"layers compiled in {compiled.seconds:.1f} s: {fused / written:.2f} of the time of those as they are "
            f"written{'' if used else ', so not used'}"
        )

    def _capture(self) -> None:
        start, before, alone = time.monotonic(), self._reserved(), self._uncaptured(self.trunk)
        graphed = GraphedTrunk(self.trunk, self._buckets, self._recorder())
        replayed: dict[Bucket, float] = {}
        for graph in graphed.graphs:
            size = graph.bucket
            fitting = self._judge.fitting(size.tokens, size.sequences, size.longest)
            self._judge.check(self.trunk, fitting, graph)
            replayed[size] = self._time(graph, self._full(size))
        graphed.use(lambda size, tokens: replayed[size] < float(np.interp(tokens, self._sizes, alone)))
        used = len(list(graphed.graphs))
        if used:
            self.trunk = graphed
        self.told.append(
            f"{len(replayed)} graphs captured and measured in {time.monotonic() - start:.1f} s, {used} of them used, "
            f"{(self._reserved() - before) / MEBIBYTE:.0f} MiB"
        )

    def _reserved(self) -> int:
        """Bytes of the device that PyTorch has."""
        device = self.trunk.device
        return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0

    def _uncaptured(self, trunk: Trunk) -> list[float]:
        """Seconds of batches of texts of a usual length, by their tokens."""
        usual = min(USUAL, self._longest)
        lengths = [[min(usual, tokens)] * max(1, tokens // usual) for tokens in self._sizes]
        return [self._time(trunk, self._batch(each)) for each in lengths]

    def _time(self, run: Run, batch: RaggedBatch) -> float:
        with torch.inference_mode():
            return self._seconds(lambda: run(batch))

    def _kinds(self) -> Iterator[RaggedBatch]:
        """A batch of every kind for which layers are compiled: with tails and without, attended to in one launch and,
        where a text can be long enough for that, in two."""
        kinds = [[min(self._longest, each) for each in (2, 5, 9)], [*([2] * 512), min(self._longest, 512)]]
        for lengths in kinds[: 1 + (self._longest > 2 * TILE)]:
            yield self._batch(lengths)
            if self._tails:
                yield self._batch(lengths, [1] * len(lengths))

    def _full(self, size: Bucket) -> RaggedBatch:
        """As many tokens as a bucket holds, in texts of one length."""
        length = min(size.longest, -(-size.tokens // size.sequences))
        return self._batch([length] * (size.tokens // length))

    def _batch(self, lengths: Sequence[int], tails: Sequence[int] = ()) -> RaggedBatch:
        """Of the token id in the middle of the vocabulary, in most no special one."""
        middle = int(self.trunk.model.config.get_text_config().vocab_size) // 2
        texts = [np.full(length, middle, dtype=np.int32) for length in lengths]
        return RaggedBatch.pack(texts, self.trunk.device, self.trunk.uncounted, tails=tails)
