"""Graphs on CUDA, of layers compiled by the compiler itself and as they are written."""

from itertools import count

import numpy as np
import pytest
import torch

from gpu_worker.device.placement import Placement
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.loading import load
from gpu_worker.model.source import LoadOptions
from gpu_worker.model.tune.graphs import (
    CaptureBroken,
    CudaRecorder,
    Graph,
    GraphedEncoder,
    GraphSettings,
    Run,
    compiled_run,
    ladder,
)
from gpu_worker.ragged.batch import RaggedBatch
from support.random_models import random_model

pytestmark = pytest.mark.gpu

DEVICE = "cuda:0"
NAMES = ["tiny-bert", "tiny-modernbert", "tiny-qwen3", "tiny-gemma3", "tiny-jina-v3"]
SIZES = ([3, 5, 9], [1], [2, 7], [40, 50, 60, 70], [2] * 100, [500], [*([2] * 600), 600])


def packed(name: str) -> PackedEncoder:
    encoder = load(random_model(name), Placement.choose(DEVICE, "bfloat16")).encoder
    assert isinstance(encoder, PackedEncoder)
    return encoder


def batch(encoder: Encoder, lengths: list[int]) -> RaggedBatch:
    generator = np.random.default_rng(sum(lengths))
    texts = [generator.integers(10, 900, length, dtype=np.int32) for length in lengths]
    return RaggedBatch.pack(texts, encoder.device, encoder.uncounted)


def captured(encoder: PackedEncoder, run: Run, step_tokens: int) -> GraphedEncoder:
    record = CudaRecorder()
    return GraphedEncoder(encoder, [Graph(size, encoder, run, record) for size in ladder(step_tokens, 640)])


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """1 - cosine of the pair of rows that differ most."""
    return float((1 - torch.nn.functional.cosine_similarity(ours.float(), theirs.float(), dim=1)).max())


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_graphs_give_the_rows_of_the_layers_as_they_are_written(cuda: torch.device, name: str) -> None:
    """Batches of every kind, in any order, again and again; compiled or not."""
    encoder = packed(name)
    for run in (encoder, compiled_run(encoder)):
        graphed = captured(encoder, run, 1024)
        for lengths in [*SIZES, *reversed(SIZES)]:
            expected = encoder(batch(encoder, lengths))
            found = graphed(batch(encoder, lengths))
            assert torch.isfinite(found).all()
            assert distance(found, expected) < 1e-3, (run is encoder, lengths)
        assert graphed.padding_tokens > 0


@torch.inference_mode()
def test_more_is_captured_after_all_graphs_are_gone(cuda: torch.device) -> None:
    """As after trying one out. PyTorch refuses to capture into a pool whose graphs are all gone."""
    record, states = CudaRecorder(), torch.ones(64, 64, device=cuda)
    for factor in (1, 2, 3):
        replay = record(lambda factor=factor: states * factor)
        assert float(replay()[0, 0]) == factor
        del replay


@torch.inference_mode()
def test_a_graph_neither_waits_nor_takes_memory(cuda: torch.device) -> None:
    """Nothing is allocated by a replay but what a batch itself needs, and CUDA's debug mode finds no wait."""
    encoder = packed("tiny-qwen3")
    graphed = captured(encoder, encoder, 512)
    known = batch(encoder, [40, 50, 60])
    graphed(known)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(cuda)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(100):
            graphed(known)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_allocated(cuda) == before


def test_a_load_captures_every_size(cuda: torch.device) -> None:
    """Every graph passes its gate, and what was found out is told."""
    model = load(
        random_model("tiny-qwen3"),
        Placement.choose(DEVICE, "bfloat16"),
        LoadOptions(graphs=GraphSettings(step_tokens=2048)),
    )
    assert isinstance(model.encoder, GraphedEncoder), model.findings
    assert [graph.bucket for graph in model.encoder.graphs] == ladder(2048, model.longest), model.findings
    assert model.encoder.description.endswith(" graphs of compiled layers"), model.findings
    compiling, capturing = model.findings[-2:]
    assert compiling.startswith("layers compiled in "), compiling
    assert " graphs captured in " in capturing, capturing


@torch.inference_mode()
def test_work_that_waits_is_refused_and_harms_nothing(cuda: torch.device) -> None:
    """Before it is captured, so that other work is captured afterwards, and memory is given back as before."""
    record, states = CudaRecorder(), torch.ones(64, 64, device=cuda)
    with pytest.raises(RuntimeError, match="synchroniz"):
        record(lambda: states * float(states.sum().item()))
    replay = record(lambda: states @ states)
    assert torch.equal(replay(), states @ states)
    _given_back(cuda)


@torch.inference_mode()
def test_a_capture_that_breaks_harms_nothing_else(cuda: torch.device) -> None:
    """As by work that waits in its third run only: its stream and its memory are as they were."""
    record, states, runs = CudaRecorder(), torch.ones(64, 64, device=cuda), count()
    before = torch.cuda.current_stream()
    with pytest.raises(CaptureBroken):
        record(lambda: states * (float(states.sum().item()) if next(runs) == 2 else 1.0))
    assert torch.cuda.current_stream() == before
    _given_back(cuda)
    assert float(torch.randn(8, device=cuda).abs().sum()) > 0


def _given_back(cuda: torch.device) -> None:
    """Memory that another stream used, as each step's results are: it is not kept for ever."""
    torch.cuda.synchronize()
    beside, before = torch.cuda.Stream(), torch.cuda.memory_reserved(cuda)
    for _ in range(20):
        rows = torch.ones(1 << 20, device=cuda)
        rows.record_stream(beside)
        del rows
        torch.cuda.synchronize()
    assert torch.cuda.memory_reserved(cuda) <= before + (16 << 20)
