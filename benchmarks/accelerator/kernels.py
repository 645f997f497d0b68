"""Attention and MaxSim alone, on inputs that no cache holds: microseconds, and the share of what the device could do.

Attention's limit is its two products; that of MaxSim is reading all rows of the documents once. MaxSim's kernel is
timed by graph replay, the whole call as Python makes it.
"""

from functools import partial
from math import ceil

import torch
import torch.nn.functional as F

from benchmarks import our_kernels, ours
from benchmarks.accelerator.report import Row
from benchmarks.workloads import QUERY, WIDTH, Scale

HEADS, ACROSS = (64, 128, 256), 1024
"""Numbers of a head, and of all heads together."""
LENGTHS, TOKENS = {True: (2048, 4096, 8192), False: (64, 128)}, {True: 16_384, False: 128}
"""Lengths of texts, and tokens of all texts, for attention; by whether the scale is full."""
ONE, MANY = ((1, 1000, 300, 25), (1, 5000, 300, 105), (1, 5000, 1024, 360)), ((32, 50, 180, 25), (32, 100, 256, 60))
SHAPES = (*ONE, *MANY, (2, 20, 60, 0))
"""Shapes of MaxSim: queries, documents of each, tokens of a document, target in us on an H200. The last is a trial."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROTATED = {"cuda": 1 << 28, "cpu": 1 << 16}
"""Bytes of the inputs that are used in rotation: several times a cache."""


def attention(device: torch.device, scale: Scale, head: int, limits: Row) -> list[Row]:
    """Measures attention: a row for each length of texts."""
    rows, place = [], ours.Placement.choose(str(device))
    for length in LENGTHS[scale == "full"]:
        lengths = [length] * (TOKENS[scale == "full"] // length)
        with torch.inference_mode():
            took = our_kernels.seconds(our_kernels.attention(ACROSS // head, head, lengths, place), device)
        limit = 4.0 * len(lengths) * length**2 * ACROSS / limits["flops"]
        row = {"head": head, "texts": f"{len(lengths)} x {length:,}", "us": round(1e6 * took, 1)}
        rows.append(row | {"% of products": round(100 * limit / took, 1)})
    return rows


def maxsim(device: torch.device, scale: Scale, dtype: torch.dtype, limits: Row) -> list[Row]:
    """Measures MaxSim, a row for each shape: every query against documents of its own, in one call."""
    return [_row(shape, dtype, device, limits["memory"]) for shape in (SHAPES if scale == "full" else SHAPES[-1:])]


def _row(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, speed: float) -> Row:
    queries, documents, tokens, goal = shape
    lengths = [tokens] * (queries * documents)
    size = sum(lengths) * WIDTH * dtype.itemsize
    counts = (queries * QUERY, sum(lengths))
    all_inputs = [
        [F.normalize(torch.randn(count, WIDTH, device=device), dim=1).to(dtype) for count in counts]
        for _ in range(max(2, ceil(ROTATED[device.type] / size)))
    ]
    scoring = partial(our_kernels.maxsim, lengths=lengths, queries=queries)
    kernel = our_kernels.replayed([scoring(*inputs, kernel_alone=True) for inputs in all_inputs], device)
    call = our_kernels.seconds(scoring(*all_inputs[0]), device)
    figures = {"kernel us": 1e6 * kernel, "call us": 1e6 * call, "% of limit": 100 * size / speed / kernel}
    name = f"{queries} x {documents:,} x {tokens:,}, {str(dtype).removeprefix('torch.')}"
    return {"shape": name, **{figure: round(value, 1) for figure, value in figures.items()}, "goal us": goal}
