"""Which way the linear layers of a model run on a processor: measured at load, on the model's own layers.

Which library multiplies faster depends on the processor, its number of cores, the number format and the number of
rows. Where one is ahead for few rows and another for many, both serve, if the weights may be kept twice. Knows nothing
of the model around its layers.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_worker.device.timing import PAYS
from gpu_worker.model.tune.linear import LinearLayer, fuses, packed_layers

ROWS = (8, 32, 128, 512)
"""Of a product that is measured. Beyond, the ways keep their order."""
SECONDS, LEAST_ROUNDS, ROUNDS = 0.1, 2, 20
"""Measured for each of them: rounds until that much time is over, within these bounds."""
MULTIPLIED = 1 << 28
"""Rows x weights of a round, about: for few rows, many layers, since a model's weights do not stay in the cache."""
MEBIBYTE = 1024 * 1024
TWICE = 1024 * MEBIBYTE
"""Bytes that a second copy of the weights may take."""
Clock = Callable[[], float]
"""In seconds. `time.thread_time` counts a thread's share of a product, but not the time that other processes take from
it: on busy cores four choices by the wall's clock came out in four ways, by this one in two."""


class LinearKernel(Enum):
    """How a linear layer runs: as PyTorch does it; by weights packed for oneDNN; the same with GELU fused."""

    STOCK = "torch"
    PACKED = "onednn-prepacked"
    FUSED = "onednn-prepacked with GELU"


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """All layers go this `way`; where `most` is not None, up to so many rows, and the stock way beyond."""

    kernel: LinearKernel = LinearKernel.STOCK
    most_rows: int | None = None

    def __str__(self) -> str:
        return (
            self.kernel.value
            if self.most_rows is None
            else f"{self.kernel.value} to {self.most_rows} rows, torch above"
        )

    def install(self, layers: Sequence[LinearLayer]) -> None:
        """Changes a model in place."""
        if self.kernel is LinearKernel.STOCK:
            return
        for layer in layers:
            if self.most_rows is not None:
                layer.packed.keep(layer.stock.weight, self.most_rows)
            if self.kernel is LinearKernel.FUSED and layer.gelu:
                layer.packed.fuse_gelu(layer.gelu)
                setattr(layer.parent, layer.activation, nn.Identity())
            setattr(layer.parent, layer.name, layer.packed)


STOCK = LinearPlan()
Times = Mapping[LinearKernel, Sequence[float]]
"""Seconds of all layers of a model, for each number of `ROWS`; the stock way is always among the ways."""
_plans: dict[object, LinearPlan] = {}
"""By what was measured: models of one shape in a process run alike, and wait once."""


def install_fastest(model: nn.Module) -> tuple[LinearPlan, str]:
    """Lets a CPU model's linear layers run the fastest way, in place; and what was found out, for the log."""
    layers = packed_layers(model)
    if not layers:
        return STOCK, ""
    packed = [each.packed.packed for each in layers]
    copy = sum(each.numel() * each.element_size() for each in packed)
    twice, shapes = copy <= TWICE, frozenset(Counter(map(_kind, layers)).items())
    key = (shapes, layers[0].stock.weight.dtype, torch.get_num_threads(), twice)
    if key not in _plans:
        _plans[key] = decide(measured(layers), twice=twice)
    plan = _plans[key]
    plan.install(layers)
    kept = "" if plan.most_rows is None else f"; weights are kept twice, which takes {copy / MEBIBYTE:.0f} MiB"
    return plan, f"linear layers: {plan}{kept}"


def decide(times: Times, *, twice: bool) -> LinearPlan:
    """The fastest plan. Packed layers are the usual way; near ties stay with it.

    `twice`: whether the weights may be kept twice. Then ways are switched where each is clearly ahead on its own side.
    """
    usual, stock = (
        LinearKernel.PACKED if LinearKernel.PACKED in times else LinearKernel.STOCK,
        times[LinearKernel.STOCK],
    )
    best = min(
        (way for way in times if _pays(times[way], times[usual])),
        key=lambda way: _ratio(times[way], times[usual]),
        default=usual,
    )
    plan, least = LinearPlan(best), _ratio(times[best], times[usual])
    for few in range(1, len(stock)) if twice and usual is LinearKernel.PACKED else ():
        packed, fused = times[LinearKernel.PACKED], times.get(LinearKernel.FUSED)
        way = LinearKernel.FUSED if fused and _pays(fused[:few], packed[:few]) else LinearKernel.PACKED
        own = times[way]
        ahead = _ratio(own[:few], stock[:few]) < PAYS and _ratio(stock[few:], own[few:]) < PAYS
        ratio = _ratio([*own[:few], *stock[few:]], times[usual])
        if ahead and ratio < least:
            plan, least = LinearPlan(way, ROWS[few - 1]), ratio
    return plan


def measured(layers: Sequence[LinearLayer], clock: Clock = time.thread_time) -> Times:
    """By every way that serves here."""
    ways = [LinearKernel.PACKED, LinearKernel.STOCK, *([LinearKernel.FUSED] if fuses(layers) else [])]
    with torch.inference_mode():
        found = [_seconds(layers, ways, rows, clock) for rows in ROWS]
    return {way: [each[way] for each in found] for way in ways if all(way in each for each in found)}


def _seconds(
    layers: Sequence[LinearLayer], ways: Sequence[LinearKernel], rows: int, clock: Clock
) -> dict[LinearKernel, float]:
    """Of all layers together, by each way that does not fail; told by a few layers of each kind."""
    sample = _sample(layers, rows)
    states = {each.in_features: torch.randn(rows, each.in_features) for each in (layer.stock for layer, _ in sample)}
    states = {inputs: each.to(layers[0].stock.weight.dtype) for inputs, each in states.items()}
    runs = {
        (way, number): partial(_run, way, layer, states[layer.stock.in_features])
        for way in ways
        for number, (layer, _) in enumerate(sample)
        if layer.gelu or way is not LinearKernel.FUSED  # what has nothing to fuse is as fast as without
    }
    shortest = _shortest(runs, clock)
    found = {}
    for way in ways:
        own = [shortest.get((way if (way, n) in runs else LinearKernel.PACKED, n)) for n in range(len(sample))]
        if None not in own:
            found[way] = sum(seconds * stands for seconds, (_, stands) in zip(own, sample, strict=True) if seconds)
    return found


def _sample(layers: Sequence[LinearLayer], rows: int) -> list[tuple[LinearLayer, float]]:
    """A few of each kind, the same number, with how many layers of the model each stands for."""
    kinds: dict[object, list[LinearLayer]] = {}
    for layer in layers:
        kinds.setdefault(_kind(layer), []).append(layer)
    weights = sum(of[0].stock.weight.numel() for of in kinds.values())
    taken = [(of, of[: max(1, MULTIPLIED // (rows * weights))]) for of in kinds.values()]
    return [(layer, len(of) / len(few)) for of, few in taken for layer in few]


def _shortest(
    runs: Mapping[tuple[LinearKernel, int], Callable[[], object]], clock: Clock
) -> dict[tuple[LinearKernel, int], float]:
    """Seconds of the shortest run of each. Ways take turns, so that a moment in which the machine does something else
    is no way's own; those that fail are left out."""
    shortest: dict[tuple[LinearKernel, int], float] = {}
    left, start = dict(runs), clock()
    for done in range(ROUNDS):
        if done >= LEAST_ROUNDS and clock() - start > SECONDS:
            break
        for key, run in list(left.items()):
            begun = clock()
            try:
                run()
            except (AttributeError, RuntimeError):
                left.pop(key)
            else:
                shortest[key] = min(shortest.get(key, float("inf")), clock() - begun)
    return {key: shortest[key] for key in left}


def _run(way: LinearKernel, layer: LinearLayer, x: Tensor) -> Tensor:
    """The layer, and the GELU that follows it."""
    if way is LinearKernel.FUSED:
        return layer.packed.product(x, layer.gelu)
    y: Tensor = layer.stock(x) if way is LinearKernel.STOCK else layer.packed.product(x)
    return F.gelu(y, approximate=layer.gelu) if layer.gelu else y


def _kind(layer: LinearLayer) -> tuple[int, int, bool, str]:
    """Layers that are alike here take the same time."""
    return layer.stock.in_features, layer.stock.out_features, layer.stock.bias is None, layer.gelu


def _pays(times: Sequence[float], usual: Sequence[float]) -> bool:
    """Whether they are clearly shorter, and for no number of rows clearly longer: few rows are measured less surely."""
    slower = any(own * PAYS > other for own, other in zip(times, usual, strict=True))
    return not slower and _ratio(times, usual) < PAYS


def _ratio(times: Sequence[float], usual: Sequence[float]) -> float:
    """The mean over numbers of rows: a query matters as much as a document."""
    return sum(own / other for own, other in zip(times, usual, strict=True)) / len(times)
