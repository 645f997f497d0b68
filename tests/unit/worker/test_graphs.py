"""Captured graphs without a device: rows behind the last bound are harmless, and graphs are taken where they pay."""

from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.abilities import Abilities
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.loading import Model
from gpu_worker.model.tune.graph_sizes import buckets
from gpu_worker.model.tune.graphs import CudaRecorder, GraphedEncoder
from gpu_worker.ragged.launches import launches
from shared.jobs import Job
from shared.vectors import OutputKind, ScoringMethod
from support.forms import SIZES, batch, captured, families, loaded, packed_encoder, reference_of
from support.tiny import encode, run, score, tokens


@pytest.mark.usefixtures("on_a_processor")
@families("tiny-bert", "tiny-modernbert", "tiny-qwen3")
def test_rows_behind_the_last_bound_change_no_bit(name: str) -> None:
    """Attention leaves NaN there: hidden states of every bucket against the batch by itself."""
    encoder = packed_encoder(name)
    graphs = captured(encoder, 256, 640).values()
    with torch.inference_mode():
        for lengths in SIZES:
            alone = encoder(batch(encoder, lengths))
            held = [graph for graph in graphs if graph.bucket.holds(sum(lengths), len(lengths), max(lengths))]
            assert held
            for graph in held:
                found = graph(batch(encoder, lengths))
                assert torch.equal(found, alone), graph.bucket


def jobs(model: Model) -> list[Job]:
    """One of each kind."""
    kinds = (OutputKind.DENSE, OutputKind.MULTI_VECTOR)
    both = encode(*(each for each in kinds if each in Abilities(model).outputs))
    late = score(ScoringMethod.LATE_INTERACTION, 1)
    return [
        Job(id=1, work=both, tokens=tokens(3, 20, 1)),
        Job(id=2, work=late, tokens=tokens(5, 9, 30)),
        Job(id=3, work=both, tokens=tokens(7, 7, 40)),
    ]


@pytest.mark.usefixtures("on_a_processor")
@pytest.mark.parametrize("name", ["tiny-colbert", "tiny-qwen3"])
def test_whole_steps_by_graphs_give_the_same_bytes(name: str) -> None:
    """Encoder, pooling, heads, scores and the check for numbers, one step after the other through the same tensors."""
    model = loaded(name)
    expected = [run(ModelEngine(model), [job]) for job in jobs(model)]
    assert isinstance(model.encoder, PackedEncoder)
    encoder = GraphedEncoder(model.encoder, captured(model.encoder, 512, 512), lambda size, tokens: True)
    object.__setattr__(model, "encoder", encoder)
    engine = ModelEngine(model)
    assert [run(engine, [job]) for job in jobs(model)] == expected
    assert encoder.padding_tokens > 0


@pytest.mark.usefixtures("on_a_processor")
def test_graphs_are_taken_where_they_are_faster() -> None:
    """A batch that fills little of a bucket runs as it is; one that a graph does not hold does as well."""
    encoder = packed_encoder("tiny-bert")
    graphed = GraphedEncoder(encoder, captured(encoder, 256, 640), lambda size, tokens: 2 * tokens > size.tokens)
    with torch.inference_mode():
        for lengths, used in (([60, 60, 60], True), ([20], False), ([40], True), ([300], False)):
            graph = graphed.graph_of(batch(encoder, lengths))
            assert (graph is not None) == used
            assert torch.equal(graphed(batch(encoder, lengths)), encoder(batch(encoder, lengths)))
    assert graphed.graph_of(batch(encoder, [9, 60], [1, 0])) is None
    assert graphed.padding_tokens == (256 - 180) + (64 - 40)


@pytest.mark.parametrize("longest", [2, 100, 180, 384, 512, 640])
def test_the_gates_texts_fit_into_every_size_in_one_launch(longest: int) -> None:
    """At the size of an accelerator's steps, for any longest text."""
    reference, _ = reference_of("tiny-bert", positions=longest, limit=longest)
    lengths = [len(text) for text in reference.probes.texts]
    for size in buckets(16_384, longest):
        own = sorted(
            lengths[number] for number in reference.one_launch_batch(size.tokens, size.sequences, size.longest)
        )
        assert own
        assert size.holds(sum(own) + 1, len(own), own[-1])
        assert len(launches(np.array(own))) == 1


class _Capture:
    """A CUDA graph of a stand-in; see `pools`."""


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pools that are captured into; PyTorch's functions for captures do nothing else here."""
    captured, handles = list[int](), count()

    def graph(_: _Capture, *, pool: int, **options: Any) -> AbstractContextManager[None]:
        captured.append(pool)
        return nullcontext()

    fakes: dict[str, Any] = {"graph": graph, "CUDAGraph": _Capture, "graph_pool_handle": lambda: next(handles)}
    for name in ("Stream", "stream", "current_stream", "get_sync_debug_mode", "set_sync_debug_mode"):
        fakes[name] = MagicMock()
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return captured


def test_graphs_share_a_pool_as_long_as_one_of_them_is_there(pools: list[int]) -> None:
    """PyTorch captures nothing more into a pool whose graphs are all gone, as after one that was tried out."""
    record = CudaRecorder()
    tried = record(lambda: torch.ones(1))
    del tried
    kept = [record(lambda: torch.ones(1)) for _ in range(3)]
    del kept[0]
    kept.append(record(lambda: torch.ones(1)))
    assert len(set(pools[1:])) == 1
    assert pools[0] != pools[1]
