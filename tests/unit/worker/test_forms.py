"""In which form an encoder serves: the fastest that was measured, after the gate; a form that errs serves nobody."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from torch import Tensor

from gpu_worker.kernels.attention.one_operator import OneOperator
from gpu_worker.model.encoder.packed import PackedEncoder
from gpu_worker.model.tune import encoder_forms
from gpu_worker.model.tune.compiled import CompiledEncoder
from gpu_worker.model.tune.encoder_forms import Forms
from gpu_worker.model.tune.graph_sizes import buckets
from gpu_worker.model.tune.graphs import CaptureBroken, GraphedEncoder
from support.forms import Counting, Playing, found_out, loaded

pytestmark = pytest.mark.usefixtures("on_a_processor")

FORMS = Forms(step_tokens=256)
ALL = len(buckets(FORMS.step_tokens, 640))
SIZES = (64, 128, 256)
"""Tokens of the batches that are timed."""
AS_WRITTEN, COMPILED, GRAPHS = 10.0, 5.0, 1.0


class Clock:
    """Seconds of what is measured: those of the encoder as it is written and with compiled layers, by batches of all
    sizes and, if `captured`, by the largest graph; then of the faster one by batches again; then by graphs."""

    def __init__(self, compiled: float = COMPILED, graphs: float = GRAPHS, *, captured: bool = True) -> None:
        compared = [AS_WRITTEN] * len(SIZES) + [compiled] * len(SIZES) + [AS_WRITTEN, compiled] * captured
        serving = [min(compiled, AS_WRITTEN)] * len(SIZES) if captured else []
        self._told = iter(compared + serving + [graphs] * ALL)

    def __call__(self, run: Callable[[], object]) -> float:
        run()
        return next(self._told)


def faster_and_faster() -> Callable[[Callable[[], object]], float]:
    """Seconds of runs, each of which is faster than the one before."""
    faster = (0.9**number for number in count())
    return lambda run: (run(), next(faster))[1]


def test_the_fastest_form_serves() -> None:
    """After the gate, with what was found out told."""
    model = loaded("tiny-bert", FORMS, backend=Counting(), recorder=Playing, seconds=Clock())
    assert isinstance(model.encoder, GraphedEncoder)
    assert isinstance(model.encoder.encoder, CompiledEncoder)
    assert model.encoder.description == f"varlen, compiled layers, {ALL} graphs"
    first, second = found_out(model)
    assert first.startswith("layers compiled in ")
    assert first.endswith(": 0.50 of the time of those as they are written, 0.50 in a graph")
    assert second.endswith(f"{ALL} of them used, 0 MiB")


def test_a_slower_form_does_not_serve() -> None:
    model = loaded("tiny-bert", FORMS, backend=Counting(), recorder=Playing, seconds=Clock(compiled=11.0, graphs=12.0))
    assert isinstance(model.encoder, PackedEncoder)
    assert found_out(model)[0].endswith("1.10 of the time of those as they are written, 1.10 in a graph, so not used")
    assert found_out(model)[1].endswith(", 0 of them used, 0 MiB")


@pytest.mark.parametrize(
    ("launched", "replayed", "used"),
    [(1.2, 0.8, True), (0.8, 1.0, True), (0.8, 1.2, False), (1.0, 1.0, False)],
    ids=["a slow host", "launched alone", "slower in graphs", "no faster"],
)
def test_compiled_layers_serve_where_graphs_or_launches_are_faster(
    launched: float, replayed: float, used: bool
) -> None:
    """Launching them may take a slow host longer, which counts where no graphs serve."""
    told = iter([*[1.0] * 3, *[launched] * 3, 1.0, replayed, *[1.0] * 3, *[0.5] * ALL])
    model = loaded("tiny-bert", FORMS, backend=Counting(), recorder=Playing, seconds=lambda run: (run(), next(told))[1])
    assert ("compiled layers" in model.encoder.description) == used
    assert f"{launched:.2f} of the time of those as they are written, {replayed:.2f} in a graph" in found_out(model)[0]
    told = iter([*[1.0] * 3, *[launched] * 3, 1.0, replayed, *[1.0] * 3, *[2.0] * ALL])  # no graph is faster
    model = loaded("tiny-bert", FORMS, backend=Counting(), recorder=Playing, seconds=lambda run: (run(), next(told))[1])
    assert ("compiled layers" in model.encoder.description) == (used and launched < 1)


@pytest.mark.parametrize(
    ("forms", "way"),
    [
        (Forms(step_tokens=256, compile=False, graphs=False), "varlen"),
        pytest.param(Forms(step_tokens=256, graphs=False), "varlen, compiled layers", marks=pytest.mark.slow),
    ],
)
def test_each_form_can_be_switched_off(forms: Forms, way: str) -> None:
    assert loaded("tiny-bert", forms, backend=Counting(), recorder=Playing, seconds=Clock()).encoder.description == way


def test_pieces_run_compiled() -> None:
    """Where the model is causal."""
    model = loaded("tiny-qwen3", FORMS, backend=Counting(), recorder=Playing, seconds=Clock())
    assert isinstance(model.encoder, GraphedEncoder)
    assert isinstance(model.encoder.encoder, CompiledEncoder)
    assert model.encoder.encoder.takes_pieces


def test_pieces_that_err_compiled_run_as_the_layers_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole texts run compiled."""

    def halves(self: OneOperator, query: Tensor, *others: Any) -> Tensor:
        return query.transpose(0, 1) / 2

    monkeypatch.setattr(OneOperator, "__call__", halves)
    model = loaded("tiny-qwen3", FORMS, backend=Counting(), recorder=Playing, seconds=faster_and_faster())
    assert isinstance(model.encoder, GraphedEncoder)
    assert isinstance(model.encoder.encoder, CompiledEncoder)
    assert not model.encoder.encoder.takes_pieces
    pieces, *_ = found_out(model)
    assert pieces.startswith("texts in pieces run as the layers are written: it does not run among")


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


def breaking_at(capture: int, captures: "count[int]") -> Callable[[Callable[[], Tensor]], Callable[[], Tensor]]:
    """A recorder of which one capture breaks; `captures` counts them."""
    playing = Playing()

    def breaking(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if next(captures) == capture:
            raise CaptureBroken("RuntimeError: operation failed\nsecond line")
        return playing(work)

    return breaking


def test_where_the_first_capture_breaks_batches_are_compared() -> None:
    """And no graph is tried."""
    captures, clock = count(), Clock(captured=False)
    breaking = breaking_at(0, captures)
    model = loaded("tiny-bert", FORMS, backend=Counting(), recorder=lambda: breaking, seconds=clock)
    assert next(captures) == 1
    assert model.encoder.description == "varlen, compiled layers"
    assert found_out(model)[0] == "no graphs: RuntimeError: operation failed"


def test_compiled_layers_are_compiled_before_each_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the batch that is captured: in a capture they would run as they are written, and a graph keeps that."""
    prepared = list[int]()
    prepare = CompiledEncoder.prepare
    monkeypatch.setattr(CompiledEncoder, "prepare", lambda self, batch: prepared.append(1) or prepare(self, batch))
    loaded("tiny-bert", FORMS, backend=Counting(), recorder=Playing, seconds=Clock())
    assert len(prepared) == 1 + ALL
    prepared.clear()
    monkeypatch.setattr(encoder_forms, "MOST_COMPILING", 0.0)  # a load that has compiled long enough
    loaded("tiny-bert", FORMS, backend=Counting(), recorder=Playing, seconds=Clock())
    assert prepared == []


def test_a_recorder_that_cannot_be_had_costs_the_graphs_alone() -> None:
    def no_recorder() -> Any:
        raise RuntimeError("no graphs here")

    model = loaded("tiny-bert", FORMS, backend=Counting(), recorder=no_recorder, seconds=Clock(captured=False))
    assert model.encoder.description == "varlen, compiled layers"
    assert ", 0.50 in a graph" not in " ".join(found_out(model))


def test_sizes_that_keep_the_device_busy_have_no_graph() -> None:
    """Launches are hidden there, and a large model's graphs would take long to capture."""
    judged = [AS_WRITTEN, COMPILED]  # in the largest of 128 tokens
    seconds = [*[2.0, 6.0, 18.0], *[1.0, 3.0, 9.0], *judged, *[1.0, 3.0, 9.0], *[0.5] * ALL]
    told = iter(seconds)
    model = loaded("tiny-bert", FORMS, backend=Counting(), recorder=Playing, seconds=lambda run: (run(), next(told))[1])
    assert isinstance(model.encoder, GraphedEncoder)
    assert {each.tokens for each in model.encoder.graphs} == {64, 128}


def test_after_a_broken_capture_nothing_more_is_captured() -> None:
    """Graphs that are there serve; trying on would leak the device's memory on some versions of PyTorch."""
    compared, captures = 2, count()
    breaking = breaking_at(compared + 2, captures)
    model = loaded("tiny-bert", FORMS, backend=Counting(), recorder=lambda: breaking, seconds=Clock())
    assert next(captures) == compared + 3
    assert model.encoder.description == "varlen, compiled layers, 2 graphs"
    assert ", after which nothing more is captured: RuntimeError: operation failed" in found_out(model)[1]


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
        (broken, lambda: refused, "varlen", ["no compiled layers: ", ": RuntimeError: operation", " 0 of them"]),
    ],
    ids=["no compiler", "compiled wrongly", "graphs are wrong", "neither can be had"],
)
def test_a_form_that_fails_or_errs_serves_nobody(backend: Any, recorder: Any, serves: str, told: list[str]) -> None:
    """One line says why, and the form before it serves."""
    model = loaded("tiny-bert", FORMS, backend=backend, recorder=recorder, seconds=faster_and_faster())
    assert model.encoder.description == serves
    for line, part in zip(found_out(model), told, strict=True):
        assert part in line
        assert "\n" not in line
