"""Chooses the kernel of a model's linear layers on a processor: measured at load, on the model's own layers.

Which library multiplies faster depends on the processor, its number of cores, the number format and the number of
rows. Where one is faster for few rows and another for many, both serve, if the weights may be kept twice. Knows nothing
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
"""Numbers of rows that products are measured with. Beyond the last one, kernels keep their order."""
SECONDS, LEAST_ROUNDS, ROUNDS = 0.1, 2, 20
"""Time that each number of rows is measured for, and the least and the most rounds."""
MULTIPLIED = 1 << 28
"""About how many rows x weights a round multiplies: with few rows many layers, since a cache does not hold a model."""
MEBIBYTE = 1024 * 1024
TWICE = 1024 * MEBIBYTE
"""Most bytes that a second copy of the weights may take."""
Clock = Callable[[], float]
"""A clock in seconds. `time.thread_time` counts a thread's share of a product, but not the time that other processes
take from it: on busy cores, four loads made four choices with the wall clock and two with this one."""


class LinearKernel(Enum):
    """Kernels of a linear layer: PyTorch's own; weights packed for oneDNN; the same with GELU fused."""

    STOCK = "torch"
    PACKED = "onednn-prepacked"
    FUSED = "onednn-prepacked with GELU"


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """All layers run by `kernel`; where `most_rows` is not None, up to so many rows, and by the stock kernel beyond."""

    kernel: LinearKernel = LinearKernel.STOCK
    most_rows: int | None = None

    def __str__(self) -> str:
        return (
            self.kernel.value
            if self.most_rows is None
            else f"{self.kernel.value} to {self.most_rows} rows, torch above"
        )

    def install(self, layers: Sequence[LinearLayer]) -> None:
        """Replaces the layers in their model."""
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
"""Seconds of all layers of a model by kernel, for each number of `ROWS`; the stock kernel is always there."""
_plans: dict[object, LinearPlan] = {}
"""Plans by what was measured: models of one shape in a process run alike, and are measured once."""


def install_fastest(model: nn.Module) -> tuple[LinearPlan, str]:
    """Makes a CPU model's linear layers run by the fastest kernel, in place. Returns the plan and a log line."""
    layers = packed_layers(model)
    if not layers:
        return STOCK, ""
    packed = [layer.packed.packed for layer in layers]
    copy = sum(weight.numel() * weight.element_size() for weight in packed)
    twice, shapes = copy <= TWICE, frozenset(Counter(map(_kind, layers)).items())
    key = (shapes, torch.get_num_threads(), twice)
    if key not in _plans:
        _plans[key] = decide(measured(layers), twice=twice)
    plan = _plans[key]
    plan.install(layers)
    memory = "" if plan.most_rows is None else f"; weights are kept twice, which takes {copy / MEBIBYTE:.0f} MiB"
    return plan, f"linear layers: {plan}{memory}"


def decide(times: Times, *, twice: bool) -> LinearPlan:
    """The fastest plan. Packed layers are the usual kernel; near ties stay with it.

    `twice`: whether the weights may be kept twice. If so, a plan may switch kernels at a number of rows where each of
    the two is clearly faster on its side.
    """
    usual = LinearKernel.PACKED if LinearKernel.PACKED in times else LinearKernel.STOCK
    stock = times[LinearKernel.STOCK]
    best = min(
        (kernel for kernel in times if _pays(times[kernel], times[usual])),
        key=lambda kernel: _ratio(times[kernel], times[usual]),
        default=usual,
    )
    plan, least = LinearPlan(best), _ratio(times[best], times[usual])
    for few in range(1, len(stock)) if twice and usual is LinearKernel.PACKED else ():
        packed, fused = times[LinearKernel.PACKED], times.get(LinearKernel.FUSED)
        kernel = LinearKernel.FUSED if fused and _pays(fused[:few], packed[:few]) else LinearKernel.PACKED
        seconds = times[kernel]
        ahead = _ratio(seconds[:few], stock[:few]) < PAYS and _ratio(stock[few:], seconds[few:]) < PAYS
        ratio = _ratio([*seconds[:few], *stock[few:]], times[usual])
        if ahead and ratio < least:
            plan, least = LinearPlan(kernel, ROWS[few - 1]), ratio
    return plan


def measured(layers: Sequence[LinearLayer], clock: Clock = time.thread_time) -> Times:
    """Measures every kernel that runs on this processor."""
    kernels = [LinearKernel.PACKED, LinearKernel.STOCK, *([LinearKernel.FUSED] if fuses(layers) else [])]
    with torch.inference_mode():
        by_rows = [_seconds(layers, kernels, rows, clock) for rows in ROWS]
    return {
        kernel: [seconds[kernel] for seconds in by_rows]
        for kernel in kernels
        if all(kernel in seconds for seconds in by_rows)
    }


def _seconds(
    layers: Sequence[LinearLayer], kernels: Sequence[LinearKernel], rows: int, clock: Clock
) -> dict[LinearKernel, float]:
    """Seconds of all layers together by each kernel that does not fail, estimated from a few layers of each kind."""
    sample = _sample(layers, rows)
    kinds = {(layer.stock.in_features, layer.stock.weight.dtype) for layer, _ in sample}  # heads may be in float32
    states = {(width, dtype): torch.randn(rows, width).to(dtype) for width, dtype in kinds}
    runs = {
        (kernel, number): partial(_run, kernel, layer, states[layer.stock.in_features, layer.stock.weight.dtype])
        for kernel in kernels
        for number, (layer, _) in enumerate(sample)
        if layer.gelu or kernel is not LinearKernel.FUSED  # a layer without a GELU runs by the packed kernel
    }
    shortest = _shortest(runs, clock)
    totals = {}
    for kernel in kernels:
        times = [shortest.get((kernel if (kernel, n) in runs else LinearKernel.PACKED, n)) for n in range(len(sample))]
        if None not in times:
            totals[kernel] = sum(seconds * count for seconds, (_, count) in zip(times, sample, strict=True) if seconds)
    return totals


def _sample(layers: Sequence[LinearLayer], rows: int) -> list[tuple[LinearLayer, float]]:
    """The same number of layers of each kind, and how many layers of the model each of them stands for."""
    kinds: dict[object, list[LinearLayer]] = {}
    for layer in layers:
        kinds.setdefault(_kind(layer), []).append(layer)
    weights = sum(alike[0].stock.weight.numel() for alike in kinds.values())
    samples = [(alike, alike[: max(1, MULTIPLIED // (rows * weights))]) for alike in kinds.values()]
    return [(layer, len(alike) / len(few)) for alike, few in samples for layer in few]


def _shortest(
    runs: Mapping[tuple[LinearKernel, int], Callable[[], object]], clock: Clock
) -> dict[tuple[LinearKernel, int], float]:
    """Seconds of the shortest run of each; runs that fail are left out.

    Kernels alternate, so that a moment in which the machine does something else does not fall on one of them alone.
    """
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


def _run(kernel: LinearKernel, layer: LinearLayer, x: Tensor) -> Tensor:
    """Runs the layer and the GELU that follows it."""
    if kernel is LinearKernel.FUSED:
        return layer.packed.product(x, layer.gelu)
    y: Tensor = layer.stock(x) if kernel is LinearKernel.STOCK else layer.packed.product(x)
    return F.gelu(y, approximate=layer.gelu) if layer.gelu else y


def _kind(layer: LinearLayer) -> tuple[int, int, bool, str, torch.dtype]:
    """The kind of a layer: layers of one kind take the same time."""
    stock = layer.stock
    return stock.in_features, stock.out_features, stock.bias is None, layer.gelu, stock.weight.dtype


def _pays(times: Sequence[float], usual: Sequence[float]) -> bool:
    """Whether `times` are clearly shorter than the usual ones, and clearly longer for no number of rows.

    The second condition is there because few rows are measured less precisely.
    """
    slower = any(seconds * PAYS > before for seconds, before in zip(times, usual, strict=True))
    return not slower and _ratio(times, usual) < PAYS


def _ratio(times: Sequence[float], usual: Sequence[float]) -> float:
    """Mean ratio to the usual times over all numbers of rows: a query matters as much as a document."""
    return sum(seconds / before for seconds, before in zip(times, usual, strict=True)) / len(times)
