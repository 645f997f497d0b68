"""Captured graphs and compiled layers without a device: rows behind the last bound are harmless, every graph passes the
gate, layers are compiled once a kind of layer, and what has no graph runs as it is written."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpu_worker.device import transfer
from gpu_worker.model.tune import graphs
from gpu_worker.model.tune.graphs import (
    ROOM,
    TOKENS,
    CaptureBroken,
    GraphedEncoder,
    GraphSettings,
    compiled_run,
    ladder,
)
from gpu_worker.ragged import batch as ragged_batch
from gpu_worker.ragged.batch import TILE, split_launches
from support.graphs import (
    KINDS,
    SIZES,
    Counting,
    Playing,
    batch,
    captured,
    families,
    found_out,
    loaded,
    packed_encoder,
    reference_of,
)


@pytest.mark.usefixtures("on_a_processor")
@families("tiny-bert", "tiny-modernbert", "tiny-qwen3")
def test_rows_behind_the_last_bound_change_no_bit(name: str) -> None:
    """Attention leaves NaN there: hidden states of every bucket against the batch by itself."""
    encoder = packed_encoder(name)
    made = captured(encoder, 256, 640)
    with torch.inference_mode():
        for lengths in SIZES:
            alone = encoder(batch(encoder, lengths))
            holding = [graph for graph in made if graph.bucket.holds(sum(lengths), len(lengths), max(lengths))]
            assert holding
            for graph in holding:
                rows = graph(batch(encoder, lengths))
                assert torch.equal(rows, alone), graph.bucket


@pytest.mark.usefixtures("on_a_processor")
def test_the_smallest_graph_that_holds_a_batch_runs_it() -> None:
    """One that no graph holds runs as it is written, and so does one with a tail."""
    encoder = packed_encoder("tiny-bert")
    graphed = GraphedEncoder(encoder, captured(encoder, 256, 640))
    padding = 0
    cases = ([60, 60, 60], 256), ([20], 64), ([70], 128), ([8] * 8, 64), ([7] * 9, 128), ([300], 0)
    with torch.inference_mode():
        for lengths, tokens in cases:
            graph = graphed.graph_of(batch(encoder, lengths))
            assert (graph.bucket.tokens if graph else 0) == tokens
            assert torch.equal(graphed(batch(encoder, lengths)), encoder(batch(encoder, lengths)))
            padding += tokens - sum(lengths) if tokens else 0
    assert graphed.graph_of(batch(encoder, [9, 60], [1, 0])) is None
    assert graphed.padding_tokens == padding


@pytest.mark.parametrize("longest", [2, 180, 640])
def test_the_gates_texts_fit_into_every_size_in_one_launch(longest: int) -> None:
    """At the size of an accelerator's steps, for any longest text."""
    reference, _ = reference_of("tiny-bert", positions=longest, limit=longest)
    lengths = [len(text) for text in reference.probes.texts]
    for size in ladder(16_384, longest):
        chosen = sorted(
            lengths[number] for number in reference.probes.one_launch_batch(size.tokens, size.sequences, size.longest)
        )
        assert chosen
        assert size.holds(sum(chosen) + 1, len(chosen), chosen[-1])
        assert len(split_launches(np.array(chosen))) == 1


@pytest.mark.usefixtures("on_a_processor")
@families("tiny-modernbert")
def test_once_for_each_kind_of_layer_and_all_batches(name: str) -> None:
    """Whatever the lengths, counts and longest texts; the same numbers, and the layers are left as they were."""
    encoder, counting = packed_encoder(name), Counting()
    compiled = compiled_run(encoder, counting)
    batches = [batch(encoder, lengths) for lengths in SIZES]
    with torch.inference_mode():
        compiled(batches[0])
        layers, counting.runs = counting.runs, 0
        for each in batches:
            assert torch.equal(compiled(each), encoder(each))
    assert counting.graphs == KINDS.get(name, 1)
    assert counting.runs == layers * len(batches)


@pytest.mark.usefixtures("on_a_processor")
def test_a_graph_has_the_compiled_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device the tensors of a batch are views of one buffer, and what is compiled for those takes no others."""
    encoder, counting = packed_encoder("tiny-bert"), Counting()
    monkeypatch.setattr(transfer, "to_device", lambda host, _: host.clone())
    for module in (ragged_batch, graphs):
        monkeypatch.setattr(module, "Upload", lambda _: transfer.Upload(torch.device("xpu")))
    compiled = compiled_run(encoder, counting)
    with torch.inference_mode():
        compiled(batch(encoder, [16] * 16))
        layers = counting.runs
        for size in ladder(256, 60):
            counting.runs = 0
            graph = graphs.Graph(size, encoder, compiled, Playing())
            assert counting.runs == layers
            each = batch(encoder, [size.tokens // size.sequences] * size.sequences)
            assert torch.equal(graph(each), encoder(each))
    assert counting.graphs == 1


GRAPHS = GraphSettings(step_tokens=128)
LADDER = ladder(GRAPHS.step_tokens, 640)
ALL, LARGEST = len(LADDER), LADDER[-1]


@pytest.mark.usefixtures("on_a_processor")
def test_a_load_captures_every_size_with_compiled_layers() -> None:
    model = loaded("tiny-bert", GRAPHS, backend=Counting(), recorder=Playing)
    assert isinstance(model.encoder, GraphedEncoder)
    assert model.encoder.description == f"varlen, {ALL} graphs of compiled layers"
    assert [graph.bucket for graph in model.encoder.graphs] == LADDER
    compiled, captures = found_out(model)
    assert compiled.startswith("layers compiled in ")
    assert captures.startswith(f"{ALL} graphs captured in ")
    assert captures.endswith(", 0 MiB")


@pytest.mark.usefixtures("on_a_processor")
def test_each_can_be_switched_off() -> None:
    """And steps that are smaller than any graph have none."""
    counting = Counting()
    written = GraphSettings(compile=False, step_tokens=GRAPHS.step_tokens)
    for settings, serves in ((written, f"varlen, {ALL} graphs"), (None, "varlen")):
        assert loaded("tiny-bert", settings, backend=counting, recorder=Playing).encoder.description == serves
    assert counting.graphs == 0
    model = loaded("tiny-bert", GraphSettings(step_tokens=63), backend=counting, recorder=Playing)
    assert model.encoder.description == "varlen"
    assert [line[:8] for line in found_out(model)] == ["0 graphs"]


def broken(module: Any, _: Any) -> Callable[..., Any]:
    raise RuntimeError("no compiler here\nsecond line")


def doubling(module: Any, _: Any) -> Callable[..., Any]:
    def wrong(*arguments: Any) -> Any:
        return [each * 2 if isinstance(each, Tensor) else each for each in module(*arguments)]

    return wrong


def stale(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Records a result and never computes another."""
    result = work()
    return lambda: result


def refused(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    raise RuntimeError("operation not permitted when stream is capturing\nsecond line")


def no_recorder() -> Any:
    raise RuntimeError("no graphs here\nsecond line")


class Failing(Playing):
    """A recorder of which one capture fails."""

    def __init__(self, capture: int, error: Exception) -> None:
        super().__init__()
        self._capture, self._error = capture, error

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if self.captured == self._capture:
            self.captured += 1
            raise self._error
        return super().__call__(work)


FAILURES: dict[str, tuple[Any, Any, str, list[str]]] = {
    "no compiler": (broken, Playing, f"varlen, {ALL} graphs", ["no compiled layers: ", f"{ALL} graphs captured"]),
    "compiled wrongly": (
        doubling,
        Playing,
        f"varlen, {ALL} graphs",
        ["does not run among other texts", f"{ALL} graphs captured"],
    ),
    "graphs are wrong": (
        Counting(),
        lambda: stale,
        "varlen",
        ["compiled in", f"{ALL} sizes have no graph, such as {LARGEST}: ModelRefused: it ", "0 graphs"],
    ),
    "nothing can be captured": (
        Counting(),
        lambda: refused,
        "varlen",
        ["compiled in", ": RuntimeError: operation not permitted", "0 graphs"],
    ),
    "no recorder": (
        Counting(),
        no_recorder,
        "varlen",
        ["compiled in", "no graphs: RuntimeError: no graphs here", "0 graphs"],
    ),
    "one size cannot be captured": (
        Counting(),
        lambda: Failing(1, RuntimeError("not this one")),
        f"varlen, {ALL - 1} graphs of compiled layers",
        [
            "compiled in",
            f"1 sizes have no graph, such as {LADDER[-2]}: RuntimeError: not this one",
            f"{ALL - 1} graphs",
        ],
    ),
    "a broken capture": (  # to try on would leak the device's memory on some versions of PyTorch
        Counting(),
        lambda: Failing(2, CaptureBroken("RuntimeError: operation failed\nsecond line")),
        "varlen, 2 graphs of compiled layers",
        ["compiled in", ", after which nothing more is captured: RuntimeError: operation failed", "2 graphs"],
    ),
}


@pytest.mark.usefixtures("on_a_processor")
@pytest.mark.parametrize("failure", FAILURES)
def test_what_fails_or_errs_serves_nobody(failure: str) -> None:
    """One line says why, and what did not fail serves."""
    backend, recorder, serves, findings = FAILURES[failure]
    model = loaded("tiny-bert", GRAPHS, backend=backend, recorder=recorder)
    assert model.encoder.description == serves
    for line, part in zip(found_out(model), findings, strict=True):
        assert part in line
        assert "\n" not in line


STEPS, LONGEST = st.integers(1, 65_536), st.integers(2, 131_072)
MOST = 38


@given(STEPS, LONGEST)
def test_they_are_few_the_smallest_first_and_none_is_mostly_empty(step_tokens: int, longest: int) -> None:
    """Every number of tokens has one for its longest text."""
    buckets = ladder(step_tokens, longest)
    assert len(buckets) == len(set(buckets)) <= MOST
    assert [bucket.tokens for bucket in buckets] == sorted(bucket.tokens for bucket in buckets)
    assert {bucket.tokens for bucket in buckets} == {tokens for tokens in TOKENS if tokens <= step_tokens}
    for bucket in buckets:
        assert 2 <= bucket.longest <= min(longest, bucket.tokens)
        tiles = bucket.sequences * -(-bucket.longest // TILE)  # of attention a head, filled or not
        assert tiles <= ROOM * (bucket.sequences + bucket.tokens // TILE)
    for tokens in {bucket.tokens for bucket in buckets}:
        assert max(bucket.longest for bucket in buckets if bucket.tokens == tokens) == min(longest, tokens)
