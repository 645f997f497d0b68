"""Attention and MaxSim alone, on inputs that no cache holds: microseconds, and the share of what the device could do.

Attention's limit is its two products; that of MaxSim is reading all rows of the documents once. MaxSim's kernel is
timed by graph replay, the whole call as Python makes it.
"""

from functools import partial
from math import ceil

import torch
import torch.nn.functional as F

from benchmarks import ours, products
from benchmarks.accelerator.report import Row
from benchmarks.workloads import QUERY, WIDTH, Scale

HEADS, ACROSS = (64, 128, 256), 1024
"""Numbers of a head, and of all heads together."""
LENGTHS, TOKENS = {True: (2048, 4096, 8192), False: (64, 128)}, {True: 16_384, False: 128}
"""Of attention, by whether the scale is full."""
ONE, MANY = ((1, 1000, 300, 25), (1, 5000, 300, 105), (1, 5000, 1024, 360)), ((32, 50, 180, 25), (32, 100, 256, 60))
SHAPES = (*ONE, *MANY, (2, 20, 60, 0))
"""Of MaxSim: queries, documents of each, tokens of a document, microseconds wanted on an H200; the last to try out."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROTATED = {"cuda": 1 << 28, "cpu": 1 << 16}
"""Bytes of all inputs that take turns: several times a cache."""


def attention(device: torch.device, scale: Scale, head: int, limits: Row) -> list[Row]:
    """A row a length of texts."""
    found, place = [], ours.Placement.choose(str(device))
    for length in LENGTHS[scale == "full"]:
        lengths = [length] * (TOKENS[scale == "full"] // length)
        with torch.inference_mode():
            took = products.seconds(ours.attention(ACROSS // head, head, lengths, place), device)
        limit = 4.0 * len(lengths) * length**2 * ACROSS / limits["flops"]
        told = {"head": head, "texts": f"{len(lengths)} x {length:,}", "us": round(1e6 * took, 1)}
        found.append(told | {"% of products": round(100 * limit / took, 1)})
    return found


def maxsim(device: torch.device, scale: Scale, dtype: torch.dtype, limits: Row) -> list[Row]:
    """A row a shape: every query against documents of its own, in one call."""
    return [_row(each, dtype, device, limits["memory"]) for each in (SHAPES if scale == "full" else SHAPES[-1:])]


def _row(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, speed: float) -> Row:
    queries, documents, tokens, goal = shape
    lengths = [tokens] * (queries * documents)
    size = sum(lengths) * WIDTH * dtype.itemsize
    counts = (queries * QUERY, sum(lengths))
    made = [
        [F.normalize(torch.randn(each, WIDTH, device=device), dim=1).to(dtype) for each in counts]
        for _ in range(max(2, ceil(ROTATED[device.type] / size)))
    ]
    asked = partial(ours.maxsim, lengths=lengths, queries=queries)
    kernel = products.replayed([asked(*each, kernel_alone=True) for each in made], device)
    call = products.seconds(asked(*made[0]), device)
    told = {"kernel us": 1e6 * kernel, "call us": 1e6 * call, "% of limit": 100 * size / speed / kernel}
    name = f"{queries} x {documents:,} x {tokens:,}, {str(dtype).removeprefix('torch.')}"
    return {"shape": name, **{what: round(value, 1) for what, value in told.items()}, "goal us": goal}
