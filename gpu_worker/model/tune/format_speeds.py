"""How fast this processor multiplies in each number format: a few milliseconds at load, told in log and card."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

from gpu_worker.device.fastest import shortest_seconds
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model.tune.blocked_linear import BlockedLinear, PackedLinear
from gpu_worker.model.tune.int8 import QuantizedLinear
from gpu_worker.model.tune.split import NAMES, SplitLinear

ROWS, INPUTS, OUTPUTS, ROUNDS = 256, 384, 1536, 10
"""Sizes of the measured product, and how often each format runs it."""
CLEAR = 1.2
"""Least ratio of speeds that is worth a word."""
USUAL = "float32"
"""The format that processors run by default, and that all others are compared with."""
SETTINGS = {"bfloat16": "--dtype bfloat16", "int8": "--linear int8"}
"""What makes a model run in a format that rounds more, from the one that rounds least to the one that rounds most."""


@cache
def product_seconds(kernels: KernelLibrary) -> Mapping[str, float]:
    """Measures the seconds of one product in each format that the processor's kernels have, by its name.

    So too for float32 by products of bfloat16, by the names of `split`, where the kernels have both. It takes a single
    thread: several wait for each other on a busy machine, and that is no matter of formats.
    """
    torch.manual_seed(0)
    linear, rows = nn.Linear(INPUTS, OUTPUTS), torch.randn(ROWS, INPUTS)
    sides: dict[str, tuple[BlockedLinear, Tensor]] = {}
    for dtype in kernels.formats:
        sides[str(dtype).removeprefix("torch.")] = (PackedLinear(linear.to(dtype)), rows.to(dtype))
    if {torch.float32, torch.bfloat16} <= kernels.formats:
        sides |= {name: (SplitLinear(linear.float(), parts=parts), rows) for parts, name in NAMES.items()}
    if kernels.int8:
        sides["int8"] = (QuantizedLinear(linear.float()), rows)
    with torch.inference_mode(), _one_thread():
        runs = {name: lambda side=side: side[0](side[1]) for name, side in sides.items()}
        return shortest_seconds(runs, ROUNDS)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Makes PyTorch compute in the calling thread alone inside the `with` block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def faster(seconds: Mapping[str, float], chosen: str) -> dict[str, float]:
    """The formats that multiply clearly faster than the `chosen` one, and how many times as fast they are.

    `seconds` as `product_seconds` gives them. Empty where the chosen format was not measured.
    """
    if chosen not in seconds:
        return {}
    ratios = {name: seconds[chosen] / seconds[name] for name in SETTINGS if name in seconds and name != chosen}
    return {name: ratio for name, ratio in ratios.items() if ratio >= CLEAR}


def fastest(seconds: Mapping[str, float]) -> str:
    """The fastest of the formats that were measured; float32 where it was not measured itself.

    A format that rounds more has to be clearly faster than all that round less. Near ties are noise, and all workers of
    a kind should choose alike.
    """
    best = USUAL
    for name in SETTINGS:
        if {name, USUAL} <= seconds.keys() and seconds[name] * CLEAR <= seconds[best]:
            best = name
    return best


def advice(ratios: Mapping[str, float], cosines: Mapping[str, float], unmeasured: str) -> str:
    """A line on the formats that are clearly faster; empty where there are none.

    `ratios` as `faster` gives them. `cosines`: what the model would keep in each format. `unmeasured` is why a format
    has no cosine.
    """
    parts = []
    for name, ratio in ratios.items():
        cosine = f"cosine to float32 {floored(cosines[name])}" if name in cosines else f"cosine {unmeasured}"
        parts.append(f"products in {name} are {ratio:.1f} x as fast on this processor; {cosine}: {SETTINGS[name]}")
    return "; ".join(parts)


def warning(seconds: Mapping[str, float], chosen: str) -> str:
    """A line where the `chosen` format is clearly slower than float32; empty where it is not."""
    if chosen not in seconds or USUAL not in seconds or seconds[chosen] < CLEAR * seconds[USUAL]:
        return ""
    ratio = seconds[chosen] / seconds[USUAL]
    return f"{chosen} is slower than float32 on this processor: its products take {ratio:.1f} times as long"


def floored(cosine: float) -> str:
    """A cosine for people: as many digits as it takes to tell it from 1, and never more than it is."""
    digits = 4
    while digits < 8 and 1 - cosine < 10.0**-digits:
        digits += 1
    scale = 10**digits
    return f"{int(cosine * scale) / scale:.{digits}f}"
