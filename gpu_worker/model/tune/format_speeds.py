"""How fast this processor multiplies in each number format: a few milliseconds at load, told in the log."""

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor, nn

from gpu_worker.device.fastest import shortest_seconds
from gpu_worker.kernels.cpu.library import KernelLibrary
from gpu_worker.model.tune.blocked_linear import BlockedLinear, PackedLinear
from gpu_worker.model.tune.int8 import QuantizedLinear
from gpu_worker.model.tune.split import NAMES, SplitLinear

ROWS, INPUTS, OUTPUTS, ROUNDS = 256, 384, 1536, 7
"""Sizes of the measured product, and how often each format runs it."""
CLEAR = 1.2
"""Least ratio of speeds that is worth a word."""
SETTINGS = {"bfloat16": "--dtype bfloat16", "int8": "--linear int8"}
"""What makes a model run in a format."""


@cache
def product_seconds(kernels: KernelLibrary) -> Mapping[str, float]:
    """Measures the seconds of one product in each format that the processor's kernels have, by its name.

    So too for float32 by products of bfloat16, by the names of `split`, where the kernels have both.
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
    with torch.inference_mode():
        runs = {name: lambda side=side: side[0](side[1]) for name, side in sides.items()}
        return shortest_seconds(runs, ROUNDS)


def advice(seconds: Mapping[str, float], chosen: str) -> str:
    """A line on formats that are clearly faster than the `chosen` one, or on a chosen one that is clearly slower than
    float32; empty where there is neither. `seconds` as `product_seconds` gives them."""
    if chosen not in seconds or "float32" not in seconds:
        return ""
    ratios = {name: seconds[chosen] / seconds[name] for name in SETTINGS if name in seconds and name != chosen}
    faster = [f"{ratio:.1f} times by {SETTINGS[name]}" for name, ratio in ratios.items() if ratio >= CLEAR]
    if faster:
        return f"products would be faster on this processor: {', '.join(faster)}; they round more"
    slower = seconds[chosen] / seconds["float32"]
    if slower >= CLEAR:
        return f"{chosen} is slower than float32 on this processor: its products take {slower:.1f} times as long"
    return ""
