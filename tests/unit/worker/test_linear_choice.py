"""Which way linear layers run follows what was measured."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from gpu_worker.device.placement import Placement
from gpu_worker.model import loading
from gpu_worker.model.encoder.encoder import Encoder
from gpu_worker.model.tune import linear, linear_choice
from gpu_worker.model.tune.linear import LinearLayer, PrepackedLinear, packed_layers
from gpu_worker.model.tune.linear_choice import (
    ROWS,
    STOCK,
    LinearKernel,
    LinearPlan,
    Times,
    decide,
    install_fastest,
    measured,
)
from gpu_worker.model.verify.gate import Reference
from shared.errors import ModelRefused
from support.native import no_kernels
from support.onednn import needs_packed_layers
from tests.unit.worker.test_linear import Block

EQUAL = [1.0, 1.0, 1.0, 1.0]
SWITCHED: Times = {LinearKernel.PACKED: EQUAL, LinearKernel.STOCK: [1.5, 1.2, 0.9, 0.85]}
CPU = Placement(device=torch.device("cpu"), dtype=torch.float32)


class Chosen:
    """Stands in for what is measured, and counts how often it is."""

    def __init__(self, times: Times) -> None:
        self.times, self.calls = times, 0

    def __call__(self, layers: object) -> Times:
        self.calls += 1
        return self.times


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_choice, "_plans", {})


def given(monkeypatch: pytest.MonkeyPatch, times: Times) -> Chosen:
    chosen = Chosen(times)
    monkeypatch.setattr(linear_choice, "measured", chosen)
    return chosen


CHOICES: dict[str, tuple[Times, LinearPlan]] = {
    "stock alone": ({LinearKernel.STOCK: EQUAL}, STOCK),
    "a near tie stays packed": (
        {LinearKernel.PACKED: EQUAL, LinearKernel.STOCK: [0.97] * 4, LinearKernel.FUSED: [0.96] * 4},
        LinearPlan(LinearKernel.PACKED),
    ),
    "stock ahead everywhere": ({LinearKernel.PACKED: EQUAL, LinearKernel.STOCK: [0.9] * 4}, STOCK),
    "fused ahead everywhere": (
        {LinearKernel.PACKED: EQUAL, LinearKernel.STOCK: EQUAL, LinearKernel.FUSED: [0.9] * 4},
        LinearPlan(LinearKernel.FUSED),
    ),
    "packed for few, stock for many": (SWITCHED, LinearPlan(LinearKernel.PACKED, 32)),
    "fused for few, stock for many": (
        SWITCHED | {LinearKernel.FUSED: [0.8, 0.9, 1.3, 1.3]},
        LinearPlan(LinearKernel.FUSED, 32),
    ),
    "fused ahead for few, behind for many": (
        {
            LinearKernel.PACKED: EQUAL,
            LinearKernel.STOCK: [1.0, 1.0, 1.0, 1.1],
            LinearKernel.FUSED: [0.6, 0.9, 1.0, 1.1],
        },
        LinearPlan(LinearKernel.PACKED),
    ),
    "for many by a little": (
        {LinearKernel.PACKED: EQUAL, LinearKernel.STOCK: [1.5, 1.2, 0.97, 0.96]},
        LinearPlan(LinearKernel.PACKED),
    ),
    "for few by a little": ({LinearKernel.PACKED: EQUAL, LinearKernel.STOCK: [1.04, 0.9, 0.9, 0.9]}, STOCK),
    "for few alone": (
        {LinearKernel.PACKED: EQUAL, LinearKernel.STOCK: [0.8, 0.95, 1.2, 1.2]},
        LinearPlan(LinearKernel.PACKED),
    ),
}


@pytest.mark.parametrize("case", CHOICES)
def test_the_choice_follows_the_times(case: str) -> None:
    """Ways are switched only where each is clearly ahead on its side."""
    times, plan = CHOICES[case]
    assert decide(times, twice=True) == plan


def test_weights_that_may_not_be_kept_twice_are_kept_once() -> None:
    """Then one way serves all numbers of rows, the better one on the whole."""
    assert decide(SWITCHED, twice=False) == LinearPlan(LinearKernel.PACKED)
    assert decide({LinearKernel.PACKED: EQUAL, LinearKernel.STOCK: [1.04, 0.9, 0.8, 0.8]}, twice=False) == STOCK


class Clock:
    """Seconds that pass while layers run: so many a row and an output, by the way."""

    def __init__(self, costs: dict[LinearKernel, float]) -> None:
        self.now, self._costs = 0.0, costs

    def __call__(self) -> float:
        return self.now

    def spend(self, way: LinearKernel, x: torch.Tensor, outputs: int) -> None:
        self.now += self._costs[way] * len(x) * outputs

    def watch(self, layers: list[linear.LinearLayer], monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on these layers take their time."""
        for layer in layers:
            layer.stock.register_forward_pre_hook(
                lambda own, args: self.spend(LinearKernel.STOCK, args[0], own.out_features)  # type: ignore[func-returns-value]
            )
        product = PrepackedLinear.product

        def slow(own: PrepackedLinear, x: torch.Tensor, gelu: str = "") -> torch.Tensor:
            self.spend(LinearKernel.FUSED if gelu else LinearKernel.PACKED, x, own.out_features)
            return product(own, x, gelu)

        monkeypatch.setattr(PrepackedLinear, "product", slow)


@needs_packed_layers
def test_layers_count_as_often_as_they_occur(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a kind stands for all where there is much to multiply; what has no GELU is as fast with it as without."""
    model = nn.Sequential(*(Block("gelu") for _ in range(40)), *(nn.Linear(48, 32) for _ in range(20)))
    clock, layers = (
        Clock({LinearKernel.STOCK: 1.0, LinearKernel.PACKED: 2.0, LinearKernel.FUSED: 3.0}),
        packed_layers(model),
    )
    clock.watch(layers, monkeypatch)
    monkeypatch.setattr(linear_choice, "MULTIPLIED", 32 * 2 * 48 * (96 + 32))
    times = measured(layers, clock)
    activated, plain = 40 * 96.0, 20 * 32.0
    expected = {
        LinearKernel.STOCK: activated + plain,
        LinearKernel.PACKED: 2 * (activated + plain),
        LinearKernel.FUSED: 3 * activated + 2 * plain,
    }
    assert times == {way: pytest.approx([rows * seconds for rows in ROWS]) for way, seconds in expected.items()}


@needs_packed_layers
def test_a_moment_of_disturbance_is_no_ways_own() -> None:
    """Of each run the shortest counts."""
    model = nn.Sequential(Block("gelu"))
    seconds = iter([5.0, *[1.0] * 10_000])  # between two looks at the clock

    def ticking() -> Iterator[float]:
        now = 0.0
        for each in seconds:
            yield now
            now += each / 1e6

    times = measured(packed_layers(model), ticking().__next__)
    assert {way: {round(each * 1e6, 3) for each in found} for way, found in times.items()} == {
        way: {1.0} for way in LinearKernel
    }


@needs_packed_layers
def test_layers_of_two_number_formats_are_measured_each_in_its_own() -> None:
    """An encoder in half precision has heads in float32."""
    linears = [nn.Linear(32, 32).double(), nn.Linear(32, 8)]
    parent, packed = nn.Sequential(*linears), PrepackedLinear(nn.Linear(32, 8))
    layers = [LinearLayer(parent=parent, name="0", stock=linear, packed=packed) for linear in linears]
    assert LinearKernel.STOCK in measured(layers)


@needs_packed_layers
@pytest.mark.parametrize("failing", [LinearKernel.PACKED, LinearKernel.FUSED])
def test_a_way_that_fails_for_some_number_of_rows_is_not_chosen(
    failing: LinearKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it served the few rows by which it was proven."""
    product = PrepackedLinear.product

    def fails(own: PrepackedLinear, x: torch.Tensor, gelu: str = "") -> torch.Tensor:
        if len(x) == ROWS[-1] and bool(gelu) == (failing is LinearKernel.FUSED):
            raise RuntimeError("could not create a primitive")
        return product(own, x, gelu)

    monkeypatch.setattr(PrepackedLinear, "product", fails)
    times = measured(packed_layers(nn.Sequential(Block("gelu"), nn.Linear(96, 8))))
    left = {LinearKernel.STOCK} if failing is LinearKernel.PACKED else {LinearKernel.STOCK, LinearKernel.PACKED}
    assert set(times) == left
    assert decide(times, twice=True).kernel in left


@needs_packed_layers
def test_models_of_one_shape_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And run alike; the log tells what it takes to keep weights twice."""
    chosen = given(monkeypatch, SWITCHED)
    told = "linear layers: onednn-prepacked to 32 rows, torch above; weights are kept twice, which takes 0 MiB"
    for _ in range(2):
        block = nn.Sequential(Block("gelu"))
        assert install_fastest(block) == (LinearPlan(LinearKernel.PACKED, 32), told)
    assert chosen.calls == 1
    install_fastest(nn.Sequential(nn.Linear(16, 8)))
    assert chosen.calls == 2


@needs_packed_layers
def test_a_second_copy_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the weights are kept once."""
    given(monkeypatch, SWITCHED)
    block = nn.Sequential(Block("gelu"))
    monkeypatch.setattr(linear_choice, "TWICE", 48 * 96 * 4 - 1)
    assert install_fastest(block)[0] == LinearPlan(LinearKernel.PACKED)


WAYS: dict[str, Times] = {
    "torch": {LinearKernel.STOCK: EQUAL},
    "onednn-prepacked": {LinearKernel.PACKED: EQUAL, LinearKernel.STOCK: EQUAL},
    "onednn-prepacked with GELU": {
        LinearKernel.PACKED: EQUAL,
        LinearKernel.STOCK: EQUAL,
        LinearKernel.FUSED: [0.5] * 4,
    },
    "onednn-prepacked to 32 rows, torch above": SWITCHED,
}


@needs_packed_layers
def test_every_way_serves_a_model_under_one_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the gate; card and log tell which it is."""
    fingerprints = set()
    no_kernels(monkeypatch)
    for name, times in WAYS.items():
        linear_choice._plans.clear()
        given(monkeypatch, times)
        model = loading.load("random:tiny-bert", CPU)
        assert model.linear == name
        assert any(each.startswith(f"linear layers: {name}") for each in model.findings)
        fingerprints.add(model.fingerprint)
    assert len(fingerprints) == 1


@needs_packed_layers
def test_few_rows_pass_the_gate_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that only packed layers let drift is served with its own: the gate's many rows would not have told."""
    given(monkeypatch, SWITCHED)
    no_kernels(monkeypatch)
    check, refused = Reference.check, []

    def strict(own: Reference, encoder: Encoder, *rest: object) -> None:
        layers = [each for each in encoder.model.modules() if isinstance(each, PrepackedLinear)]
        if layers and all(each.most_rows is None for each in layers):
            refused.append(len(layers))
            raise ModelRefused("it rounds otherwise")
        check(own, encoder, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Reference, "check", strict)
    model = loading.load("random:tiny-bert", CPU)
    assert refused
    assert model.linear == "torch"
    assert not any(isinstance(each, PrepackedLinear) for each in model.encoder.model.modules())
