"""Graphs of encoders, on a processor: what stands for a device's attention, its compiler and its recorder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_worker.kernels.attention import interface as attention
from gpu_worker.kernels.attention.varlen import Varlen
from gpu_worker.model import execution, tuning
from gpu_worker.model.encoder.encoder import Encoder, uncounted_id_of
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.loading import Model, load
from gpu_worker.model.source import LoadOptions, open_source
from gpu_worker.model.tune.graphs import Graph, GraphSettings, ladder, with_graphs
from gpu_worker.model.verify.gate import Reference, take_reference
from gpu_worker.model.verify.probes import Probes
from gpu_worker.ragged import batch as ragged_batch
from gpu_worker.ragged.batch import RaggedBatch
from harness.random_models.shapes import ALL_SHAPES
from support import varlen_twin
from support.native import no_kernels
from support.random_models import random_model
from support.tiny import CPU

OWN = ("mpnet", "deberta-v2", "t5", "mt5", "umt5", "gemma2")
"""With biases or bounds on scores, which PyTorch's varlen attention does not know."""
PACKED = [name for name, (kind, *_) in ALL_SHAPES.items() if name.startswith("tiny-") and kind not in OWN]
KINDS = {"tiny-modernbert": 2, "tiny-gemma3": 2, "tiny-embeddinggemma": 2}
"""Of layers, that see all of a text or a window of it; one where nothing else is said."""
SIZES = ([3, 5, 9], [2, 7], [1, 1, 4, 30], [17], [40, 50, 60, 70], [2] * 9, [33, 34])


def families(*quick: str) -> pytest.MarkDecorator:
    """Every packed family, these at every run; all by `make test-slow`."""
    return pytest.mark.parametrize(
        "name", [pytest.param(each, marks=[] if each in quick else pytest.mark.slow) for each in PACKED]
    )


def row_by_row(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer whose bits do not hang on the number of rows, as those of a library's products may."""
    y = (x.unsqueeze(-2) * weight).sum(dim=-1)
    return y if bias is None else y + bias


@contextmanager
def on_a_processor() -> Iterator[None]:
    """The kernel's twin. A second launch pays for less: a batch that takes two has dozens of texts, not hundreds."""
    varlen_twin.install()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "linear", row_by_row)
        patch.setattr(ragged_batch, "LEAST_SAVED", 32)
        yield
    torch.set_num_threads(threads)
    torch.compiler.reset()  # else graphs of other tests count


class Counting:
    """A compiler that changes nothing, and counts its graphs and their runs."""

    def __init__(self) -> None:
        self.graphs = self.runs = 0

    def __call__(self, module: Any, _: Any) -> Callable[..., Any]:
        self.graphs += 1

        def run(*arguments: Any) -> Any:
            self.runs += 1
            return module.forward(*arguments)

        return run


class Playing:
    """A recorder for processors: what was captured is run again. Results are NaN until then, as on a fresh device."""

    def __init__(self) -> None:
        self.captured = 0

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.captured += 1
        work()
        return work


def loaded(name: str, graphs: GraphSettings | None = None, **device: Any) -> Model:
    """With the attention that an accelerator has; `device`: what stands for it where graphs are captured."""
    with pytest.MonkeyPatch.context() as patch:
        no_kernels(patch)
        patch.setattr(execution.attention_choice, "choose", lambda *_, **__: Varlen())
        patch.setattr(tuning, "with_graphs", partial(with_graphs, **device))
        return load(random_model(name), CPU, LoadOptions(graphs=graphs))


@cache
def packed_encoder(name: str) -> PackedEncoder:
    encoder = loaded(name).encoder
    assert isinstance(encoder, PackedEncoder)
    return encoder


def captured(encoder: Encoder, step_tokens: int, longest: int) -> list[Graph]:
    with torch.inference_mode():
        return [Graph(size, encoder, encoder, Playing()) for size in ladder(step_tokens, longest)]


def batch(encoder: Encoder, lengths: list[int], tails: list[int] | None = None) -> RaggedBatch:
    generator = np.random.default_rng(sum(lengths))
    texts = [generator.integers(10, 900, length, dtype=np.int32) for length in lengths]
    return RaggedBatch.pack(texts, encoder.device, encoder.uncounted, tails=tails or ())


def reference_of(name: str, **probes: Any) -> tuple[Reference, PackedEncoder]:
    """The gate's reference, and the encoder as it is written."""
    attention.register()
    base = open_source(random_model(name), CPU, LoadOptions()).model.base_model
    reference = take_reference(base, Probes.of(base.config, **probes))
    execution.make_packed(base)
    return reference, PackedEncoder(base, Varlen(), uncounted_id_of(base))


def found_out(model: Any) -> list[str]:
    """What was found out while loading, of graphs and attention; other layers are a processor's here."""
    return [each for each in model.findings if not each.startswith(("linear layers", "no whole layers"))]
