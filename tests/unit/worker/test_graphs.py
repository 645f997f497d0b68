"""Captured graphs without a device: rows behind the last bound are harmless, every graph passes the gate, and what has
no graph runs as it is written."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpu_worker.engine.engine import ModelEngine
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.loading import Model
from gpu_worker.model.model import Abilities
from gpu_worker.model.tune.graphs import (
    ROOM,
    TOKENS,
    Bucket,
    CaptureBroken,
    GraphedEncoder,
    GraphSettings,
    ladder,
)
from gpu_worker.ragged.batch import TILE, split_launches
from shared.jobs import Job
from shared.vectors import OutputKind, ScoringMethod
from support.graphs import (
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
from support.tiny import encode, run, score, tokens


@pytest.mark.usefixtures("on_a_processor")
@families("tiny-bert", "tiny-modernbert", "tiny-qwen3")
def test_rows_behind_the_last_bound_change_no_bit(name: str) -> None:
    """Attention leaves NaN there: hidden states of every bucket against the batch by itself."""
    encoder = packed_encoder(name)
    graphs = captured(encoder, 256, 640)
    with torch.inference_mode():
        for lengths in SIZES:
            alone = encoder(batch(encoder, lengths))
            held = [graph for graph in graphs if graph.bucket.holds(sum(lengths), len(lengths), max(lengths))]
            assert held
            for graph in held:
                found = graph(batch(encoder, lengths))
                assert torch.equal(found, alone), graph.bucket


def jobs(model: Model) -> list[Job]:
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
    encoder = GraphedEncoder(model.encoder, captured(model.encoder, 512, 512))
    object.__setattr__(model, "encoder", encoder)
    engine = ModelEngine(model)
    assert [run(engine, [job]) for job in jobs(model)] == expected
    assert encoder.padding_tokens > 0


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


@pytest.mark.parametrize("longest", [2, 100, 180, 384, 512, 640])
def test_the_gates_texts_fit_into_every_size_in_one_launch(longest: int) -> None:
    """At the size of an accelerator's steps, for any longest text."""
    reference, _ = reference_of("tiny-bert", positions=longest, limit=longest)
    lengths = [len(text) for text in reference.probes.texts]
    for size in ladder(16_384, longest):
        own = sorted(
            lengths[number] for number in reference.probes.one_launch_batch(size.tokens, size.sequences, size.longest)
        )
        assert own
        assert size.holds(sum(own) + 1, len(own), own[-1])
        assert len(split_launches(np.array(own))) == 1


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
    counting = Counting()
    written = GraphSettings(compile=False, step_tokens=GRAPHS.step_tokens)
    for settings, serves in ((written, f"varlen, {ALL} graphs"), (None, "varlen")):
        assert loaded("tiny-bert", settings, backend=counting, recorder=Playing).encoder.description == serves
    assert counting.graphs == 0


@pytest.mark.usefixtures("on_a_processor")
def test_steps_that_are_smaller_than_any_graph_have_none() -> None:
    model = loaded("tiny-bert", GraphSettings(step_tokens=63), backend=Counting(), recorder=Playing)
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


@pytest.mark.usefixtures("on_a_processor")
@pytest.mark.parametrize(
    ("backend", "recorder", "serves", "told"),
    [
        (broken, Playing, f"varlen, {ALL} graphs", ["no compiled layers: ", f"{ALL} graphs captured"]),
        (doubling, Playing, f"varlen, {ALL} graphs", ["does not run among other texts", f"{ALL} graphs captured"]),
        (
            Counting(),
            lambda: stale,
            "varlen",
            [
                "compiled in",
                f"{ALL} sizes have no graph, such as {LARGEST}: ModelRefused: it ",
                "0 graphs",
            ],
        ),
        (Counting(), lambda: refused, "varlen", ["compiled in", ": RuntimeError: operation not permitted", "0 graphs"]),
        (Counting(), no_recorder, "varlen", ["compiled in", "no graphs: RuntimeError: no graphs here", "0 graphs"]),
    ],
    ids=["no compiler", "compiled wrongly", "graphs are wrong", "nothing can be captured", "no recorder"],
)
def test_what_fails_or_errs_serves_nobody(backend: Any, recorder: Any, serves: str, told: list[str]) -> None:
    """One line says why, and the layers as they are written serve."""
    model = loaded("tiny-bert", GRAPHS, backend=backend, recorder=recorder)
    assert model.encoder.description == serves
    for line, part in zip(found_out(model), told, strict=True):
        assert part in line
        assert "\n" not in line


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


@pytest.mark.usefixtures("on_a_processor")
def test_a_size_that_cannot_be_captured_runs_without() -> None:
    failing = Failing(1, RuntimeError("not this one"))
    model = loaded("tiny-bert", GRAPHS, backend=Counting(), recorder=lambda: failing)
    assert isinstance(model.encoder, GraphedEncoder)
    *others, missing, largest = LADDER
    assert [graph.bucket for graph in model.encoder.graphs] == [*others, largest]
    assert found_out(model)[1] == f"1 sizes have no graph, such as {missing}: RuntimeError: not this one"


@pytest.mark.usefixtures("on_a_processor")
def test_after_a_broken_capture_nothing_more_is_captured() -> None:
    """Graphs that are there serve; trying on would leak the device's memory on some versions of PyTorch."""
    breaking = Failing(2, CaptureBroken("RuntimeError: operation failed\nsecond line"))
    model = loaded("tiny-bert", GRAPHS, backend=Counting(), recorder=lambda: breaking)
    assert breaking.captured == 3
    assert model.encoder.description == "varlen, 2 graphs of compiled layers"
    assert ", after which nothing more is captured: RuntimeError: operation failed" in found_out(model)[1]


STEPS, LONGEST = st.integers(1, 65_536), st.integers(2, 131_072)
MOST = 38


def tiles(size: Bucket) -> int:
    """Attention tiles per head, filled or not."""
    return size.sequences * -(-size.longest // TILE)


@given(STEPS, LONGEST)
def test_they_are_few_the_smallest_first_and_none_is_mostly_empty(step_tokens: int, longest: int) -> None:
    found = ladder(step_tokens, longest)
    assert len(found) == len(set(found)) <= MOST
    assert [each.tokens for each in found] == sorted(each.tokens for each in found)
    assert {each.tokens for each in found} == {tokens for tokens in TOKENS if tokens <= step_tokens}
    for each in found:
        assert 2 <= each.longest <= min(longest, each.tokens)
        assert tiles(each) <= ROOM * (each.sequences + each.tokens // TILE)


@given(STEPS, LONGEST)
def test_every_number_of_tokens_has_one_for_its_longest_text(step_tokens: int, longest: int) -> None:
    found = ladder(step_tokens, longest)
    for size in {each.tokens for each in found}:
        assert max(each.longest for each in found if each.tokens == size) == min(longest, size)


@pytest.mark.parametrize("longest", [128, 512, 8192])
def test_steps_of_texts_of_one_length_have_one(longest: int) -> None:
    """A batch of texts of eight to a hundred tokens has a graph of at most twice its tokens, up to the largest."""
    found = ladder(16_384, longest)
    for size in (64, 65, 1000, 1025, 4096, 4097, TOKENS[-1]):
        for length in (8, 30, 64, 100):
            count = size // length
            held = [each for each in found if each.holds(count * length, count, length)]
            assert held, (size, length)
            assert held[0].tokens <= max(128, 2 * count * length)
    assert not [each for each in found if each.holds(TOKENS[-1] + 1, 8, 100)]
