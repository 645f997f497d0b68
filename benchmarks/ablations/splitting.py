"""(b) A step's rows split by sequence from the host's lengths, against bounds read from a device tensor.

On a CPU such a read is a function call; on CUDA it waits for all that was launched before. There the second case has
work on the device when the split begins, as a step has, and tells how long the host is held.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.ablations import lengths
from benchmarks.ablations.ablation import Ablation, Published
from benchmarks.ablations.case import Array, Case
from benchmarks.ablations.conditions import Conditions
from gpu_worker.ragged.batch import Counts

WIDTH = 128
SPLIT, VIEWS = "one split by host lengths", "numpy views by host offsets"
READ, LIST = "a read of the device a bound", "all bounds read at once"


def case_of(found: Counts, conditions: Conditions, before: Callable[[], object] | None = None) -> Case:
    """Rows [T, 128] on the device -> one view [length, 128] a sequence. The numpy views are of rows shipped before."""
    generator = torch.Generator().manual_seed(conditions.seed)
    shipped = torch.randn(int(found.sum()), WIDTH, generator=generator)
    rows, ours = shipped.to(conditions.device), found.tolist()
    offsets = np.concatenate([[0], np.cumsum(found)])
    bounds = torch.from_numpy(offsets).to(conditions.device)

    def split() -> list[Tensor]:
        return list(rows.split(ours))

    def views() -> list[Array]:
        array = shipped.numpy()
        return [array[start:stop] for start, stop in pairwise(offsets.tolist())]

    def read() -> list[Tensor]:
        return [rows[int(bounds[each].item()) : int(bounds[each + 1].item())] for each in range(len(ours))]

    def at_once() -> list[Tensor]:
        return [rows[start:stop] for start, stop in pairwise(bounds.tolist())]

    return Case(
        name=f"{len(ours):,} sequences" + (", the device busy" if before else ""),
        given={"sequences": len(ours), "tokens": int(found.sum()), "width": WIDTH, "dtype": "float32"},
        ours=SPLIT,
        variants={SPLIT: split, VIEWS: views, READ: read, LIST: at_once},
        counts={
            SPLIT: {"device_reads": 0},
            VIEWS: {"device_reads": 0},
            READ: {"device_reads": 2 * len(ours)},
            LIST: {"device_reads": 1},
        },
        before=before,
    )


def work(device: torch.device) -> Callable[[], object]:
    """About a millisecond of products for an accelerator."""
    square = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)

    def launch() -> object:
        made = square
        for _ in range(4):
            made = made @ square
        return made

    return launch


def measure(conditions: Conditions) -> Iterator[dict[str, Any]]:
    for count in (16, 64, 256):
        yield case_of(lengths.lognormal(count, conditions.seed, mean=64), conditions).measure(conditions)
    if conditions.accelerated:
        found = lengths.lognormal(64, conditions.seed, mean=64)
        yield case_of(found, conditions, work(conditions.device)).measure(conditions)


ABLATION = Ablation(
    letter="b",
    idea="rows split by sequence from lengths on the host, against per-sequence slices with device reads",
    how="the same rows and lengths; views in every variant, nothing is copied",
    measure=measure,
    published=(
        Published(
            who="vLLM", what="splitting a step's rows by sequence, on an accelerator", value=39.65e-6, unit="seconds"
        ),
        Published(who="our goal", what="the same without a wait for the device", value=5e-6, unit="seconds"),
    ),
)
