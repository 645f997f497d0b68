"""Compiled layers and captured graphs without a device: one graph a kind of layer, rows behind the last bound harmless,
the gate before either serves, and the choice by what was measured."""

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count, product
from typing import Any

import hopper_twin
import numpy as np
import pytest
import torch
import varlen_twin
from tiny import CPU, encode, run, score, tokens
from torch import Tensor

from gpu_worker.attention import interface as attention
from gpu_worker.attention.hopper import PACKAGE, Hopper
from gpu_worker.attention.launched import Launched
from gpu_worker.attention.varlen import Varlen
from gpu_worker.engine import ModelEngine
from gpu_worker.model import loading, ways
from gpu_worker.model.abilities import Abilities
from gpu_worker.model.gate import Reference
from gpu_worker.model.loading import Model, load
from gpu_worker.model.probes import Probes
from gpu_worker.model.source import open_source
from gpu_worker.model.trunk import FormChoice, Forms, PackedTrunk, Trunk, uncounted_by
from gpu_worker.model.trunk.buckets import Bucket, buckets
from gpu_worker.model.trunk.compiled import CompiledTrunk
from gpu_worker.model.trunk.graphs import Graph, GraphedTrunk
from gpu_worker.ragged.batch import RaggedBatch
from gpu_worker.ragged.launches import launches
from gpu_worker.random_models.shapes import ALL_SHAPES
from gpu_worker.repository.late_overrides import NO_OVERRIDES
from shared.jobs import Job
from shared.vectors import OutputKind, ScoringMethod

OWN = ("mpnet", "deberta-v2", "t5", "mt5", "umt5", "gemma2")
"""With biases or bounds on scores, which PyTorch's varlen attention does not know."""
PACKED = [name for name, (kind, *_) in ALL_SHAPES.items() if name.startswith("tiny-") and kind not in OWN]
KINDS = {"tiny-modernbert": 2, "tiny-gemma3": 2, "tiny-embeddinggemma": 2}
"""Of layers, that see all of a text or a window of it; one where nothing else is said."""
SIZES = ([3, 5, 9], [2, 7], [1, 1, 4, 30], [17], [40, 50, 60, 70], [2] * 9, [33, 34])


FEW = ("tiny-bert", "tiny-modernbert", "tiny-qwen3")
QUICK = [*((name, Varlen) for name in FEW), ("tiny-qwen3", Hopper)]
FAMILIES = [
    pytest.param(*each, marks=[] if each in QUICK else pytest.mark.slow) for each in product(PACKED, (Varlen, Hopper))
]


@pytest.fixture(autouse=True)
def on_a_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    varlen_twin.install()
    monkeypatch.setitem(sys.modules, PACKAGE, hopper_twin.package(hopper_twin.of_2026))
    yield
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


def loaded(name: str, forms: Forms | None = None, kernel: type[Launched] = Varlen, **device: Any) -> Model:
    """With the attention that an accelerator has; `device`: what stands for it where forms are chosen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ways.attention_choice, "choose", lambda *_, **__: kernel())
        patch.setattr(loading, "FormChoice", partial(FormChoice, **device))
        return load(f"random:{name}", CPU, forms=forms)


@cache
def packed_trunk(name: str, kernel: type[Launched] = Varlen) -> PackedTrunk:
    trunk = loaded(name, kernel=kernel).trunk
    assert isinstance(trunk, PackedTrunk)
    return trunk


def captured(trunk: Trunk, step_tokens: int, longest: int) -> dict[Bucket, Graph]:
    with torch.inference_mode():
        return {size: Graph(size, trunk, Playing()) for size in buckets(step_tokens, longest)}


def batch(trunk: Trunk, lengths: list[int], tails: list[int] | None = None) -> RaggedBatch:
    generator = np.random.default_rng(sum(lengths))
    texts = [generator.integers(10, 900, length, dtype=np.int32) for length in lengths]
    return RaggedBatch.pack(texts, trunk.device, trunk.uncounted, tails=tails or ())


@pytest.mark.parametrize(("name", "kernel"), FAMILIES)
def test_one_graph_for_each_kind_of_layer_and_all_batches(name: str, kernel: type[Launched]) -> None:
    """Whatever the lengths, counts and longest texts; the same numbers, and the layers are left as they were."""
    trunk, counting = packed_trunk(name, kernel), Counting()
    compiled = CompiledTrunk(trunk, counting)
    batches = [batch(trunk, lengths) for lengths in SIZES]
    compiled.compile(batches[:1])
    layers, counting.runs = counting.runs, 0
    with torch.inference_mode():
        for each in batches:
            assert torch.equal(compiled(each), trunk(each))
    assert counting.graphs == KINDS.get(name, 1)
    assert counting.runs == layers * len(batches)


def test_what_was_not_compiled_runs_as_it_is_written() -> None:
    """Nobody waits for a compiler: batches of one token, of two launches, with tails."""
    trunk, counting = packed_trunk("tiny-bert"), Counting()
    compiled = CompiledTrunk(trunk, counting)
    compiled.compile([batch(trunk, [3, 5])])
    others = [batch(trunk, [1]), batch(trunk, [*([2] * 600), 400]), batch(trunk, [4, 9], [1, 3])]
    with torch.inference_mode():
        for each in others:
            assert torch.equal(compiled(each), trunk(each))
    assert counting.graphs == 1
    compiled.compile(others[1:])
    assert counting.graphs == 3
    counting.runs = 0
    with torch.inference_mode():
        for each in others[1:]:
            compiled(each)
    assert counting.runs == 2 * 3


@pytest.mark.parametrize(("name", "kernel"), FAMILIES)
def test_rows_behind_the_last_bound_change_no_bit(name: str, kernel: type[Launched]) -> None:
    """Attention leaves NaN there: hidden states of every bucket against the batch by itself."""
    trunk = packed_trunk(name, kernel)
    graphs = captured(trunk, 256, 640).values()
    with torch.inference_mode():
        for lengths in SIZES:
            alone = trunk(batch(trunk, lengths))
            held = [graph for graph in graphs if graph.bucket.holds(sum(lengths), len(lengths), max(lengths))]
            assert held
            for graph in held:
                found = graph(batch(trunk, lengths))
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


@pytest.mark.parametrize("name", ["tiny-colbert", "tiny-qwen3"])
def test_whole_steps_by_graphs_give_the_same_bytes(name: str) -> None:
    """Trunk, pooling, heads, scores and the check for numbers, one step after the other through the same tensors."""
    model = loaded(name)
    expected = [run(ModelEngine(model), [job]) for job in jobs(model)]
    assert isinstance(model.trunk, PackedTrunk)
    trunk = GraphedTrunk(model.trunk, captured(model.trunk, 512, 512), lambda size, tokens: True)
    object.__setattr__(model, "trunk", trunk)
    engine = ModelEngine(model)
    assert [run(engine, [job]) for job in jobs(model)] == expected
    assert trunk.padded > 0


FORMS = Forms(step_tokens=256)
ALL = len(buckets(FORMS.step_tokens, 640))
AS_WRITTEN, COMPILED, GRAPHS = 10.0, 5.0, 1.0


class Clock:
    """Seconds of what is measured: those of the trunk as it is written, then with compiled layers, then by graphs."""

    def __init__(self, compiled: float = COMPILED, graphs: float = GRAPHS) -> None:
        sizes = 3  # 64, 128 and 256 tokens
        serving = min(compiled, AS_WRITTEN)
        self._told = iter([AS_WRITTEN] * sizes + [compiled] * sizes + [serving] * sizes + [graphs] * ALL)

    def __call__(self, run: Callable[[], object]) -> float:
        run()
        return next(self._told)


def test_the_fastest_form_serves() -> None:
    """After the gate, with what was found out told."""
    model = loaded("tiny-bert", FORMS, backend=Counting(), recorder=Playing, seconds=Clock())
    assert isinstance(model.trunk, GraphedTrunk)
    assert isinstance(model.trunk.trunk, CompiledTrunk)
    assert model.trunk.way == f"varlen, compiled layers, {ALL} graphs"
    first, second = model.told
    assert first.startswith("layers compiled in ")
    assert first.endswith(": 0.50 of the time of those as they are written")
    assert second.endswith(f"{ALL} of them used, 0 MiB")


def test_a_slower_form_does_not_serve() -> None:
    model = loaded("tiny-bert", FORMS, backend=Counting(), recorder=Playing, seconds=Clock(compiled=11.0, graphs=12.0))
    assert isinstance(model.trunk, PackedTrunk)
    assert model.told[0].endswith("1.10 of the time of those as they are written, so not used")
    assert model.told[1].endswith(", 0 of them used, 0 MiB")


@pytest.mark.parametrize(
    ("forms", "way"),
    [
        (Forms(step_tokens=256, compile=False, graphs=False), "varlen"),
        (Forms(step_tokens=256, graphs=False), "varlen, compiled layers"),
    ],
)
def test_each_form_can_be_switched_off(forms: Forms, way: str) -> None:
    assert loaded("tiny-bert", forms, backend=Counting(), recorder=Playing, seconds=Clock()).trunk.way == way


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
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("backend", "recorder", "serves", "told"),
    [
        (broken, lambda: Playing(), f"varlen, {ALL} graphs", ["no compiled layers: ", "graphs captured"]),
        (doubling, lambda: Playing(), f"varlen, {ALL} graphs", ["does not run among other texts", "graphs captured"]),
        (
            Counting(),
            lambda: stale,
            "varlen, compiled layers",
            ["compiled in", ": ModelRefused: it does not", " 0 of them"],
        ),
        (
            Counting(),
            lambda: refused,
            "varlen, compiled layers",
            ["compiled in", ": RuntimeError: operation", " 0 of them"],
        ),
    ],
    ids=["no compiler", "compiled wrongly", "graphs are wrong", "cannot be captured"],
)
def test_a_form_that_fails_or_errs_serves_nobody(backend: Any, recorder: Any, serves: str, told: list[str]) -> None:
    """One line says why, and the form before it serves."""
    faster = (0.9**number for number in count())

    def seconds(run: Callable[[], object]) -> float:
        run()
        return next(faster)

    model = loaded("tiny-bert", FORMS, backend=backend, recorder=recorder, seconds=seconds)
    assert model.trunk.way == serves
    for line, part in zip(model.told, told, strict=True):
        assert part in line
        assert "\n" not in line


def test_graphs_are_taken_where_they_are_faster() -> None:
    """A batch that fills little of a bucket runs as it is; one that a graph does not hold does as well."""
    trunk = packed_trunk("tiny-bert")
    graphed = GraphedTrunk(trunk, captured(trunk, 256, 640), lambda size, tokens: 2 * tokens > size.tokens)
    with torch.inference_mode():
        for lengths, used in (([60, 60, 60], True), ([20], False), ([40], True), ([300], False)):
            graph = graphed.graph_of(batch(trunk, lengths))
            assert (graph is not None) == used
            assert torch.equal(graphed(batch(trunk, lengths)), trunk(batch(trunk, lengths)))
    assert graphed.graph_of(batch(trunk, [9, 60], [1, 0])) is None
    assert graphed.padded == (256 - 180) + (64 - 40)


def reference_of(name: str, **probes: Any) -> tuple[Reference, PackedTrunk]:
    """The gate's reference, and the trunk as it is written."""
    attention.register()
    base = open_source(f"random:{name}", CPU, False, NO_OVERRIDES, "").model.base_model
    reference = Reference(base, Probes.of(base.config, **probes))
    ways.make_packed(base)
    return reference, PackedTrunk(base, Varlen(), uncounted_by(base))


@pytest.mark.parametrize("longest", [2, 100, 180, 384, 512, 640])
def test_the_gates_texts_fit_into_every_size_in_one_launch(longest: int) -> None:
    """At the size of an accelerator's steps, for any longest text."""
    reference, _ = reference_of("tiny-bert", positions=longest, limit=longest)
    lengths = [len(text) for text in reference.probes.texts]
    for size in buckets(16_384, longest):
        own = sorted(lengths[number] for number in reference.fitting(size.tokens, size.sequences, size.longest))
        assert own
        assert size.holds(sum(own) + 1, len(own), own[-1])
        assert len(launches(np.array(own))) == 1


def test_windows_are_compiled_though_tails_beside_them_are_not() -> None:
    """A late-interaction model with windows: its documents have no tails, its queries run as the layers are written."""
    reference, trunk = reference_of("tiny-modernbert", positions=640, unattended=True, limit=640)
    counting, slower = Counting(), (0.9**number for number in count())
    form = FormChoice(
        trunk,
        reference,
        Forms(step_tokens=256, graphs=False),
        longest=640,
        tails=True,
        backend=counting,
        seconds=lambda run: (run(), next(slower))[1],
    )
    assert form.trunk.way == "varlen, compiled layers"
    assert form.told[0].startswith("batches with unattended tails run as the layers are written: ")
    assert counting.graphs >= 2
    with torch.inference_mode():
        for lengths, tails in (([5, 40], [2, 0]), ([5, 40], None)):
            each = batch(trunk, lengths, tails)
            assert torch.equal(form.trunk(each), trunk(each))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny-bert", "tiny-qwen3", "tiny-modernbert"])
def test_inductor_itself(name: str) -> None:
    """The compiler that serves, on a processor: within rounding of the layers as they are written."""
    trunk = packed_trunk(name)
    compiled = CompiledTrunk(trunk)
    batches = [batch(trunk, lengths) for lengths in SIZES]
    compiled.compile(batches[:1])
    with torch.inference_mode():
        for each in batches:
            assert torch.allclose(compiled(each), trunk(each), atol=2e-5)
