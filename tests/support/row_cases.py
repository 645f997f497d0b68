"""Rows and segments for tests of the kernels that sum and finish rows, and those kernels interpreted."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from gpu_worker.device.transfer import Upload
from gpu_worker.kernels.rows.row_kernels import RowKernels, WeightedRanges
from support.interpreted import interpreted

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@contextmanager
def interpreted_rows() -> Iterator[list[ModuleType]]:
    """What runs on the device, and what launches it."""
    with (
        interpreted("gpu_worker.kernels.rows.row_tiles", "gpu_worker.kernels.rows.triton_rows") as found,
        np.errstate(all="ignore"),  # it computes by numpy, which warns where devices do not
    ):
        yield found


def some_rows(count: int, width: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(count, width, generator=generator) * 3).to(dtype)


def total(kernels: RowKernels, ranges: WeightedRanges, rows: Tensor) -> Tensor:
    upload = Upload(rows.device)
    summed = kernels.weighted_sum(ranges, upload)
    upload.send()
    return summed(rows)


def segments_of(starts: list[int], lengths: list[int], growth: int = 0, first: int = 1) -> WeightedRanges:
    divisors = np.maximum(np.array(lengths, dtype=np.float64) * first, 1e-9)
    one = np.full(len(lengths), first, dtype=np.int64)
    return WeightedRanges(
        starts=np.array(starts, dtype=np.int64),
        lengths=np.array(lengths, dtype=np.int64),
        first=one,
        growth=growth,
        divisors=divisors,
    )


@st.composite
def some_segments(draw: st.DrawFn, rows: int, longest: int, most: int) -> WeightedRanges:
    """At most so many of `rows`, of at most `longest` rows, in any order, with gaps, overlapping, empty."""
    lengths = draw(st.lists(st.integers(0, longest), min_size=0, max_size=most))
    starts = [draw(st.integers(0, rows - length)) for length in lengths]
    return segments_of(starts, lengths, draw(st.sampled_from([0, 1])), draw(st.integers(1, 20)))
