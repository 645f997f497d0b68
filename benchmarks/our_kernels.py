"""The worker's kernels and linear layers in this process, each without a model; and what nothing could beat.

Products alone are the bound of everything that makes the same products on the same device in the same number format.
On a processor it is the speed of one large product through the worker's own linear layer, over the operations of the
model's linear layers: how many tokens a second there would be if nothing else took time. Attention's products are left
out, so texts of 512 tokens reach a smaller share than short ones. On an accelerator it is a product of 8,192 squared,
and a copy for memory. torch, transformers and numpy only.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.maxsim.maxsim_kernels import Comparison, Texts, choose
from gpu_worker.model.tune.linear import Int8Linear, pack
from shared.vectors import Layout

PRODUCT = (4096, 1536, 1536)
"""Rows, width in and out of the product that stands for a processor."""
SQUARE, COPIED = {"cuda": 8192, "cpu": 128}, {"cuda": 1 << 30, "cpu": 1 << 24}
"""Rows and columns of the product by device, and bytes of what is copied: beyond any cache."""


def maxsim(query: Tensor, rows: Tensor, lengths: Sequence[int]) -> Callable[[], Tensor]:
    """Makes the scoring of documents whose rows [N, D] lie end to end, as in a step, against a query [q, D]; it gives
    scores [S]."""
    scores: Any = choose(rows.device, rows.shape[1])
    texts = Texts.end_to_end(np.array([len(query)])), Texts.end_to_end(np.array(lengths))
    comparisons = [Comparison(queries=texts[0], documents=texts[1], layout=Layout.MATRIX)]
    return lambda: scores(query, rows, comparisons)


def formats() -> list[str]:
    """Number formats that this processor's kernels have, the one of eight bits last."""
    kernels = library.load()
    return [*sorted(str(dtype)[6:] for dtype in kernels.formats), *["int8"] * (not kernels.missing)]


def product(dtype: torch.dtype, *, int8: bool = False) -> Callable[[], float]:
    """Makes the large product, to be timed; it gives its operations. Random numbers, since zeros would run faster.

    `int8`: by weights and activations of eight bits, rounding of the activations included.
    """
    rows, inputs, outputs = PRODUCT
    linear = nn.Linear(inputs, outputs).to(dtype)
    if int8:
        layer: nn.Module = Int8Linear(linear)
    else:
        layer = nn.Sequential(linear)
        pack(layer)  # as the worker does outside of whole layers
    states = torch.randn(rows, inputs).to(dtype)

    @torch.inference_mode()
    def run() -> float:
        layer(states)
        return 2.0 * rows * inputs * outputs

    return run


def flops(device: torch.device) -> float:
    """Measures the operations a second of a square product in bfloat16."""
    side = SQUARE[device.type]
    left, right = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    into = torch.empty_like(left)
    return 2 * side**3 / seconds(lambda: torch.mm(left, right, out=into), device)


def bandwidth(device: torch.device) -> float:
    """Measures the bytes a second that a copy reads and writes."""
    source = torch.empty(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / seconds(lambda: target.copy_(source), device)


def link(device: torch.device) -> float:
    """Measures the bytes a second that come from the device into pinned memory of the host."""
    source = torch.empty(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty(len(source), dtype=torch.uint8, pin_memory=device.type == "cuda")
    return len(source) / seconds(lambda: target.copy_(source, non_blocking=True), device)


def seconds(work: Callable[[], object], device: torch.device, launches: int = 10, rounds: int = 7) -> float:
    """Measures the seconds of a launch: by events around many on CUDA, by the clock elsewhere; the median of rounds."""

    def timed() -> float:
        if device.type != "cuda":
            start = time.perf_counter()
            for _ in range(launches):
                work()
            return (time.perf_counter() - start) / launches
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(launches):
            work()
        last.record()
        torch.cuda.synchronize(device)
        return float(first.elapsed_time(last)) / 1e3 / launches

    timed()  # warms up
    return float(np.median([timed() for _ in range(rounds)]))
